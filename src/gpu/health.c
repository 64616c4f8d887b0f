/* Judging cards; see the header. */
#include "gpu/health.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <stdio.h>

/* XIDs after which a card, its memory or its links cannot be trusted. Others (13, 31, 43, 45, ...)
   are what programs do to themselves: the program ends, the card is well. */
static const struct {
    uint32_t xid;
    const char *text;
} bad[] = {
    {48, "memory error that could not be corrected"},
    {61, "its microcontroller stopped"},
    {62, "its microcontroller stopped"},
    {64, "a faulty row of memory could not be replaced"},
    {74, "NVLink error"},
    {79, "fell off the bus"},
    {92, "many memory errors in little time"},
    {95, "memory error that reached more than one program"},
    {119, "its system processor does not answer"},
    {120, "its system processor failed"},
    {140, "memory error that could not be corrected"},
};

const char *vg_health_xid(uint32_t xid) {
    for (size_t i = 0; i < VG_COUNT(bad); i++)
        if (bad[i].xid == xid)
            return bad[i].text;
    return NULL;
}

void vg_health_init(struct vg_health *h) {
    *h = (struct vg_health){.ecc_first = VG_NONE64};
}

static int fault(struct vg_health *h, const char *text) {
    if (h->fault[0])
        return 0;
    snprintf(h->fault, sizeof(h->fault), "%s", text);
    return 1;
}

int vg_health_sample(struct vg_health *h, const struct vg_card_sample *s) {
    char text[160];
    h->lost_in_a_row = s->lost ? h->lost_in_a_row + 1 : 0;
    if (s->lost && h->lost_in_a_row >= 2) /* one refusal may be a driver that is being replaced */
        return fault(h, "fell off the bus");
    if (s->ecc_uncorrected == VG_NONE64)
        return 0;
    if (h->ecc_first == VG_NONE64)
        h->ecc_first = s->ecc_uncorrected;
    if (s->ecc_uncorrected <= h->ecc_first)
        return 0;
    snprintf(text, sizeof(text), "%llu memory errors that could not be corrected",
             (unsigned long long)(s->ecc_uncorrected - h->ecc_first));
    return fault(h, text);
}

int vg_health_event(struct vg_health *h, const struct vg_card_event *e) {
    char text[160];
    const char *why = vg_health_xid(e->xid);
    h->xid = e->xid;
    if (!why)
        return 0;
    snprintf(text, sizeof(text), "%s (XID %u)", why, e->xid);
    return fault(h, text);
}

int vg_health_silent(struct vg_health *h, uint64_t usec) {
    char text[160];
    snprintf(text, sizeof(text), "its driver has not answered for %llu s",
             (unsigned long long)(usec / VG_USEC));
    return fault(h, text);
}

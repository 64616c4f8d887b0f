/* Logins that were refused, for the audit log: counted by address and way, so that whoever guesses
   writes a bounded number of lines, however many addresses he has. */
#include "base/mem.h"
#include "base/util.h"
#include "control/audit.h"

#include <stdio.h>
#include <string.h>

#define KEPT_APART 64               /* addresses and ways; others are counted together */
#define WINDOW_USEC (300 * VG_USEC) /* in which one of them is told twice at most */
#define WHY_MAX 160

struct vg_refused {
    struct one {
        char from[64], how[16], why[WHY_MAX]; /* the newest reason */
        uint64_t since_usec;                  /* boot clock; 0: not in use */
        uint64_t more;                        /* after the first */
    } one[KEPT_APART + 1];                    /* the last is everybody else's */
};

static void tell(struct vg_control *c, struct one *o) {
    if (o->more)
        vg_audit_note(c, "", o->from, "login refused (%s): %llu times more in %llu s; lastly: %s",
                      o->how, (unsigned long long)o->more,
                      (unsigned long long)((vg_now_usec() - o->since_usec) / VG_USEC), o->why);
    o->since_usec = o->more = 0;
}

/* Its place: the one it has, a free one, or the common one. */
static struct one *place(struct vg_refused *r, const char *from, const char *how) {
    struct one *unused = NULL;
    for (size_t i = 0; i < KEPT_APART; i++) {
        struct one *o = &r->one[i];
        if (!o->since_usec)
            unused = unused ? unused : o;
        else if (strcmp(o->from, from) == 0 && strcmp(o->how, how) == 0)
            return o;
    }
    return unused ? unused : &r->one[KEPT_APART];
}

void vg_audit_refused(struct vg_control *c, const char *from, const char *how, const char *why) {
    if (!c->refused)
        c->refused = vg_alloc(sizeof *c->refused);
    if (!c->refused)
        return;
    struct one *o = place(c->refused, from, how);
    bool common = o == &c->refused->one[KEPT_APART];
    snprintf(o->why, sizeof o->why, "%s", why);
    if (o->since_usec) {
        o->more++;
        return;
    }
    snprintf(o->from, sizeof o->from, "%s", common ? "many addresses" : from);
    snprintf(o->how, sizeof o->how, "%s", common ? "any way" : how);
    o->since_usec = vg_now_usec();
    vg_audit_note(c, "", o->from, "login refused (%s): %s", o->how, o->why);
}

void vg_audit_refused_tick(struct vg_control *c, bool all) {
    uint64_t now = vg_now_usec();
    for (size_t i = 0; c->refused && i <= KEPT_APART; i++) {
        struct one *o = &c->refused->one[i];
        if (o->since_usec && (all || now - o->since_usec >= WINDOW_USEC))
            tell(c, o);
    }
}

/* Whether the control plane can do its work now; see the header. Whether the store can be written
   is known by writing: asking begins a small write, at most one in five seconds, and the last one's
   outcome counts. */
#include "control/ready.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define PROBE_USEC (5 * VG_USEC)

static void probed(void *arg, int result) {
    struct vg_control *c = arg;
    c->ready.probing = false;
    c->ready.result = result < 0 ? result : 0;
}

static void probe(struct vg_control *c) {
    uint64_t now = vg_now_usec();
    if (c->stopping || c->ready.probing ||
        (c->ready.probed_usec && now - c->ready.probed_usec < PROBE_USEC))
        return;
    c->ready.probed_usec = now;
    c->ready.probing = true;
    int r = vg_store_put_meta(c->store, "ready", "", VG_STORE_COMMIT, probed, c);
    if (r < 0)
        probed(c, r);
}

/* The n-th thing that is missing, or NULL when there are not so many. */
static const char *missing(const struct vg_control *c, size_t n, char *room, size_t size) {
    const char *all[4];
    size_t count = 0;
    if (c->stopping)
        all[count++] = "the control plane stops";
    if (c->ready.result < 0) {
        snprintf(room, size, "the store cannot be written: %s", strerror(-c->ready.result));
        all[count++] = room;
    }
    if (c->ca.server_expires_usec <= vg_wall_usec())
        all[count++] = "the server's certificate has expired";
    if (!c->settled)
        all[count++] = "nodes of its earlier life have not reported yet";
    return n < count ? all[n] : NULL;
}

bool vg_ready(struct vg_control *c) {
    char room[128];
    probe(c);
    return !missing(c, 0, room, sizeof room);
}

char *vg_ready_text(struct vg_control *c) {
    char room[128];
    const char *why;
    json_t *list = json_array();
    probe(c);
    for (size_t i = 0; (why = missing(c, i, room, sizeof room)); i++)
        json_array_append_new(list, json_string(why));
    json_t *j = json_pack("{s:b,s:o}", "ready", json_array_size(list) == 0, "why", list);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

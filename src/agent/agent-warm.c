/* The warm pool's policy; see the header. */
#include "agent/agent-warm.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vg_warm_init(struct vg_warm *w, uint32_t base) {
    vg_list_init(&w->profiles);
    w->base = VG_MIN(base, (uint32_t)VG_WARM_MAX);
}

static void profile_free(struct vg_warm_profile *p) {
    vg_list_remove(&p->link);
    free((char *)p->key.home);
    free(p);
}

void vg_warm_done(struct vg_warm *w) {
    vg_list_for_each_safe (it, &w->profiles)
        profile_free(vg_list_entry(it, struct vg_warm_profile, link));
}

static bool same_home(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_key(const struct vg_warm_key *a, const struct vg_warm_key *b) {
    return a->slot == b->slot && a->uid == b->uid && a->gid == b->gid &&
           a->local_root == b->local_root && a->mirrored == b->mirrored && a->net == b->net &&
           same_home(a->home, b->home);
}

static struct vg_warm_profile *profile_new(struct vg_warm *w, const struct vg_warm_key *key) {
    struct vg_warm_profile *p = vg_alloc(sizeof(*p));
    if (!p)
        return NULL;
    p->key = *key;
    p->key.home = vg_strdup(key->home);
    if (key->home && !p->key.home) {
        free(p);
        return NULL;
    }
    p->target = w->base;
    vg_list_init(&p->ready);
    vg_list_init(&p->lent);
    vg_list_init(&p->waiting);
    vg_list_init(&p->link);
    return p;
}

struct vg_warm_profile *vg_warm_use(struct vg_warm *w, const struct vg_warm_key *key,
                                    uint64_t now_usec) {
    struct vg_warm_profile *p = NULL;
    vg_list_for_each (it, &w->profiles) {
        p = vg_list_entry(it, struct vg_warm_profile, link);
        if (same_key(&p->key, key))
            break;
        p = NULL;
    }
    if (!p)
        p = profile_new(w, key);
    if (!p)
        return NULL;
    p->used_usec = now_usec;
    vg_list_remove(&p->link);
    vg_list_push_front(&w->profiles, &p->link);
    return p;
}

void vg_warm_missed(struct vg_warm *w, struct vg_warm_profile *p) {
    if (w->base > 0)
        p->target = VG_MIN(p->target * 2, (uint32_t)VG_WARM_MAX);
}

uint32_t vg_warm_allowance(const struct vg_warm *w, const struct vg_warm_profile *p) {
    uint32_t left = VG_WARM_TOTAL, rank = 0;
    vg_list_for_each (it, &w->profiles) {
        const struct vg_warm_profile *q = vg_list_entry(it, struct vg_warm_profile, link);
        uint32_t share = rank++ < VG_WARM_PROFILES ? VG_MIN(q->target, left) : 0;
        if (q == p)
            return share;
        left -= share;
    }
    return 0;
}

bool vg_warm_decay(struct vg_warm *w, uint64_t now_usec) {
    bool above = false;
    vg_list_for_each (it, &w->profiles) {
        struct vg_warm_profile *p = vg_list_entry(it, struct vg_warm_profile, link);
        if (now_usec - p->used_usec >= VG_WARM_IDLE_USEC)
            p->target = VG_MAX(p->target / 2, w->base);
        above = above || p->target > w->base;
    }
    return above;
}

void vg_warm_trim(struct vg_warm *w) {
    uint32_t rank = 0;
    vg_list_for_each_safe (it, &w->profiles) {
        struct vg_warm_profile *p = vg_list_entry(it, struct vg_warm_profile, link);
        if (rank++ >= VG_WARM_PROFILES &&
            p->n_ready + p->n_preparing + p->n_waiting + p->n_lent == 0)
            profile_free(p);
    }
}

int vg_warm_save(const struct vg_warm *w, struct vg_buf *out) {
    uint32_t n = 0;
    vg_list_for_each (it, &w->profiles) {
        const struct vg_warm_profile *p = vg_list_entry(it, struct vg_warm_profile, link);
        const char *home = p->key.home ? p->key.home : "-";
        if (strchr(home, '\n') || p->key.mirrored)
            continue;
        if (n++ == VG_WARM_SAVED)
            break;
        int r = vg_buf_printf(out, "%u %u %u %d %d %s\n", p->key.slot, p->key.uid, p->key.gid,
                              p->key.local_root, (int)p->key.net, home);
        if (r < 0)
            return r;
    }
    return 0;
}

static int load_line(struct vg_warm *w, char *line) {
    unsigned slot, uid, gid, root, net;
    int at = 0;
    if (sscanf(line, "%u %u %u %u %u %n", &slot, &uid, &gid, &root, &net, &at) != 5 || at == 0 ||
        root > 1 || net > VG_NET_NONE)
        return 0;
    const char *home = line + at;
    if (strcmp(home, "-") != 0 && home[0] != '/')
        return 0;
    struct vg_warm_key key = {.slot = slot,
                              .uid = uid,
                              .gid = gid,
                              .local_root = root,
                              .net = (enum vg_net_kind)net,
                              .home = home[0] == '/' ? home : NULL};
    return vg_warm_use(w, &key, 0) ? 0 : -ENOMEM;
}

int vg_warm_load(struct vg_warm *w, char *text) {
    char *lines[VG_WARM_SAVED];
    size_t n = 0;
    for (char *next = text, *line; n < VG_WARM_SAVED && (line = strsep(&next, "\n"));)
        if (line[0])
            lines[n++] = line;
    while (n > 0) { /* the oldest first: each use moves to the front */
        int r = load_line(w, lines[--n]);
        if (r < 0)
            return r;
    }
    return 0;
}

/* What happened so far; see the header. */
#include "control/counts.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

void vg_counts_done(struct vg_counts *c) {
    vg_map_for_each (s, &c->charges) {
        struct vg_charge_sum *sum = s->value;
        free(sum->key);
        free(sum);
    }
    vg_map_done(&c->charges);
    vg_map_for_each (s, &c->sums) {
        struct vg_sum *sum = s->value;
        free(sum->key);
        free(sum);
    }
    vg_map_done(&c->sums);
}

static struct vg_sum *sum_new(struct vg_counts *c, char *key, const char *pool, const char *team) {
    struct vg_sum *s = vg_alloc(sizeof *s);
    if (!s || vg_map_put(&c->sums, key, s) < 0) {
        free(s);
        free(key);
        return NULL;
    }
    s->key = key;
    snprintf(s->pool, sizeof s->pool, "%s", pool);
    snprintf(s->team, sizeof s->team, "%s", team);
    return s;
}

struct vg_sum *vg_counts_sum(struct vg_counts *c, const char *pool, const char *team) {
    char *key = vg_fmt("%s\n%s", pool, team);
    struct vg_sum *s = key ? vg_map_get(&c->sums, key) : NULL;
    if (!key)
        return NULL;
    if (!s && vg_map_len(&c->sums) < VG_COUNTS_SUMS_MAX)
        return sum_new(c, key, pool, team);
    free(key);
    if (s)
        return s;
    s = vg_map_get(&c->sums, "");
    return s || !(key = vg_strdup("")) ? s : sum_new(c, key, "others", "others");
}

void vg_used_add(struct vg_used *to, const struct vg_used *more) {
    to->gpu_milli_usec += more->gpu_milli_usec;
    to->cpu_usec += more->cpu_usec;
    to->energy_mj += more->energy_mj;
}

void vg_counts_charge(struct vg_counts *c, const char *pool, const char *currency, int64_t micro) {
    char *key = vg_fmt("%s\n%s", pool, currency);
    struct vg_charge_sum *s = key ? vg_map_get(&c->charges, key) : NULL;
    if (key && !s && vg_map_len(&c->charges) < VG_COUNTS_SUMS_MAX && (s = vg_alloc(sizeof *s))) {
        if (vg_map_put(&c->charges, key, s) < 0) {
            free(s);
            s = NULL;
        } else {
            s->key = key;
            key = NULL;
            snprintf(s->pool, sizeof s->pool, "%s", pool);
            snprintf(s->currency, sizeof s->currency, "%s", currency);
        }
    }
    if (s && micro > 0)
        s->micro += (uint64_t)micro;
    free(key);
}

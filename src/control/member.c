/* A member's own variables. */
#include "control/member.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

void vg_member_env_add(struct vg_member_env *e, const char *fmt, ...) {
    char *text = NULL;
    va_list ap;
    if (e->n == VG_MEMBER_ENV_MAX)
        return;
    va_start(ap, fmt);
    int len = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (len >= 0)
        e->env[e->n++] = (ProtobufCBinaryData){.data = (uint8_t *)text, .len = (size_t)len};
}

void vg_member_env_done(struct vg_member_env *e) {
    for (size_t i = 0; i < e->n; i++)
        free(e->env[i].data);
    e->n = 0;
}

/* The values of this point: a number with one digit for each variable. */
static void add_sweep(const Vg__Pb__TaskSpec *spec, uint64_t point, struct vg_member_env *e) {
    for (size_t i = spec->n_sweep; i-- > 0;) {
        const Vg__Pb__Sweep *w = spec->sweep[i];
        vg_member_env_add(e, "%s=%s", w->name, w->value[point % w->n_value]);
        point /= w->n_value;
    }
}

void vg_member_fill(const struct vg_task *t, Vg__Pb__TaskSpec *spec, struct vg_member_env *ret) {
    *ret = (struct vg_member_env){0};
    if (!t->group)
        return;
    spec->has_group = spec->has_index = spec->has_of = 1;
    spec->group = t->group;
    spec->index = t->index;
    spec->of = t->of;
    vg_member_env_add(ret, "VIRGA_SHARD=%u", t->index);
    vg_member_env_add(ret, "VIRGA_SHARDS=%u", t->of);
    if (spec->n_sweep)
        add_sweep(spec, t->index / VG_MAX(spec->shards, 1u), ret);
    if (spec->gang) {
        vg_member_env_add(ret, "RANK=%u", t->index);
        vg_member_env_add(ret, "WORLD_SIZE=%u", t->of);
    }
}

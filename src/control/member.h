#pragma once
/* What a member of a group is told that its group's spec does not say: which one it is. */
#include "model/task.h"

#define VG_MEMBER_ENV_MAX 24

/* KEY=VALUE for Start.extra_env; zero-initialised is empty. */
struct vg_member_env {
    ProtobufCBinaryData env[VG_MEMBER_ENV_MAX]; /* data owned */
    size_t n;
};

/* Fills in group, index and of, and the variables: VIRGA_SHARD and VIRGA_SHARDS, those of the
   sweep, for a gang RANK and WORLD_SIZE. A task that is no member gets nothing. The sweep's last
   variable changes fastest, and the shards of a point faster still. */
void vg_member_fill(const struct vg_task *t, Vg__Pb__TaskSpec *spec, struct vg_member_env *ret);
/* One more; silently left out when there is no room or memory. */
void vg_member_env_add(struct vg_member_env *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void vg_member_env_done(struct vg_member_env *e);

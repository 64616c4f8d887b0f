#pragma once
/* Recorded load under a configuration: what virga-sim whatif compares. */
#include "conf/conf.h"
#include "sim/recorded.h"

struct vg_whatif_task {
    uint64_t wait_usec; /* between ready and end in which it did no useful work */
    uint32_t stops;
    bool ended;
};

struct vg_whatif {
    struct vg_whatif_task *task; /* owned; as in the record */
    uint64_t refused;            /* tasks that the configuration has no place for */
    uint64_t stops, unfinished;
};

/* Plays the record through the engine as virgad sets it up from `conf`, on the nodes as they are
   now. Maintenance windows and reservations are not played. 0 or a sentence. */
int vg_whatif_run(const struct vg_recorded *r, const struct vg_conf *conf, struct vg_whatif *ret,
                  struct vg_err *err);
void vg_whatif_done(struct vg_whatif *w);

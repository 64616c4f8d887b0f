/* How much worse the world becomes by placing a task on a node. Pure. */
#include "sched/place.h"

/* Best fit: what is left on the node after it, GPUs before CPUs before memory. */
static int64_t leftover(const struct fit *f, const struct enode *n, uint64_t gpus) {
    int64_t milli = 0, card = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        milli += n->gpu[i].bad ? 0 : n->gpu[i].free_milli;
        if (gpus >> n->gpu[i].index & 1)
            card += n->gpu[i].free_milli;
    }
    int64_t cpu = n->cpu_free - (int64_t)f->res.cpu_milli;
    return milli * 4096 + card * 1024 + cpu / 1000;
}

int64_t vg_score(const struct vg_eng *e, const struct fit *f, const struct enode *n,
                 uint64_t gpus) {
    int64_t left = leftover(f, n, gpus);
    return e->conf.placing == VG_ENG_SPREAD ? -left : left;
}

void vg_score_note(struct vg_eng *e, const struct fit *f) {
    (void)e;
    (void)f;
}

int vg_eng_set_mix(struct vg_eng *e, const struct vg_eng_mix *mix, size_t n) {
    (void)e;
    (void)mix;
    (void)n;
    return 0;
}

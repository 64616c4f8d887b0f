#pragma once
/* Inside placement (enodes.c gpus.c fit.c score.c): what these four share. */
#include "sched/engine-int.h"

struct fit_world {
    struct vg_map racks; /* name -> struct rack */
    uint32_t n_racks;
    struct vg_map fits;    /* hash -> struct fit, further ones by fit.same */
    uint64_t rng;          /* of VG_ENG_RANDOM */
    struct vg_list ghosts; /* enode.ghosts */
    size_t holes;          /* free slots in vg_eng.node */
};

/* GPU memory that one member takes from a card of this size. */
uint64_t vg_fit_card_mem(const struct fit *f, uint64_t card_bytes);
/* Adds (sign 1) or takes back (-1) what a member holds; `gpus` may name cards that are gone. */
void vg_node_hold(struct enode *n, const struct fit *f, uint64_t gpus, int sign);
bool vg_labels_within(char *const *want, size_t n_want, char *const *have, size_t n_have);

char **vg_labels_dup(char *const *l, size_t n);
void vg_labels_free(char **l, size_t n);
/* Why nothing was found; `refused` is what vg_profile_allows said of a node with room, or FREE. */
enum vg_eng_code vg_fit_reason(const struct vg_eng *e, const struct fit *f,
                               enum vg_eng_code refused);
void vg_fits_done(struct vg_eng *e);

/* How much worse the world becomes by placing it there: smaller is better. */
int64_t vg_score(const struct vg_eng *e, const struct fit *f, const struct enode *n, uint64_t gpus);

#pragma once
/* Inside placement: what its files share.

   enodes.c    pools and nodes, what is free, the log of changes
   nclass.c    nodes that no request tells apart when they are empty are of one class
   gpus.c      which cards of a node
   near.c      sets of cards by distance
   mix.c       what requests are likely, and what free capacity is therefore worth
   score.c     how much worth is lost by placing a fit on a node
   fit.c       equal requests are one fit; where it may go at all
   index.c     per fit a tournament of nodes by score, brought up to date from the log when asked
   racks.c     what is free in each rack
   together.c  whole gangs */
#include "sched/engine-int.h"
#include "sched/near.h"

/* Names as small numbers from 1; 0: none. */
struct names {
    struct vg_map map; /* name -> struct named, owned */
    uint32_t n;
};
uint32_t vg_names_number(struct names *s, const char *name); /* 0: no memory, or no name */
uint32_t vg_names_find(const struct names *s, const char *name);
void vg_names_done(struct names *s);

/* What the free capacity of a node is worth: GPU thousandths that requests of the recent mix are
   expected to use of it in the end. */
struct worth {
    double card[1001];                   /* a card with so much left */
    double whole[VG_NODE_GPUS_MAX + 1];  /* in addition, so many untouched cards in one node */
    double cpu_per_milli, mem_per_milli; /* that go along with a thousandth of a GPU; 0: unknown */
};

/* What most often says that a node has no room, side by side for all nodes. */
struct glance {
    int64_t cpu, mem;
    uint32_t class_no;
    int16_t milli;      /* left of the card with the most */
    uint32_t all_milli; /* of all cards */
    uint8_t whole;      /* free cards */
    bool open;          /* takes tasks at all */
};

/* All nodes of a rack together. */
struct rack_room {
    uint32_t first;            /* 1 + slot of a node, more by enode.rack_next; 0: none */
    int64_t whole, milli, cpu; /* free on open ones: cards, thousandths of cards and of CPUs */
};

struct fit_world {
    struct rack_room *rack; /* owned; by enode.rack_no */
    uint32_t n_rack;
    size_t racks_cap;
    struct names racks, models, classes;
    struct vg_map fits;  /* hash -> struct fit, further ones by fit.same */
    struct vg_list idle; /* fit.link of fits without references, longest unused first */
    uint32_t n_idle;
    struct vg_list indexes; /* fit_index.link, longest unused first */
    size_t index_bytes;
    uint32_t wide[VG_NODE_GPUS_MAX + 1]; /* open nodes by how many untouched cards they have */
    struct glance *glance;               /* owned; by slot, as many as log_cap / 2 */
    uint32_t *log; /* owned; a ring of enode.at: which nodes changed, in order */
    size_t log_cap;
    uint64_t log_head;
    uint64_t layout;       /* counts changes of what nodes are, not of what is free on them */
    struct vg_list ghosts; /* enode.ghosts */
    size_t holes;          /* free slots in vg_eng.node */
    uint64_t rng;          /* of VG_ENG_RANDOM */
    uint64_t rng_seed;
    struct mix *mix;
    struct enode **aside; /* scratch of index.c */
    size_t aside_cap;
};

/* nclass.c */
void vg_nclass_set(struct vg_eng *e, struct enode *n);
bool vg_labels_within(char *const *want, size_t n_want, char *const *have, size_t n_have);
char **vg_labels_dup(char *const *l, size_t n);
void vg_labels_free(char **l, size_t n);

/* racks.c */
uint32_t vg_rack_number(struct vg_eng *e, const char *rack, uint32_t slot); /* 0: no memory */
void vg_rack_set(struct vg_eng *e, struct enode *n, uint32_t rack_no);      /* 0: in none */
void vg_rack_changed(struct vg_eng *e, const struct enode *n, const struct glance *before,
                     const struct glance *after);
uint64_t vg_rack_bound(const struct rack_room *r, const struct fit *f);

/* gpus.c */
/* GPU memory that one member takes from a card of this size. */
uint64_t vg_fit_card_mem(const struct fit *f, uint64_t card_bytes);
/* What is left of a card for shares, of 1000: the scarcer of milli and memory. */
int32_t vg_card_room(const struct egpu *g);
bool vg_card_takes_class(const struct egpu *g, uint8_t gpu_class); /* if there is room */
bool vg_card_takes_share(const struct fit *f, const struct egpu *g);
/* Adds (sign 1) or takes back (-1) what a member holds; `gpus` may name cards that are gone. */
void vg_node_hold(struct enode *n, const struct fit *f, uint64_t gpus, int sign);
/* The most free cards that reach each other by NVLink. */
uint32_t vg_gpus_linked(const struct fit *f, const struct enode *n);
uint64_t vg_place_random(struct fit_world *w);

/* mix.c */
struct mix *vg_mix_new(void);
void vg_mix_free(struct mix *m);
const struct worth *vg_mix_worth(const struct fit_world *w, const struct enode *n);
uint64_t vg_mix_version(const struct mix *m); /* grows when `worth` is computed anew */

/* score.c */
/* Smaller is better; the fit must have room there. */
int64_t vg_score(const struct vg_eng *e, const struct fit *f, const struct enode *n);
/* The card that a share should get; NULL: none has room. */
const struct egpu *vg_score_card(const struct vg_eng *e, const struct fit *f,
                                 const struct enode *n);

/* fit.c */
/* As f, but asks for this; counts a reference. NULL: no memory. */
struct fit *vg_fit_like(struct vg_eng *e, const struct fit *f, const struct vg_res *res);
/* 1 + place in fit.pool of the pool by which a node belongs, or 0. */
uint32_t vg_fit_rank(const struct vg_eng *e, const struct fit *f, const struct enode *n);
/* Why nothing was found; `refused` is what vg_profile_allows said of a node with room, or FREE. */
enum vg_eng_code vg_fit_reason(const struct vg_eng *e, struct fit *f, enum vg_eng_code refused);
void vg_fits_done(struct vg_eng *e);
void vg_fits_forget_pool(struct vg_eng *e, const struct epool *p);

/* index.c */
int64_t vg_index_key(const struct vg_eng *e, const struct fit *f, const struct enode *n);
#define VG_INDEX_NONE INT64_MAX
void vg_index_free(struct vg_eng *e, struct fit_index *x);
struct glance vg_glance_at(const struct enode *n);
/* A node changed. */
void vg_index_log(struct vg_eng *e, const struct enode *n);
int vg_index_log_room(struct vg_eng *e, size_t nodes);
/* vg_fit_find by looking at every node: where there is no memory for an index, and in tests. */
int vg_fit_find_plain(struct vg_eng *e, struct fit *f, const struct shape *who, uint64_t until,
                      uint64_t env, struct spot *ret, enum vg_eng_code *code);

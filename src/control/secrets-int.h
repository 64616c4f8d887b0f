#pragma once
/* Inside secrets: what secrets.c (the table and its requests) and secrets-keys.c (the master key)
   know of each other. Loop thread. */
#include "control/secrets.h"

/* A value that waits for the master key. */
struct setting {
    struct vg_list link;
    struct vg_later *later;
    char *scope, *name, *user; /* owned */
    char from[64];
    uint8_t *value; /* owned, locked */
    size_t len;
};

struct rotation {
    struct vg_control *ctl;
    uint64_t peer;
    uint32_t req;
    char *user; /* owned */
    char from[64];
    size_t in_store, sealed, stuck;
    int failed; /* -errno of the store */
};

struct vg_secrets {
    struct vg_map map; /* "scope/name" -> struct vg_secret, owned */
    struct vg_ring *ring;
    struct vg_err why;      /* there is no ring */
    struct vg_list waiting; /* struct setting.link */
    struct rotation *rotation;
    bool busy; /* a worker has the keys */
};

/* ---- secrets.c ---- */

void secrets_setting_free(struct setting *g);
void secrets_setting_failed(struct vg_control *c, struct setting *g, const struct vg_err *err);
/* There is a ring: seals, stores, answers when it is stored. Takes g. */
void secrets_set_now(struct vg_control *c, struct setting *g);
void secrets_seal(const struct vg_ring *ring, struct vg_secret *s, const uint8_t *value,
                  size_t len);
int secrets_store(struct vg_control *c, const struct vg_secret *s, vg_store_cb *cb, void *arg);

/* ---- secrets-keys.c ---- */

/* Looks for the keys; what waits for them goes on or fails then. Not while `busy`. */
void secrets_read_keys(struct vg_control *c);
/* Before the loop turns: blocking. Without the keys everything else works. */
int secrets_first_keys(struct vg_control *c, struct vg_err *err);

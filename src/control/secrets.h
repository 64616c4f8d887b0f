#pragma once
/* Secrets: values that tasks get by name and nobody can read back (docs/secrets.md). Here they are
   held sealed, as they are stored; one is opened for the moment in which a task is checked or
   started.

   What always holds: nothing but the ring (secrets-ring.h) and a Start on its way holds a value or
   a key in the clear, and from the first of them on this process leaves no core dump. */
#include "control/control.h"
#include "control/peer.h"

struct vg_ring;
struct vg_task;

#define VG_SECRETS_EACH 1000             /* of one user, of one team */
#define VG_SECRETS_TASK_BYTES (1u << 20) /* of all values that one task gets */

struct vg_secret {
    char *path;         /* owned; "scope/name": its key in the map */
    char *scope, *name; /* owned; "user:NAME" or "team:NAME" */
    char *set_by;       /* owned */
    uint32_t version;
    char key[17]; /* the master key that wraps it */
    uint8_t wrapped[72];
    uint8_t *sealed; /* owned */
    size_t sealed_len;
    uint64_t created_usec, changed_usec;
    bool stuck; /* does not open: left as it is by a rotation */
};

/* What the store has, and the master key when there is anything to open. */
int vg_secrets_load(struct vg_control *c, struct vg_err *err);
void vg_secrets_done(struct vg_control *c);
/* Its user or team is gone from memory; the store forgets by itself. */
void vg_secrets_forget_user(struct vg_control *c, const char *user);
void vg_secrets_forget_team(struct vg_control *c, const char *team);

/* "user:NAME/SECRET" of what a task of `u` calls NAME or TEAM/NAME; NULL: there is none that he may
   use, or no memory. */
const struct vg_secret *vg_secret_find(struct vg_control *c, const struct vg_user *u,
                                       const char *ref);
/* The ring, or NULL with the sentence why there is none; it is then looked for again. */
const struct vg_ring *vg_secrets_ring(struct vg_control *c, struct vg_err *err);

/* ---- for tasks (secrets-give.c) ---- */

/* Whether `u` may have what the spec names, and it can be opened. parent: the task it is made in,
   which can pass on only what it was given. Sentences. */
int vg_secrets_check(struct vg_control *c, const struct vg_user *u, uint64_t parent,
                     const Vg__Pb__TaskSpec *spec, struct vg_err *err);

struct vg_given {
    Vg__Pb__SecretValue **list; /* owned */
    size_t n;
    uint8_t *bytes; /* owned; locked memory that `list` points into */
};
/* The values for an attempt that begins now, if its owner still may have them. */
int vg_secrets_open(struct vg_control *c, const struct vg_task *t, struct vg_given *ret,
                    struct vg_err *err);
void vg_given_done(struct vg_given *g); /* wipes */

#pragma once
/* Inside hooks: hooks.c (the table, what happens, what waits), hook-send.c (sending), hook-api.c
   (people's requests), hook-text.c (words and signatures; pure). Loop thread. */
#include "base/buf.h"
#include "control/hooks.h"
#include "control/timer.h"
#include "net/fetch.h"

#define VG_HOOKS_EACH 20              /* of one user */
#define VG_HOOK_WAITING 1000          /* events that wait for one hook; more are dropped */
#define VG_HOOK_BYTES_MAX (64u << 20) /* of all that waits */
#define VG_HOOK_BODY_MAX (256u << 10) /* of one event */
#define VG_HOOK_WAIT_MAX (3600 * VG_USEC)
#define VG_HOOK_SECRET_MAX 128
#define VG_HOOK_SEALED_MAX (VG_HOOK_SECRET_MAX + 28)
#define VG_HOOK_ERROR_MAX 300

enum vg_hook_event_id {
#define HOOK_EVENT(id, name, all) VG_HOOK_##id,
#include "control/hook-events.tbl"
#undef HOOK_EVENT
    VG_HOOK_EVENTS,
};

/* One event on its way to one hook. */
struct vg_delivery {
    struct vg_list link; /* in vg_hook.waiting, oldest first */
    char id[33];
    char event[32];
    char *body; /* owned; JSON */
    size_t body_bytes;
    uint64_t created_usec;
};

struct vg_hook {
    struct vg_control *ctl;
    char *key;                       /* owned; "user/name" */
    char *user, *name, *url, *scope; /* owned; scope "": the user's own */
    uint32_t events;                 /* a set of enum vg_hook_event_id */
    uint8_t sealed[VG_HOOK_SEALED_MAX];
    size_t sealed_bytes; /* 0: none, of mail */
    bool paused;
    uint64_t created_usec, sent, failed;
    uint64_t last_usec;    /* of the last try */
    uint64_t failing_usec; /* since when every try failed; 0: the last did not */
    char last_error[VG_HOOK_ERROR_MAX];
    struct vg_list waiting;
    size_t n_waiting;
    struct vg_fetch *call;  /* the first of them is on its way */
    struct vg_timer *again; /* or is tried again then */
    uint32_t tries;
};

struct vg_hooks {
    struct vg_map map; /* key -> struct vg_hook, owned */
    uint32_t wanted;   /* by any of them */
    size_t bytes;      /* of what waits */
    uint64_t sent, failed, dropped;
    struct vg_list trials;      /* hook-send.c's */
    struct vg_fetcher *fetcher; /* NULL: nothing was sent yet */
};

/* ---- hooks.c ---- */

struct vg_hooks *vg_hooks_need(struct vg_control *c); /* NULL: no memory */
/* NULL: no memory. */
struct vg_hook *vg_hook_new(struct vg_control *c, const char *user, const char *name);
void vg_hook_free(struct vg_hook *h); /* and what waits for it */
/* After a change: which events anybody wants. */
void vg_hooks_changed(struct vg_control *c);
int vg_hook_store(const struct vg_hook *h, enum vg_store_sync sync, vg_store_cb *cb, void *arg);
/* The first that waits is over: sent, or given up. */
void vg_hook_pop(struct vg_hook *h);
/* Whether its owner may hear of that: scopes are checked when they are set and when something
   happens, since people come and go. */
bool vg_hook_scope_allowed(struct vg_control *c, const char *user, const char *scope);
/* Neither a lead nor an administrator by scope, but by rights: may reach any address. */
bool vg_hook_is_admins(const struct vg_hook *h);

/* ---- hook-send.c ---- */

/* Sends what waits, unless something is under way. */
void vg_hook_send(struct vg_hook *h);
/* Once, beside the queue, as a test: the answer is told to `fn` with NULL or why not. */
typedef void vg_hook_tried(void *user, const struct vg_err *err);
void vg_hook_end_trials(struct vg_hooks *all);
int vg_hook_try(struct vg_hook *h, vg_hook_tried *fn, void *user, struct vg_err *err);

/* ---- hook-text.c ---- */

const char *vg_hook_event_name(enum vg_hook_event_id id);
int vg_hook_event_find(const char *name); /* -1: there is none */
bool vg_hook_event_for_all(enum vg_hook_event_id id);
/* A URL that a hook may have; a sentence otherwise. */
int vg_hook_url_check(const char *url, struct vg_err *err);
bool vg_hook_url_is_mail(const char *url);
/* Its scheme and host: what others than its owner may see. */
char *vg_hook_url_host(const char *url, char *out, size_t n);
/* "t=UNIX,v1=HEX": HMAC-SHA256 over "UNIX.BODY". */
void vg_hook_sign(const char *secret, uint64_t unix_sec, const void *body, size_t n,
                  char out[static 96]);
/* A secret as it is stored: AES-256-GCM under a key of this cloud, bound to whose it is. */
int vg_hook_seal(const uint8_t cloud_key[static 32], const char *hook, const char *secret,
                 uint8_t out[static VG_HOOK_SEALED_MAX], size_t *ret_bytes);
int vg_hook_open(const uint8_t cloud_key[static 32], const char *hook, const uint8_t *sealed,
                 size_t n, char out[static VG_HOOK_SECRET_MAX + 1]);
/* The message to be mailed for an event's JSON. */
int vg_hook_mail(const char *from, const char *to, const char *id, const char *body,
                 uint64_t when_usec, struct vg_buf *ret);
/* The same by the same key, always: so that what comes again is known. */
void vg_hook_id(const char *hook, const char *event, const char *key, char out[static 33]);

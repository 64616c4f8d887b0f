#pragma once
/* The cloud's own certificate authority and the secrets beside it: made at the first start, kept
   under control/. Also the tokens by which a client inside a task is known. */
#include "base/err.h"
#include "control/home.h"
#include "net/tls.h"
#include "proto/virga.pb-c.h"

#include <stdint.h>

#define VG_CERT_SERVER_USEC (90 * 24 * 3600 * 1000000ULL)
#define VG_TASK_TOKEN_MAX 64

struct vg_authority {
    char *ca_pem, *ca_key_pem; /* owned */
    struct vg_tls *tls;        /* server context with the current certificate */
    uint64_t server_expires_usec;
    uint8_t fingerprint[VG_FINGERPRINT];
    uint8_t task_key[32];
};

/* Loads or creates. `cloud` names a new authority. */
int vg_authority_open(struct vg_authority *a, const struct vg_home *home, const char *cloud,
                      struct vg_err *err);
void vg_authority_close(struct vg_authority *a);
/* Makes a new server certificate when two thirds of its life are over. 1: made, 0: not needed. */
int vg_authority_renew(struct vg_authority *a, const struct vg_home *home, uint64_t wall_usec,
                       struct vg_err *err);
/* A node's certificate: CN node:<id>, good for `life_usec`. Caller frees. */
int vg_authority_sign_node(const struct vg_authority *a, uint64_t node, const uint8_t *csr,
                           size_t len, uint64_t life_usec, char **ret_pem, struct vg_err *err);

/* "vgk_<task>_<mac>": whoever holds it speaks for the owner of that task while it lives. The mac
   covers whom the task runs as (may be NULL), so that a node cannot tell us of the same task with
   another owner. */
int vg_task_token_make(const uint8_t key[static 32], uint64_t task, const Vg__Pb__Identity *who,
                       char out[static VG_TASK_TOKEN_MAX]);
/* The task that a token names; proves nothing. */
int vg_task_token_parse(const char *token, uint64_t *ret_task);
/* 0, -EINVAL, -EACCES: not made by us for this task and owner. */
int vg_task_token_check(const uint8_t key[static 32], const char *token, uint64_t task,
                        const Vg__Pb__Identity *who);

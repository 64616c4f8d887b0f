#pragma once
/* A client's connection to the control plane for the commands of `virga`: finds the cloud, connects
   (TLS where the cloud is remote), calls and waits for the answers. Has a private loop; blocks its
   caller; one thread. */
#include "base/err.h"
#include "cli/endpoint.h"
#include "proto/virga.pb-c.h"

#include <stdint.h>

struct vg_client;

#define VG_CALL_TIMEOUT_USEC (30 * 1000000ULL)

/* Connects to the cloud that vg_endpoint_find() names and greets it. */
int vg_client_open(struct vg_client **ret, struct vg_err *err);
int vg_client_open_at(const struct vg_endpoint *e, struct vg_client **ret, struct vg_err *err);
void vg_client_close(struct vg_client *c); /* NULL is fine */

/* Called for every answer but Error. `env` is borrowed for the call. A negative return ends the
   call with that value; `err` must then be set. */
typedef int vg_answer_fn(const Vg__Pb__Envelope *env, void *user, struct vg_err *err);

/* Sends `req` (its `req` number is filled in) and hands each answer to `answer` until the last one
   came. An Error answer becomes `err`. timeout_usec is how long the next answer may take; 0: for
   ever. -ECONNRESET (VG_LOST) when the connection broke; the client must then be closed. */
int vg_call(struct vg_client *c, Vg__Pb__Envelope *req, uint64_t timeout_usec, vg_answer_fn *answer,
            void *user, struct vg_err *err);

/* Several requests at once: sends one and tells its number, which its answers carry. */
int vg_client_send(struct vg_client *c, Vg__Pb__Envelope *req, uint32_t *ret_req,
                   struct vg_err *err);
/* Hands every answer to every request, Error too, to `each` until that returns something other than
   0, which is returned; a negative value must have set err. 0: timeout_usec passed (0: for ever).
   -ECONNRESET (VG_LOST) when the connection broke. */
int vg_client_turn(struct vg_client *c, uint64_t timeout_usec, vg_answer_fn *each, void *user,
                   struct vg_err *err);
/* An Error answer as err; returns its -errno. */
int vg_client_said(const Vg__Pb__Error *e, struct vg_err *err);

/* Opens, calls, closes. */
int vg_call_once(Vg__Pb__Envelope *req, vg_answer_fn *answer, void *user, struct vg_err *err);
/* The same for calls that wait for something: no limit, and a connection that breaks is made again
   for up to a minute (the call is repeated, so it must be one that may be). `again` tells the
   caller before each repetition; may be NULL. */
int vg_call_patient(Vg__Pb__Envelope *req, vg_answer_fn *answer, void (*again)(void *user),
                    void *user, struct vg_err *err);

/* A stream that carries what `fd` (a socket, taken) does, while a call or a turn is under way. Its
   number goes into a request. */
int vg_client_stream(struct vg_client *c, int fd, uint32_t *ret_stream, struct vg_err *err);

const struct vg_endpoint *vg_client_endpoint(const struct vg_client *c);

/* An envelope with one body: vg_request(STATUS, status, &body). */
#define vg_request(CASE, field, ptr)                       \
    ({                                                     \
        Vg__Pb__Envelope vg_req_ = VG__PB__ENVELOPE__INIT; \
        vg_req_.body_case = VG__PB__ENVELOPE__BODY_##CASE; \
        vg_req_.field = (ptr);                             \
        vg_req_;                                           \
    })
/* For an answer of the wrong kind. */
int vg_unexpected(const Vg__Pb__Envelope *env, struct vg_err *err);

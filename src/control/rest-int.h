#pragma once
/* Between the files of REST. */
#include "control/api.h"
#include "control/rest.h"
#include "control/timer.h"
#include "view/views.h"

#define VG_REST_PARTS 2 /* parameters of a path */
#define VG_REST_ROOM 16 /* segments of a path */
#define VG_REST_WAIT_USEC (60 * 1000000ULL)
#define VG_REST_WAIT_MAX_SEC 600

struct vg_rest_call;

struct vg_rest_route {
    enum vg_web_method method;
    const char *path;    /* below the prefix: "/tasks/{id}" */
    unsigned request;    /* the wire's: a body case; 0: none */
    const char *summary; /* one line for people */
    const char
        *field[VG_REST_PARTS]; /* of the request's message, for the path's parameters in order */
    struct vg_view *query;     /* parameters after '?'; NULL: none */
    struct vg_view *also;      /* further ones, which `live` takes by itself */
    struct vg_view *body;      /* NULL: none is taken */
    struct vg_view *answer;
    int status; /* of success; 0: 200 with an answer, else 204 */
    unsigned flags;
    int op;           /* EnvReq.op, LoginReq.op */
    const char *pick; /* the one element of the answer's list whose member of this name is the
                         path's parameter; `answer` is then the element's view, `list` the list's */
    struct vg_view *list;
    unsigned then;          /* after Ok: this is asked, for the answer */
    struct vg_view *edited; /* of GET: what can be changed of it, which alone makes its ETag */
    /* The message that was taken (of body's kind, or the request's) into the request's. Takes it.
     */
    int (*fill)(struct vg_rest_call *call, ProtobufCMessage *taken, ProtobufCMessage **ret,
                struct vg_err *err);
    /* Instead of asking the handler. */
    void (*special)(struct vg_rest_call *call);
    /* Instead of the usual way from answer to JSON. */
    void (*told)(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more);
    /* A stream or WebSocket, which is not JSON. */
    void (*live)(struct vg_peer *p, struct vg_web_req *req, const char *task);
    const char *type; /* of answers that no view makes, with spaces between, for the description */
};
enum {
    VG_REST_OPEN = 1,    /* no principal is needed */
    VG_REST_MATCH = 2,   /* If-Match is looked at: against GET of the same path */
    VG_REST_CSV = 4,     /* also as text/csv */
    VG_REST_NAMED = 8,   /* the body has the name of what is made */
    VG_REST_FOLLOW = 16, /* `live` when the query says follow=1 */
    VG_REST_LEADS = 32,  /* a browser is led here: what fails is said on the sign-in page */
};
extern const struct vg_rest_route vg_rest_routes[];
extern const size_t vg_rest_n_routes;

struct vg_rest_call {
    struct vg_list on_all; /* vg_rest.calls */
    struct vg_control *ctl;
    const struct vg_rest_route *route;
    struct vg_web_req *req;    /* NULL once answered */
    struct vg_peer *peer;      /* owned */
    char *part[VG_REST_PARTS]; /* owned: the path's parameters */
    void (*told)(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more);
    struct vg_timer *timer;
    bool by_cookie;
    bool over;   /* to be dropped */
    bool asking; /* a handler is on the stack */
    bool streaming;
    uint64_t id;        /* of a task that was submitted */
    int status;         /* instead of the route's */
    uint64_t wait_msec; /* not 0: it is refused for so long (429) */
    void *data;         /* of a stage; owned */
    void (*free_data)(void *data);
};

struct vg_rest {
    struct vg_list calls;
    struct vg_timer *sweep;
    struct vg_map codes; /* for one sign-in: hash -> struct code of rest-login.c, owned */
    json_t *openapi;     /* owned; made when it is first asked for */
};

/* rest.c */
struct vg_rest *vg_rest_get(struct vg_control *c); /* NULL: out of memory */
/* Asks the control plane; the answers go to call->told. Takes the message. */
void vg_rest_ask(struct vg_rest_call *call, unsigned body_case, ProtobufCMessage *message);
/* It has been answered: dropped when nothing of it is on the stack any more. */
void vg_rest_over(struct vg_rest_call *call);
/* By the route: the handler, or what stands in its place. */
void vg_rest_go(struct vg_rest_call *call);
int vg_rest_body(struct vg_rest_call *call, ProtobufCMessage **ret, struct vg_err *err);
int vg_rest_query(struct vg_rest_call *call, ProtobufCMessage *m, struct vg_err *err);
/* Notes it against the address; returns err->code. */
int vg_rest_sign_in_failed(struct vg_rest_call *call, const char *how, struct vg_err *err);
int vg_rest_settle(struct vg_rest_call *call, const char *token, struct vg_err *err);

/* rest-answer.c */
void vg_rest_fail(struct vg_rest_call *call, const struct vg_err *err);
void vg_rest_problem(struct vg_web_req *req, enum vg_reason reason, int status, const char *text);
void vg_rest_json(struct vg_rest_call *call, int status, json_t *j); /* takes j */
/* Straight from a message; not where the route has `edited`. */
void vg_rest_message(struct vg_rest_call *call, int status, struct vg_view *v, const void *m);
void vg_rest_empty(struct vg_rest_call *call, int status);
/* The usual way: errors, Ok, a message by the route's view. */
void vg_rest_told(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more);
/* Whether that was an error, which is answered then. */
bool vg_rest_failed(struct vg_rest_call *call, const Vg__Pb__Envelope *env);
json_t *vg_rest_answer(struct vg_rest_call *call, const Vg__Pb__Envelope *env); /* NULL: failed */
/* The answer's tag: of what can be changed alone where the route says so. */
/* A sentence for the sign-in page, and the way there; takes req. */
void vg_rest_at_the_door(struct vg_web_req *req, const char *text);
void vg_rest_etag(const struct vg_rest_route *route, const json_t *j, const char *body,
                  char out[static 32]);
/* Whether a list of tags, or "*", has this one; `weak`: weak ones count. NULL has none. */
bool vg_rest_tag_in(const char *tags, const char *etag, bool weak);
char *vg_rest_csv(const json_t *rows); /* RFC 4180; NULL: out of memory */

/* rest-match.c: If-Match against what GET would answer now. True: go on. */
bool vg_rest_match(struct vg_rest_call *call);

/* rest-task.c, rest-fill.c, rest-logs.c, rest-login.c, rest-openapi.c: the table's functions */
typedef int vg_rest_fill_fn(struct vg_rest_call *call, ProtobufCMessage *taken,
                            ProtobufCMessage **ret, struct vg_err *err);
typedef void vg_rest_fn(struct vg_rest_call *call);
typedef void vg_rest_told_fn(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more);
vg_rest_fill_fn vg_rest_fill_get, vg_rest_fill_price, vg_rest_fill_op, vg_rest_fill_node_remove,
    vg_rest_fill_verify;
int vg_rest_status(const struct vg_rest_route *r); /* of success */
/* Whether a header names the submission, so that sending it again finds the first. */
bool vg_rest_takes_key(const struct vg_rest_route *r);
/* Submits it and answers the task; takes the spec. */
void vg_rest_run(struct vg_rest_call *call, Vg__Pb__TaskSpec *spec);
vg_rest_fn vg_rest_submit, vg_rest_import, vg_rest_wait, vg_rest_login, vg_rest_logout,
    vg_rest_oidc_begin, vg_rest_oidc_end, vg_rest_openapi;
vg_rest_told_fn vg_rest_told_logs, vg_rest_told_cancelled, vg_rest_told_invite, vg_rest_told_envs,
    vg_rest_told_hook_test;

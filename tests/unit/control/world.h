#pragma once
/* A control plane on a loop of its own, with clients and agents that the test plays. */
#include "control/control.h"

#include <criterion/criterion.h>

struct msg {
    Vg__Pb__Envelope *env;
    int fds[4];
    size_t n_fds;
};

/* One played connection. */
struct side {
    struct vg_conn *conn; /* NULL after its end */
    struct msg inbox[512];
    size_t n;
    uint32_t req;
};

struct world {
    uv_loop_t loop;
    struct vg_control c;
    char home[64];
    bool up;
};

/* When set: sees every message as it comes, so that a stream it names is open before its bytes. */
extern void (*side_hook)(struct side *s, const Vg__Pb__Envelope *env);

void world_up(struct world *w, const char *config); /* config: YAML or NULL */
void world_stop(struct world *w);                   /* the control plane alone, orderly */
void world_start(struct world *w);                  /* again, same home */
void world_down(struct world *w);                   /* and removes everything */

void side_open(struct world *w, struct side *s);
/* Over TLS; cert and key may be NULL. Waits for the handshake. */
void side_open_tls(struct world *w, struct side *s, const char *cert, const char *key);
/* Says hello with a token (may be NULL). */
void side_hello(struct side *s, const char *token);
void side_close(struct world *w, struct side *s);
/* Sends with the next request number, which it returns. */
uint32_t side_send(struct side *s, Vg__Pb__Envelope *env, const int *fds, size_t n_fds);
/* The oldest message of that body; runs the loop until it comes (a minute without it fails). */
struct msg side_expect(struct world *w, struct side *s, int body_case);
/* Runs until what was sent has been dealt with: a ping goes through after it. */
void side_sync(struct world *w, struct side *s);
bool side_has(const struct side *s, int body_case); /* in the inbox now */
void msg_done(struct msg *m);

#define ENV(name, case_name, field, value)               \
    Vg__Pb__Envelope name = VG__PB__ENVELOPE__INIT;      \
    name.body_case = VG__PB__ENVELOPE__BODY_##case_name; \
    name.field = (value)
#define BODY(name) VG__PB__ENVELOPE__BODY_##name

/* Plays an agent's hello with these reports; returns the node's id. */
uint64_t play_agent(struct world *w, struct side *s, const char *name, uint64_t id,
                    Vg__Pb__TaskReport **reports, size_t n);
/* The same with GPUs of that size (at most 8; 0: it does not say). */
uint64_t play_gpu_node(struct world *w, struct side *s, const char *name, uint64_t id,
                       uint32_t gpus, uint64_t gpu_mem_bytes, Vg__Pb__TaskReport **reports,
                       size_t n);
/* Sends a RunReq for `true`; `tweak` may change it. Returns the request number. */
uint32_t play_run(struct side *s, uint64_t task, void (*tweak)(Vg__Pb__RunReq *));
void play_started(struct side *agent, uint64_t task, uint32_t attempt);
void play_exited(struct side *agent, uint64_t task, uint32_t attempt, int32_t status);
/* The RunEvent of that kind, others before it dropped. */
void expect_event(struct world *w, struct side *s, Vg__Pb__RunEvent__Kind kind, struct msg *ret);

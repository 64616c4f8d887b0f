#pragma once
/* Handlers of requests; peer.c's table names them. Each answers (now or later) exactly once, or
   with several messages of which the last has more = false. */
#include "control/job.h"
#include "control/peer.h"

void vg_api_run(struct vg_call *call);
void vg_api_attach(struct vg_call *call);
void vg_api_task_list(struct vg_call *call);
void vg_api_task_get(struct vg_call *call);
void vg_api_task_wait(struct vg_call *call);
void vg_api_task_watch(struct vg_call *call);
void vg_api_task_signal(struct vg_call *call);
void vg_api_task_logs(struct vg_call *call);
void vg_api_attempt_list(struct vg_call *call);
void vg_api_forward(struct vg_call *call);
void vg_api_pool_list(struct vg_call *call);
void vg_api_node_list(struct vg_call *call);
void vg_api_node_set(struct vg_call *call);
void vg_api_node_invite(struct vg_call *call);
void vg_api_status(struct vg_call *call);
void vg_api_shutdown(struct vg_call *call);
void vg_api_user_add(struct vg_call *call);
void vg_api_user_list(struct vg_call *call);
void vg_api_user_remove(struct vg_call *call);
void vg_api_team_add(struct vg_call *call);
void vg_api_team_list(struct vg_call *call);
void vg_api_me(struct vg_call *call);
void vg_api_org_set(struct vg_call *call);
void vg_api_org_remove(struct vg_call *call);
void vg_api_org_list(struct vg_call *call);
void vg_api_team_set(struct vg_call *call);
void vg_api_team_remove(struct vg_call *call);
void vg_api_user_set(struct vg_call *call);
void vg_api_login(struct vg_call *call);
void vg_api_audit_list(struct vg_call *call);
void vg_api_token_create(struct vg_call *call);
void vg_api_token_list(struct vg_call *call);
void vg_api_token_revoke(struct vg_call *call);
void vg_api_secret_set(struct vg_call *call);
void vg_api_secret_list(struct vg_call *call);
void vg_api_secret_remove(struct vg_call *call);
void vg_api_secret_rotate(struct vg_call *call);
void vg_api_session_list(struct vg_call *call);
void vg_api_session_end(struct vg_call *call);
void vg_api_schedule_list(struct vg_call *call);
void vg_api_schedule_remove(struct vg_call *call);
void vg_api_task_why(struct vg_call *call);
void vg_api_queue(struct vg_call *call);
void vg_api_config_reload(struct vg_call *call);
void vg_api_gpu_list(struct vg_call *call);
void vg_api_gpu_set(struct vg_call *call);
void vg_api_share_set(struct vg_call *call);
void vg_api_series(struct vg_call *call);
void vg_api_hook_set(struct vg_call *call);
void vg_api_hook_list(struct vg_call *call);
void vg_api_hook_remove(struct vg_call *call);
void vg_api_hook_test(struct vg_call *call);
/* What would happen to a request that was checked and resolved. */
void vg_api_dry_run(struct vg_call *call, const struct vg_res *grant);

void vg_api_mirror_offer(struct vg_call *call);

/* From agents and machines that want to become nodes. */
void vg_agent_on_hello(struct vg_call *call);
void vg_agent_on_heartbeat(struct vg_call *call);
void vg_agent_on_started(struct vg_call *call);
void vg_agent_on_exited(struct vg_call *call);
void vg_agent_on_log(struct vg_call *call);
void vg_agent_on_session_ended(struct vg_call *call);
void vg_agent_on_nested(struct vg_call *call);
void vg_agent_on_gpu_report(struct vg_call *call);
void vg_agent_on_use_report(struct vg_call *call);
void vg_api_join(struct vg_call *call);
void vg_api_cert_renew(struct vg_call *call);

/* A client came while the task's node was away; the node is back. */
void vg_run_deliver(struct vg_job *j);

/* A task as a person named it: id, prefix of at least 4 digits, or name (the newest). */
struct vg_found {
    struct vg_job *job;   /* in memory, or */
    struct vg_task *task; /* owned when job is NULL: vg_found_done */
};
int vg_find_task(struct vg_control *c, const struct vg_user *u, const char *ref,
                 struct vg_found *ret, struct vg_err *err);
void vg_found_done(struct vg_found *f);
static inline struct vg_task *vg_found_task(const struct vg_found *f) {
    return f->job ? f->job->task : f->task;
}
/* Sends a task with what it waits for. */
void vg_task_send(struct vg_peer *p, uint32_t req, bool more, const struct vg_task *t);
/* A waiting task says what it waits for. `room` holds the sentence. */
void vg_task_info_wait(struct vg_control *c, const struct vg_task *t, struct vg_task_info *info,
                       char *room, size_t n);

/* A list's question, made ready. Borrows from the message. */
struct vg_query {
    const Vg__Pb__TaskQuery *q;
    const struct vg_user *user;
    uint64_t of; /* not 0: only what is folded under this */
};
/* Sentences: too many states or labels; `of` names nothing. */
int vg_query_init(struct vg_query *ret, struct vg_control *c, const struct vg_user *u,
                  const Vg__Pb__TaskQuery *q, struct vg_err *err);
bool vg_query_wants(const struct vg_query *q, const struct vg_task *t);

/* New output of a job was stored, or it ended: log followers read on. */
void vg_logs_more(struct vg_job *j, bool ended);
/* The job runs on a node that is connected: log followers may look at its keeper (again). */
void vg_logs_look_again(struct vg_job *j);
/* The job leaves memory: whoever reads its log goes on from the files. */
void vg_logs_detach(struct vg_job *j);
/* A watcher hears of a task. */
void vg_watch_tell(struct vg_control *c, struct vg_task *t);

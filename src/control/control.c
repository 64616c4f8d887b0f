/* Start, housekeeping and stop of the control plane. */
#include "control/control.h"
#include "control/env.h"
#include "control/events.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/audit.h"
#include "control/budget.h"
#include "control/cost.h"
#include "control/history.h"
#include "control/hooks.h"
#include "control/job.h"
#include "control/kept.h"
#include "control/keys.h"
#include "control/ledger.h"
#include "control/listen.h"
#include "control/log-file.h"
#include "control/login.h"
#include "control/metrics.h"
#include "control/mirror.h"
#include "control/nodes.h"
#include "control/peer.h"
#include "control/persist.h"
#include "control/place.h"
#include "control/price.h"
#include "control/replay.h"
#include "control/rest.h"
#include "control/schedule.h"
#include "control/secrets.h"
#include "control/series.h"
#include "control/task-search.h"
#include "control/users.h"
#include "control/webport.h"
#include "model/session.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STOP_MS 1000 /* how long peers may take to read our last words */
#define PRUNE_USEC (600 * VG_USEC)
#define PRUNE_BATCH 500
#define TRIM_JOBS 10000
#define SAVE_USEC (300 * VG_USEC)

/* ------------------------------------------------------------------ start */

static void read_line(const char *path, char *out, size_t n) {
    vg_auto_free char *text = NULL;
    size_t len = 0;
    out[0] = '\0';
    if (vg_read_file(path, 4096, &text, &len) < 0)
        return;
    text[strcspn(text, "\n")] = '\0';
    snprintf(out, n, "%s", text);
}

static void know_machine(struct vg_control *c) {
    read_line("/etc/machine-id", c->machine_id, sizeof c->machine_id);
    if (!c->machine_id[0])
        read_line("/proc/sys/kernel/random/boot_id", c->machine_id, sizeof c->machine_id);
}

static int load_conf(struct vg_control *c, bool named, struct vg_err *err) {
    if (!named && access(c->home.config, F_OK) < 0 && errno == ENOENT) {
        int r = vg_conf_default(&c->conf);
        return r < 0 ? vg_err_sys(err, r, "cannot start") : 0;
    }
    return vg_conf_load(c->home.config, &c->conf, err);
}

static void wake_loop(void *arg) {
    struct vg_control *c = arg;
    uv_async_send(&c->store_wake);
}

static void on_store(uv_async_t *h) {
    struct vg_control *c = h->data;
    vg_store_dispatch(c->store);
}

static int open_store(struct vg_control *c, struct vg_err *err) {
    struct vg_store_opts o = {.path = c->home.db, .notify = wake_loop, .notify_arg = c};
    vg_auto_free char *cloud = NULL;
    int r = vg_store_open(&o, &c->store, err);
    if (r < 0)
        return r;
    r = vg_store_get_meta(c->store, "cloud", &cloud);
    if (r == -ENOENT) {
        vg_id_format(vg_id_new(), c->cloud);
        r = vg_store_put_meta(c->store, "cloud", c->cloud, VG_STORE_DURABLE, NULL, NULL);
    } else if (r >= 0) {
        snprintf(c->cloud, sizeof c->cloud, "%s", cloud);
    }
    return r < 0 ? vg_err_sys(err, r, "cannot read %s", c->home.db) : 0;
}

static int open_sched(struct vg_control *c, struct vg_err *err) {
    int r = vg_policy_open(&c->policy, &c->conf, err);
    if (r >= 0)
        vg_policy_restore(c);
    return r;
}

/* ------------------------------------------------------------------ housekeeping */

static int remove_logs(void *arg, const struct vg_task_row *row) {
    struct vg_control *c = arg;
    uint64_t cutoff = vg_wall_usec() - c->conf.limits.history_usec;
    if (row->ended_usec >= cutoff)
        return 0;
    for (uint32_t i = 1; i <= row->attempt; i++)
        vg_logfile_remove(c->home.logs, row->id, i);
    return 0;
}

/* Ended tasks beyond the history that is kept: first their output, then their rows. */
static void prune(struct vg_control *c) {
    uint64_t keep = c->conf.limits.history_usec, now = vg_wall_usec();
    if (!keep || now < keep)
        return;
    struct vg_task_filter f = {.before_usec = now - keep,
                               .before_id = UINT64_MAX,
                               .limit = PRUNE_BATCH,
                               .only_ended = true};
    vg_store_query_tasks(c->store, &f, remove_logs, c);
    vg_store_prune_tasks(c->store, now - keep, PRUNE_BATCH, NULL, NULL);
    vg_history_prune(c, now - keep, PRUNE_BATCH);
}

/* A hundred thousand tasks have come and gone: what they took goes back to the machine. */
static void give_memory_back(struct vg_control *c) {
    size_t jobs = vg_map_len(&c->jobs);
    c->most_jobs = VG_MAX(c->most_jobs, jobs);
    if (c->most_jobs < TRIM_JOBS || jobs > c->most_jobs / 2)
        return;
    malloc_trim(0);
    c->most_jobs = jobs;
}

static void on_housekeeping(uv_timer_t *t) {
    struct vg_control *c = t->data;
    struct vg_err err = VG_ERR_INIT;
    uint64_t now = vg_now_usec();
    vg_nodelinks_tick(c);
    vg_peers_tick(c);
    vg_audit_refused_tick(c, false);
    vg_schedules_tick(c);
    give_memory_back(c);
    vg_webport_tick(c);
    vg_policy_windows(c);
    vg_place_tick(c);
    vg_mlink_tick(c);
    vg_ledger_tick(c);
    vg_kept_tick(c);
    vg_budgets_tick(c);
    if (!vg_list_empty(&c->dirty))
        vg_persist_flush(c);
    if (now - c->saved_usec >= SAVE_USEC) {
        c->saved_usec = now;
        vg_policy_save(c);
    }
    if (now - c->pruned_usec < PRUNE_USEC)
        return;
    c->pruned_usec = now;
    vg_series_tick(c);
    prune(c);
    if (vg_authority_renew(&c->ca, &c->home, vg_wall_usec(), &err) < 0)
        vg_error("cannot renew the server's certificate: %s", err.msg);
    vg_webport_renew(c);
}

static void on_signal(uv_signal_t *h, int signum) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_control *c = h->data;
    char text[512];
    if (signum != SIGHUP && !c->stopping) {
        vg_audit_as(c, "", "shutdown: %s", strsignal(signum));
        vg_control_stop(c, strsignal(signum));
    } else if (signum == SIGHUP && vg_policy_reload(c, text, sizeof text, &err) < 0) {
        vg_audit_as(c, "", "configuration: refused: %s", err.msg);
        vg_error("the configuration was not read again: %s", err.msg);
    } else if (signum == SIGHUP) {
        vg_audit_as(c, "", "configuration: %s", text);
    }
}

static void start_handles(struct vg_control *c) {
    uint64_t every = VG_MIN(VG_HOUSEKEEPING_USEC, c->conf.lease_usec / 10) / 1000;
    static const int signums[] = {SIGTERM, SIGINT, SIGHUP};
    uv_timer_start(&c->housekeeping, on_housekeeping, every ? every : 1, every ? every : 1);
    for (size_t i = 0; i < VG_COUNT(signums); i++)
        uv_signal_start(&c->signals[i], on_signal, signums[i]);
}

static void init_handles(struct vg_control *c) {
    uv_async_init(c->loop, &c->store_wake, on_store);
    uv_timer_init(c->loop, &c->housekeeping);
    uv_timer_init(c->loop, &c->write_behind);
    uv_timer_init(c->loop, &c->last_words);
    for (size_t i = 0; i < VG_COUNT(c->signals); i++) {
        uv_signal_init(c->loop, &c->signals[i]);
        c->signals[i].data = c;
    }
    c->store_wake.data = c->housekeeping.data = c->write_behind.data = c->last_words.data = c;
}

/* Blocked tasks wait again; what they wait for may have ended in the last moment of an earlier
   life. */
static void restore_waits(struct vg_control *c) {
    size_t n = 0;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (ids && j->task->state == VG_TASK_BLOCKED && !j->task->group)
            ids[n++] = j->task->id;
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        if (j && j->task->state == VG_TASK_BLOCKED)
            vg_job_begin(j);
    }
}

int vg_control_start(struct vg_control *c, uv_loop_t *loop, const struct vg_control_opts *opts,
                     struct vg_err *err) {
    *c = (struct vg_control){.loop = loop, .home = {.lock_fd = -1}};
    vg_list_init(&c->dirty);
    vg_list_init(&c->watches);
    vg_list_init(&c->replays);
    vg_list_init(&c->ripe);
    vg_list_init(&c->news);
    vg_list_init(&c->links);
    vg_list_init(&c->asked);
    vg_list_init(&c->searches);
    c->list_steps = VG_LIST_STEPS;
    vg_list_init(&c->peers_of);
    c->started_usec = c->pruned_usec = c->saved_usec = vg_now_usec();
    c->series_room = VG_SERIES_ROOM;
    c->conf_named = opts->config != NULL;
    vg_random(&c->log_round, sizeof c->log_round);
    c->log_round = VG_MAX(c->log_round, 2u);
    know_machine(c);
    init_handles(c);
    int r = vg_home_open(opts->home, opts->config, &c->home, err);
    if (r >= 0)
        r = load_conf(c, c->conf_named, err);
    if (r >= 0)
        r = open_store(c, err);
    if (r >= 0)
        r = vg_authority_open(&c->ca, &c->home, c->cloud, err);
    if (r >= 0)
        r = vg_prices_open(c, err);
    if (r >= 0)
        r = vg_ledger_open(c, err);
    if (r >= 0)
        r = open_sched(c, err);
    if (r >= 0)
        r = vg_persist_load(c, err);
    if (r >= 0)
        r = vg_users_ensure_team(c, err);
    if (r >= 0)
        r = vg_hooks_load(c, err);
    if (r >= 0)
        r = vg_ledger_restore(c, err);
    if (r >= 0)
        r = vg_kept_open(c, err);
    if (r >= 0)
        r = vg_budgets_open(c, err);
    if (r >= 0)
        r = vg_metrics_start(c, err);
    if (r >= 0)
        r = vg_listen_start(c, opts->listen, err);
    if (r >= 0)
        r = vg_webport_start(c, opts->web, err);
    if (r < 0) {
        vg_control_stop(c, NULL);
        uv_run(loop, UV_RUN_DEFAULT);
        vg_control_done(c);
        return r;
    }
    vg_place_restore(c);
    restore_waits(c);
    vg_nodelinks_settle(c);
    start_handles(c);
    vg_info("ready cloud=%s socket=%s tls=%s pools=%zu tasks=%zu", c->cloud, c->home.sock,
            c->address, c->conf.n_pools, vg_map_len(&c->jobs));
    return 0;
}

/* ------------------------------------------------------------------ stop */

static void on_last_words(uv_timer_t *t) {
    struct vg_control *c = t->data;
    vg_map_for_each (s, &c->peers) {
        struct vg_peer *p = s->value;
        if (p->conn)
            vg_conn_abort(p->conn, VG_UNAVAILABLE, "the control plane stops");
    }
}

void vg_control_stop(struct vg_control *c, const char *why) {
    if (c->stopping)
        return;
    if (why)
        vg_info("stopping: %s", why);
    vg_listen_stop(c);
    vg_metrics_stop(c);
    vg_rest_stop(c);
    vg_webport_stop(c);
    vg_events_stop(c);
    vg_search_stop(c);
    vg_replay_stop_all(c);
    vg_timer_stop(&c->wake);
    if (c->store) {
        if (c->policy.eng)
            vg_policy_save(c);
        vg_persist_flush(c);
        vg_audit_refused_tick(c, true);
        vg_store_flush(c->store);
    }
    vg_envs_stop(c);
    vg_timer_stop(&c->wake); /* the store's last answers may have begun something */
    vg_hooks_stop(c);
    vg_budgets_stop(c);
    c->stopping = true;
    uv_close((uv_handle_t *)&c->housekeeping, NULL);
    uv_close((uv_handle_t *)&c->write_behind, NULL);
    for (size_t i = 0; i < VG_COUNT(c->signals); i++)
        uv_close((uv_handle_t *)&c->signals[i], NULL);
    uv_unref((uv_handle_t *)&c->store_wake); /* the writer may still call it */
    vg_logins_done(c);
    uv_timer_start(&c->last_words, on_last_words, STOP_MS, 0);
    uv_unref((uv_handle_t *)&c->last_words);
    vg_map_for_each (s, &c->peers) {
        struct vg_peer *p = s->value;
        if (p->conn)
            vg_conn_close(p->conn);
    }
}

static void free_jobs(struct vg_control *c) {
    vg_map_for_each (s, &c->jobs) {
        vg_job_free(s->value);
    }
    vg_map_done(&c->jobs);
    vg_alike_done(&c->alike);
    vg_map_done(&c->idem);
    vg_schedules_done(c);
}

void vg_control_done(struct vg_control *c) {
    vg_store_close(c->store);
    free_jobs(c);
    vg_counts_done(&c->counts);
    uv_close((uv_handle_t *)&c->store_wake, NULL);
    uv_close((uv_handle_t *)&c->last_words, NULL);
    uv_run(c->loop, UV_RUN_DEFAULT);
    vg_map_for_each (s, &c->nodes) {
        vg_nodelink_free(s->value);
    }
    vg_map_for_each (s, &c->sessions) {
        vg_session_free(s->value);
    }
    vg_map_for_each (s, &c->accounts) {
        vg_account_free(s->value);
    }
    vg_map_done(&c->nodes);
    vg_map_done(&c->sessions);
    vg_map_done(&c->accounts);
    vg_map_done(&c->peers);
    vg_mlink_done(c);
    vg_envs_done(c);
    vg_keys_done(c);
    free(c->refused);
    vg_secrets_done(c);
    vg_policy_close(&c->policy);
    vg_book_done(&c->book);
    vg_budgets_done(c);
    vg_kept_done(c);
    vg_group_costs_done(c);
    vg_cost_done(c);
    vg_tenants_done(&c->tenants);
    vg_authority_close(&c->ca);
    vg_conf_done(&c->conf);
    vg_home_close(&c->home);
}

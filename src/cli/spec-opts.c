/* Options of vrun and vbatch. No state but the caller's; any thread. */
#include "cli/spec-opts.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "cli/run-int.h"

#include <string.h>

enum {
    O_POOL = 1,
    O_GPUS,
    O_GPU_MEM,
    O_GPU_MODEL,
    O_GPU_HARD,
    O_CPUS,
    O_MEM,
    O_NODE_LABEL,
    O_SESSION,
    O_KEEP,
    O_DETACH,
    O_ENV,
    O_ENVIRONMENT,
    O_WRITABLE,
    O_ALLOW,
    O_SYNC,
    O_STRICT,
    O_IMAGE,
    O_SNAPSHOT,
    O_LIVE,
    O_DIR,
    O_PORT,
    O_TTY,
    O_NOINPUT,
    O_ID_FILE,
    O_DUPLEX,
    O_QUIET,
    O_NAME,
    O_LABEL,
    O_PROJECT,
    O_PRIORITY,
    O_TIME,
    O_RETRIES,
    O_RETRY_ON,
    O_BACKOFF,
    O_PREEMPTIBLE,
    O_GRACE,
    O_GRACE_SIGNAL,
    O_MAX_COST,
    O_AFTER,
    O_AFTER_SUCCESS,
    O_AFTER_FAIL,
    O_DRY_RUN,
    O_FOLLOW,
    O_SHARDS,
    O_GANG,
    O_GANG_POLICY,
    O_SWEEP,
    O_BEGIN,
    O_EVERY,
    O_CRON,
    O_KEY,
    O_SECRET,
};

#define COMMON_OPTS                                                                                \
    {"pool", 'P', "NAME[,NAME...]", "run on this pool, or on the first that can", O_POOL},         \
        {"gpus", 0, "N", "GPUs to hold; 0.25 is a share of one", O_GPUS},                          \
        {"gpu-mem", 0, "SIZE", "memory to hold on each GPU: 20G", O_GPU_MEM},                      \
        {"gpu-hard", 0, NULL, "of a share in class mps: never more, even when the GPU is idle",    \
         O_GPU_HARD},                                                                              \
        {"gpu-model", 0, "M[|M...]", "only these models: 'A100|H100'", O_GPU_MODEL},               \
        {"cpus", 0, "N", "CPUs to hold; 0.5 is half of one", O_CPUS},                              \
        {"mem", 0, "SIZE", "memory to hold, and the limit: 512M, 8G", O_MEM},                      \
        {"node-label", 0, "K=V", "only on nodes with this label; may be given again",              \
         O_NODE_LABEL},                                                                            \
        {"session", 's', "NAME", "run in this named session; made when there is none", O_SESSION}, \
        {"keep", 0, "DURATION", "how long the session stays after its last command", O_KEEP},      \
        {NULL, 'e', "KEY=V", "set a variable for the command", O_ENV},                             \
        {"secret", 0, "NAME[=VAR|:FILE]", "give it this secret, as a variable or a file",          \
         O_SECRET},                                                                                \
        {"env", 0, "NAME[@V]|KEY=V", "run in this environment ('node': the node's own files)",     \
         O_ENVIRONMENT},                                                                           \
        {"image", 0, "IMAGE", "run in this OCI image: a registry's, an archive or a layout",       \
         O_IMAGE},                                                                                 \
        {"writable", 0, "DIR", "write this folder back, too, from another machine", O_WRITABLE},   \
        {"allow", 0, "PATH", "let another machine read this secret, in memory only", O_ALLOW},     \
        {"sync", 0, NULL, "wait at every close until it is written back", O_SYNC},                 \
        {"strict", 0, NULL, "fail where a file changed under the command", O_STRICT},              \
        {"snapshot", 0, NULL, "detached: copy the files it needs first, and keep what it changes", \
         O_SNAPSHOT},                                                                              \
        {"directory", 'C', "DIR", "start in this directory", O_DIR},                               \
        {"name", 'n', "NAME", "name the task", O_NAME},                                            \
        {"label", 'l', "K=V", "label the task; may be given again", O_LABEL},                      \
        {"project", 0, "NAME", "charge it to this project, too", O_PROJECT},                       \
        {"priority", 0, "P", "0 to 100, default 50; higher goes first", O_PRIORITY},               \
        {"time", 0, "LIMIT", "end it after this long: 90s, 10m, 2h", O_TIME},                      \
        {"retries", 0, "N", "start it again up to N times when it fails", O_RETRIES},              \
        {"retry-on", 0, "STATUS,...", "but only after these exit statuses: 1,75-77", O_RETRY_ON},  \
        {"backoff", 0, "WAIT[..MOST]", "wait before a retry, twice as long each time: 10s..10m",   \
         O_BACKOFF},                                                                               \
        {"after", 0, "TASK,...", "wait until these have ended", O_AFTER},                          \
        {"after-success", 0, "TASK,...", "wait until these have succeeded", O_AFTER_SUCCESS},      \
        {"after-fail", 0, "TASK,...", "run only when these have failed", O_AFTER_FAIL},            \
        {"preemptible", 0, NULL, "may be interrupted for others and queued again", O_PREEMPTIBLE}, \
        {"grace", 0, "DURATION", "how long it has to end when interrupted", O_GRACE},              \
        {"grace-signal", 0, "SIGNAL", "what it is sent first then (TERM)", O_GRACE_SIGNAL},        \
        {"max-cost", 0, "AMOUNT", "refuse it when it may cost more: 12.50", O_MAX_COST},           \
        {"dry-run", 0, NULL, "say where, when and why it would run; start nothing", O_DRY_RUN}, {  \
        "quiet", 'q', NULL, "say nothing of our own", O_QUIET                                      \
    }

static const struct vg_opt run_opts[] = {
    COMMON_OPTS,
    {"detach", 'd', NULL, "print the task's id and leave it running", O_DETACH},
    {"publish", 'p', "[HOST:]LOCAL:REMOTE", "forward a local port to one of the task's", O_PORT},
    {"tty", 0, "auto|yes|no", "give the command a terminal", O_TTY},
    {"no-input", 'I', NULL, "leave standard input alone", O_NOINPUT},
    {"id-file", 0, "FILE", "write the task's id into this file", O_ID_FILE},
    {"duplex", 0, NULL, "standard input is a socket that goes both ways; output is logged only",
     O_DUPLEX},
    /* Known, so that whoever types them here is told where they belong. */
    {"follow", 'f', NULL, NULL, O_FOLLOW},
    {"shards", 'N', "N", NULL, O_SHARDS},
    {"gang", 0, NULL, NULL, O_GANG},
    {"gang-policy", 0, "POLICY", NULL, O_GANG_POLICY},
    {"sweep", 0, "K=V,V,...", NULL, O_SWEEP},
    {"begin", 0, "TIME", NULL, O_BEGIN},
    {"every", 0, "DURATION", NULL, O_EVERY},
    {"cron", 0, "'M H D M W'", NULL, O_CRON},
    {"key", 0, "KEY", NULL, O_KEY},
};

static const struct vg_opt batch_opts[] = {
    COMMON_OPTS,
    {"live", 0, NULL, "from another machine: use its files as they are, not a copy of them",
     O_LIVE},
    {"follow", 'f', NULL, "show its output; exit with its status", O_FOLLOW},
    {"shards", 'N', "N", "a group of N tasks, each with its VIRGA_SHARD", O_SHARDS},
    {"gang", 0, NULL, "the N tasks start together or not at all", O_GANG},
    {"gang-policy", 0, "heal|restart|fail", "what a lost member of a gang means", O_GANG_POLICY},
    {"sweep", 0, "K=V,V,...", "one task for each value; again for the cross product", O_SWEEP},
    {"begin", 0, "TIME", "not before: +30m, 22:00, '2027-01-31 22:00'", O_BEGIN},
    {"every", 0, "DURATION", "make such a task again and again", O_EVERY},
    {"cron", 0, "'M H D M W'", "make such a task at these times: '0 3 * * *'", O_CRON},
    {"key", 0, "KEY", "a second submission with this key finds the first", O_KEY},
};

const struct vg_opt *vg_spec_table(bool batch, size_t *ret_n) {
    *ret_n = batch ? VG_COUNT(batch_opts) : VG_COUNT(run_opts);
    return batch ? batch_opts : run_opts;
}

void vg_spec_opts_init(struct vg_spec_opts *o, bool batch) {
    *o = (struct vg_spec_opts){
        .batch = batch, .spec = VG__PB__TASK_SPEC__INIT, .want = VG__PB__RESOURCES__INIT};
    o->spec.want = &o->want;
    o->spec.label = o->labels;
    o->spec.node_label = o->node_labels;
}

static int add_label(struct vg_opt_state *st, const char *arg, char **list, size_t *n) {
    if (!strchr(arg, '=') || arg[0] == '=')
        return vg_opt_bad(st, "'%s' is not of the form KEY=VALUE", arg);
    if (*n == VG_SPEC_LABELS)
        return vg_opt_bad(st, "at most %d labels", VG_SPEC_LABELS);
    list[(*n)++] = (char *)arg;
    return 0;
}

static int add_port(struct vg_spec_opts *o, struct vg_opt_state *st, const char *arg) {
    struct vg_err err = VG_ERR_INIT;
    struct run_port port;
    if (o->n_ports == VG_PORTS_MAX)
        return vg_opt_bad(st, "at most %d ports", VG_PORTS_MAX);
    if (run_port_parse(arg, &port, &err) < 0)
        return vg_opt_bad(st, "%s", err.msg);
    o->ports[o->n_ports++] = arg;
    return 0;
}

static int add_env(struct vg_spec_opts *o, struct vg_opt_state *st, const char *arg) {
    if (arg[0] == '=' || !*arg)
        return vg_opt_bad(st, "'%s' names no variable", arg);
    if (o->n_set_env == VG_SET_ENV_MAX)
        return vg_opt_bad(st, "too many");
    if (strchr(arg, '='))
        o->set_env[o->n_set_env++] = arg; /* a bare KEY is carried anyway, as all are */
    return 0;
}

static int set_cpus(struct vg_opt_state *st, const char *arg, Vg__Pb__Resources *want) {
    uint64_t n;
    int r = vg_opt_milli(st, arg, &n);
    if (r == 0 && (n == 0 || n > 4096000))
        return vg_opt_bad(st, "'%s' is not a number of CPUs: give for example 2 or 0.5", arg);
    want->has_cpu_milli = true;
    want->cpu_milli = (uint32_t)n;
    return r;
}

static int set_u32(struct vg_opt_state *st, const char *arg, uint64_t min, uint64_t max,
                   protobuf_c_boolean *has, uint32_t *ret) {
    uint64_t n = 0;
    int r = vg_opt_u64(st, arg, min, max, &n);
    *has = true;
    *ret = (uint32_t)n;
    return r;
}

static int set_duration(struct vg_opt_state *st, const char *arg, protobuf_c_boolean *has,
                        uint64_t *ret) {
    *has = true;
    return vg_opt_duration(st, arg, ret);
}

static int set_schedule(struct vg_opt_state *st, const char *arg, bool cron, Vg__Pb__TaskSpec *s) {
    if (s->schedule)
        return vg_opt_bad(st, "a task has one schedule: give --every or --cron once");
    return cron ? vg_spec_cron(st, arg, s) : vg_spec_every(st, arg, s);
}

static int set_gang_policy(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s) {
    static const char *const words[] = {"heal", "restart", "fail", NULL};
    static const Vg__Pb__TaskSpec__GangPolicy values[] = {VG__PB__TASK_SPEC__GANG_POLICY__HEAL,
                                                          VG__PB__TASK_SPEC__GANG_POLICY__RESTART,
                                                          VG__PB__TASK_SPEC__GANG_POLICY__FAIL};
    int which = 0, r = vg_opt_choice(st, arg, words, &which);
    s->has_gang_policy = true;
    s->gang_policy = values[which];
    return r;
}

/* What the group is made of, and when it runs: vbatch alone has these. */
static int batch_option(struct vg_spec_opts *o, struct vg_opt_state *st, int id, const char *arg) {
    Vg__Pb__TaskSpec *s = &o->spec;
    if (!o->batch)
        return vg_opt_bad(st, "this is for tasks that nobody waits at: use vbatch instead of vrun");
    switch (id) {
    case O_FOLLOW:
        o->follow = true;
        return 0;
    case O_SHARDS:
        return set_u32(st, arg, 1, VG_MEMBERS_MAX, &s->has_shards, &s->shards);
    case O_GANG:
        s->has_gang = s->gang = true;
        return 0;
    case O_GANG_POLICY:
        return set_gang_policy(st, arg, s);
    case O_SWEEP:
        return vg_spec_sweep(st, arg, s);
    case O_BEGIN:
        s->has_not_before_usec = true;
        return vg_spec_begin(st, arg, vg_wall_usec(), &s->not_before_usec);
    case O_EVERY:
    case O_CRON:
        return set_schedule(st, arg, id == O_CRON, s);
    case O_KEY:
        return vg_spec_key(st, arg, s);
    default:
        return 0;
    }
}

/* Under which rules it runs. */
static int policy_option(struct vg_spec_opts *o, struct vg_opt_state *st, int id, const char *arg) {
    Vg__Pb__TaskSpec *s = &o->spec;
    switch (id) {
    case O_PRIORITY:
        return set_u32(st, arg, 0, 100, &s->has_priority, &s->priority);
    case O_TIME:
        return set_duration(st, arg, &s->has_time_limit_usec, &s->time_limit_usec);
    case O_RETRIES:
        return set_u32(st, arg, 0, 1000, &s->has_retries, &s->retries);
    case O_RETRY_ON:
        return vg_spec_retry_on(st, arg, s);
    case O_BACKOFF:
        return vg_spec_backoff(st, arg, s);
    case O_AFTER:
        return vg_spec_after(st, arg, VG__PB__DEPENDENCY__WHEN__ANY, s);
    case O_AFTER_SUCCESS:
        return vg_spec_after(st, arg, VG__PB__DEPENDENCY__WHEN__SUCCESS, s);
    case O_AFTER_FAIL:
        return vg_spec_after(st, arg, VG__PB__DEPENDENCY__WHEN__FAILURE, s);
    case O_PREEMPTIBLE:
        s->has_preemptible = s->preemptible = true;
        return 0;
    case O_GRACE:
        return set_duration(st, arg, &s->has_grace_usec, &s->grace_usec);
    case O_GRACE_SIGNAL:
        s->has_grace_signal = true;
        return vg_spec_signal(st, arg, &s->grace_signal);
    case O_MAX_COST:
        s->has_max_cost_micro = true;
        return vg_spec_cost(st, arg, &s->max_cost_micro);
    default:
        return batch_option(o, st, id, arg);
    }
}

/* What it runs on. */
static int place_option(struct vg_spec_opts *o, struct vg_opt_state *st, int id, const char *arg) {
    Vg__Pb__TaskSpec *s = &o->spec;
    switch (id) {
    case O_POOL:
        return vg_spec_pools(st, arg, s);
    case O_GPUS:
        return vg_spec_gpus(st, arg, &o->want);
    case O_GPU_MEM:
        o->want.has_gpu_mem_bytes = true;
        return vg_opt_size(st, arg, &o->want.gpu_mem_bytes);
    case O_GPU_HARD:
        s->has_gpu_hard = s->gpu_hard = true;
        return 0;
    case O_GPU_MODEL:
        return vg_spec_models(st, arg, s);
    case O_CPUS:
        return set_cpus(st, arg, &o->want);
    case O_MEM:
        o->want.has_mem_bytes = true;
        return vg_opt_size(st, arg, &o->want.mem_bytes);
    case O_NODE_LABEL:
        return add_label(st, arg, o->node_labels, &s->n_node_label);
    case O_SESSION:
        s->session = (char *)arg;
        return 0;
    case O_KEEP:
        return set_duration(st, arg, &s->has_session_keep_usec, &s->session_keep_usec);
    default:
        return policy_option(o, st, id, arg);
    }
}

static int add_path(struct vg_opt_state *st, const char *arg, const char **list, size_t *n) {
    if (!*arg)
        return vg_opt_bad(st, "names nothing");
    if (*n == VG_SPEC_PATHS)
        return vg_opt_bad(st, "at most %d of them", VG_SPEC_PATHS);
    list[(*n)++] = arg;
    return 0;
}

static int set_environment(struct vg_spec_opts *o, struct vg_opt_state *st, const char *arg) {
    if (strchr(arg, '='))
        return add_env(o, st, arg);
    if (!*arg)
        return vg_opt_bad(st, "names no environment");
    o->node_files = strcmp(arg, "node") == 0;
    o->environment = o->node_files ? NULL : arg;
    o->spec.has_node_files = o->spec.node_files = o->node_files;
    return 0;
}

/* Where the files come from and what of them goes back. */
static int mirror_option(struct vg_spec_opts *o, struct vg_opt_state *st, int id, const char *arg) {
    switch (id) {
    case O_ENVIRONMENT:
        return set_environment(o, st, arg);
    case O_SNAPSHOT:
        o->snapshot = true;
        return 0;
    case O_LIVE:
        o->live = true;
        return 0;
    case O_IMAGE:
        if (!*arg)
            return vg_opt_bad(st, "names no image");
        o->image = arg;
        return 0;
    case O_WRITABLE:
        return add_path(st, arg, o->writable, &o->n_writable);
    case O_ALLOW:
        return add_path(st, arg, o->allow, &o->n_allow);
    case O_SYNC:
        o->sync = true;
        return 0;
    case O_STRICT:
        o->strict = true;
        return 0;
    default:
        return place_option(o, st, id, arg);
    }
}

int vg_spec_opt(struct vg_spec_opts *o, struct vg_opt_state *st, int id, const char *arg) {
    static const char *const ttys[] = {"auto", "yes", "no", NULL};
    switch (id) {
    case O_DETACH:
        o->detach = true;
        return 0;
    case O_ENV:
        return add_env(o, st, arg);
    case O_SECRET:
        return vg_spec_secret(st, arg, &o->spec);
    case O_DIR:
        o->dir = arg;
        return 0;
    case O_PORT:
        return add_port(o, st, arg);
    case O_TTY:
        return vg_opt_choice(st, arg, ttys, &o->tty);
    case O_NOINPUT:
        o->no_input = true;
        return 0;
    case O_DUPLEX:
        o->duplex = true;
        return 0;
    case O_ID_FILE:
        o->id_file = arg;
        return 0;
    case O_QUIET:
        o->quiet = true;
        return 0;
    case O_DRY_RUN:
        o->dry_run = true;
        return 0;
    case O_NAME:
        o->spec.name = (char *)arg;
        return 0;
    case O_PROJECT:
        if (!*arg)
            return vg_opt_bad(st, "names no project");
        o->spec.project = (char *)arg;
        return 0;
    case O_LABEL:
        return add_label(st, arg, o->labels, &o->spec.n_label);
    default:
        return mirror_option(o, st, id, arg);
    }
}

bool vg_spec_opts_several(const Vg__Pb__TaskSpec *s) {
    return s->has_shards || s->n_sweep || s->gang || s->schedule;
}

bool vg_spec_opts_pins(const struct vg_spec_opts *o) {
    bool live = o->live || o->n_allow || o->sync || o->spec.schedule;
    return o->snapshot || (o->batch && !live);
}

static int check_group(const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    if (s->n_sweep && s->gang)
        return vg_err_set(
            err, VG_INVALID,
            "the points of a sweep start one by one, a gang starts as one: make a gang "
            "for each point");
    if (vg_spec_count(s) > VG_MEMBERS_MAX)
        return vg_err_set(
            err, VG_INVALID,
            "-N and --sweep make more than %d tasks together: sweep over fewer values "
            "at once",
            VG_MEMBERS_MAX);
    if (s->gang && !s->has_shards)
        return vg_err_set(err, VG_INVALID,
                          "a gang needs its size: write --gang -N 4 for four that start together");
    if (s->has_gang_policy && !s->gang)
        return vg_err_set(err, VG_INVALID, "--gang-policy is for gangs: give --gang, too");
    return 0;
}

int vg_spec_opts_check(const struct vg_spec_opts *o, struct vg_err *err) {
    const Vg__Pb__TaskSpec *s = &o->spec;
    if ((s->n_retry_on || s->has_backoff_usec) && !s->retries)
        return vg_err_set(err, VG_INVALID, "%s is for retries: give --retries N, too",
                          s->n_retry_on ? "--retry-on" : "--backoff");
    if (o->snapshot && s->schedule)
        return vg_err_set(err, VG_INVALID,
                          "--snapshot copies for tasks that are made now: give a schedule a saved "
                          "environment ('virga env save NAME', then --env NAME), or put the files "
                          "into a pool's shared folder");
    if (o->snapshot && (o->live || o->n_allow || o->sync))
        return vg_err_set(err, VG_INVALID,
                          "--snapshot works on a copy of this machine's files, %s on the files "
                          "themselves: give one",
                          o->live   ? "--live"
                          : o->sync ? "--sync"
                                    : "--allow");
    if (s->schedule && o->follow)
        return vg_err_set(
            err, VG_INVALID,
            "a schedule has no end to wait for: leave -f away, and see its tasks with "
            "'virga task list'");
    if (s->schedule && (s->n_after || s->has_not_before_usec || s->key))
        return vg_err_set(err, VG_INVALID,
                          "a schedule makes tasks again and again: --after, --begin and --key are "
                          "for tasks that run once");
    if (o->image && (o->environment || o->node_files))
        return vg_err_set(err, VG_INVALID,
                          "--image and --env each say where the files come from: give one");
    if ((o->image || o->environment) && (o->n_writable || o->n_allow || o->sync))
        return vg_err_set(
            err, VG_INVALID,
            "a saved environment has nothing of this machine: --writable, --allow and --sync "
            "are for this machine's files");
    if (o->node_files && (o->n_writable || o->n_allow || o->sync || o->strict))
        return vg_err_set(err, VG_INVALID,
                          "with --env node the files are the node's own: --writable, --allow, "
                          "--sync and --strict are for this machine's");
    if (o->want.gpu_mem_bytes && o->want.has_gpus && !o->want.gpus && !o->want.gpu_milli)
        return vg_err_set(err, VG_INVALID, "--gpu-mem needs a GPU: give --gpus 1, or a share");
    return check_group(s, err);
}

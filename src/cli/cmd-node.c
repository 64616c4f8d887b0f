/* `virga node`: the machines of the cloud. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/cmd-node-cache.h"
#include "cli/list.h"

#include <string.h>
#include <unistd.h>

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->nodes->n_node; i++) {
        const Vg__Pb__NodeInfo *n = env->nodes->node[i];
        char cpu[32], mem[80], gpu[64], tasks[16], seen[48], a[32], b[32], state[160];
        const Vg__Pb__Resources none = VG__PB__RESOURCES__INIT;
        const Vg__Pb__Resources *total = n->total ? n->total : &none,
                                *used = n->used ? n->used : &none;
        snprintf(cpu, sizeof(cpu), "%g/%g", used->cpu_milli / 1000.0, total->cpu_milli / 1000.0);
        snprintf(mem, sizeof(mem), "%s/%s", vg_format_size(used->mem_bytes, a, sizeof(a)),
                 vg_format_size(total->mem_bytes, b, sizeof(b)));
        snprintf(gpu, sizeof(gpu), "%u/%u%s%.40s", used->gpus, total->gpus,
                 n->gpu_model && *n->gpu_model ? " " : "", n->gpu_model ? n->gpu_model : "");
        snprintf(tasks, sizeof(tasks), "%u", n->tasks);
        snprintf(state, sizeof(state), "%.20s%s%.120s", n->state ? n->state : "",
                 n->unfit ? ": " : "", n->unfit ? n->unfit : "");
        const char *cells[] = {
            n->name,   state, cpu,        mem,
            gpu,       tasks, n->version, vg_ago(n->last_seen_usec, seen, sizeof(seen)),
            n->address};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_NODES,
    .headings = (const char *const[]){"NODE", "STATE", "CPU", "MEMORY", "GPU", "TASKS", "VERSION",
                                      "SEEN", "ADDRESS", NULL},
    .rows = rows,
    .view = &vg_view_nodes};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(NODE_LIST, node_list, &body);
    return vg_list_run(l, &req, &lister);
}

static int set(struct vg_cmd_line *l, const char *state, bool remove) {
    Vg__Pb__NodeSet s = VG__PB__NODE_SET__INIT;
    Vg__Pb__Envelope req = vg_request(NODE_SET, node_set, &s);
    if (!vg_cmd_plain(l, 1, -1))
        return l->exit;
    s.state = (char *)state;
    s.has_remove = s.remove = remove;
    int exit = 0;
    for (int i = 0; i < l->n_args && !exit; i++) {
        s.node = l->args[i];
        exit = vg_change_run(&req);
    }
    return exit;
}

static int drain_run(struct vg_cmd_line *l) {
    return set(l, "draining", false);
}

static int resume_run(struct vg_cmd_line *l) {
    return set(l, "ready", false);
}

static int remove_run(struct vg_cmd_line *l) {
    return set(l, NULL, true);
}

/* ------------------------------------------------------------------ invite */

#define LABELS_MAX 64

struct invitation {
    char address[VG_ENDPOINT_ADDRESS_MAX];
    char token[VG_ENDPOINT_TOKEN_MAX];
};

static int on_invite(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct invitation *v = user;
    if (env->body_case == VG__PB__ENVELOPE__BODY_STATUS_INFO) {
        const char *a = env->status_info->address;
        snprintf(v->address, sizeof(v->address), "%s", a && *a ? a : "HOST:PORT");
        return 0;
    }
    if (env->body_case != VG__PB__ENVELOPE__BODY_TOKEN_NEW || !env->token_new->token)
        return vg_unexpected(env, err);
    snprintf(v->token, sizeof(v->token), "%s", env->token_new->token);
    return 0;
}

static int invite(Vg__Pb__InviteReq *q, struct invitation *v, struct vg_err *err) {
    struct vg_client *c;
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope status = vg_request(STATUS, status, &body);
    Vg__Pb__Envelope req = vg_request(NODE_INVITE, node_invite, q);
    int r = vg_client_open(&c, err);
    if (r < 0)
        return r;
    r = vg_call(c, &req, VG_CALL_TIMEOUT_USEC, on_invite, v, err);
    if (r >= 0)
        r = vg_call(c, &status, VG_CALL_TIMEOUT_USEC, on_invite, v, err);
    vg_client_close(c);
    return r;
}

static const struct vg_opt invite_opts[] = {
    {"ttl", 0, "DURATION", "how long the invitation is good", 't'},
    {"label", 'l', "K=V", "a label the node will carry (again for more)", 'l'},
    VG_CMD_OUTPUT,
};

static int invite_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct invitation v = {0};
    char *labels[LABELS_MAX];
    Vg__Pb__InviteReq q = VG__PB__INVITE_REQ__INIT;
    const char *arg;
    q.label = labels;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 't' && vg_opt_duration(&l->st, arg, &q.ttl_usec) < 0)
            return vg_cmd_fail_opt(l);
        q.has_ttl_usec |= id == 't';
        if (id == 'l' && (!strchr(arg, '=') || q.n_label == LABELS_MAX)) {
            vg_opt_bad(&l->st, "'%.60s' is not a label such as rack=a1", arg);
            return vg_cmd_fail_opt(l);
        }
        if (id == 'l')
            labels[q.n_label++] = (char *)arg;
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    if (invite(&q, &v, &err) < 0)
        return vg_cmd_fail(&err);
    if (l->json)
        return vg_json_print(json_pack("{s:s, s:s}", "address", v.address, "token", v.token));
    printf("%s\n", v.token);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "on the new machine: virga join %s --token %s\n", v.address, v.token);
    return 0;
}

static const struct vg_cmd subs[] = {
    {"list", "", "machines with what they have and use", VG_LIST_OPTS, .run = list_run},
    {"drain", "NODE...", "start nothing new there; running tasks end by themselves",
     .run = drain_run},
    {"resume", "NODE...", "use it again", .run = resume_run},
    {"invite", "", "print a one-time token for 'virga join'", invite_opts, VG_COUNT(invite_opts),
     .run = invite_run},
    {"remove", "NODE...", "forget a machine that is gone", .run = remove_run},
    {"seed", "PATH...", "on a node: keep public files ready, so that nobody need send them",
     vg_node_seed_opts, VG_COUNT(vg_node_seed_opts), .run = vg_node_seed_run},
    {"cache", "", "on a node: what it keeps of its users' files", VG_LIST_OPTS,
     .run = vg_node_cache_run},
};

const struct vg_cmd vg_cmd_node = {.name = "node",
                                   .args = "",
                                   .summary =
                                       "machines: list, drain, resume, invite, remove, seed, cache",
                                   .subs = subs,
                                   .n_subs = VG_COUNT(subs)};

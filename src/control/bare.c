/* Whole nodes for one task each: what may be asked for, what is given, and what nodes say that they
   cleared away. What nodes say is bounded and made printable before anybody sees it. */
#include "control/bare.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/audit.h"
#include "control/policy.h"
#include "model/pool.h"

#include <string.h>

#define LINE_MAX_BYTES 300
#define UNFIT_MAX_BYTES 300

int vg_bare_admit(const struct vg_pool_conf *pool, const Vg__Pb__TaskSpec *spec,
                  struct vg_err *err) {
    if (pool->class != VG_CLASS_BARE)
        return 0;
    if (spec->session && *spec->session)
        return vg_err_set(err, VG_INVALID,
                          "pool '%s' gives whole nodes (class bare-metal), each to one task: a "
                          "session needs another pool",
                          pool->name);
    if (spec->max_cost_micro)
        return vg_err_set(err, VG_INVALID,
                          "pool '%s' gives whole nodes, and what one costs is known when it is "
                          "given: limit the task by --time instead of --max-cost",
                          pool->name);
    return 0;
}

static bool names(const struct vg_eng_req *r, const char *pool) {
    for (uint32_t i = 0; i < r->n_pools; i++)
        if (r->pool[i] == vg_eng_pool_id(pool))
            return true;
    return false;
}

/* The GPUs of the smallest node that it could get: so much it will hold at least. What it asks for
   stays the measure of CPUs and memory, of which a node may have a little less after a restart. */
static uint32_t least_gpus(struct vg_control *c, const struct vg_conf *conf,
                           const struct vg_eng_req *r) {
    uint32_t least = UINT32_MAX;
    for (size_t i = 0; i < conf->n_pools; i++) {
        if (!names(r, conf->pool[i].name))
            continue;
        vg_map_for_each (s, &c->nodes) {
            const struct vg_node *n = ((const struct vg_nodelink *)s->value)->node;
            if (vg_node_in_pool(n, &conf->pool[i]))
                least = VG_MIN(least, (uint32_t)__builtin_popcountll(n->gpus));
        }
    }
    return least == UINT32_MAX ? 0 : least;
}

bool vg_bare_is(const struct vg_conf *conf, const struct vg_task *t) {
    const struct vg_pool_conf *p = vg_conf_pool(conf, vg_task_pool(t));
    return p && p->class == VG_CLASS_BARE;
}

void vg_bare_request(struct vg_control *c, const struct vg_conf *conf, const struct vg_task *t,
                     struct vg_eng_req *r) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_res asked;
    const struct vg_pool_conf *p = vg_conf_pool(conf, vg_task_pool(t));
    if (!vg_bare_is(conf, t))
        return;
    r->whole = true;
    /* An earlier attempt may have had a larger node than it asked for. */
    if (vg_pool_grant(conf, p, t->spec->want, &asked, &err) >= 0)
        r->res = asked;
    r->res.gpus = VG_MAX(r->res.gpus, least_gpus(c, conf, r));
}

struct vg_res vg_bare_expected(struct vg_control *c, const char *pool, uint64_t node,
                               const struct vg_res *grant) {
    const struct vg_pool_conf *p = vg_conf_pool(&c->conf, pool);
    struct vg_eng_node_info info;
    if (!p || p->class != VG_CLASS_BARE || vg_eng_node_info(c->policy.eng, node, &info) < 0)
        return *grant;
    return (struct vg_res){.cpu_milli = info.total.cpu_milli,
                           .mem_bytes = info.total.mem_bytes,
                           .gpus = info.total.gpus};
}

void vg_bare_grant(struct vg_control *c, struct vg_task *t) {
    t->grant = vg_bare_expected(c, vg_task_pool(t), t->attempt.node, &t->grant);
}

/* ------------------------------------------------------------------ what was cleared away */

static void make_printable(char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 0x7f)
            *s = ' ';
}

size_t vg_bare_lines(char *text, char **ret, size_t max) {
    size_t n = 0;
    for (char *line; n < max && (line = strsep(&text, "\n"));)
        if (*line)
            ret[n++] = line;
    return n;
}

void vg_bare_wiped(struct vg_job *j, const Vg__Pb__TaskExited *x) {
    struct vg_buf b = {0};
    const struct vg_task *t = j->task;
    for (size_t i = 0; i < x->n_wiped && i < VG_BARE_LINES_MAX; i++) {
        char line[LINE_MAX_BYTES];
        snprintf(line, sizeof line, "%s", x->wiped[i]);
        make_printable(line);
        if (vg_buf_printf(&b, "%s\n", line) < 0)
            break;
        vg_audit_as(j->ctl, t->user, "task %016llx, node %s: %s", (unsigned long long)t->id,
                    vg_nodelink_name(j->ctl, t->attempt.node), line);
    }
    if (vg_buf_len(&b)) {
        free(j->wiped);
        j->wiped = vg_strndup((const char *)vg_buf_data(&b), vg_buf_len(&b));
    }
    vg_buf_done(&b);
}

/* ------------------------------------------------------------------ nodes */

void vg_node_unfit(struct vg_nodelink *a, const char *text) {
    char why[UNFIT_MAX_BYTES];
    snprintf(why, sizeof why, "%s", text ? text : "");
    make_printable(why);
    if (strcmp(a->unfit ? a->unfit : "", why) == 0)
        return;
    free(a->unfit);
    a->unfit = *why ? vg_strdup(why) : NULL;
    a->is_unfit = *why != 0;
    vg_audit_as(a->ctl, "", "node %s: %s", a->node->name, *why ? why : "fit for tasks again");
    vg_nodelink_update(a);
}

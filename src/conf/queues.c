/* Queues in the file: a tree, kept flat with parents first, and what must hold across it. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "conf/parse.h"

struct vg_tenant_conf vg_tenant_conf_default(void) {
    return (struct vg_tenant_conf){.limit = {VG_NO_LIMIT, VG_NO_LIMIT, VG_NO_LIMIT},
                                   .weight = VG_WEIGHT_DEFAULT,
                                   .max_priority = (uint32_t)VG_INHERIT,
                                   .default_priority = (uint32_t)VG_INHERIT,
                                   .min_run_usec = (uint64_t)VG_INHERIT,
                                   .preemptible = VG_INHERIT};
}

void vg_queue_conf_done(struct vg_queue_conf *q) {
    free(q->name);
    vg_strings_done(&q->team);
    *q = (struct vg_queue_conf){0};
}

/* An empty place in the list, so that those below can name it while it is being read. */
static int new_place(struct parse *p, const yaml_node_t *node, int *ret) {
    struct vg_conf *c = p->conf;
    if (c->n_queues >= VG_CONF_QUEUES_MAX)
        return parse_fail(p, node, "there are more than %d queues and users; use 'each_user'",
                          VG_CONF_QUEUES_MAX);
    struct vg_queue_conf *all = vg_grow(c->queue, &c->queues_cap, c->n_queues + 1, sizeof *all);
    if (!all)
        return parse_no_memory(p);
    c->queue = all;
    all[c->n_queues] = (struct vg_queue_conf){.parent = p->queue};
    *ret = (int)c->n_queues++;
    return 0;
}

static int check_one(struct parse *p, const yaml_node_t *at, const struct vg_queue_conf *q,
                     int self) {
    const char *what = q->is_user ? "user" : "queue";
    if (!q->name)
        return parse_fail(p, at, "a %s has no name; add 'name: ...'", what);
    for (int i = 0; i < self; i++) {
        const struct vg_queue_conf *o = &p->conf->queue[i];
        if (o->name && o->parent == q->parent && o->is_user == q->is_user &&
            strcmp(o->name, q->name) == 0)
            return parse_fail(p, at, "%s '%s' stands at line %u already; rename or remove one",
                              what, q->name, o->line);
    }
    return 0;
}

static int check_policy(struct parse *p, const yaml_node_t *at, const struct vg_tenant_conf *t,
                        const char *of, const char *name) {
    const char *over = t->quota.gpu_milli > t->limit.gpu_milli   ? "gpus"
                       : t->quota.cpu_milli > t->limit.cpu_milli ? "cpus"
                       : t->quota.mem_bytes > t->limit.mem_bytes ? "mem"
                                                                 : NULL;
    if (over)
        return parse_fail(p, at, "%s '%s': the quota has more %s than the limit; raise limit.%s",
                          of, name, over, over);
    if (t->max_priority <= VG_PRIORITY_MAX && t->default_priority <= VG_PRIORITY_MAX &&
        t->default_priority > t->max_priority)
        return parse_fail(p, at, "%s '%s': default_priority is above max_priority; lower it", of,
                          name);
    return 0;
}

static int add(struct parse *p, const yaml_node_t *node, bool user) {
    struct vg_queue_conf q = {.parent = p->queue,
                              .is_user = user,
                              .self = vg_tenant_conf_default(),
                              .each_user = vg_tenant_conf_default(),
                              .line = (unsigned)node->start_mark.line + 1};
    int self = -1, above = p->queue;
    int r = new_place(p, node, &self);
    if (r < 0)
        return r;
    p->queue = self;
    r = parse_section(p, node, user ? SECTION_user : SECTION_queue, &q);
    p->queue = above;
    if (r >= 0)
        r = check_one(p, node, &q, self);
    if (r >= 0)
        r = check_policy(p, node, &q.self, user ? "user" : "queue", q.name);
    if (r >= 0)
        r = check_policy(p, node, &q.each_user, "each user of queue", q.name);
    if (r < 0) {
        vg_queue_conf_done(&q);
        return r;
    }
    q.has_queues = p->conf->queue[self].has_queues;
    p->conf->queue[self] = q;
    return 0;
}

static int add_queue(struct parse *p, const yaml_node_t *node) {
    if (p->depth >= VG_CONF_QUEUE_DEPTH)
        return parse_fail(p, node, "queues stand more than %d deep; make the tree flatter",
                          VG_CONF_QUEUE_DEPTH);
    if (p->queue >= 0)
        p->conf->queue[p->queue].has_queues = true;
    p->depth++;
    int r = add(p, node, false);
    p->depth--;
    return r;
}

static int add_user(struct parse *p, const yaml_node_t *node) {
    return add(p, node, true);
}

int parse_queues(struct parse *p, const yaml_node_t *node) {
    return parse_each(p, node, "queues", VG_CONF_LIST_MAX, add_queue);
}

int parse_users(struct parse *p, const yaml_node_t *node) {
    return parse_each(p, node, "users", VG_CONF_LIST_MAX, add_user);
}

/* ------------------------------------------------------------------ across the tree */

static bool holds_team(const struct vg_queue_conf *q, const char *team) {
    if (q->is_user)
        return false;
    if (!q->team.n)
        return !q->has_queues && strcmp(q->name, team) == 0;
    for (size_t i = 0; i < q->team.n; i++)
        if (strcmp(q->team.item[i], team) == 0)
            return true;
    return false;
}

static int check_teams(struct parse *p, size_t at) {
    const struct vg_conf *c = p->conf;
    const struct vg_queue_conf *q = &c->queue[at];
    size_t n = q->team.n ? q->team.n : !q->is_user && !q->has_queues;
    for (size_t i = 0; i < n; i++) {
        const char *team = q->team.n ? q->team.item[i] : q->name;
        for (size_t o = 0; o < at; o++)
            if (holds_team(&c->queue[o], team))
                return parse_fail_line(p, q->line,
                                       "team '%s' is in queue '%s' (line %u) already; name it in "
                                       "one queue only",
                                       team, c->queue[o].name, c->queue[o].line);
    }
    return 0;
}

static uint64_t add_sat(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* A queue that promises more than it was promised could not keep its word. One that was promised
   nothing itself gets what those below are promised (vg_conf_queue_policy). */
static int check_sums(struct parse *p, size_t at) {
    const struct vg_conf *c = p->conf;
    const struct vg_queue_conf *q = &c->queue[at];
    struct vg_amount sum = {0};
    for (size_t i = at + 1; i < c->n_queues; i++)
        if (c->queue[i].parent == (int)at) {
            const struct vg_amount *k = &c->queue[i].self.quota;
            sum = (struct vg_amount){add_sat(sum.gpu_milli, k->gpu_milli),
                                     add_sat(sum.cpu_milli, k->cpu_milli),
                                     add_sat(sum.mem_bytes, k->mem_bytes)};
        }
    const struct vg_amount *own = &q->self.quota;
    const char *over = own->gpu_milli && sum.gpu_milli > own->gpu_milli   ? "gpus"
                       : own->cpu_milli && sum.cpu_milli > own->cpu_milli ? "cpus"
                       : own->mem_bytes && sum.mem_bytes > own->mem_bytes ? "mem"
                                                                          : NULL;
    if (!over)
        return 0;
    return parse_fail_line(p, q->line,
                           "queue '%s': those in it are promised more %s than its own quota; raise "
                           "quota.%s or lower theirs",
                           q->name, over, over);
}

int parse_check_queues(struct parse *p) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < p->conf->n_queues; i++) {
        r = check_teams(p, i);
        if (r >= 0)
            r = check_sums(p, i);
    }
    return r;
}

int vg_conf_queue_of(const struct vg_conf *c, const char *org, const char *team, bool *ret_own) {
    *ret_own = false;
    for (size_t i = 0; i < c->n_queues; i++)
        if (holds_team(&c->queue[i], team))
            return (int)i;
    *ret_own = true;
    for (size_t i = 0; i < c->n_queues; i++)
        if (!c->queue[i].is_user && c->queue[i].parent < 0 && c->queue[i].has_queues &&
            strcmp(c->queue[i].name, org) == 0)
            return (int)i;
    return -1;
}

/* A changed configuration takes over. Everything is prepared beside the old one, which stays until
   nothing can fail any more: a reload never drops or moves a task. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/job.h"
#include "control/nodes.h"
#include "control/place.h"
#include "control/policy.h"
#include "control/price.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int read_again(struct vg_control *c, struct vg_conf *ret, struct vg_err *err) {
    if (!c->conf_named && access(c->home.config, F_OK) < 0 && errno == ENOENT) {
        int r = vg_conf_default(ret);
        return r < 0 ? vg_err_sys(err, r, "cannot reload") : 0;
    }
    return vg_conf_load(c->home.config, ret, err);
}

/* What connections and leases were set up with stays until the next start. */
static void keep_fixed(struct vg_conf *now, struct vg_conf *next, char *out, size_t n) {
    static const char *const names[] = {"listen", "advertise", "metrics",
                                        "web",    "web_cert",  "web_key",
                                        "lease",  "heartbeat", "node_certificate"};
    struct {
        char **now, **next;
    } texts[] = {{&now->listen, &next->listen},     {&now->advertise, &next->advertise},
                 {&now->metrics, &next->metrics},   {&now->web, &next->web},
                 {&now->web_cert, &next->web_cert}, {&now->web_key, &next->web_key}};
    bool differs[VG_COUNT(names)] = {[VG_COUNT(texts)] = now->lease_usec != next->lease_usec,
                                     now->heartbeat_usec != next->heartbeat_usec,
                                     now->node_cert_usec != next->node_cert_usec};
    for (size_t i = 0; i < VG_COUNT(texts); i++)
        differs[i] = strcmp(*texts[i].now, *texts[i].next) != 0;
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < VG_COUNT(names); i++)
        if (differs[i] && used < n)
            used += (size_t)snprintf(out + used, n - used, "%s%s",
                                     used ? ", " : "; taken at the next start: ", names[i]);
    for (size_t i = 0; i < VG_COUNT(texts); i++) {
        char *taken = *texts[i].next;
        *texts[i].next = *texts[i].now;
        *texts[i].now = taken;
    }
    next->lease_usec = now->lease_usec;
    next->heartbeat_usec = now->heartbeat_usec;
    next->node_cert_usec = now->node_cert_usec;
}

/* Whether the task needs that pool: it is there, or would have nowhere else to go. */
static bool needs(const struct vg_task *t, const char *pool, const struct vg_conf *next) {
    const Vg__Pb__TaskSpec *s = t->spec;
    bool names = s->pool && strcmp(s->pool, pool) == 0;
    if (vg_task_is_ended(t) || vg_task_is_group(t))
        return false;
    if (t->attempt.node)
        return strcmp(vg_task_pool(t), pool) == 0;
    if (s->pool && vg_conf_pool(next, s->pool))
        return false;
    for (size_t i = 0; i < s->n_also_pool; i++) {
        if (vg_conf_pool(next, s->also_pool[i]))
            return false;
        names |= strcmp(s->also_pool[i], pool) == 0;
    }
    return names;
}

static bool is_in(const struct vg_task *t, const char *pool) {
    return !vg_task_is_ended(t) && strcmp(vg_task_pool(t), pool) == 0;
}

/* A pool with unfinished tasks stays what it is: they would have nowhere to go, or would wait for
   what it does not give any more. */
static int check_pools(struct vg_control *c, const struct vg_conf *next, struct vg_err *err) {
    for (size_t i = 0; i < c->conf.n_pools; i++) {
        const char *name = c->conf.pool[i].name;
        const struct vg_pool_conf *new = vg_conf_pool(next, name);
        size_t tasks = 0;
        if (new &&new->class == c->conf.pool[i].class)
            continue;
        vg_map_for_each (s, &c->jobs) {
            const struct vg_task *t = ((const struct vg_job *)s->value)->task;
            tasks += new ? is_in(t, name) : needs(t, name, next);
        }
        if (tasks && new)
            return vg_err_set(err, VG_CONFLICT,
                              "%s makes pool '%s' a pool of class %s, and it has %zu unfinished "
                              "task%s: wait until they have ended, or name a new pool; nothing was "
                              "changed",
                              c->home.config, name, vg_pool_class_name(new->class), tasks,
                              tasks == 1 ? "" : "s");
        if (tasks)
            return vg_err_set(err, VG_CONFLICT,
                              "%s leaves out pool '%s', which has %zu unfinished task%s: keep it "
                              "until they have ended, or cancel them; nothing was changed",
                              c->home.config, name, tasks, tasks == 1 ? "" : "s");
    }
    return 0;
}

static int tell_nodes(struct vg_control *c, struct vg_policy *p) {
    int r = 0;
    vg_map_for_each (s, &c->nodes) {
        if (r >= 0)
            r = vg_policy_set_node(c, p, s->value);
    }
    return r;
}

static void restore_one(void *arg, uint32_t kind, uint64_t key, const uint64_t value[4]) {
    vg_eng_restore(arg, kind, key, value);
}

/* A gang goes over with its first member that is met. */
static int submit_gang(struct vg_policy *p, struct vg_job *j, struct vg_map *done,
                       struct vg_err *err) {
    struct vg_control *c = j->ctl;
    uint64_t group = j->task->group;
    size_t n = 0;
    if (vg_map_get_u64(done, group))
        return 0;
    vg_auto_free struct vg_job **all = vg_alloc(((size_t)j->task->of + 1) * sizeof *all);
    if (!all || vg_map_put_u64(done, group, j) < 0)
        return vg_err_sys(err, ENOMEM, "cannot reload");
    for (uint32_t i = 0; i < j->task->of; i++) {
        struct vg_job *m = vg_job_get(c, vg_task_member_id(group, i));
        if (m && m->waits)
            all[n++] = m;
    }
    if (n == j->task->of)
        return vg_place_submit_gang_to(p, all, n, err);
    for (size_t i = 0; i < n; i++) { /* missing members of one that runs */
        int r = vg_place_submit_to(p, all[i], err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int tell_tasks(struct vg_control *c, struct vg_policy *p, struct vg_err *err) {
    struct vg_map gangs = {0};
    int r = 0;
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (r >= 0 && j->task->attempt.node) {
            r = vg_place_adopt_in(p, j);
            r = r == -ENOENT ? 0 : r < 0 ? vg_err_sys(err, r, "cannot reload") : 0;
        }
    }
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (r < 0 || !j->waits)
            continue;
        r = j->task->spec->gang && j->task->group ? submit_gang(p, j, &gangs, err)
                                                  : vg_place_submit_to(p, j, err);
        if (r < 0)
            vg_err_wrap(err, "task %016llx would never start; nothing was changed",
                        (unsigned long long)j->task->id);
    }
    vg_map_done(&gangs);
    return r;
}

static int prepare(struct vg_control *c, struct vg_conf *next, struct vg_policy *p,
                   struct vg_err *err) {
    int r = check_pools(c, next, err);
    if (r >= 0)
        r = vg_policy_open(p, next, err);
    if (r < 0)
        return r;
    vg_eng_save(vg_policy_now(c), restore_one, p->eng);
    r = tell_nodes(c, p);
    if (r < 0)
        vg_err_sys(err, r, "cannot reload");
    else
        r = tell_tasks(c, p, err);
    if (r < 0)
        vg_policy_close(p);
    return r;
}

int vg_policy_reload(struct vg_control *c, char *out, size_t n, struct vg_err *err) {
    struct vg_conf next = {0};
    struct vg_policy p = {0};
    char note[160];
    int r = read_again(c, &next, err);
    if (r < 0)
        return r;
    r = prepare(c, &next, &p, err);
    if (r < 0) {
        vg_conf_done(&next);
        return r;
    }
    keep_fixed(&c->conf, &next, note, sizeof note);
    vg_policy_close(&c->policy);
    vg_conf_done(&c->conf);
    c->conf = next;
    c->policy = p;
    c->policy.conf = &c->conf;
    vg_policy_windows(c);
    vg_prices_configured(c);
    snprintf(out, n, "the configuration was read again: %zu pools, %zu queues%s", c->conf.n_pools,
             c->conf.n_queues, note);
    vg_info("%s", out);
    vg_place_all(c);
    return 0;
}

/* Policy in the file: queues, the scheduler, prices, windows, reservations. */
#include "base/cleanup.h"
#include "base/util.h"
#include "conf/conf.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <time.h>

static void load(const char *text, struct vg_conf *c) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_conf_parse(text, strlen(text), "c.yaml", c, &err), 0, "%s", err.msg);
}

Test(policy, without_a_file_everybody_is_equal) {
    struct vg_conf c;
    bool own;
    cr_assert_eq(vg_conf_default(&c), 0);
    cr_assert_eq(vg_conf_queue_of(&c, "org", "vision", &own), -1);
    cr_assert(own);
    struct vg_tenant_conf team = vg_conf_team_policy(&c, -1),
                          ann = vg_conf_user_policy(&c, -1, true, "ann");
    cr_assert(team.weight == VG_WEIGHT_DEFAULT && ann.weight == VG_WEIGHT_DEFAULT);
    cr_assert(team.quota.gpu_milli == 0 && team.limit.gpu_milli == VG_NO_LIMIT);
    cr_assert(ann.max_priority == 100 && ann.default_priority == 50 && ann.preemptible == 0);
    cr_assert_eq(ann.min_run_usec, c.scheduler.min_run_usec);
    cr_assert_eq(c.scheduler.preemption, VG_PREEMPT_AGREED);
    cr_assert_str_eq(c.currency, "USD");
    vg_conf_done(&c);
}

static const char tree[] = "scheduler:\n"
                           "  half_life: 3d\n"
                           "  ageing: 2h\n"
                           "  backfill: 16\n"
                           "  min_run: 1m\n"
                           "  grace: 20s\n"
                           "  gang_timeout: 90s\n"
                           "  placement: spread\n"
                           "queues:\n"
                           "- name: research\n"
                           "  max_priority: 80\n"
                           "  min_run: 10m\n"
                           "  queues:\n"
                           "  - name: vision\n"
                           "    quota: {gpus: 8, cpus: 64, mem: 512G}\n"
                           "    limit: {gpus: 16}\n"
                           "    weight: 200\n"
                           "    default_priority: 60\n"
                           "    preemptible: yes\n"
                           "    users: [{name: ann, quota: {gpus: 2}, weight: 300}]\n"
                           "    each_user: {limit: {gpus: 4}, max_priority: 40}\n"
                           "  - {name: text, teams: [nlp, speech]}\n"
                           "- {name: ops, quota: {gpus: 0.5}}\n";

Test(policy, a_tree_of_queues_arrives) {
    struct vg_conf c;
    bool own;
    char path[64];
    load(tree, &c);
    cr_assert_eq(c.n_queues, 5);
    cr_assert(c.scheduler.half_life_usec == 3 * 86400 * VG_USEC && c.scheduler.backfill == 16);
    cr_assert(c.scheduler.ageing_usec == 7200 * VG_USEC && c.scheduler.grace_usec == 20 * VG_USEC);
    cr_assert_eq(c.scheduler.gang_timeout_usec, 90 * VG_USEC);
    cr_assert_eq(c.scheduler.placement, VG_PLACE_SPREAD);
    cr_assert_eq(c.scheduler.preemption, VG_PREEMPT_YES, "there are quotas to keep");
    int v = vg_conf_queue_of(&c, "org", "vision", &own);
    cr_assert(v >= 0 && !own);
    cr_assert_str_eq(vg_conf_queue_path(&c, v, path, sizeof path), "research/vision");
    struct vg_tenant_conf q = vg_conf_queue_policy(&c, v);
    cr_assert(q.quota.gpu_milli == 8000 && q.quota.mem_bytes == 512ULL << 30);
    cr_assert(q.limit.gpu_milli == 16000 && q.limit.cpu_milli == VG_NO_LIMIT && q.weight == 200);
    cr_assert(q.max_priority == 80 && q.default_priority == 60 && q.preemptible == 1);
    cr_assert_eq(q.min_run_usec, 600 * VG_USEC);
    struct vg_tenant_conf above = vg_conf_queue_policy(&c, c.queue[v].parent);
    cr_assert_eq(above.quota.gpu_milli, 8000, "it was promised nothing itself");
    struct vg_tenant_conf ann = vg_conf_user_policy(&c, v, false, "ann"),
                          bob = vg_conf_user_policy(&c, v, false, "bob");
    cr_assert(ann.weight == 300 && ann.quota.gpu_milli == 2000 && ann.max_priority == 80);
    cr_assert(bob.limit.gpu_milli == 4000 && bob.max_priority == 40);
    cr_assert_eq(bob.default_priority, 40, "never above what may be asked for");
    vg_conf_done(&c);
}

Test(policy, teams_find_their_queue) {
    struct vg_conf c;
    bool own;
    load(tree, &c);
    int text = vg_conf_queue_of(&c, "org", "speech", &own);
    cr_assert(text >= 0 && !own);
    cr_assert_str_eq(c.queue[text].name, "text");
    cr_assert_eq(vg_conf_queue_of(&c, "org", "nlp", &own), text);
    cr_assert_eq(vg_conf_queue_of(&c, "org", "text", &own), -1, "it has teams of other names");
    cr_assert(own);
    int research = vg_conf_queue_of(&c, "research", "robots", &own);
    cr_assert(research >= 0 && own, "a team of that organisation without a queue");
    cr_assert_str_eq(c.queue[research].name, "research");
    cr_assert_eq(vg_conf_team_policy(&c, research).max_priority, 80);
    vg_conf_done(&c);
}

Test(policy, pools_have_prices_models_and_bounds) {
    struct vg_conf c;
    load("currency: EUR\npools:\n- name: a\n  models: [A100, H100]\n  min_run: 2m\n"
         "  max_priority: 70\n  price: {gpu_hour: 2.50, cpu_hour: 0.04, gib_hour: 0.000125,\n"
         "  idle_discount: 30, preemptible_discount: 12.5}\n"
         "energy: {co2_g_per_kwh: 380.5, pue: 1.25}\n",
         &c);
    const struct vg_pool_conf *p = &c.pool[0];
    cr_assert_str_eq(c.currency, "EUR");
    cr_assert(p->model.n == 2 && p->max_priority == 70 && p->min_run_usec == 120 * VG_USEC);
    cr_assert(p->price.gpu_hour_micro == 2500000 && p->price.cpu_hour_micro == 40000);
    cr_assert_eq(p->price.gib_hour_micro, 125);
    cr_assert(p->price.idle_milli == 30000 && p->price.preemptible_milli == 12500);
    cr_assert(c.energy.co2_milli == 380500 && c.energy.pue_milli == 1250);
    vg_conf_done(&c);
}

Test(policy, prices_are_decimal_text) {
    uint64_t v;
    cr_assert(vg_parse_micro("0", &v) == 0 && v == 0);
    cr_assert(vg_parse_micro("12.5", &v) == 0 && v == 12500000);
    cr_assert(vg_parse_micro("0.000001", &v) == 0 && v == 1);
    const char *const bad[] = {
        "", ".", "1.", "1.2.3", "-1", "1e3", "0.0000001", " 1", "99999999999999999999"};
    for (size_t i = 0; i < VG_COUNT(bad); i++)
        cr_assert_eq(vg_parse_micro(bad[i], &v), -EINVAL, "%s", bad[i]);
}

Test(policy, times_have_zones_or_are_local) {
    struct vg_when w;
    cr_assert_eq(vg_parse_when("2026-12-01T02:00Z", &w), 0);
    cr_assert(!w.local && w.usec == 1796090400 * VG_USEC);
    cr_assert_eq(vg_parse_when("2026-12-01 03:00:00+01:00", &w), 0);
    cr_assert_eq(w.usec, 1796090400 * VG_USEC);
    cr_assert_eq(vg_parse_when("2024-02-29 00:00-0500", &w), 0);
    cr_assert_eq(w.usec, 1709182800 * VG_USEC);
    const char *const bad[] = {"2025-02-29 00:00Z", "2026-12-01",        "2026-13-01 00:00",
                               "2026-12-01 24:00",  "2026-12-01 00:00X", "tomorrow",
                               "2026-12-01 0:00",   "2026-12-01 00:60",  "2026-12-01 00:00+25:00"};
    for (size_t i = 0; i < VG_COUNT(bad); i++)
        cr_assert_eq(vg_parse_when(bad[i], &w), -EINVAL, "%s", bad[i]);
}

Test(policy, windows_come_again) {
    struct vg_conf c;
    uint64_t a, b, start = 1796090400 * VG_USEC, day = 86400 * VG_USEC;
    load("maintenance:\n"
         "- {name: once, start: 2026-12-01T02:00Z, duration: 4h, nodes: [n1]}\n"
         "- {name: week, start: 2026-12-01T02:00Z, duration: 4h, repeat: weekly,\n"
         "   labels: {rack: 3}}\n",
         &c);
    const struct vg_window_conf *once = &c.window[0], *week = &c.window[1];
    cr_assert_eq(vg_conf_window_next(once, 0, &a, &b), 1);
    cr_assert(a == start && b == start + 14400 * VG_USEC);
    cr_assert_eq(vg_conf_window_next(once, b - 1, &a, &b), 1, "it is on");
    cr_assert_eq(vg_conf_window_next(once, b, &a, &b), 0, "it is over");
    cr_assert_eq(vg_conf_window_next(week, start + 30 * 7 * day, &a, &b), 1);
    cr_assert_eq(a, start + 30 * 7 * day);
    cr_assert_eq(vg_conf_window_next(week, start + 30 * 7 * day + 14400 * VG_USEC, &a, &b), 1);
    cr_assert_eq(a, start + 31 * 7 * day);
    vg_conf_done(&c);
}

Test(policy, a_local_window_keeps_its_hour_when_clocks_change) {
    struct vg_conf c;
    uint64_t a, b;
    setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    tzset();
    load("maintenance: [{start: 2026-10-18 04:00, duration: 1h, repeat: weekly}]", &c);
    cr_assert_eq(vg_conf_window_next(&c.window[0], 0, &a, &b), 1);
    cr_assert_eq(a, 1792288800 * VG_USEC, "02:00 UTC in summer");
    cr_assert_eq(vg_conf_window_next(&c.window[0], b, &a, &b), 1);
    cr_assert_eq(a, 1792897200 * VG_USEC, "03:00 UTC in winter");
    vg_conf_done(&c);
}

Test(policy, each_mistake_has_its_sentence) {
    static const struct {
        const char *text, *message;
    } table[] = {
        {"queues: [{}]", "c.yaml:1: a queue has no name; add 'name: ...'"},
        {"queues: [{name: a, users: [{}]}]", "c.yaml:1: a user has no name; add 'name: ...'"},
        {"queues:\n- name: a\n- name: a",
         "c.yaml:3: queue 'a' stands at line 2 already; rename or remove one"},
        {"queues:\n- {name: a, teams: [x]}\n- {name: b, queues: [{name: x}]}",
         "c.yaml:3: team 'x' is in queue 'a' (line 2) already; name it in one queue only"},
        {"queues: [{name: a, quotta: {gpus: 1}}]",
         "c.yaml:1: unknown key 'quotta' in a queue; did you mean 'quota'?"},
        {"queues: [{name: a, quota: {gpu: 1}}]",
         "c.yaml:1: unknown key 'gpu' in an amount; did you mean 'gpus'?"},
        {"queues: [{name: a, quota: {gpus: many}}]",
         "c.yaml:1: 'gpus' is 'many', but must be a number, like 2 or 0.5"},
        {"queues: [{name: a, weight: 0}]",
         "c.yaml:1: 'weight' is 0, but must be between 1 and 1000000"},
        {"queues: [{name: a, quota: {cpus: 8}, limit: {cpus: 4}}]",
         "c.yaml:1: queue 'a': the quota has more cpus than the limit; raise limit.cpus"},
        {"queues: [{name: a, each_user: {quota: {mem: 2G}, limit: {mem: 1G}}}]",
         "c.yaml:1: each user of queue 'a': the quota has more mem than the limit; raise "
         "limit.mem"},
        {"queues: [{name: a, max_priority: 10, default_priority: 20}]",
         "c.yaml:1: queue 'a': default_priority is above max_priority; lower it"},
        {"queues: [{name: a, max_priority: 101}]",
         "c.yaml:1: 'max_priority' is 101, but must be between 0 and 100"},
        {"queues: [{name: a, preemptible: maybe}]",
         "c.yaml:1: 'preemptible' is 'maybe', but must be yes or no"},
        {"queues:\n- name: a\n  quota: {gpus: 4}\n  queues:\n  - {name: b, quota: {gpus: 3}}\n"
         "  - {name: c, quota: {gpus: 2}}",
         "c.yaml:2: queue 'a': those in it are promised more gpus than its own quota; raise "
         "quota.gpus or lower theirs"},
        {"queues: &q [{name: a, queues: *q}]",
         "c.yaml:1: queues stand more than 5 deep; make the tree flatter"},
        {"scheduler: {preemption: maybe}",
         "c.yaml:1: 'preemption' is 'maybe', but must be no, agreed or yes"},
        {"scheduler: {placement: best}",
         "c.yaml:1: 'placement' is 'best', but must be least-stranded, best-fit or spread"},
        {"scheduler: {halflife: 1d}",
         "c.yaml:1: unknown key 'halflife' in 'scheduler'; did you mean 'half_life'?"},
        {"currency: E1", "c.yaml:1: 'currency' is 'E1', but must be a name of 1 to 8 letters, like "
                         "EUR"},
        {"pools: [{name: a, price: {gpu_hour: 0.1234567}}]",
         "c.yaml:1: 'gpu_hour' is '0.1234567', but must be a price with at most six decimals, like "
         "2.5 or 0.000125"},
        {"pools: [{name: a, price: {gpu_hour: 1000001}}]",
         "c.yaml:1: 'gpu_hour' is 1000001, but must be between 0 and 1000000"},
        {"pools: [{name: a, shape: {gpus: 1.5}}]",
         "c.yaml:1: 'gpus' is '1.5', but must be a whole number, or a share of one GPU like 0.25"},
        {"maintenance: [{name: w, duration: 1h}]",
         "c.yaml:1: window 'w' has no start; add 'start: 2026-12-01 02:00'"},
        {"maintenance: [{name: w, start: 2026-12-01 02:00}]",
         "c.yaml:1: window 'w' has no duration; add 'duration: 4h'"},
        {"maintenance: [{name: w, start: soon, duration: 1h}]",
         "c.yaml:1: 'start' is 'soon', but must be a date and time, like '2026-12-01 02:00' or "
         "'2026-12-01T02:00Z'"},
        {"maintenance: [{name: w, start: 2026-12-01 02:00, duration: 1d, repeat: daily}]",
         "c.yaml:1: window 'w' lasts until it begins again; shorten 'duration'"},
        {"maintenance: [{start: 2026-12-01 02:00, duration: 1h, nodes: [a], labels: {a: b}}]",
         "c.yaml:1: window 'maintenance' has both 'nodes' and 'labels'; keep one of them"},
        {"maintenance: [{start: 2026-12-01 02:00, duration: 1h, repeat: yearly}]",
         "c.yaml:1: 'repeat' is 'yearly', but must be once, daily or weekly"},
        {"reservations: [{name: r, gpus: 1, from: 2026-12-01 00:00, until: 2026-12-02 00:00}]",
         "c.yaml:1: reservation 'r' must say for whom: one of queue, team and user"},
        {"reservations: [{name: r, team: a, user: b, gpus: 1}]",
         "c.yaml:1: reservation 'r' must say for whom: one of queue, team and user"},
        {"reservations: [{name: r, team: a, gpus: 1}]",
         "c.yaml:1: reservation 'r' needs both 'from' and 'until'"},
        {"reservations: [{name: r, team: a, from: 2026-12-01 00:00, until: 2026-12-02 00:00}]",
         "c.yaml:1: reservation 'r' keeps nothing; add 'gpus: ...'"},
        {"reservations:\n- {name: r, team: a, gpus: 1, from: 2026-12-02 00:00,\n   until: "
         "2026-12-01 00:00}",
         "c.yaml:2: reservation 'r' ends before it begins; correct 'until'"},
        {"reservations: [{name: r, team: a, gpus: 1, pool: x, from: 2026-12-01 00:00, until: "
         "2026-12-02 00:00}]",
         "c.yaml:1: reservation 'r' names pool 'x', which is not among 'pools'"},
        {"reservations: [{name: r, queue: x, gpus: 1, from: 2026-12-01 00:00, until: 2026-12-02 "
         "00:00}]",
         "c.yaml:1: reservation 'r' is for queue 'x', which is not among 'queues'; write it with "
         "those above it, like 'research/vision'"},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct vg_conf c;
        struct vg_err err = VG_ERR_INIT;
        const char *t = table[i].text;
        cr_expect_eq(vg_conf_parse(t, strlen(t), "c.yaml", &c, &err), -EINVAL, "%s", t);
        cr_expect_str_eq(err.msg, table[i].message);
    }
}

Test(policy, aliases_cannot_make_the_tree_explode) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    /* Two hundred users that forty more queues use again: 8,240 in all. */
    char text[8192];
    size_t at = 0;
    at += (size_t)snprintf(text + at, sizeof text - at, "queues:\n- {name: a, users: &u [");
    for (int i = 0; i < 200; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "{name: u%d},", i);
    at += (size_t)snprintf(text + at, sizeof text - at, "]}\n");
    for (int i = 0; i < 40; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "- {name: q%d, users: *u}\n", i);
    cr_assert_eq(vg_conf_parse(text, at, "c.yaml", &c, &err), -EINVAL);
    cr_assert(strstr(err.msg, "more than 4096 queues and users; use 'each_user'"), "%s", err.msg);
}

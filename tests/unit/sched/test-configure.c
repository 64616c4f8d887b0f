/* A configuration becomes an engine: queues, teams and users stand where the file says. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sched/configure.h"

#include <criterion/criterion.h>
#include <string.h>

static const char text[] = "scheduler: {preemption: agreed}\n"
                           "pools: [{name: a}, {name: b}]\n"
                           "queues:\n"
                           "- name: research\n"
                           "  queues:\n"
                           "  - {name: vision, quota: {gpus: 8}, limit: {gpus: 16}, weight: 200}\n"
                           "- {name: text, teams: [nlp], each_user: {limit: {cpus: 2}}}\n";

static struct vg_conf c;
static struct vg_eng *e;

static void setup(void) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_conf_parse(text, strlen(text), "c.yaml", &c, &err), 0, "%s", err.msg);
    e = vg_eng_new();
    cr_assert_eq(vg_eng_configure(e, &c), 0);
}

static void teardown(void) {
    vg_eng_free(e);
    vg_conf_done(&c);
}

TestSuite(configure, .init = setup, .fini = teardown);

static struct vg_eng_tenant_info info_of(uint64_t id) {
    struct vg_eng_tenant_info all[16];
    size_t n = vg_eng_tenants(e, all, VG_COUNT(all));
    for (size_t i = 0; i < n; i++)
        if (all[i].id == id)
            return all[i];
    cr_assert_fail("there is no such tenant");
    return all[0];
}

Test(configure, queues_have_what_the_file_gives_them) {
    struct vg_eng_tenant_info v = info_of(vg_eng_queue_id("research/vision")),
                              r = info_of(vg_eng_queue_id("research"));
    cr_assert_eq(v.parent, r.id);
    cr_assert_str_eq(v.name, "vision");
    cr_assert(v.quota.gpu_milli == 8000 && v.limit.gpu_milli == 16000 && v.weight == 200);
    cr_assert_eq(r.quota.gpu_milli, 8000, "what it holds for those below");
}

Test(configure, users_stand_below_their_queue_or_their_own_team) {
    struct vg_eng_home ann, bob, again;
    cr_assert_eq(vg_eng_user(e, &c, "main", "nlp", "ann", &ann), 0);
    cr_assert_str_eq(ann.path, "text/ann");
    cr_assert_eq(info_of(ann.tenant).parent, vg_eng_queue_id("text"));
    cr_assert_eq(info_of(ann.tenant).limit.cpu_milli, 2000);
    cr_assert_eq(vg_eng_user(e, &c, "main", "robots", "bob", &bob), 0);
    cr_assert_str_eq(bob.path, "robots/bob");
    cr_assert_eq(vg_eng_user(e, &c, "main", "robots", "bob", &again), 0);
    cr_assert_eq(again.tenant, bob.tenant);
    cr_assert_eq(vg_eng_user(e, &c, "research", "robots", "bob", &again), 0);
    cr_assert_str_eq(again.path, "research/robots/bob", "its organisation has a queue");
    cr_assert_neq(again.tenant, bob.tenant);
    cr_assert_null(vg_eng_check(e));
}

Test(configure, preemption_by_agreement_spares_the_others) {
    cr_assert(vg_eng_may_preempt(&c, false, true));
    cr_assert_not(vg_eng_may_preempt(&c, false, false));
    cr_assert(vg_eng_may_preempt(&c, true, true), "who waits for it has agreed");
    cr_assert_not(vg_eng_may_preempt(&c, true, false));
    c.scheduler.preemption = VG_PREEMPT_YES;
    cr_assert(vg_eng_may_preempt(&c, false, false));
    cr_assert_not(vg_eng_may_preempt(&c, true, false), "nobody who waits and was not asked");
}

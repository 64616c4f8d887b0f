/* Groups, members, dependencies and their rows. */
#include "base/cleanup.h"
#include "base/util.h"
#include "model/task-row.h"

#include <criterion/criterion.h>

static Vg__Pb__TaskSpec *make_spec(void) {
    Vg__Pb__TaskSpec *spec = malloc(sizeof *spec);
    vg__pb__task_spec__init(spec);
    spec->name = strdup("sweep");
    return spec;
}

static struct vg_task *make_group(uint32_t members, bool blocked) {
    struct vg_task *t = vg_task_new(0xabc, "ann", "vision", make_spec(), blocked, 1000);
    cr_assert(t);
    t->members = members;
    cr_assert_eq(vg_task_need_progress(t), 0);
    for (uint32_t i = 0; i < members; i++)
        vg_progress_move(t->progress, VG_TASK_STATES, t->state);
    return t;
}

Test(group, members_have_ids_of_their_own_that_follow_from_the_group) {
    for (uint32_t i = 0; i < 1000; i++)
        for (uint32_t k = 0; k < i; k += 37)
            cr_assert_neq(vg_task_member_id(5, i), vg_task_member_id(5, k));
    cr_assert_eq(vg_task_member_id(5, 7), vg_task_member_id(5, 7));
    cr_assert_neq(vg_task_member_id(5, 7), vg_task_member_id(6, 7));
}

Test(group, a_member_shares_what_its_group_has_and_outlives_it) {
    struct vg_task *g = make_group(3, false);
    Vg__Pb__Identity *who = malloc(sizeof *who);
    vg__pb__identity__init(who);
    vg_task_set_who(g, who);
    struct vg_task *m = vg_task_new_member(g, 2);
    cr_assert_eq(m->spec, g->spec);
    cr_assert_eq(m->who, who);
    cr_assert_eq(m->of, 3);
    cr_assert_eq(vg_task_fold(m), g->id);
    cr_assert_gt(m->created_usec, g->created_usec);
    cr_assert_null(vg_task_check(g));
    cr_assert_null(vg_task_check(m));
    vg_task_free(g);
    cr_assert_str_eq(vg_task_name(m), "sweep");
    vg_task_free(m);
}

Test(group, the_number_of_members_is_shards_times_the_cross_product) {
    Vg__Pb__TaskSpec s = VG__PB__TASK_SPEC__INIT;
    Vg__Pb__Sweep a = VG__PB__SWEEP__INIT, b = VG__PB__SWEEP__INIT, *both[] = {&a, &b};
    a.n_value = 3;
    b.n_value = 4;
    cr_assert_eq(vg_spec_members(&s, 100), 0);
    s.shards = 1;
    cr_assert_eq(vg_spec_members(&s, 100), 0);
    s.gang = 1;
    cr_assert_eq(vg_spec_members(&s, 100), 1);
    s.gang = 0;
    s.shards = 5;
    cr_assert_eq(vg_spec_members(&s, 100), 5);
    s.sweep = both;
    s.n_sweep = 2;
    cr_assert_eq(vg_spec_members(&s, 100), 60);
    cr_assert_eq(vg_spec_members(&s, 59), 60, "one more than the limit says: too many");
    a.n_value = b.n_value = 4000000000;
    cr_assert_eq(vg_spec_members(&s, 100), 101, "no overflow");
}

Test(group, its_state_follows_its_members) {
    struct vg_progress p = VG_PROGRESS_INIT;
    vg_progress_move(&p, VG_TASK_STATES, VG_TASK_BLOCKED);
    vg_progress_move(&p, VG_TASK_STATES, VG_TASK_BLOCKED);
    cr_assert_eq(vg_progress_state(&p, VG_TASK_BLOCKED), VG_TASK_BLOCKED);
    vg_progress_move(&p, VG_TASK_BLOCKED, VG_TASK_QUEUED);
    cr_assert_eq(vg_progress_state(&p, VG_TASK_BLOCKED), VG_TASK_QUEUED);
    vg_progress_move(&p, VG_TASK_QUEUED, VG_TASK_RUNNING);
    cr_assert_eq(vg_progress_state(&p, VG_TASK_QUEUED), VG_TASK_RUNNING);
    vg_progress_move(&p, VG_TASK_RUNNING, VG_TASK_SUCCEEDED);
    vg_progress_move(&p, VG_TASK_BLOCKED, VG_TASK_QUEUED);
    cr_assert_eq(vg_progress_state(&p, VG_TASK_RUNNING), VG_TASK_RUNNING,
                 "until the last has ended");
    cr_assert_eq(vg_progress_open(&p), 1);
    vg_progress_move(&p, VG_TASK_QUEUED, VG_TASK_CANCELLED);
    cr_assert_eq(vg_progress_state(&p, VG_TASK_RUNNING), VG_TASK_CANCELLED);
    vg_progress_move(&p, VG_TASK_STATES, VG_TASK_FAILED);
    cr_assert_eq(vg_progress_state(&p, VG_TASK_RUNNING), VG_TASK_FAILED);
    cr_assert_eq(vg_progress_total(&p), 3);
}

Test(group, its_status_is_the_first_bad_one_in_index_order_whenever_it_came) {
    struct vg_task *g = make_group(4, false);
    vg_task_move(g, VG_TASK_RUNNING, 1500, NULL);
    const struct {
        uint32_t index;
        int32_t status;
    } ends[] = {{3, 7}, {1, 5}, {0, 0}, {2, 9}};
    for (size_t i = 0; i < VG_COUNT(ends); i++) {
        vg_progress_move(g->progress, VG_TASK_QUEUED,
                         ends[i].status ? VG_TASK_FAILED : VG_TASK_SUCCEEDED);
        vg_progress_status(g->progress, ends[i].index, ends[i].status);
    }
    cr_assert_eq(vg_task_end(g, 0, VG_OK, 2000, NULL), 0);
    cr_assert_eq(g->state, VG_TASK_FAILED);
    cr_assert_eq(g->status, 5);
    cr_assert_null(vg_task_check(g));
    vg_task_free(g);
}

Test(group, is_never_placed) {
    struct vg_task *g = make_group(2, false);
    cr_assert_eq(vg_task_place(g, 5, 0), -EINVAL);
    cr_assert_eq(vg_task_move(g, VG_TASK_RUNNING, 1, NULL), 0);
    cr_assert_eq(vg_task_move(g, VG_TASK_QUEUED, 1, NULL), -EINVAL);
    vg_task_free(g);
}

Test(group, counts_survive_as_text_and_nonsense_is_refused) {
    struct vg_progress p = VG_PROGRESS_INIT, back = VG_PROGRESS_INIT;
    char text[VG_PROGRESS_TEXT];
    for (unsigned i = 0; i < VG_TASK_STATES; i++)
        p.n[i] = UINT32_MAX - i;
    vg_progress_status(&p, 4000000, -1);
    vg_progress_format(&p, text);
    cr_assert_eq(vg_progress_parse(text, &back), 0);
    cr_assert_eq(memcmp(&p, &back, sizeof p), 0);
    static const char *const bad[] = {"", "1 2 3", "1 2 3 4 5 6 7 8", "1 2 3 4 5 6 7 8 9 x",
                                      "a b c d e f g h i"};
    for (size_t i = 0; i < VG_COUNT(bad); i++)
        cr_assert_eq(vg_progress_parse(bad[i], &back), -EBADMSG, "%s", bad[i]);
    cr_assert_eq(memcmp(&p, &back, sizeof p), 0, "untouched");
}

Test(after, an_end_fulfils_what_was_asked_for_and_nothing_else) {
    static const struct {
        enum vg_after_when when;
        enum vg_task_state state;
        int met;
    } table[] = {
        {VG_AFTER_ANY, VG_TASK_SUCCEEDED, 1},        {VG_AFTER_ANY, VG_TASK_FAILED, 1},
        {VG_AFTER_ANY, VG_TASK_CANCELLED, 1},        {VG_AFTER_SUCCESS, VG_TASK_SUCCEEDED, 1},
        {VG_AFTER_SUCCESS, VG_TASK_FAILED, 0},       {VG_AFTER_SUCCESS, VG_TASK_CANCELLED, 0},
        {VG_AFTER_FAILURE, VG_TASK_SUCCEEDED, 0},    {VG_AFTER_FAILURE, VG_TASK_FAILED, 1},
        {VG_AFTER_FAILURE, VG_TASK_CANCELLED, 0},    {VG_AFTER_ANY, VG_TASK_RUNNING, -EAGAIN},
        {VG_AFTER_FAILURE, VG_TASK_BLOCKED, -EAGAIN}};
    for (size_t i = 0; i < VG_COUNT(table); i++)
        cr_assert_eq(vg_after_met(table[i].when, table[i].state), table[i].met, "%zu", i);
}

Test(after, what_a_task_waits_for_can_be_added_and_dropped) {
    struct vg_task *t = vg_task_new(1, "ann", "vision", make_spec(), true, 1000);
    cr_assert_eq(vg_task_add_after(t, 10, VG_AFTER_ANY), 0);
    cr_assert_eq(vg_task_add_after(t, 11, VG_AFTER_SUCCESS), 0);
    cr_assert_not(vg_task_drop_after(t, 10, VG_AFTER_SUCCESS));
    cr_assert(vg_task_drop_after(t, 10, VG_AFTER_ANY));
    cr_assert_not(vg_task_drop_after(t, 10, VG_AFTER_ANY));
    cr_assert_eq(t->n_after, 1);
    cr_assert_eq(t->after[0].id, 11);
    vg_task_free(t);
}

Test(row, a_group_and_its_member_go_there_and_back) {
    struct vg_task *g = make_group(3, true), *m, *g2, *m2;
    struct vg_task_pack pack = {0};
    struct vg_task_row row;
    g->spec->key = strdup("nightly-7");
    vg_task_add_after(g, 0x10, VG_AFTER_SUCCESS);
    vg_task_add_after(g, 0x11, VG_AFTER_FAILURE);
    vg_task_add_after(g, 0x12, VG_AFTER_ANY);
    m = vg_task_new_member(g, 1);
    m->due_usec = 77;
    m->preempted = 2;
    m->preempting = true;
    cr_assert_eq(vg_task_to_row(g, true, &pack, &row), 0);
    cr_assert_str_eq(row.key, "nightly-7");
    cr_assert_eq(vg_task_from_row(&row, NULL, &g2), 0);
    vg_task_pack_done(&pack);
    cr_assert_eq(g2->members, 3);
    cr_assert_eq(g2->n_after, 3);
    cr_assert_eq(g2->after[1].id, 0x11);
    cr_assert_eq(g2->after[1].when, VG_AFTER_FAILURE);
    cr_assert_eq(g2->progress->n[VG_TASK_BLOCKED], 3);
    cr_assert_eq(vg_task_to_row(m, true, &pack, &row), 0);
    cr_assert_eq(row.spec.len, 0, "the group has it");
    cr_assert(row.insert);
    cr_assert_eq(vg_task_from_row(&row, NULL, &m2), -EBADMSG, "it needs its group");
    cr_assert_eq(vg_task_from_row(&row, m, &m2), -EBADMSG, "not just any task");
    cr_assert_eq(vg_task_from_row(&row, g2, &m2), 0);
    cr_assert_eq(m2->id, m->id);
    cr_assert_eq(m2->spec, g2->spec);
    cr_assert(m2->due_usec == 77 && m2->preempted == 2 && m2->preempting);
    row.index = 2;
    struct vg_task *m3;
    cr_assert_eq(vg_task_from_row(&row, g2, &m3), -EBADMSG, "the id follows from the index");
    row.index = 1;
    row.after = "x123";
    cr_assert_eq(vg_task_from_row(&row, g2, &m3), -EBADMSG);
    vg_task_pack_done(&pack);
    vg_task_free(g);
    vg_task_free(m);
    vg_task_free(g2);
    vg_task_free(m2);
}

/* Who is let in, and the tokens of tasks. */
#include "control/authority.h"
#include "control/who.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct vg_conf conf;
static struct vg_tenants tenants;

static void setup(void) {
    struct vg_err err = VG_ERR_INIT;
    memset(&conf, 0, sizeof conf);
    cr_assert_eq(vg_conf_default(&conf), 0);
    cr_assert_eq(vg_tenants_add_team(&tenants, "main", "main", 1, NULL, &err), 0);
}

static void teardown(void) {
    vg_conf_done(&conf);
    vg_tenants_done(&tenants);
}

TestSuite(who, .init = setup, .fini = teardown);

static enum vg_entry decide(uid_t uid, char *name, char *group) {
    char *groups[] = {group};
    struct vg_account a = {
        .uid = uid, .name = name, .groups = {.item = groups, .n = group ? 1 : 0}};
    return vg_who_decide(&conf, &tenants, &a, 500);
}

static void allow(struct vg_strings *list, const char *name) {
    list->item = realloc(list->item, (list->n + 1) * sizeof *list->item);
    list->item[list->n++] = strdup(name);
}

Test(who, root_and_the_own_uid_are_administrators) {
    cr_assert_eq(decide(0, "root", NULL), VG_ENTRY_ADMIN);
    cr_assert_eq(decide(500, "virga", NULL), VG_ENTRY_ADMIN);
}

Test(who, a_stranger_stays_outside) {
    cr_assert_eq(decide(1001, "bob", "staff"), VG_ENTRY_NO);
}

Test(who, a_record_with_the_uid_lets_in) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(
        vg_tenants_add_user(&tenants, "bob", "main", VG_ROLE_MEMBER, 1001, 1001, 0, 1, NULL, &err),
        0);
    cr_assert_eq(decide(1001, "bob", NULL), VG_ENTRY_USER);
    cr_assert_eq(decide(1002, "bob", NULL), VG_ENTRY_NO);
}

Test(who, listed_groups_and_users_let_in) {
    allow(&conf.access.groups, "gpu");
    allow(&conf.access.users, "eve");
    cr_assert_eq(decide(1001, "bob", "gpu"), VG_ENTRY_ACCESS);
    cr_assert_eq(decide(1001, "bob", "gp"), VG_ENTRY_NO);
    cr_assert_eq(decide(1003, "eve", NULL), VG_ENTRY_ACCESS);
}

Test(who, a_task_token_names_its_task_and_nothing_else_passes) {
    uint8_t key[32] = {1, 2, 3}, other[32] = {1, 2, 4};
    char token[VG_TASK_TOKEN_MAX];
    const uint64_t task = 0x0123456789abcdefULL;
    uint64_t named = 0;
    Vg__Pb__Identity who = VG__PB__IDENTITY__INIT, root = VG__PB__IDENTITY__INIT;
    who.user = "eve";
    who.has_uid = root.has_uid = 1;
    who.uid = 1001;
    root.user = "root";
    cr_assert_eq(vg_task_token_make(key, task, &who, token), 0);
    cr_assert_eq(vg_task_token_check(key, token, task, &who), 0);
    cr_assert_eq(vg_task_token_parse(token, &named), 0);
    cr_assert_eq(named, task);
    cr_assert_lt(vg_task_token_check(other, token, task, &who), 0);
    cr_assert_lt(vg_task_token_check(key, token, task + 1, &who), 0);
    cr_assert_lt(vg_task_token_check(key, token, task, &root), 0, "another owner");
    cr_assert_lt(vg_task_token_check(key, token, task, NULL), 0);
    size_t n = strlen(token);
    for (size_t i = 0; i < n; i++) {
        char bad[VG_TASK_TOKEN_MAX];
        memcpy(bad, token, n + 1);
        bad[i] = bad[i] == '0' ? '1' : '0';
        cr_assert_lt(vg_task_token_check(key, bad, task, &who), 0, "byte %zu", i);
        memcpy(bad, token, n + 1);
        bad[i] = '\0';
        cr_assert_lt(vg_task_token_check(key, bad, task, &who), 0, "cut at %zu", i);
    }
}

/* Hooks: who may hear of what, whom a stranger's hook cannot reach, and the words. */
#include "base/util.h"
#include "control/hooks-int.h"
#include "world.h"

#include <arpa/inet.h>
#include <string.h>
#include <unistd.h>

static struct world w;
static struct side admin, other, agent;

static void setup(void) {
    world_up(&w, "hooks: {retry: 100ms}\n");
    side_open(&w, &admin);
    side_hello(&admin, NULL);
}

static void teardown(void) {
    side_close(&w, &admin);
    side_close(&w, &other);
    side_close(&w, &agent);
    world_down(&w);
}

TestSuite(hooks, .init = setup, .fini = teardown, .timeout = 120);

static void expect_ok(struct side *s, int body_case) {
    struct msg m = side_expect(&w, s, body_case);
    msg_done(&m);
}

static void expect_error(struct side *s, enum vg_reason reason, const char *words) {
    struct msg m = side_expect(&w, s, BODY(ERROR));
    cr_expect_eq(m.env->error->reason, reason, "%s", m.env->error->text);
    cr_expect(strstr(m.env->error->text, words), "%s", m.env->error->text);
    msg_done(&m);
}

static void log_in(const char *user, const char *role, const char *team) {
    if (team) {
        Vg__Pb__UserSet t = VG__PB__USER_SET__INIT;
        t.name = (char *)team;
        ENV(add, TEAM_ADD, team_add, &t);
        side_send(&admin, &add, NULL, 0);
        expect_ok(&admin, BODY(OK));
    }
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    u.name = (char *)user;
    u.role = (char *)role;
    u.team = (char *)team;
    ENV(add, USER_ADD, user_add, &u);
    side_send(&admin, &add, NULL, 0);
    expect_ok(&admin, BODY(OK));
    Vg__Pb__TokenReq t = VG__PB__TOKEN_REQ__INIT;
    t.user = (char *)user;
    ENV(tok, TOKEN_CREATE, token_create, &t);
    side_send(&admin, &tok, NULL, 0);
    struct msg m = side_expect(&w, &admin, BODY(TOKEN_NEW));
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, m.env->token_new->token);
    msg_done(&m);
}

static void set(struct side *s, const char *name, const char *url, const char *event,
                const char *scope) {
    Vg__Pb__HookSet h = VG__PB__HOOK_SET__INIT;
    char *events[] = {(char *)event};
    h.name = (char *)name;
    h.url = (char *)url;
    h.event = events;
    h.n_event = 1;
    h.scope = (char *)scope;
    ENV(env, HOOK_SET, hook_set, &h);
    side_send(s, &env, NULL, 0);
}

static void try_hook(struct side *s, const char *name) {
    Vg__Pb__NameRef r = VG__PB__NAME_REF__INIT;
    r.name = (char *)name;
    ENV(env, HOOK_TEST, hook_test, &r);
    side_send(s, &env, NULL, 0);
}

Test(hooks, a_strangers_hook_does_not_reach_this_machine) {
    log_in("bob", "member", NULL);
    set(&other, "h", "http://127.0.0.1:9/", "task.ended", NULL);
    expect_ok(&other, BODY(HOOKS));
    try_hook(&other, "h");
    expect_error(&other, VG_FORBIDDEN, "127.0.0.1 is not a public one");
    set(&other, "h", "http://localhost:9/", "task.ended", NULL);
    expect_ok(&other, BODY(HOOKS));
    try_hook(&other, "h");
    expect_error(&other, VG_FORBIDDEN, "not a public one");
    set(&admin, "a", "http://127.0.0.1:9/", "task.ended", NULL); /* the control: it is tried */
    expect_ok(&admin, BODY(HOOKS));
    try_hook(&admin, "a");
    expect_error(&admin, VG_UNAVAILABLE, "onnect");
}

Test(hooks, who_may_hear_of_what) {
    log_in("lea", "lead", "vision");
    set(&other, "h", "https://example.org/", "task.ended", "team:vision");
    expect_ok(&other, BODY(HOOKS));
    set(&other, "h2", "https://example.org/", "task.ended", "team:main");
    expect_error(&other, VG_FORBIDDEN, "team:main");
    set(&other, "h2", "https://example.org/", "task.ended", "cloud");
    expect_error(&other, VG_FORBIDDEN, "cloud");
    set(&other, "h2", "https://example.org/", "node.lost", NULL);
    expect_error(&other, VG_INVALID, "administrators");
    set(&admin, "ops", "https://example.org/x?token=abc", "node.lost", "cloud");
    expect_ok(&admin, BODY(HOOKS));
    cr_expect(vg_hook_wanted(&w.c, "node.lost") && vg_hook_wanted(&w.c, "task.ended"));
    cr_expect(!vg_hook_wanted(&w.c, "task.started") && !vg_hook_wanted(&w.c, "nonsense"));
}

Test(hooks, lists_show_ones_own_and_of_others_not_the_path) {
    log_in("bob", "member", NULL);
    set(&admin, "ops", "https://example.org/x?token=abc", "task.ended", NULL);
    expect_ok(&admin, BODY(HOOKS));
    set(&other, "mine", "https://example.org/secret/path", "task.ended", NULL);
    struct msg m = side_expect(&w, &other, BODY(HOOKS));
    cr_expect_eq(strlen(m.env->hooks->hook[0]->new_secret), 64);
    cr_expect_str_eq(m.env->hooks->hook[0]->hook->url, "https://example.org/secret/path");
    msg_done(&m);
    Vg__Pb__Empty none = VG__PB__EMPTY__INIT;
    ENV(list, HOOK_LIST, hook_list, &none);
    side_send(&other, &list, NULL, 0);
    m = side_expect(&w, &other, BODY(HOOKS));
    cr_assert_eq(m.env->hooks->n_hook, 1);
    cr_expect_str_eq(m.env->hooks->hook[0]->hook->name, "mine");
    cr_expect(!m.env->hooks->hook[0]->new_secret);
    msg_done(&m);
    side_send(&admin, &list, NULL, 0);
    m = side_expect(&w, &admin, BODY(HOOKS));
    cr_assert_eq(m.env->hooks->n_hook, 2);
    for (size_t i = 0; i < 2; i++)
        if (strcmp(m.env->hooks->hook[i]->user, "bob") == 0)
            cr_expect_str_eq(m.env->hooks->hook[i]->hook->url, "https://example.org");
    msg_done(&m);
    Vg__Pb__NameRef r = VG__PB__NAME_REF__INIT;
    r.name = (char *)"ops"; /* another's is not there for him */
    ENV(rm, HOOK_REMOVE, hook_remove, &r);
    side_send(&other, &rm, NULL, 0);
    expect_error(&other, VG_NOT_FOUND, "no hook 'ops'");
    r.name = (char *)"bob/mine";
    side_send(&admin, &rm, NULL, 0);
    expect_ok(&admin, BODY(OK));
}

Test(hooks, what_waits_is_bounded_and_outlives_a_restart) {
    set(&admin, "h", "http://127.0.0.1:1/", "budget.warned", NULL);
    expect_ok(&admin, BODY(HOOKS));
    struct vg_hook *h = NULL;
    vg_map_for_each (s, &w.c.hooks->map)
        h = s->value;
    for (int i = 0; i < VG_HOOK_WAITING + 10; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        struct vg_hook_event e = {.name = "budget.warned",
                                  .user = h->user,
                                  .key = key,
                                  .data = json_pack("{s:i}", "i", i)};
        vg_hook_event(&w.c, &e);
        if (i == 0) { /* what comes again is the same */
            e.data = json_null();
            vg_hook_event(&w.c, &e);
        }
    }
    cr_expect_eq(h->n_waiting, VG_HOOK_WAITING);
    cr_expect_eq(vg_hooks_count(&w.c).dropped, 10);
    struct vg_hook_event others = {
        .name = "budget.warned", .user = "somebody", .data = json_null()};
    vg_hook_event(&w.c, &others);
    cr_expect_eq(vg_hooks_count(&w.c).dropped, 10, "another's is not for it");
    world_stop(&w);
    side_close(&w, &admin);
    world_start(&w);
    cr_assert(w.c.hooks);
    cr_expect_eq(vg_hooks_count(&w.c).waiting, VG_HOOK_WAITING);
    cr_expect(vg_hook_wanted(&w.c, "budget.warned"));
}

Test(hooks, a_node_that_comes_is_told_to_those_who_hear_everything) {
    set(&admin, "all", "http://127.0.0.1:1/", "node.ready", "cloud");
    expect_ok(&admin, BODY(HOOKS));
    set(&admin, "own", "http://127.0.0.1:1/", "task.ended", NULL);
    expect_ok(&admin, BODY(HOOKS));
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_sync(&w, &agent);
    vg_map_for_each (s, &w.c.hooks->map) {
        struct vg_hook *h = s->value;
        cr_assert_eq(h->n_waiting, strcmp(h->name, "all") == 0 ? 1 : 0, "%s", h->name);
        if (!h->n_waiting)
            continue;
        struct vg_delivery *d = vg_list_entry(vg_list_first(&h->waiting), struct vg_delivery, link);
        cr_expect(strstr(d->body, "\"node\":\"n1\""), "%s", d->body);
        cr_expect_str_eq(d->event, "node.ready");
    }
}

/* ------------------------------------------------------------------ words */

Test(hook_text, urls) {
    static const char *const good[] = {"https://a", "http://a.b:80/c?d#e", "https://[::1]/",
                                       "mailto:a@b", "mailto:a.b+c@d.example"};
    static const char *const bad[] = {"",
                                      "https://",
                                      "https:///x",
                                      "ftp://a",
                                      "file:///etc/passwd",
                                      "https://u@h/",
                                      "https://u:p@h",
                                      "https://a b",
                                      "https://\xc3\xa4/",
                                      "mailto:",
                                      "mailto:a",
                                      "mailto:a@b@c",
                                      "mailto:a@b,c@d",
                                      "mailto:a@b?bcc=x@y",
                                      "HTTPS://a\r\nX: y"};
    struct vg_err err = VG_ERR_INIT;
    char host[64];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        cr_expect_eq(vg_hook_url_check(good[i], &err), 0, "%s: %s", good[i], err.msg);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_lt(vg_hook_url_check(bad[i], &err), 0, "%s", bad[i]);
    cr_expect_str_eq(vg_hook_url_host("https://a.b:1/c?d", host, sizeof host), "https://a.b:1");
    cr_expect_str_eq(vg_hook_url_host("https://a?d", host, sizeof host), "https://a");
    cr_expect_str_eq(vg_hook_url_host("mailto:a@b", host, sizeof host), "mailto:a@b");
}

Test(hook_text, a_signature_is_what_other_programs_compute) {
    char out[96];
    vg_hook_sign("key", 1, "{}", 2, out);
    /* printf '1.{}' | openssl dgst -sha256 -hmac key */
    cr_expect_str_eq(out,
                     "t=1,v1=1ba6b8171186efc613e8bcc0cbdab2748f24984d7c5a84faa2637afa0e40d224");
}

Test(hook_text, what_is_sealed_opens_for_its_hook_alone) {
    uint8_t key[32] = {1}, other_key[32] = {2}, sealed[VG_HOOK_SEALED_MAX];
    char out[VG_HOOK_SECRET_MAX + 1], large[VG_HOOK_SECRET_MAX + 2];
    size_t n = 0;
    cr_assert_eq(vg_hook_seal(key, "ann/h", "a secret of sixteen", sealed, &n), 0);
    cr_expect(!memmem(sealed, n, "secret", 6));
    cr_assert_eq(vg_hook_open(key, "ann/h", sealed, n, out), 0);
    cr_expect_str_eq(out, "a secret of sixteen");
    cr_expect_lt(vg_hook_open(key, "bob/h", sealed, n, out), 0);
    cr_expect_lt(vg_hook_open(other_key, "ann/h", sealed, n, out), 0);
    for (size_t i = 0; i < n; i++) {
        cr_expect_lt(vg_hook_open(key, "ann/h", sealed, i, out), 0);
        sealed[i] ^= 1;
        cr_expect_lt(vg_hook_open(key, "ann/h", sealed, n, out), 0);
        sealed[i] ^= 1;
    }
    memset(large, 'x', sizeof large);
    large[VG_HOOK_SECRET_MAX] = '\0';
    cr_assert_eq(vg_hook_seal(key, "h", large, sealed, &n), 0);
    cr_assert_eq(vg_hook_open(key, "h", sealed, n, out), 0);
    cr_expect_str_eq(out, large);
}

Test(hook_text, ids_are_the_same_for_the_same) {
    char a[33], b[33];
    vg_hook_id("u/h", "task.ended", "1 1", a);
    vg_hook_id("u/h", "task.ended", "1 1", b);
    cr_expect_str_eq(a, b);
    vg_hook_id("u/h", "task.ended", "1 2", b);
    cr_expect_str_neq(a, b);
    cr_expect_eq(strlen(a), 32);
}

Test(hook_text, a_mail_has_one_line_for_each_header_whatever_its_words) {
    struct vg_buf b = {0};
    const char *body = "{\"event\":\"task.ended\",\"hook\":\"h\",\"user\":\"u\",\"data\":{\"name\":"
                       "\"x\\r\\nBcc: all@example.org\",\"state\":\"failed\"}}";
    cr_assert_eq(vg_hook_mail("f@x", "t@y", "id", body, 0, &b), 0);
    vg_buf_append(&b, "", 1);
    const char *text = (const char *)vg_buf_data(&b);
    cr_expect(!strstr(text, "\nBcc"), "%s", text);
    cr_expect(strstr(text, "\r\nSubject: [virga] task.ended: x??Bcc: all@example.org (failed)\r\n"),
              "%s", text);
    cr_expect(strstr(text, "Date: Thu, 01 Jan 1970 00:00:00 +0000\r\n") == text, "%s", text);
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        cr_expect_eq(p[-1], '\r');
    vg_buf_done(&b);
}

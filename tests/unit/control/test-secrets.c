/* Secrets: sealing and master keys from memory, and what the control plane does with them. */
#include "base/util.h"
#include "control/secrets-ring.h"
#include "world.h"

#include <errno.h>
#include <sodium.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEY_A "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define KEY_B "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"
#define VALUE "a value that nobody should find"

static struct vg_ring *ring(const char *text) {
    struct vg_ring *r = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_ring_parse(text, strlen(text), "test", &r, &err), 0, "%s", err.msg);
    return r;
}

Test(ring, keys_are_lines_of_hex_digits_and_the_last_is_the_newest) {
    struct vg_ring *one = ring(KEY_B), *both = ring("# old\n" KEY_A "\n\n" KEY_B "\n");
    cr_assert_eq(vg_ring_len(both), 2);
    cr_assert_str_eq(vg_ring_newest(both), vg_ring_newest(one));
    vg_ring_free(one);
    vg_ring_free(both);
}

Test(ring, a_line_that_is_no_key_is_told_and_not_shown) {
    static const char *const bad[] = {"", "\n\n", "secretword", (KEY_A "0"), ("zz" KEY_A)};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct vg_ring *r = NULL;
        struct vg_err err = VG_ERR_INIT;
        cr_assert_lt(vg_ring_parse(bad[i], strlen(bad[i]), "test", &r, &err), 0);
        cr_assert(strstr(err.msg, "64 hex digits"), "%s", err.msg);
        cr_assert(!strstr(err.msg, "secretword") && !strstr(err.msg, "0011"), "%s", err.msg);
    }
}

Test(ring, a_file_that_others_can_read_is_refused) {
    char path[] = "/tmp/vg-ring-XXXXXX";
    struct vg_ring *r = NULL;
    struct vg_err err = VG_ERR_INIT;
    int fd = mkstemp(path);
    cr_assert(write(fd, KEY_A "\n", 65) == 65 && fchmod(fd, 0640) == 0);
    cr_assert_lt(vg_ring_read_file(path, &r, &err), 0);
    cr_assert(strstr(err.msg, "chmod 600"), "%s", err.msg);
    fchmod(fd, 0600);
    cr_assert_eq(vg_ring_read_file(path, &r, &err), 0);
    struct vg_ring *more = NULL, *last = NULL;
    cr_assert_eq(vg_ring_grow_file(path, r, &more, &err), 0);
    cr_assert_eq(vg_ring_len(more), 2);
    cr_assert_eq(vg_ring_shrink_file(path, more, &err), 0);
    cr_assert_eq(vg_ring_read_file(path, &last, &err), 0);
    cr_assert(vg_ring_len(last) == 1 && strcmp(vg_ring_newest(last), vg_ring_newest(more)) == 0);
    vg_ring_free(r);
    vg_ring_free(more);
    vg_ring_free(last);
    close(fd);
    unlink(path);
}

Test(ring, a_command_gives_keys_without_a_shell) {
    char *good[] = {"printf", "%s\n", KEY_A, NULL}, *fails[] = {"false", NULL},
         *missing[] = {"/nonexistent/keys", NULL}, *shell[] = {"echo", "$HOME", NULL};
    struct vg_ring *r = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_ring_read_command(good, 60 * VG_USEC, &r, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_ring_len(r), 1);
    vg_ring_free(r);
    cr_assert_lt(vg_ring_read_command(fails, 60 * VG_USEC, &r, &err), 0);
    cr_assert(strstr(err.msg, "status 1"), "%s", err.msg);
    cr_assert_lt(vg_ring_read_command(missing, 60 * VG_USEC, &r, &err), 0);
    cr_assert_lt(vg_ring_read_command(shell, 60 * VG_USEC, &r, &err), 0);
}

Test(ring, a_command_that_does_not_end_is_ended) {
    char *silent[] = {"sleep", "1000", NULL},
         *lives_on[] = {"sh", "-c", "exec >&-; sleep 1000", NULL};
    struct vg_ring *r = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_lt(vg_ring_read_command(silent, VG_USEC / 10, &r, &err), 0);
    cr_assert_lt(vg_ring_read_command(lives_on, VG_USEC / 10, &r, &err), 0);
    cr_assert(strstr(err.msg, "gave no master key"), "%s", err.msg);
    errno = 0;
    cr_assert(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "both are gone");
}

struct sealed {
    struct vg_seal_name name;
    uint8_t wrapped[VG_SEAL_WRAPPED], sealed[sizeof VALUE + VG_SEAL_EXTRA];
};

static struct sealed seal(const struct vg_ring *r, const char *scope, const char *name,
                          uint32_t version) {
    struct sealed s = {.name = {scope, name, version}};
    vg_seal(r, &s.name, VALUE, sizeof VALUE, s.wrapped, s.sealed);
    return s;
}

static int unseal(const struct vg_ring *r, const char *id, const struct sealed *s, char *out) {
    struct vg_err err = VG_ERR_INIT;
    int e = vg_unseal(r, id, &s->name, s->wrapped, sizeof s->wrapped, s->sealed, sizeof s->sealed,
                      (uint8_t *)out, &err);
    cr_assert(e >= 0 || err.msg[0]);
    return e;
}

Test(seal, opens_only_as_what_it_was_sealed_as) {
    struct vg_ring *r = ring(KEY_A "\n" KEY_B);
    struct vg_ring *old = ring(KEY_A);
    char out[sizeof VALUE];
    struct sealed s = seal(r, "user:ann", "TOKEN", 3), t = s;
    cr_assert_eq(unseal(r, vg_ring_newest(r), &s, out), 0);
    cr_assert_str_eq(out, VALUE);
    cr_assert_lt(unseal(old, vg_ring_newest(r), &s, out), 0, "a key that is not there");
    cr_assert_lt(unseal(r, vg_ring_newest(old), &s, out), 0, "another key");
    t.name.scope = "user:bob";
    cr_assert_lt(unseal(r, vg_ring_newest(r), &t, out), 0, "a row moved to another user");
    t.name = (struct vg_seal_name){"user:ann", "OTHER", 3};
    cr_assert_lt(unseal(r, vg_ring_newest(r), &t, out), 0, "a row renamed");
    t.name = (struct vg_seal_name){"user:ann", "TOKEN", 4};
    cr_assert_lt(unseal(r, vg_ring_newest(r), &t, out), 0, "an older value as a newer");
    t.name = (struct vg_seal_name){"user:an", "nTOKEN", 3};
    cr_assert_lt(unseal(r, vg_ring_newest(r), &t, out), 0, "parts that run together");
    struct sealed other = seal(r, "user:ann", "TOKEN", 3);
    memcpy(other.wrapped, s.wrapped, sizeof s.wrapped);
    cr_assert_lt(unseal(r, vg_ring_newest(r), &other, out), 0, "another's data key");
    vg_ring_free(r);
    vg_ring_free(old);
}

Test(seal, every_flipped_bit_is_seen) {
    struct vg_ring *r = ring(KEY_A);
    char out[sizeof VALUE];
    struct sealed s = seal(r, "team:ml", "T", 1);
    for (size_t i = 0; i < sizeof s.wrapped + sizeof s.sealed; i++) {
        uint8_t *p = i < sizeof s.wrapped ? &s.wrapped[i] : &s.sealed[i - sizeof s.wrapped];
        *p ^= 1;
        cr_assert_lt(unseal(r, vg_ring_newest(r), &s, out), 0, "byte %zu", i);
        *p ^= 1;
    }
    cr_assert_eq(unseal(r, vg_ring_newest(r), &s, out), 0);
    vg_ring_free(r);
}

/* ------------------------------------------------------------------ the control plane */

static struct world w;
static struct side root, agent, other;

static void setup(void) {
    world_up(&w, NULL);
    side_open(&w, &root);
}

static void teardown(void) {
    side_close(&w, &root);
    side_close(&w, &agent);
    side_close(&w, &other);
    world_down(&w);
}

TestSuite(secrets, .init = setup, .fini = teardown, .timeout = 120);

static void send_set(struct side *s, const char *team, const char *name, const char *value) {
    Vg__Pb__SecretSet q = VG__PB__SECRET_SET__INIT;
    q.name = (char *)name;
    q.team = (char *)team;
    q.has_value = 1;
    q.value = (ProtobufCBinaryData){.data = (uint8_t *)value, .len = strlen(value)};
    ENV(env, SECRET_SET, secret_set, &q);
    side_send(s, &env, NULL, 0);
}

static void ok(struct side *s) {
    struct msg m = side_expect(&w, s, BODY(OK));
    msg_done(&m);
}

static void refused(struct side *s, enum vg_reason reason, const char *part) {
    struct msg m = side_expect(&w, s, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, (uint32_t)reason, "%s", m.env->error->text);
    cr_assert(strstr(m.env->error->text, part), "%s", m.env->error->text);
    msg_done(&m);
}

static const char *used = "TOKEN";
static bool as_file;

static void with_secret(Vg__Pb__RunReq *q) {
    static Vg__Pb__SecretUse use;
    static Vg__Pb__SecretUse *list[] = {&use};
    use = (Vg__Pb__SecretUse)VG__PB__SECRET_USE__INIT;
    use.name = (char *)used;
    use.as_file = as_file ? "f" : NULL;
    q->spec->secret = list;
    q->spec->n_secret = 1;
}

static void expect_value(uint64_t task, const char *value) {
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->task_id, task);
    cr_assert_eq(m.env->start->n_secret, 1);
    const Vg__Pb__SecretValue *v = m.env->start->secret[0];
    cr_assert_eq(v->value.len, strlen(value));
    cr_assert_eq(memcmp(v->value.data, value, v->value.len), 0);
    msg_done(&m);
}

Test(secrets, a_task_gets_what_was_set_and_again_after_a_restart) {
    send_set(&root, NULL, "TOKEN", VALUE);
    ok(&root);
    cr_assert_eq(prctl(PR_GET_DUMPABLE), 0, "whoever has keys leaves no core dump");
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    play_run(&root, 0x10, with_secret);
    expect_value(0x10, VALUE);
    side_close(&w, &root);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    side_open(&w, &root);
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    play_run(&root, 0x11, with_secret);
    expect_value(0x11, VALUE);
    send_set(&root, NULL, "TOKEN", "new");
    ok(&root);
    play_run(&root, 0x12, with_secret);
    expect_value(0x12, "new");
}

Test(secrets, what_is_not_there_is_refused_before_anything_starts) {
    play_run(&root, 0x20, with_secret);
    refused(&root, VG_NOT_FOUND, "virga secret set");
    used = "TOKEN/../x";
    play_run(&root, 0x21, with_secret);
    refused(&root, VG_INVALID, "names no secret");
    used = "hf-token";
    play_run(&root, 0x22, with_secret);
    refused(&root, VG_INVALID, "cannot become a variable");
    send_set(&root, NULL, "a b", "x");
    refused(&root, VG_INVALID, "cannot name a secret");
    send_set(&root, NULL, "EMPTY", "");
    refused(&root, VG_INVALID, "is empty");
    send_set(&root, "nowhere", "T", "x");
    refused(&root, VG_NOT_FOUND, "no team");
}

Test(secrets, lists_have_names_and_no_values) {
    send_set(&root, NULL, "TOKEN", VALUE);
    ok(&root);
    Vg__Pb__Empty e = VG__PB__EMPTY__INIT;
    ENV(env, SECRET_LIST, secret_list, &e);
    side_send(&root, &env, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(SECRETS));
    cr_assert_eq(m.env->secrets->n_secret, 1);
    cr_assert_str_eq(m.env->secrets->secret[0]->name, "TOKEN");
    cr_assert_eq(m.env->secrets->secret[0]->size, strlen(VALUE));
    uint8_t packed[4096];
    size_t n = vg__pb__envelope__pack(m.env, packed);
    cr_assert_null(memmem(packed, n, VALUE, 8));
    msg_done(&m);
}

static void rotate(void) {
    Vg__Pb__Empty e = VG__PB__EMPTY__INIT;
    ENV(env, SECRET_ROTATE, secret_rotate, &e);
    side_send(&root, &env, NULL, 0);
}

Test(secrets, a_rotation_seals_everything_anew_and_the_old_key_goes) {
    char path[128], name[16];
    struct vg_ring *before = NULL, *after = NULL;
    struct vg_err err = VG_ERR_INIT;
    for (int i = 0; i < 150; i++) { /* more than one batch */
        snprintf(name, sizeof name, "S%d", i);
        send_set(&root, NULL, name, name);
        ok(&root);
    }
    snprintf(path, sizeof path, "%s/control/master.key", w.home);
    cr_assert_eq(vg_ring_read_file(path, &before, &err), 0, "%s", err.msg);
    rotate();
    struct msg m = side_expect(&w, &root, BODY(OK));
    cr_assert(strstr(m.env->ok->text, "150 secrets"), "%s", m.env->ok->text);
    msg_done(&m);
    cr_assert_eq(vg_ring_read_file(path, &after, &err), 0, "%s", err.msg);
    cr_assert(vg_ring_len(after) == 1 &&
              strcmp(vg_ring_newest(before), vg_ring_newest(after)) != 0);
    vg_ring_free(before);
    vg_ring_free(after);
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    used = "S149";
    play_run(&root, 0x30, with_secret);
    expect_value(0x30, "S149");
}

static void sql(const char *text) {
    char path[128], *why = NULL;
    sqlite3 *db = NULL;
    snprintf(path, sizeof path, "%s/control/state.db", w.home);
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, text, NULL, NULL, &why), SQLITE_OK, "%s", why);
    sqlite3_close(db);
}

Test(secrets, a_row_put_in_anothers_place_does_not_open) {
    send_set(&root, NULL, "TOKEN", VALUE);
    ok(&root);
    send_set(&root, NULL, "OTHER", "other");
    ok(&root);
    side_close(&w, &root);
    world_stop(&w);
    sql("UPDATE secrets SET wrapped=(SELECT wrapped FROM secrets WHERE name='OTHER'),"
        " sealed=(SELECT sealed FROM secrets WHERE name='OTHER') WHERE name='TOKEN'");
    world_start(&w);
    side_open(&w, &root);
    play_run(&root, 0x40, with_secret);
    refused(&root, VG_INTERNAL, "does not open");
    used = "OTHER";
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    play_run(&root, 0x41, with_secret);
    expect_value(0x41, "other");
}

Test(secrets, without_the_master_key_everything_else_works) {
    char path[128], kept[160];
    send_set(&root, NULL, "TOKEN", VALUE);
    ok(&root);
    side_close(&w, &root);
    world_stop(&w);
    snprintf(path, sizeof path, "%s/control/master.key", w.home);
    snprintf(kept, sizeof kept, "%s.kept", path);
    cr_assert_eq(rename(path, kept), 0);
    world_start(&w);
    side_open(&w, &root);
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    play_run(&root, 0x50, with_secret);
    refused(&root, VG_UNAVAILABLE, "is missing");
    send_set(&root, NULL, "MORE", "x"); /* not sealed with a key of its own that splits them */
    refused(&root, VG_NOT_FOUND, "is missing");
    play_run(&root, 0x51, NULL);
    struct msg m = side_expect(&w, &agent, BODY(START));
    msg_done(&m);
    cr_assert_eq(rename(kept, path), 0);
    send_set(&root, NULL, "MORE", "x"); /* it is looked for again */
    ok(&root);
    play_run(&root, 0x52, with_secret);
    expect_value(0x52, VALUE);
}

Test(secrets, the_wrong_key_opens_nothing_and_says_so) {
    char path[128];
    send_set(&root, NULL, "TOKEN", VALUE);
    ok(&root);
    side_close(&w, &root);
    world_stop(&w);
    snprintf(path, sizeof path, "%s/control/master.key", w.home);
    cr_assert_eq(vg_write_file(path, KEY_A "\n", 65, 0600), 0);
    world_start(&w);
    side_open(&w, &root);
    play_run(&root, 0x60, with_secret);
    refused(&root, VG_UNAVAILABLE, "does not have");
    rotate();
    refused(&root, VG_INTERNAL, "do not open");
}

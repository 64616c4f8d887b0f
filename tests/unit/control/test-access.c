/* Who gets in over TLS, and what they may do there; how machines become nodes. */
#include "base/util.h"
#include "world.h"

#include <stdio.h>
#include <string.h>

static struct world w;
static struct side root, other;

static void setup(void) {
    world_up(&w, NULL);
    side_open(&w, &root);
}

static void teardown(void) {
    side_close(&w, &root);
    side_close(&w, &other);
    world_down(&w);
}

TestSuite(access, .init = setup, .fini = teardown, .timeout = 120);

static void expect_error(struct side *s, enum vg_reason reason, const char *part) {
    struct msg m = side_expect(&w, s, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, (uint32_t)reason, "%s", m.env->error->text);
    cr_assert(strstr(m.env->error->text, part), "%s", m.env->error->text);
    msg_done(&m);
}

static void ask_status(struct side *s) {
    Vg__Pb__Empty e = VG__PB__EMPTY__INIT;
    ENV(env, STATUS, status, &e);
    side_send(s, &env, NULL, 0);
}

static void add_user(const char *name, const char *role) {
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    u.name = (char *)name;
    u.role = (char *)role;
    ENV(env, USER_ADD, user_add, &u);
    side_send(&root, &env, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(OK));
    msg_done(&m);
}

static void make_token(const char *user, char out[static 128]) {
    Vg__Pb__TokenReq t = VG__PB__TOKEN_REQ__INIT;
    t.user = (char *)user;
    ENV(env, TOKEN_CREATE, token_create, &t);
    side_send(&root, &env, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(TOKEN_NEW));
    snprintf(out, 128, "%s", m.env->token_new->token);
    msg_done(&m);
}

Test(access, without_a_token_nothing_is_answered_over_tls) {
    side_open_tls(&w, &other, NULL, NULL);
    ask_status(&other);
    expect_error(&other, VG_UNAUTHENTICATED, "API token");
}

Test(access, a_wrong_secret_is_refused) {
    char token[128];
    make_token(NULL, token);
    char *p = strchr(strchr(token, '_') + 1, '_') + 1;
    *p = *p == '0' ? '1' : '0';
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, token);
    expect_error(&other, VG_UNAUTHENTICATED, "not valid");
}

Test(access, a_good_token_speaks_for_its_user_until_it_is_revoked) {
    char token[128], id[17];
    add_user("bob", NULL);
    make_token("bob", token);
    snprintf(id, sizeof id, "%.16s", token + 4);
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, token);
    struct msg m = side_expect(&w, &other, BODY(HELLO_OK));
    cr_assert_str_eq(m.env->hello_ok->user, "bob");
    msg_done(&m);
    side_close(&w, &other);
    Vg__Pb__NameRef r = VG__PB__NAME_REF__INIT;
    r.name = id;
    ENV(env, TOKEN_REVOKE, token_revoke, &r);
    side_send(&root, &env, NULL, 0);
    m = side_expect(&w, &root, BODY(OK));
    msg_done(&m);
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, token);
    expect_error(&other, VG_UNAUTHENTICATED, "not valid");
}

Test(access, a_member_may_not_do_an_administrators_work) {
    char token[128];
    add_user("bob", NULL);
    make_token("bob", token);
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, token);
    Vg__Pb__Empty e = VG__PB__EMPTY__INIT;
    ENV(down, SHUTDOWN, shutdown, &e);
    side_send(&other, &down, NULL, 0);
    expect_error(&other, VG_FORBIDDEN, "administrator");
    Vg__Pb__TokenReq t = VG__PB__TOKEN_REQ__INIT;
    t.user = "root";
    ENV(tok, TOKEN_CREATE, token_create, &t);
    side_send(&other, &tok, NULL, 0);
    expect_error(&other, VG_FORBIDDEN, "administrator");
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    u.name = "eve";
    u.role = "admin";
    ENV(add, USER_ADD, user_add, &u);
    side_send(&other, &add, NULL, 0);
    expect_error(&other, VG_FORBIDDEN, "administrator");
}

Test(access, a_viewer_runs_nothing) {
    char token[128];
    add_user("vic", "viewer");
    make_token("vic", token);
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, token);
    play_run(&other, 77, NULL);
    expect_error(&other, VG_FORBIDDEN, "viewer");
}

Test(access, nobody_touches_a_task_of_another_team) {
    char token[128];
    Vg__Pb__UserSet team = VG__PB__USER_SET__INIT;
    team.name = "vision";
    ENV(env, TEAM_ADD, team_add, &team);
    side_send(&root, &env, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(OK));
    msg_done(&m);
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    u.name = "bob";
    u.team = "vision";
    ENV(add, USER_ADD, user_add, &u);
    side_send(&root, &add, NULL, 0);
    m = side_expect(&w, &root, BODY(OK));
    msg_done(&m);
    make_token("bob", token);
    play_run(&root, 0x1234567812345678ULL, NULL);
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, token);
    Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
    ref.task = "1234567812345678";
    ENV(get, TASK_GET, task_get, &ref);
    side_send(&other, &get, NULL, 0);
    expect_error(&other, VG_NOT_FOUND, "there is no task");
    play_run(&other, 0x1234567812345678ULL, NULL);
    expect_error(&other, VG_EXISTS, "somebody else");
}

Test(access, only_a_node_may_speak_as_one) {
    char token[128];
    make_token(NULL, token);
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, token);
    Vg__Pb__AgentHello h = VG__PB__AGENT_HELLO__INIT;
    h.name = "evil";
    ENV(env, AGENT_HELLO, agent_hello, &h);
    side_send(&other, &env, NULL, 0);
    expect_error(&other, VG_FORBIDDEN, "joined");
    Vg__Pb__Heartbeat b = VG__PB__HEARTBEAT__INIT;
    ENV(beat, HEARTBEAT, heartbeat, &b);
    side_send(&root, &beat, NULL, 0);
    expect_error(&root, VG_FORBIDDEN, "agent");
}

struct joined {
    char *key, *cert; /* owned */
    char node[VG_ID_LEN + 1];
};

static void send_join(struct side *s, const char *token, const char *key) {
    struct vg_err err = VG_ERR_INIT;
    uint8_t *csr = NULL;
    size_t len = 0;
    cr_assert_eq(vg_csr_create(key, "anything", &csr, &len, &err), 0, "%s", err.msg);
    Vg__Pb__JoinReq j = VG__PB__JOIN_REQ__INIT;
    j.token = (char *)token;
    j.name = "gpu1";
    j.has_csr_der = 1;
    j.csr_der = (ProtobufCBinaryData){.data = csr, .len = len};
    ENV(env, JOIN, join, &j);
    side_send(s, &env, NULL, 0);
    free(csr);
}

static void invite(char out[static 128]) {
    Vg__Pb__InviteReq i = VG__PB__INVITE_REQ__INIT;
    char *label[] = {"rack=7"};
    i.label = label;
    i.n_label = 1;
    ENV(env, NODE_INVITE, node_invite, &i);
    side_send(&root, &env, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(TOKEN_NEW));
    snprintf(out, 128, "%s", m.env->token_new->token);
    msg_done(&m);
}

Test(access, an_invitation_makes_one_node_and_only_one) {
    struct vg_err err = VG_ERR_INIT;
    struct joined j = {0};
    char token[128];
    invite(token);
    cr_assert_eq(vg_key_create(&j.key, &err), 0);
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, NULL);
    send_join(&other, token, j.key);
    struct msg m = side_expect(&w, &other, BODY(JOIN_OK));
    snprintf(j.node, sizeof j.node, "%s", m.env->join_ok->node_id);
    j.cert = strndup((char *)m.env->join_ok->cert_pem.data, m.env->join_ok->cert_pem.len);
    msg_done(&m);
    send_join(&other, token, j.key);
    expect_error(&other, VG_UNAUTHENTICATED, "virga node invite");
    side_close(&w, &other);

    side_open_tls(&w, &other, j.cert, j.key);
    side_hello(&other, NULL);
    Vg__Pb__AgentHello h = VG__PB__AGENT_HELLO__INIT;
    h.node_id = "00000000000000ff"; /* not the certificate's */
    ENV(env, AGENT_HELLO, agent_hello, &h);
    side_send(&other, &env, NULL, 0);
    expect_error(&other, VG_FORBIDDEN, "certificate");
    side_close(&w, &other);

    side_open_tls(&w, &other, j.cert, j.key);
    h.node_id = j.node;
    h.name = "gpu1";
    side_send(&other, &env, NULL, 0);
    m = side_expect(&w, &other, BODY(AGENT_HELLO_OK));
    cr_assert_str_eq(m.env->agent_hello_ok->node_id, j.node);
    msg_done(&m);
    Vg__Pb__Empty e = VG__PB__EMPTY__INIT;
    ENV(list, NODE_LIST, node_list, &e);
    side_send(&root, &list, NULL, 0);
    m = side_expect(&w, &root, BODY(NODES));
    cr_assert_eq(m.env->nodes->n_node, 1);
    cr_assert_eq(m.env->nodes->node[0]->n_label, 1, "the invitation's label stays");
    msg_done(&m);
    free(j.key);
    free(j.cert);
}

Test(access, a_removed_user_loses_his_rights_at_once) {
    char token[128];
    add_user("bob", NULL);
    make_token("bob", token);
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, token);
    ask_status(&other);
    struct msg m = side_expect(&w, &other, BODY(STATUS_INFO));
    msg_done(&m);
    Vg__Pb__NameRef r = VG__PB__NAME_REF__INIT;
    r.name = "bob";
    ENV(env, USER_REMOVE, user_remove, &r);
    side_send(&root, &env, NULL, 0);
    m = side_expect(&w, &root, BODY(OK));
    msg_done(&m);
    expect_error(&other, VG_UNAUTHENTICATED, "removed");
}

Test(access, users_and_tokens_survive_a_restart) {
    char token[128];
    add_user("bob", "lead");
    make_token("bob", token);
    side_close(&w, &root);
    world_stop(&w);
    world_start(&w);
    side_open(&w, &root);
    side_open_tls(&w, &other, NULL, NULL);
    side_hello(&other, token);
    struct msg m = side_expect(&w, &other, BODY(HELLO_OK));
    cr_assert_str_eq(m.env->hello_ok->user, "bob");
    msg_done(&m);
}

/* What nodes keep of a user is found by that number. */
Test(access, nobody_gets_the_id_range_of_a_user_who_was_removed) {
    add_user("bob", NULL);
    uint32_t bobs = vg_tenants_user(&w.c.tenants, "bob")->slot;
    Vg__Pb__NameRef r = VG__PB__NAME_REF__INIT;
    r.name = "bob";
    ENV(env, USER_REMOVE, user_remove, &r);
    side_send(&root, &env, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(OK));
    msg_done(&m);
    side_close(&w, &root);
    world_stop(&w);
    world_start(&w);
    side_open(&w, &root);
    add_user("eve", NULL);
    cr_assert_gt(vg_tenants_user(&w.c.tenants, "eve")->slot, bobs);
}

/* Every request of the protocol, and who may make it. */
enum who { ANYBODY, RUNNER, LEAD, ADMIN, AGENT, STRANGER };
#define VG_SCOPE_NONE 0
static const struct {
    int body_case;
    enum who who;
    unsigned scope;
} requests[] = {
#define ACCESS(name, who, scope, audit, what, of) {BODY(name), who, VG_SCOPE_##scope},
#include "control/access.tbl"
#undef ACCESS
};

/* Sends an empty message of that kind (its number and a length of 0) and says what came back. */
static enum vg_reason try(struct world *world, const char *token, int body_case) {
    uint8_t raw[8] = {0x08, 1};
    size_t n = 2;
    uint32_t tag = (uint32_t)body_case << 3 | 2;
    for (; tag > 127; tag >>= 7)
        raw[n++] = (uint8_t)(tag | 128);
    raw[n++] = (uint8_t)tag;
    raw[n++] = 0;
    Vg__Pb__Envelope *env = vg__pb__envelope__unpack(NULL, n, raw);
    cr_assert(env && (int)env->body_case == body_case);
    side_open_tls(world, &other, NULL, NULL);
    side_hello(&other, token);
    struct msg m = side_expect(world, &other, BODY(HELLO_OK));
    msg_done(&m);
    uint32_t req = side_send(&other, env, NULL, 0);
    vg__pb__envelope__free_unpacked(env, NULL);
    Vg__Pb__Ping ping = VG__PB__PING__INIT;
    ENV(p, PING, ping, &ping);
    side_send(&other, &p, NULL, 0);
    while (other.conn && !side_has(&other, BODY(PONG)))
        uv_run(&world->loop, UV_RUN_ONCE);
    enum vg_reason reason = VG_OK;
    for (size_t i = 0; i < other.n; i++)
        if (other.inbox[i].env->req == req && other.inbox[i].env->body_case == BODY(ERROR))
            reason = vg_reason_from_wire(other.inbox[i].env->error->reason);
    side_close(world, &other);
    return reason;
}

static void team_of(const char *name) {
    Vg__Pb__UserSet team = VG__PB__USER_SET__INIT;
    team.name = (char *)name;
    ENV(env, TEAM_ADD, team_add, &team);
    side_send(&root, &env, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(OK));
    msg_done(&m);
}

static void add_to(const char *team, const char *name, const char *role) {
    Vg__Pb__UserSet u = VG__PB__USER_SET__INIT;
    u.name = (char *)name;
    u.team = (char *)team;
    u.role = (char *)role;
    ENV(add, USER_ADD, user_add, &u);
    side_send(&root, &add, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(OK));
    msg_done(&m);
}

/* It would end the walk; `virga down` shows that it works. */
static bool ends_it_all(int body_case) {
    return body_case == BODY(SHUTDOWN);
}

Test(access, each_role_may_do_what_the_table_says_and_nothing_else) {
    static const struct {
        char *role;
        bool may[6];
    } roles[] = {
        {"viewer", {[ANYBODY] = true, [STRANGER] = true}},
        {"member", {[ANYBODY] = true, [STRANGER] = true, [RUNNER] = true}},
        {"lead", {[ANYBODY] = true, [STRANGER] = true, [RUNNER] = true, [LEAD] = true}},
        {"admin",
         {[ANYBODY] = true, [STRANGER] = true, [RUNNER] = true, [LEAD] = true, [ADMIN] = true}}};
    team_of("vision");
    for (size_t k = 0; k < VG_COUNT(roles); k++) {
        char token[128];
        add_to("vision", roles[k].role, roles[k].role);
        make_token(roles[k].role, token);
        for (size_t i = 0; i < VG_COUNT(requests); i++) {
            bool may = roles[k].may[requests[i].who];
            if (may && ends_it_all(requests[i].body_case))
                continue;
            if (requests[i].body_case == BODY(AGENT_HELLO))
                continue; /* refused for want of a certificate: only_a_node_may_speak_as_one */
            enum vg_reason got = try(&w, token, requests[i].body_case);
            cr_expect(got == VG_UNSUPPORTED || (got == VG_FORBIDDEN) == !may,
                      "request %d by a %s: %s", requests[i].body_case, roles[k].role,
                      vg_reason_name(got));
        }
    }
}

static void make_scoped(const char *user, char *scope, char out[static 128]) {
    Vg__Pb__TokenReq t = VG__PB__TOKEN_REQ__INIT;
    t.user = (char *)user;
    t.scope = &scope;
    t.n_scope = 1;
    ENV(env, TOKEN_CREATE, token_create, &t);
    side_send(&root, &env, NULL, 0);
    struct msg m = side_expect(&w, &root, BODY(TOKEN_NEW));
    snprintf(out, 128, "%s", m.env->token_new->token);
    msg_done(&m);
}

Test(access, a_token_does_what_its_scope_says_and_nothing_else) {
    add_user("ann", "admin");
    for (unsigned k = 0; vg_scope_name(k); k++) {
        char token[128];
        make_scoped("ann", (char *)vg_scope_name(k), token);
        for (size_t i = 0; i < VG_COUNT(requests); i++) {
            unsigned need = requests[i].scope;
            bool may = need == VG_SCOPE_READ || need == 1u << k;
            if (!need || (may && ends_it_all(requests[i].body_case)))
                continue;
            enum vg_reason got = try(&w, token, requests[i].body_case);
            cr_expect(got == VG_UNSUPPORTED || (got == VG_FORBIDDEN) == !may,
                      "request %d with a token for %s: %s", requests[i].body_case, vg_scope_name(k),
                      vg_reason_name(got));
        }
    }
}

/* Whatever the control plane answers must be in the table. */
Test(access, the_table_names_every_request) {
    const ProtobufCMessageDescriptor *d = &vg__pb__envelope__descriptor;
    char token[128];
    make_token(NULL, token);
    for (unsigned i = 0; i < d->n_fields; i++) {
        unsigned id = d->fields[i].id;
        bool named = id < 20; /* what both sides say */
        for (size_t k = 0; k < VG_COUNT(requests); k++)
            named |= requests[k].body_case == (int)id;
        cr_expect(named || try(&w, token, (int)id) == VG_UNSUPPORTED, "%s has no line",
                  d->fields[i].name);
    }
}

static int count_shutdowns(void *arg, const struct vg_audit_row *row) {
    *(int *)arg += strcmp(row->what, "shutdown") == 0 && strcmp(row->who, "root") == 0;
    return 0;
}

/* No command asks for it; everything else that is noted is counted by tests/e2e/test_audit_walk.py.
 */
Test(access, who_stops_the_control_plane_is_in_the_audit_log) {
    int n = 0;
    Vg__Pb__Empty e = VG__PB__EMPTY__INIT;
    ENV(down, SHUTDOWN, shutdown, &e);
    side_send(&root, &down, NULL, 0);
    while (!w.c.stopping)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_assert_eq(vg_store_load_audit(w.c.store, &(struct vg_audit_filter){0}, count_shutdowns, &n),
                 0);
    cr_assert_eq(n, 1);
}

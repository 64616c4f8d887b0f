/* The configuration: defaults, a whole file, and the sentence for every mistake. */
#include "base/cleanup.h"
#include "base/util.h"
#include "conf/conf.h"

#include <criterion/criterion.h>

static int parse(const char *text, struct vg_conf *c, struct vg_err *err) {
    return vg_conf_parse(text, strlen(text), "c.yaml", c, err);
}

Test(conf, defaults_describe_a_one_machine_cloud) {
    struct vg_conf c;
    cr_assert_eq(vg_conf_default(&c), 0);
    cr_assert_str_eq(c.listen, "127.0.0.1:0");
    cr_assert_str_eq(c.default_pool, "default");
    cr_assert_eq(c.n_pools, 1);
    cr_assert_eq(c.pool[0].shape.cpu_milli, 0);
    cr_assert_eq(c.lease_usec, 60 * VG_USEC);
    cr_assert_eq(c.heartbeat_usec, 10 * VG_USEC);
    cr_assert_eq(c.limits.log_head_bytes, 8 << 20);
    vg_conf_done(&c);
}

Test(conf, nothing_is_the_default) {
    const char *const texts[] = {"", "# nothing\n", "---\n", "{}", "access:\nlimits: ~\n"};
    for (size_t i = 0; i < VG_COUNT(texts); i++) {
        struct vg_conf c;
        struct vg_err err = VG_ERR_INIT;
        cr_assert_eq(parse(texts[i], &c, &err), 0, "%s", err.msg);
        cr_assert_str_eq(c.default_pool, "default");
        vg_conf_done(&c);
    }
}

Test(conf, every_key_arrives) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    int r = parse("listen: '[::]:7480'\n"
                  "advertise: cloud.example.org:7480\n"
                  "access: {groups: [lab, gpu], users: [ann]}\n"
                  "limits: {log_head: 1M, log_tail: 2M, tasks: 5, user_tasks: 4, history: 1d}\n"
                  "lease: 30s\n"
                  "heartbeat: 2s\n"
                  "default_pool: small\n"
                  "pools:\n"
                  "- name: a100-1\n"
                  "  description: one A100\n"
                  "  nodes: {labels: {gpu: a100, rack: 3}}\n"
                  "  shape: {cpus: 1.5, mem: 8G, gpus: 1, pids: 4096, disk: 10G}\n"
                  "  max: {cpus: 16, mem: 64G, gpus: 8, pids: 8192, disk: 20G}\n"
                  "  network: host\n"
                  "  class: dedicated\n"
                  "  shared: [/home, /data]\n"
                  "  max_time: 1h30m\n"
                  "- {name: small, network: none}\n",
                  &c, &err);
    cr_assert_eq(r, 0, "%s", err.msg);
    cr_assert_str_eq(c.listen, "[::]:7480");
    cr_assert_str_eq(c.advertise, "cloud.example.org:7480");
    cr_assert(c.access.groups.n == 2 && c.access.users.n == 1);
    cr_assert_str_eq(c.access.groups.item[1], "gpu");
    cr_assert(c.limits.log_head_bytes == 1 << 20 && c.limits.log_tail_bytes == 2 << 20);
    cr_assert(c.limits.tasks == 5 && c.limits.user_tasks == 4);
    cr_assert_eq(c.limits.history_usec, 86400 * VG_USEC);
    cr_assert(c.lease_usec == 30 * VG_USEC && c.heartbeat_usec == 2 * VG_USEC);
    cr_assert_str_eq(c.default_pool, "small");
    const struct vg_pool_conf *p = vg_conf_pool(&c, "a100-1");
    cr_assert(p && p->line == 9 && p->nodes.n == 2);
    cr_assert_str_eq(p->nodes.item[1].key, "rack");
    cr_assert_str_eq(p->nodes.item[1].value, "3");
    cr_assert(p->shape.cpu_milli == 1500 && p->shape.mem_bytes == 8ULL << 30 && p->shape.gpus == 1);
    cr_assert(p->max.pids == 8192 && p->max.disk_bytes == 20ULL << 30);
    cr_assert(p->network == VG_NETWORK_HOST && p->shared.n == 2);
    cr_assert_eq(p->max_time_usec, 5400 * VG_USEC);
    cr_assert_eq(vg_conf_pool(&c, "small")->network, VG_NETWORK_NONE);
    vg_conf_done(&c);
}

Test(conf, the_command_for_master_keys_is_a_list_of_words) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(parse("secrets: {key_command: [/bin/cat, '/etc/my keys']}", &c, &err), 0, "%s",
                 err.msg);
    cr_assert_eq(c.secrets.key_command.n, 2);
    cr_assert_str_eq(c.secrets.key_command.item[1], "/etc/my keys");
    vg_conf_done(&c);
    cr_assert_lt(parse("secrets: {key: x}", &c, &err), 0);
    cr_assert_str_eq(err.msg, "c.yaml:1: unknown key 'key' in 'secrets'; the keys there are "
                              "key_command");
}

Test(conf, hooks_and_mail) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(parse("hooks: {allow: [10.0.0.0/8, '::1'], proxy: 'http://p:3128', ca: /ca, "
                       "retry: 1s, give_up: 2h, pause_after: 4d}\n"
                       "mail: {server: 'm:587', from: a@b.org, tls: tls, user: u, "
                       "password_file: /p, ca: /ca2}\n",
                       &c, &err),
                 0, "%s", err.msg);
    cr_expect(c.hooks.allow.n == 2 && c.hooks.retry_usec == VG_USEC);
    cr_expect(c.hooks.give_up_usec == 7200 * VG_USEC && c.hooks.pause_usec == 345600 * VG_USEC);
    cr_expect_str_eq(c.hooks.proxy, "http://p:3128");
    cr_expect_str_eq(c.hooks.ca, "/ca");
    cr_expect_str_eq(c.mail.server, "m:587");
    cr_expect_str_eq(c.mail.from, "a@b.org");
    cr_expect_str_eq(c.mail.user, "u");
    cr_expect_str_eq(c.mail.password_file, "/p");
    cr_expect_str_eq(c.mail.ca, "/ca2");
    cr_expect_eq(c.mail.tls, VG_MAIL_TLS);
    vg_conf_done(&c);
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"hooks: {allow: [here]}\n", "10.0.0.0/8"},
        {"hooks: {allow: [10.0.0.0/33]}\n", "10.0.0.0/8"},
        {"mail: {server: 'm:25'}\n", "'from'"},
        {"mail: {server: m, from: a@b}\n", "HOST:PORT"},
        {"mail: {server: 'm:25', from: 'A <a@b>'}\n", "an address like"},
        {"mail: {server: 'm:25', from: a@b, user: u}\n", "go together"},
        {"mail: {server: 'm:25', from: a@b, tls: maybe}\n", "starttls, tls or none"},
        {"mail: {server: 'm:25', from: a@b, tls: none, user: u, password_file: /p}\n", "readable"}};
    for (size_t i = 0; i < VG_COUNT(bad); i++) {
        cr_expect_lt(parse(bad[i].text, &c, &err), 0, "%s", bad[i].text);
        cr_expect(strstr(err.msg, bad[i].words), "%s: %s", bad[i].text, err.msg);
    }
}

Test(conf, a_pool_of_bare_metal_has_the_nodes_network) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(parse("pools: [{name: a, class: bare-metal, network: none}]", &c, &err), 0, "%s",
                 err.msg);
    cr_assert(c.pool[0].class == VG_CLASS_BARE && c.pool[0].network == VG_NETWORK_HOST);
    vg_conf_done(&c);
}

Test(conf, a_pool_of_class_shared_gives_parts_of_a_gpu) {
    const char *text = "pools: [{name: a, class: shared, shape: {gpus: 0.25, gpu_mem: 8G},\n"
                       "         max: {gpus: 0.5}, gpu_turn: 500us}]\n";
    struct vg_err err = VG_ERR_INIT;
    struct vg_conf c = {0};
    cr_assert_eq(vg_conf_parse(text, strlen(text), "c.yaml", &c, &err), 0, "%s", err.msg);
    const struct vg_pool_conf *p = vg_conf_pool(&c, "a");
    cr_assert(p->class == VG_CLASS_SHARED && p->shape.gpu_milli == 250 && p->shape.gpus == 0);
    cr_assert(p->max.gpu_milli == 500 && p->gpu_turn_usec == 500);
    vg_conf_done(&c);
    for (enum vg_pool_class k = 0; k < VG_CLASSES; k++) {
        enum vg_pool_class back = VG_CLASSES;
        cr_assert_eq(vg_pool_class_parse(vg_pool_class_name(k), &back), 0);
        cr_assert(back == k && strlen(vg_pool_class_domain(k)) > 0);
    }
}

Test(conf, each_mistake_has_its_sentence) {
    static const struct {
        const char *text, *message;
    } table[] = {
        {"lisen: a:1",
         "c.yaml:1: unknown key 'lisen' in the configuration; did you mean 'listen'?"},
        {"\nxyzzy: 1",
         "c.yaml:2: unknown key 'xyzzy' in the configuration; the keys there are "
         "listen, advertise, metrics, web, web_cert, web_key, access, limits, node, env, secrets, "
         "hooks, mail, oidc, lease, heartbeat, node_certificate, default_pool, pools, currency, "
         "energy, "
         "scheduler, queues, "
         "maintenance, reservations"},
        {"oidc: {client_id: virga}", "c.yaml:1: 'oidc' needs an 'issuer': the address of the "
                                     "identity provider"},
        {"oidc: {issuer: 'http://id.example.org', client_id: virga}",
         "c.yaml:1: 'oidc.issuer' is 'http://id.example.org': write https://HOST/PATH"},
        {"oidc: {issuer: 'https://id.example.org'}",
         "c.yaml:1: 'oidc' needs a 'client_id': as the identity provider calls this cloud"},
        {"oidc: {issuer: 'https://id.example.org', client_id: v, roles: {staff: boss}}",
         "c.yaml:1: 'oidc.roles' gives 'staff' the role 'boss'; choose admin, lead, member or "
         "viewer"},
        {"lease: 1m\nlease: 2m", "c.yaml:2: 'lease' stands twice in the configuration; keep one"},
        {"listen: 7480", "c.yaml:1: 'listen' is '7480', but must be HOST:PORT, like 127.0.0.1:7480 "
                         "or [::]:7480"},
        {"listen: a:70000", "c.yaml:1: 'listen' is 'a:70000', but must be HOST:PORT, like "
                            "127.0.0.1:7480 or [::]:7480"},
        {"web: 7443",
         "c.yaml:1: 'web' is '7443', but must be HOST:PORT, like 0.0.0.0:7443, or off"},
        {"lease: soon", "c.yaml:1: 'lease' is 'soon', but must be a duration, like 90s, 30m or "
                        "1h30m"},
        {"lease: 0", "c.yaml:1: 'lease' is 0, but must be between 1s and 86400s"},
        {"lease: 3s\nheartbeat: 2s",
         "c.yaml:1: 'heartbeat' must be at most a third of 'lease'; lower it or raise 'lease'"},
        {"lease: [1]", "c.yaml:1: 'lease' must be plain text or a number, not a list or mapping"},
        {"access: [a]",
         "c.yaml:1: 'access' must be a mapping of keys to values, like 'key: value'"},
        {"access: {users: ann}", "c.yaml:1: 'users' must be a list, like 'users: [a, b]'"},
        {"pools: {}", "c.yaml:1: 'pools' must be a list, like 'pools: [a, b]'"},
        {"pools: [{}]", "c.yaml:1: a pool has no name; add 'name: ...'"},
        {"pools: [{name: a b}]", "c.yaml:1: 'name' is 'a b', but must be letters, digits, '.', '_' "
                                 "or '-', beginning with a letter or digit"},
        {"pools:\n- name: a\n- name: a",
         "c.yaml:3: pool 'a' stands at line 2 already; rename or remove one"},
        {"pools: [{name: a, class: fast}]", "c.yaml:1: 'class' is 'fast', but must be dedicated, "
                                            "shared, mps, mig or bare-metal"},
        {"pools: [{name: a, shape: {gpus: 0.5}}]", "c.yaml:1: pool 'a': class 'dedicated' gives "
                                                   "whole GPUs, so 'gpus' must be a whole number; "
                                                   "shares of a GPU need class 'shared'"},
        {"pools: [{name: a, class: shared, max: {gpus: 1}}]",
         "c.yaml:1: pool 'a': class 'shared' gives parts of one GPU, so 'gpus' must be below 1, "
         "like "
         "0.5; whole GPUs need class 'dedicated'"},
        {"pools: [{name: a, class: shared, shape: {gpus: 0.5}, max: {gpus: 0.25}}]",
         "c.yaml:1: pool 'a': 'shape' gives more gpus than 'max' allows; raise max.gpus"},
        {"pools: [{name: a, gpu_turn: 1ms}]",
         "c.yaml:1: pool 'a': 'gpu_turn' is for class 'shared'; its class is 'dedicated'"},
        {"pools: [{name: a, class: shared, gpu_turn: 50us}]",
         "c.yaml:1: 'gpu_turn' is 50us, but must be between 0.0001s and 1s"},
        {"pools: [{name: a, network: lan}]",
         "c.yaml:1: 'network' is 'lan', but must be nat, host or none"},
        {"pools: [{name: a, shape: {gpus: 65}}]",
         "c.yaml:1: 'gpus' is 65, but must be between 0 and 64"},
        {"pools: [{name: a, shape: {gpu: 1}}]",
         "c.yaml:1: unknown key 'gpu' in a shape; did you mean 'gpus'?"},
        {"pools: [{name: a, shape: {mem: 2G}, max: {mem: 1G}}]",
         "c.yaml:1: pool 'a': 'shape' gives more mem than 'max' allows; raise max.mem"},
        {"pools: [{name: a, shared: [home]}]",
         "c.yaml:1: 'shared' lists absolute paths without '..', not 'home'"},
        {"pools: [{name: a, nodes: {labels: {'a=b': c}}}]",
         "c.yaml:1: a label needs a key without '=' of 1 to 255 bytes"},
        {"default_pool: b\npools: [{name: bb}]",
         "c.yaml:1: 'default_pool' names 'b', which is not among 'pools'; use 'bb'"},
        {"lease: 60s\n---\nlease: 60s", "c.yaml:3: a second document begins here; keep one a file"},
        {"env: {store: /srv/envs}",
         "c.yaml:1: 'env.store' is '/srv/envs': write s3://BUCKET/PREFIX, or leave it out to keep "
         "environments in virgad's own folder"},
        {"env: {endpoint: 'ftp://x'}",
         "c.yaml:1: 'env.endpoint' is 'ftp://x': write https://HOST or http://HOST"},
        {"advertise: \"a\\0b\"", "c.yaml:1: 'advertise' holds a zero byte; remove it"},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct vg_conf c;
        struct vg_err err = VG_ERR_INIT;
        cr_expect_eq(parse(table[i].text, &c, &err), -EINVAL, "%s", table[i].text);
        cr_expect_str_eq(err.msg, table[i].message);
    }
}

Test(conf, broken_yaml_names_the_line) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(parse("lease: 60s\npools: [\n", &c, &err), -EINVAL);
    cr_assert(strncmp(err.msg, "c.yaml:3: not valid YAML: ", 26) == 0, "%s", err.msg);
    cr_assert_eq(vg_conf_parse("\xff\xfe\xfd", 3, "c.yaml", &c, &err), -EINVAL);
}

Test(conf, a_missing_file_is_told) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_conf_load("/nonexistent/c.yaml", &c, &err), -ENOENT);
    cr_assert_str_eq(err.msg, "cannot read the configuration /nonexistent/c.yaml: No such file or "
                              "directory");
}

Test(conf, lists_are_bounded) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    char text[8192] = "access: {users: [";
    size_t at = strlen(text);
    for (int i = 0; i <= VG_CONF_LIST_MAX; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "u%d,", i);
    snprintf(text + at, sizeof text - at, "]}");
    cr_assert_eq(parse(text, &c, &err), -EINVAL);
    cr_assert_str_eq(err.msg, "c.yaml:1: 'users' has more than 256 entries; shorten the list");
}

Test(conf, aliases_cannot_make_it_run_away) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(parse("pools: &p [*p, *p, *p]", &c, &err), -EINVAL);
    cr_assert_eq(parse("pools:\n- &a {name: x, shape: &s {cpus: 1}, max: *s}\n", &c, &err), 0);
    vg_conf_done(&c);
}

Test(conf, labels_match_whole_keys_and_values) {
    struct vg_label l[] = {{"gpu", "a100"}};
    struct vg_labels want = {.item = l, .n = 1}, none = {0};
    char *yes[] = {"rack=1", "gpu=a100"}, *no[] = {"gpu=a1000"}, *no2[] = {"gpux=a100"};
    cr_assert(vg_conf_labels_match(&want, yes, 2));
    cr_assert_not(vg_conf_labels_match(&want, no, 1));
    cr_assert_not(vg_conf_labels_match(&want, no2, 1));
    cr_assert(vg_conf_labels_match(&none, NULL, 0));
}

Test(conf, nearest_names_are_near) {
    const char *const words[] = {"default", "a100-1", "cpu"};
    cr_assert_str_eq(vg_conf_nearest("defualt", words, 3), "default");
    cr_assert_str_eq(vg_conf_nearest("a1001", words, 3), "a100-1");
    cr_assert_null(vg_conf_nearest("h200", words, 3));
    cr_assert_null(vg_conf_nearest("", words, 3));
}

Test(conf, models_are_known_by_whole_words) {
    const char *const card = "NVIDIA A100-SXM4-80GB";
    cr_assert(vg_conf_model_is(card, "a100", 4) && vg_conf_model_is(card, "A100-SXM4", 9));
    cr_assert(vg_conf_model_is(card, card, strlen(card)));
    cr_assert_not(vg_conf_model_is(card, "A10", 3));
    cr_assert_not(vg_conf_model_is("RTX A100X", "A100", 4));
    cr_assert_not(vg_conf_model_is("A100", "A100-SXM4", 9));
    cr_assert_not(vg_conf_model_is(card, "", 0));
}

/* The policy: what a node may read. The table's lines are checked by what they are for, the ignore
   language against what git says of the same patterns. */
#include "mirror/policy.h"

#include "base/fault.h"
#include "mirror/glob.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define F (S_IFREG | 0600)
#define D (S_IFDIR | 0755)

static struct vg_mpolicy *policy(void) {
    struct vg_mpolicy *p;
    cr_assert_eq(vg_mpolicy_new("/data/people/ann", &p), 0);
    return p;
}

static const char *const names[] = {
    [VG_SERVE] = "SERVE",   [VG_DENY] = "DENY",   [VG_SECRET] = "SECRET",
    [VG_IGNORE] = "IGNORE", [VG_EMPTY] = "EMPTY",
};

static void expect(struct vg_mpolicy *p, const char *path, mode_t mode, enum vg_verdict want) {
    const char *why = NULL;
    enum vg_verdict got = vg_mpolicy_ask(p, path, mode, &why);
    cr_assert_eq(got, want, "%s: %s, not %s (%s)", path, names[got], names[want], why);
    cr_assert_not_null(why);
}

Test(policy, secrets_are_denied_in_every_home) {
    static const char *const secret[] = {
        ".ssh/id_rsa",
        ".ssh/id_ed25519",
        ".ssh/github",
        ".ssh/office/key",
        ".gnupg/private-keys-v1.d/a.key",
        ".aws/credentials",
        ".config/gcloud/credentials.db",
        ".azure/msal_token_cache.json",
        ".kube/config",
        ".docker/config.json",
        ".netrc",
        ".pypirc",
        ".npmrc",
        ".git-credentials",
        ".config/gh/hosts.yml",
        ".local/share/keyrings/login.keyring",
        ".local/share/kwalletd/kdewallet.kwl",
        ".mozilla/firefox/x.default/logins.json",
        ".config/google-chrome/Default/Cookies",
        ".config/google-chrome-beta/Default/Cookies",
        ".config/chromium/Default/Login Data",
        ".config/BraveSoftware/Brave-Browser/Default/Cookies",
        ".password-store/bank.gpg",
        "Documents/all.kdbx",
        ".bash_history",
        ".zsh_history",
        ".psql_history",
        ".python_history",
        ".local/share/fish/fish_history",
        ".virga/control/token",
        ".config/virga/token",
        ".local/state/virga/machine",
        ".cache/huggingface/token",
        "Downloads/aws-key.pem",
        "Downloads/ec2.pem",
        "old/server.key",
        "backup/id_rsa",
    };
    static const char *const home[] = {"/data/people/ann", "/home/ben", "/root"};
    struct vg_mpolicy *p = policy();
    for (size_t h = 0; h < 3; h++)
        for (size_t i = 0; i < sizeof(secret) / sizeof(secret[0]); i++) {
            char path[256];
            snprintf(path, sizeof(path), "%s/%s", home[h], secret[i]);
            expect(p, path, F, VG_DENY);
        }
    vg_mpolicy_free(p);
}

Test(policy, secrets_of_the_system_are_denied) {
    static const char *const secret[] = {"/etc/shadow",
                                         "/etc/shadow-",
                                         "/etc/gshadow",
                                         "/etc/ssh/ssh_host_ed25519_key",
                                         "/etc/ssl/private/ssl-cert-snakeoil.key",
                                         "/etc/krb5.keytab",
                                         "/etc/wireguard/wg0.conf",
                                         "/opt/app/tls/server.key",
                                         "/var/lib/kubelet/pods/a/token"};
    struct vg_mpolicy *p = policy();
    for (size_t i = 0; i < sizeof(secret) / sizeof(secret[0]); i++)
        expect(p, secret[i], F, VG_DENY);
    vg_mpolicy_free(p);
}

/* The control: a policy that refuses everything would pass the tests above. */
Test(policy, what_programs_need_is_served) {
    static const char *const file[] = {
        "/usr/bin/python3",
        "/etc/passwd",
        "/etc/ssh/ssh_config",
        "/etc/ssh/ssh_host_ed25519_key.pub",
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/ssl/certs/ISRG_Root_X1.pem",
        "/data/people/ann/.ssh/known_hosts",
        "/data/people/ann/.ssh/id_ed25519.pub",
        "/data/people/ann/.ssh/config",
        "/data/people/ann/.gitconfig",
        "/data/people/ann/.bashrc",
        "/data/people/ann/.aws/config",
        "/data/people/ann/office/.env",
        "/data/people/ann/.config/pip/pip.conf",
        ("/data/people/ann/venv/lib/python3.11/site-packages/certifi/"
         "cacert.pem"),
        "/data/people/ann/miniconda3/ssl/cacert.pem",
        "/data/people/ann/.cache/huggingface/hub/model/blobs/x",
        "/usr/share/doc/x/example.key",
        "/home/benedict.key/readme"};
    struct vg_mpolicy *p = policy();
    for (size_t i = 0; i < sizeof(file) / sizeof(file[0]); i++)
        expect(p, file[i], F, VG_SERVE);
    expect(p, "/", D, VG_SERVE);
    expect(p, "/data/people/ann", D, VG_SERVE);
    expect(p, "/data/people/ann/.ssh", D, VG_SERVE);
    expect(p, "/etc/ssh", D, VG_SERVE);
    vg_mpolicy_free(p);
}

Test(policy, folders_that_are_secret_keep_their_names_and_links_are_judged_where_they_point) {
    struct vg_mpolicy *p = policy();
    expect(p, "/data/people/ann/.gnupg", D, VG_DENY);
    expect(p, "/data/people/ann/.password-store", D, VG_DENY);
    expect(p, "/data/people/ann/backup/id_rsa", S_IFLNK | 0777, VG_SERVE);
    vg_mpolicy_free(p);
}

Test(policy, the_kernels_folders_are_empty) {
    struct vg_mpolicy *p = policy();
    expect(p, "/proc", D, VG_EMPTY);
    expect(p, "/proc/1/environ", F, VG_EMPTY);
    expect(p, "/dev", D, VG_EMPTY);
    expect(p, "/run/user/1000", D, VG_EMPTY);
    expect(p, "/tmp", D, VG_EMPTY);
    expect(p, "/tmp/project", D, VG_SERVE);
    expect(p, "/tmp/project/main.c", F, VG_SERVE);
    expect(p, "/tmp/project/.ssh/x", F, VG_SERVE); /* not a home */
    expect(p, "/processed", D, VG_SERVE);
    vg_mpolicy_free(p);
}

Test(policy, an_allowance_is_taken_back_once_for_each_time_it_was_given) {
    struct vg_mpolicy *p = NULL;
    cr_assert_eq(vg_mpolicy_new("/home/ann", &p), 0);
    cr_assert_eq(vg_mpolicy_allow(p, "/etc/shadow"), 0);
    cr_assert_eq(vg_mpolicy_allow(p, "/etc/shadow"), 0);
    vg_mpolicy_disallow(p, "/etc/other");
    vg_mpolicy_disallow(p, "/etc/shadow");
    cr_assert_eq(vg_mpolicy_ask(p, "/etc/shadow", S_IFREG, NULL), VG_SECRET);
    vg_mpolicy_disallow(p, "/etc/shadow");
    cr_assert_eq(vg_mpolicy_ask(p, "/etc/shadow", S_IFREG, NULL), VG_DENY);
    vg_mpolicy_disallow(p, "/etc/shadow");
    vg_mpolicy_free(p);
}

Test(policy, what_is_allowed_is_secret_and_the_way_to_it_is_open) {
    struct vg_mpolicy *p = policy();
    cr_assert_eq(vg_mpolicy_allow(p, "/data/people/ann/.gnupg/pubring.kbx"), 0);
    expect(p, "/data/people/ann/.gnupg", D, VG_SERVE);
    expect(p, "/data/people/ann/.gnupg/pubring.kbx", F, VG_SECRET);
    expect(p, "/data/people/ann/.gnupg/pubring.kbx2", F, VG_DENY);
    expect(p, "/data/people/ann/.gnupg/private-keys-v1.d", D, VG_DENY);
    cr_assert_eq(vg_mpolicy_allow(p, "/data/people/ann/.kube/"), 0);
    expect(p, "/data/people/ann/.kube/cache/x", F, VG_SECRET);
    cr_assert_eq(vg_mpolicy_allow(p, "/etc/hosts"), 0);
    expect(p, "/etc/hosts", F, VG_SERVE);
    cr_assert_eq(vg_mpolicy_allow(p, "etc/shadow"), -EINVAL);
    cr_assert_eq(vg_mpolicy_allow(p, "/etc/x/../shadow"), -EINVAL);
    expect(p, "/etc/shadow", F, VG_DENY);
    vg_mpolicy_free(p);
}

Test(policy, keys_by_name_are_part_of_a_project_but_a_home_is_no_project) {
    struct vg_mpolicy *p = policy();
    expect(p, "/data/people/ann/web/tests/server.key", F, VG_DENY);
    cr_assert_eq(vg_mpolicy_project(p, "/data/people/ann/web"), 0);
    expect(p, "/data/people/ann/web/tests/server.key", F, VG_SERVE);
    expect(p, "/data/people/ann/web/all.kdbx", F, VG_DENY);
    expect(p, "/data/people/ann/webb/server.key", F, VG_DENY);
    vg_fault_arm(1, ENOMEM, NULL);
    cr_assert_eq(vg_mpolicy_project(p, "/data/people/ann/web"), 0);
    cr_assert_not(vg_fault_disarm(), "named again by the next run, it takes no memory");
    cr_assert_eq(vg_mpolicy_project(p, "/data/people/ann"), 0);
    cr_assert_eq(vg_mpolicy_project(p, "/"), 0);
    expect(p, "/data/people/ann/webb/server.key", F, VG_DENY);
    vg_mpolicy_free(p);
}

Test(policy, virgas_own_place_is_denied_wherever_it_is) {
    struct vg_mpolicy *p = policy();
    expect(p, "/srv/virga/control/ca.db", F, VG_SERVE);
    cr_assert_eq(vg_mpolicy_deny(p, "/srv/virga"), 0);
    expect(p, "/srv/virga/control/ca.db", F, VG_DENY);
    expect(p, "/srv/virga", D, VG_DENY);
    vg_mpolicy_free(p);
}

static void ignore(struct vg_mpolicy *p, const char *folder, const char *text) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_mpolicy_ignore(p, folder, text, strlen(text), &err), 0, "%s", err.msg);
}

Test(policy, virgaignore_speaks_gits_language) {
    static const struct {
        const char *text, *path;
        mode_t mode;
        bool ignored;
    } t[] = {
        {"*.o\n", "/p/a.o", F, true},
        {"*.o\n", "/p/x/y/a.o", F, true},
        {"*.o\n", "/p/a.oo", F, false},
        {"/a\n", "/p/a", F, true},
        {"/a\n", "/p/x/a", F, false},
        {"x/a\n", "/p/x/a", F, true},
        {"x/a\n", "/p/y/x/a", F, false},
        {"build/\n", "/p/build", D, true},
        {"build/\n", "/p/build", F, false},
        {"build/\n", "/p/x/build/deep/file", F, true},
        {"**/logs\n", "/p/logs", F, true},
        {"**/logs/debug.log\n", "/p/x/logs/debug.log", F, true},
        {"a/**\n", "/p/a", D, false},
        {"a/**\n", "/p/a/b/c", F, true},
        {"a/**/b\n", "/p/a/b", F, true},
        {"a/**/b\n", "/p/a/x/y/b", F, true},
        {"*.log\n!keep.log\n", "/p/keep.log", F, false},
        {"*.log\n!keep.log\n", "/p/other.log", F, true},
        {"!keep.log\n*.log\n", "/p/keep.log", F, true},
        {"dir/\n!dir/file\n", "/p/dir/file", F, true}, /* its folder is gone */
        {"dir/*\n!dir/file\n", "/p/dir/file", F, false},
        {"# note\n\n  \n", "/p/# note", F, false},
        {"\\#x\n", "/p/#x", F, true},
        {"\\!x\n", "/p/!x", F, true},
        {"x  \n", "/p/x", F, true},
        {"x\\ \n", "/p/x ", F, true},
        {"x\r\n", "/p/x", F, true},
        {"a?c\n", "/p/abc", F, true},
        {"a?c\n", "/p/a/c", F, false},
        {"a[0-9]c\n", "/p/a5c", F, true},
        {"a[!0-9]c\n", "/p/a5c", F, false},
        {"a[]x]c\n", "/p/a]c", F, true},
        {"a*b*c\n", "/p/aXbXbXc", F, true},
        {"no-newline", "/p/no-newline", F, true},
        {"*\n", "/other/x", F, false},
        {"*\n", "/p", D, false},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct vg_mpolicy *p = policy();
        ignore(p, "/p", t[i].text);
        enum vg_verdict v = vg_mpolicy_ask(p, t[i].path, t[i].mode, NULL);
        cr_assert_eq(v == VG_IGNORE, t[i].ignored, "case %zu: %s of %s", i, t[i].path, t[i].text);
        vg_mpolicy_free(p);
    }
}

Test(policy, the_deeper_virgaignore_wins_and_a_new_one_replaces) {
    struct vg_mpolicy *p = policy();
    const char *why;
    ignore(p, "/p", "*.log\n");
    ignore(p, "/p/sub", "!*.log\nother\n");
    expect(p, "/p/x.log", F, VG_IGNORE);
    cr_assert_eq(vg_mpolicy_ask(p, "/p/x.log", F, &why), VG_IGNORE);
    cr_assert_str_eq(why, "/p/.virgaignore, line 1: *.log");
    expect(p, "/p/sub/x.log", F, VG_SERVE);
    expect(p, "/p/sub/other", F, VG_IGNORE);
    ignore(p, "/p/sub", "third\n");
    expect(p, "/p/sub/x.log", F, VG_IGNORE);
    expect(p, "/p/sub/other", F, VG_SERVE);
    ignore(p, "/p/sub", "");
    ignore(p, "/p", "");
    expect(p, "/p/x.log", F, VG_SERVE);
    vg_mpolicy_free(p);
}

Test(policy, a_bad_line_is_named_and_the_others_hold) {
    struct vg_mpolicy *p = policy();
    struct vg_err err = VG_ERR_INIT;
    const char text[] = "good\nbad[\nworse\\\n/\nalso-good\n";
    cr_assert_eq(vg_mpolicy_ignore(p, "/p", text, strlen(text), &err), -EINVAL);
    cr_assert_not_null(strstr(err.msg, "/p/.virgaignore, line 2"), "%s", err.msg);
    expect(p, "/p/good", F, VG_IGNORE);
    expect(p, "/p/also-good", F, VG_IGNORE);
    expect(p, "/p/bad[", F, VG_SERVE);
    cr_assert_eq(vg_mpolicy_ignore(p, "/q", "a\0b\nc", 5, &err), -EINVAL);
    expect(p, "/q/c", F, VG_IGNORE);
    vg_mpolicy_free(p);
}

Test(policy, patterns_made_to_be_slow_are_not) {
    struct vg_mpolicy *p = policy();
    char path[4000] = "", text[2000] = "";
    size_t n = 0;
    for (size_t i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "**/a/");
    snprintf(text + n, sizeof(text) - n, "x\n");
    ignore(p, "/", text);
    for (n = 0; n + 3 < sizeof(path); n += 2)
        memcpy(path + n, "/a", 3);
    expect(p, path, F, VG_SERVE); /* returns at all */
    memset(path, 'a', sizeof(path) - 1);
    path[0] = '/';
    ignore(p, "/", "*a*a*a*a*a*a*a*a*a*a*a*a*a*b\n");
    expect(p, path, F, VG_SERVE);
    vg_mpolicy_free(p);
}

Test(policy, every_rule_has_words) {
    const char *kind, *why;
    size_t n = 0;
    for (; vg_mpolicy_rule(n, &kind, &why); n++)
        cr_assert(strstr(why, ": ") && strlen(kind) >= 4, "%s", why);
    cr_assert_gt(n, 100);
}

Test(policy, no_memory_is_said_and_nothing_is_lost) {
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        struct vg_mpolicy *p = NULL;
        struct vg_err err = VG_ERR_INIT;
        vg_fault_arm(nth, ENOMEM, NULL);
        int r = vg_mpolicy_new("/data/people/ann", &p);
        if (r == 0)
            r = vg_mpolicy_allow(p, "/etc/shadow");
        if (r == 0)
            r = vg_mpolicy_ignore(p, "/p", "a\nb/c\n!d\n", 9, &err);
        fired = vg_fault_disarm();
        cr_assert(r == 0 || r == -ENOMEM);
        cr_assert(r == -ENOMEM || !fired);
        vg_mpolicy_free(p);
    }
}

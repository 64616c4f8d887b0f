/* `virga hook`: whom the cloud tells what happens. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/list.h"

#include <openssl/crypto.h>
#include <string.h>

#define EVENTS_MAX 32
#define SECRET_MAX 1024
#define TEST_USEC (60 * VG_USEC) /* the control plane itself waits half as long */

static const char *events_text(const Vg__Pb__HookSet *s, char *out, size_t n) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < s->n_event && used < n; i++)
        used += (size_t)snprintf(out + used, n - used, "%s%s", i ? "," : "", s->event[i]);
    return out;
}

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->hooks->n_hook; i++) {
        const Vg__Pb__HookInfo *h = env->hooks->hook[i];
        char events[256], counts[64], when[48];
        snprintf(counts, sizeof counts, "%llu", (unsigned long long)h->sent);
        if (h->waiting)
            snprintf(counts, sizeof counts, "%llu, %llu wait", (unsigned long long)h->sent,
                     (unsigned long long)h->waiting);
        const char *cells[] = {h->hook->name,
                               h->user,
                               h->hook->scope && *h->hook->scope ? h->hook->scope : "own",
                               events_text(h->hook, events, sizeof events),
                               h->hook->url,
                               h->hook->paused ? "paused" : NULL,
                               counts,
                               h->last_usec ? vg_ago(h->last_usec, when, sizeof when) : NULL,
                               h->last_error && *h->last_error ? h->last_error : NULL};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_HOOKS,
    .headings = (const char *const[]){"HOOK", "USER", "SCOPE", "EVENTS", "URL", "STATE", "SENT",
                                      "LAST", "ERROR", NULL},
    .rows = rows,
    .view = &vg_view_hooks};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(HOOK_LIST, hook_list, &body);
    return vg_list_run(l, &req, &lister);
}

/* ------------------------------------------------------------------ set */

static int on_set(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_HOOKS || env->hooks->n_hook != 1)
        return vg_unexpected(env, err);
    const Vg__Pb__HookInfo *h = env->hooks->hook[0];
    if (l->json)
        vg_json_print(vg_view_json(&vg_view_hook, h));
    else if (h->new_secret && *h->new_secret)
        printf("%s\n", h->new_secret);
    if (!l->json && h->new_secret && *h->new_secret)
        vg_cmd_say("this secret signs what is sent; it is not shown again");
    return 0;
}

static const struct vg_opt set_opts[] = {
    {"url", 'u', "URL", "https://… or mailto:ADDRESS", 'u'},
    {"event", 'e', "EVENT,...", "what to tell: task.ended, task.failed, … (again for more)", 'e'},
    {"scope", 's', "SCOPE", "own (default), team:NAME, org:NAME or cloud", 's'},
    {"secret-file", 0, "FILE", "the secret that signs ('-': stdin; default: one is made)", 'f'},
    {"pause", 0, NULL, "send nothing for now", 'p'},
    {"resume", 0, NULL, "send again", 'r'},
    VG_CMD_OUTPUT,
};

struct setting {
    Vg__Pb__HookSet m;
    char *event[EVENTS_MAX];
    char *names[EVENTS_MAX]; /* owned */
    size_t n_names;
    char *secret; /* owned */
};

static bool add_events(struct setting *s, const char *arg) {
    char *copy = s->n_names < EVENTS_MAX ? vg_strdup(arg) : NULL;
    if (!copy)
        return false;
    s->names[s->n_names++] = copy;
    for (char *next = copy, *name; (name = strsep(&next, ","));)
        if (*name && s->m.n_event < EVENTS_MAX)
            s->event[s->m.n_event++] = name;
    s->m.event = s->event;
    return true;
}

static int read_secret(struct setting *s, const char *path, struct vg_err *err) {
    size_t n = 0;
    const char *from = strcmp(path, "-") == 0 ? "/dev/stdin" : path;
    int r = vg_read_file(from, SECRET_MAX, &s->secret, &n);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read the secret from %s", path);
    s->secret[strcspn(s->secret, "\r\n")] = '\0';
    s->m.secret = s->secret;
    return 0;
}

static int take_option(struct setting *s, int id, const char *arg, struct vg_err *err) {
    if (id == 'u')
        s->m.url = (char *)arg;
    if (id == 's')
        s->m.scope = (char *)(strcmp(arg, "own") == 0 ? "" : arg);
    if (id == 'p' || id == 'r') {
        s->m.has_paused = true;
        s->m.paused = id == 'p';
    }
    if (id == 'e' && !add_events(s, arg))
        return vg_err_set(err, VG_INVALID, "too many events");
    return id == 'f' ? read_secret(s, arg, err) : 0;
}

static void setting_done(struct setting *s) {
    for (size_t i = 0; i < s->n_names; i++)
        free(s->names[i]);
    if (s->secret)
        OPENSSL_cleanse(s->secret, strlen(s->secret));
    free(s->secret);
}

static int set_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct setting s = {.m = VG__PB__HOOK_SET__INIT};
    Vg__Pb__Envelope req = vg_request(HOOK_SET, hook_set, &s.m);
    const char *arg;
    int r = 0, exit = 0;
    for (int id; r >= 0 && (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR) {
            setting_done(&s);
            return l->exit;
        }
        r = take_option(&s, id, arg, &err);
    }
    if (r >= 0 && !vg_cmd_args(l, 1, 1)) {
        exit = l->exit;
    } else {
        s.m.name = r < 0 ? NULL : l->args[0];
        if (r >= 0)
            r = vg_call_once(&req, on_set, l, &err);
        exit = r < 0 ? vg_cmd_fail(&err) : 0;
    }
    setting_done(&s);
    return exit;
}

/* ------------------------------------------------------------------ remove, test */

static int remove_run(struct vg_cmd_line *l) {
    int exit = 0;
    if (!vg_cmd_plain(l, 1, -1))
        return l->exit;
    for (int i = 0; i < l->n_args && !exit; i++) {
        Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
        Vg__Pb__Envelope req = vg_request(HOOK_REMOVE, hook_remove, &ref);
        ref.name = l->args[i];
        exit = vg_change_run(&req);
    }
    return exit;
}

static int on_tested(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    (void)user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_OK)
        return vg_unexpected(env, err);
    printf("%s\n", env->ok->text ? env->ok->text : "sent");
    return 0;
}

static int test_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(HOOK_TEST, hook_test, &ref);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    ref.name = l->args[0];
    struct vg_client *c;
    int r = vg_client_open(&c, &err);
    if (r >= 0) {
        r = vg_call(c, &req, TEST_USEC, on_tested, NULL, &err);
        vg_client_close(c);
    }
    return r < 0 ? vg_cmd_fail(&err) : 0;
}

static const struct vg_cmd subs[] = {
    {"list", "", "your hooks, and how they do", VG_LIST_OPTS, .run = list_run},
    {"set", "HOOK", "make one, or change it; what is not said stays", set_opts, VG_COUNT(set_opts),
     .run = set_run},
    {"test", "HOOK", "send something now, and see what its server says", .run = test_run},
    {"remove", "HOOK...", "remove them, and what waits for them", .run = remove_run},
};

const struct vg_cmd vg_cmd_hook = {.name = "hook",
                                   .args = "",
                                   .summary = "webhooks and mail: list, set, test, remove",
                                   .subs = subs,
                                   .n_subs = VG_COUNT(subs)};

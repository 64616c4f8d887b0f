/* Sending to hooks: one event of a hook at a time, in order; a server that does not take it is
   asked again, later each time. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/public-addr.h"
#include "base/util.h"
#include "control/audit.h"
#include "control/hooks-int.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#define AT_ONCE 16
#define ANSWER_MAX 65536 /* nobody reads it; a page of words is no mistake */

static struct vg_fetcher *need_fetcher(struct vg_control *c, struct vg_err *err) {
    struct vg_fetcher_opts o = {.at_once = AT_ONCE};
    if (!c->hooks->fetcher)
        vg_fetcher_new(c->loop, &o, &c->hooks->fetcher, err);
    return c->hooks->fetcher;
}

/* A stranger's hook reaches what the internet at large can reach, and what the configuration
   names. */
static bool may_reach(void *user, const struct sockaddr *to) {
    const struct vg_control *c = user;
    const struct vg_strings *allow = &c->conf.hooks.allow;
    if (vg_addr_public(to))
        return true;
    for (size_t i = 0; i < allow->n; i++) {
        struct vg_addr_net net;
        if (vg_addr_net_parse(allow->item[i], &net) == 0 && vg_addr_net_has(&net, to))
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------ one message */

struct message {
    const char *id, *event, *body;
    size_t body_bytes;
};

static int post(struct vg_hook *h, const struct message *m, vg_fetch_fn fn, void *user,
                struct vg_fetch **ret, struct vg_err *err) {
    struct vg_control *c = h->ctl;
    char secret[VG_HOOK_SECRET_MAX + 1], event[64], delivery[64], signature[128], sign[96];
    const char *const headers[] = {"Content-Type: application/json", event, delivery, signature,
                                   NULL};
    struct vg_fetcher *f = need_fetcher(c, err);
    if (!f)
        return err->code;
    if (vg_hook_open(c->ca.task_key, h->key, h->sealed, h->sealed_bytes, secret) < 0)
        return vg_err_set(err, VG_INTERNAL,
                          "its secret cannot be opened: set the hook anew with 'virga hook set'");
    vg_hook_sign(secret, vg_wall_usec() / VG_USEC, m->body, m->body_bytes, sign);
    OPENSSL_cleanse(secret, sizeof secret);
    snprintf(event, sizeof event, "Virga-Event: %s", m->event);
    snprintf(delivery, sizeof delivery, "Virga-Delivery: %s", m->id);
    snprintf(signature, sizeof signature, "Virga-Signature: %s", sign);
    struct vg_fetch_req req = {.method = "POST",
                               .url = h->url,
                               .headers = headers,
                               .body = m->body,
                               .body_bytes = m->body_bytes,
                               .proxy = c->conf.hooks.proxy,
                               .ca_file = c->conf.hooks.ca,
                               .max_bytes = ANSWER_MAX,
                               .guard = vg_hook_is_admins(h) ? NULL : may_reach,
                               .guard_user = c};
    return vg_fetch_start(f, &req, fn, user, ret, err);
}

static int mail(struct vg_hook *h, const struct message *m, vg_fetch_fn fn, void *user,
                struct vg_fetch **ret, struct vg_err *err) {
    static const enum vg_mail_tls ways[] = {[VG_MAIL_STARTTLS] = VG_MAIL_TLS_START,
                                            [VG_MAIL_TLS] = VG_MAIL_TLS_WHOLE,
                                            [VG_MAIL_PLAIN] = VG_MAIL_TLS_NONE};
    const struct vg_conf *k = &h->ctl->conf;
    vg_auto_free char *password = NULL;
    size_t n = 0;
    struct vg_buf text = {0};
    const char *const to[] = {h->url + strlen("mailto:"), NULL};
    struct vg_fetcher *f = need_fetcher(h->ctl, err);
    if (!f)
        return err->code;
    if (!k->mail.server)
        return vg_err_set(err, VG_CONFLICT,
                          "this cloud sends no mail: its administrator can set 'mail.server'");
    int r = k->mail.password_file ? vg_read_file(k->mail.password_file, 4096, &password, &n) : 0;
    if (r < 0)
        return vg_err_sys(err, r, "cannot read 'mail.password_file' %s", k->mail.password_file);
    if (password)
        password[strcspn(password, "\r\n")] = '\0';
    r = vg_hook_mail(k->mail.from, to[0], m->id, m->body, vg_wall_usec(), &text);
    if (r < 0)
        vg_err_sys(err, r, "cannot write the mail");
    struct vg_mail_req req = {.server = k->mail.server,
                              .tls = ways[k->mail.tls],
                              .user = k->mail.user,
                              .password = password,
                              .ca_file = k->mail.ca,
                              .from = k->mail.from,
                              .to = to,
                              .text = (const char *)vg_buf_data(&text),
                              .text_bytes = vg_buf_len(&text)};
    if (r >= 0)
        r = vg_fetch_mail(f, &req, fn, user, ret, err);
    if (password)
        OPENSSL_cleanse(password, n);
    vg_buf_done(&text);
    return r;
}

static int start(struct vg_hook *h, const struct message *m, vg_fetch_fn fn, void *user,
                 struct vg_fetch **ret, struct vg_err *err) {
    return vg_hook_url_is_mail(h->url) ? mail(h, m, fn, user, ret, err)
                                       : post(h, m, fn, user, ret, err);
}

/* NULL: it was taken. */
static const char *refusal(const struct vg_fetch_answer *a, bool is_mail, char *room, size_t n) {
    if (a->err)
        return a->err->msg;
    if (a->status >= 200 && a->status < 300)
        return NULL;
    snprintf(room, n, "the server answered %s%d", is_mail ? "" : "with status ", a->status);
    return room;
}

/* ------------------------------------------------------------------ what waits */

static void again(void *user) {
    struct vg_hook *h = user;
    h->again = NULL;
    vg_hook_send(h);
}

/* Not more than a fifth earlier or later, so that hooks that failed together do not come back
   together. */
static uint64_t wait_usec(const struct vg_hook *h, uint64_t at_least) {
    uint64_t wait = h->ctl->conf.hooks.retry_usec, chance;
    for (uint32_t i = 1; i < h->tries && wait < VG_HOOK_WAIT_MAX; i++)
        wait *= 2;
    wait = VG_MIN(VG_MAX(wait, at_least), VG_HOOK_WAIT_MAX);
    vg_random(&chance, sizeof chance);
    return wait - wait / 5 + chance % (wait * 2 / 5 + 1);
}

static void pause_hook(struct vg_hook *h, const char *why) {
    h->paused = true;
    vg_audit_as(h->ctl, h->user, "hook %s paused: %s", h->name, why);
    vg_hooks_changed(h->ctl);
}

static void took(struct vg_hook *h) {
    h->sent++;
    h->ctl->hooks->sent++;
    h->failing_usec = 0;
    h->last_error[0] = '\0';
    vg_hook_pop(h);
}

static void failed(struct vg_hook *h, const char *why, int status, uint64_t at_least) {
    uint64_t now = vg_wall_usec();
    h->failed++;
    h->ctl->hooks->failed++;
    h->tries++;
    snprintf(h->last_error, sizeof h->last_error, "%s", why);
    if (!h->failing_usec)
        h->failing_usec = now;
    if (status == 410)
        pause_hook(h, "its server says that it is gone for good (410)");
    else if (now - h->failing_usec >= h->ctl->conf.hooks.pause_usec)
        pause_hook(h, "nothing could be sent for too long");
    else
        h->again = vg_timer_start(h->ctl->loop, wait_usec(h, at_least), again, h);
    if (!h->paused && !h->again)
        vg_warn("hook=%s waits for something else to happen: out of memory", h->key);
}

static void on_answer(void *user, const struct vg_fetch_answer *a) {
    struct vg_hook *h = user;
    char room[64];
    const char *why = refusal(a, vg_hook_url_is_mail(h->url), room, sizeof room);
    const char *later = a->err ? NULL : vg_fetch_header(a, "retry-after");
    uint64_t at_least = 0;
    h->call = NULL;
    h->last_usec = vg_wall_usec();
    if (later && vg_parse_u64(later, &at_least) == 0)
        at_least = VG_MIN(at_least, 3600u) * VG_USEC;
    if (!why)
        took(h);
    else
        failed(h, why, a->status, at_least);
    if (vg_hook_store(h, VG_STORE_LAZY, NULL, NULL) < 0)
        vg_warn("hook=%s what became of it is not stored", h->key);
    vg_hook_send(h);
}

static void drop_old(struct vg_hook *h) {
    uint64_t now = vg_wall_usec();
    while (h->n_waiting) {
        const struct vg_delivery *d =
            vg_list_entry(vg_list_first(&h->waiting), struct vg_delivery, link);
        if (d->created_usec + h->ctl->conf.hooks.give_up_usec > now)
            return;
        vg_warn("hook=%s event=%s id=%s is given up: %s", h->key, d->event, d->id, h->last_error);
        h->ctl->hooks->dropped++;
        vg_hook_pop(h);
    }
}

void vg_hook_send(struct vg_hook *h) {
    struct vg_err err = VG_ERR_INIT;
    if (h->call || h->again || h->paused || h->ctl->stopping)
        return;
    drop_old(h);
    if (!h->n_waiting)
        return;
    const struct vg_delivery *d =
        vg_list_entry(vg_list_first(&h->waiting), struct vg_delivery, link);
    struct message m = {d->id, d->event, d->body, d->body_bytes};
    if (start(h, &m, on_answer, h, &h->call, &err) < 0)
        failed(h, err.msg, 0, 0);
}

/* ------------------------------------------------------------------ a test */

struct trial {
    struct vg_list link; /* in vg_hooks.trials */
    struct vg_fetch *call;
    vg_hook_tried *fn;
    void *user;
    bool mail;
};

static void on_tried(void *user, const struct vg_fetch_answer *a) {
    struct trial *t = user;
    struct vg_err err = VG_ERR_INIT;
    char room[64];
    const char *why = refusal(a, t->mail, room, sizeof room);
    if (why)
        vg_err_set(&err, a->err ? a->err->reason : VG_UNAVAILABLE, "%s", why);
    vg_list_remove(&t->link);
    t->fn(t->user, why ? &err : NULL);
    free(t);
}

void vg_hook_end_trials(struct vg_hooks *all) {
    struct vg_err err = VG_ERR_INIT;
    vg_err_set(&err, VG_UNAVAILABLE, "the control plane stops");
    vg_list_for_each_safe (it, &all->trials) {
        struct trial *t = vg_list_entry(it, struct trial, link);
        vg_fetch_cancel(t->call);
        vg_list_remove(&t->link);
        t->fn(t->user, &err);
        free(t);
    }
}

int vg_hook_try(struct vg_hook *h, vg_hook_tried *fn, void *user, struct vg_err *err) {
    char id[33];
    struct trial *t = vg_alloc(sizeof *t);
    json_t *j = json_object();
    vg_id_format(vg_id_new(), id);
    json_object_set_new(j, "id", json_string(id));
    json_object_set_new(j, "event", json_string("test"));
    json_object_set_new(j, "created_usec", json_integer((json_int_t)vg_wall_usec()));
    json_object_set_new(j, "cloud", json_string(h->ctl->cloud));
    json_object_set_new(j, "hook", json_string(h->name));
    json_object_set_new(j, "user", json_string(h->user));
    json_object_set_new(j, "data", json_pack("{s:s}", "text", "a test: nothing happened"));
    vg_auto_free char *body = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    if (!t || !body) {
        free(t);
        return vg_err_sys(err, -ENOMEM, "cannot send a test");
    }
    *t = (struct trial){.fn = fn, .user = user, .mail = vg_hook_url_is_mail(h->url)};
    struct message m = {id, "test", body, strlen(body)};
    int r = start(h, &m, on_tried, t, &t->call, err);
    if (r < 0)
        free(t);
    else
        vg_list_push_back(&h->ctl->hooks->trials, &t->link);
    return r;
}

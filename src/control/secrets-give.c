/* Secrets for tasks: checked when a task is submitted, opened when an attempt begins. Both times
   the owner must be allowed to have them. Loop thread. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "control/job.h"
#include "control/secrets-ring.h"
#include "control/secrets.h"
#include "control/spec-check.h"

#include <sodium.h>
#include <string.h>

/* What the task that this one is made in was given: its code may be a stranger's. */
static bool parent_has(struct vg_control *c, uint64_t parent, const char *ref) {
    const struct vg_job *j = vg_job_get(c, parent);
    for (size_t i = 0; j && i < j->task->spec->n_secret; i++)
        if (strcmp(j->task->spec->secret[i]->name, ref) == 0)
            return true;
    return false;
}

static int none(struct vg_control *c, const struct vg_user *u, const char *ref,
                struct vg_err *err) {
    vg_auto_free char *of_team = vg_fmt("%s/%s", u->team->name, ref);
    if (!strchr(ref, '/') && of_team && vg_secret_find(c, u, of_team))
        return vg_err_set(err, VG_NOT_FOUND,
                          "you have no secret '%.64s' of your own; your team has one: write "
                          "--secret %s",
                          ref, of_team);
    return vg_err_set(err, VG_NOT_FOUND,
                      "there is no secret '%.130s' that user '%s' may use: 'virga secret list' "
                      "shows them, 'virga secret set' makes one",
                      ref, u->name);
}

static size_t value_len(const struct vg_secret *s) {
    return s->sealed_len - VG_MIN(s->sealed_len, (size_t)VG_SEAL_EXTRA);
}

static int open_all(struct vg_control *c, const struct vg_user *u, const Vg__Pb__TaskSpec *spec,
                    struct vg_given *g, struct vg_err *err) {
    const struct vg_secret *found[VG_SPEC_SECRETS_MAX];
    size_t n = VG_MIN(spec->n_secret, VG_COUNT(found)), total = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(found[i] = vg_secret_find(c, u, spec->secret[i]->name)))
            return none(c, u, spec->secret[i]->name, err);
        total += value_len(found[i]);
    }
    if (total > VG_SECRETS_TASK_BYTES)
        return vg_err_set(err, VG_TOO_BIG,
                          "the task's secrets have %zu bytes together, the limit is %u", total,
                          VG_SECRETS_TASK_BYTES);
    const struct vg_ring *ring = vg_secrets_ring(c, err);
    if (!ring)
        return -EAGAIN;
    if (!(g->bytes = vg_hidden_alloc(total + 1)))
        return vg_err_sys(err, ENOMEM, "cannot open the task's secrets");
    for (size_t i = 0; i < n; i++) {
        const struct vg_secret *s = found[i];
        const Vg__Pb__SecretUse *use = spec->secret[i];
        struct vg_seal_name name = {s->scope, s->name, s->version};
        size_t len = value_len(s);
        int r = vg_unseal(ring, s->key, &name, s->wrapped, sizeof s->wrapped, s->sealed,
                          s->sealed_len, g->bytes + at, err);
        if (r < 0)
            return r;
        Vg__Pb__SecretValue *v = g->list[i];
        bool file = use->as_file && *use->as_file;
        v->as_file = file ? use->as_file : NULL;
        v->as_var = use->as_var && *use->as_var ? use->as_var : file ? NULL : s->name;
        v->has_value = 1;
        v->value = (ProtobufCBinaryData){.data = g->bytes + at, .len = len};
        if (v->as_var && memchr(v->value.data, 0, len))
            return vg_err_set(err, VG_INVALID,
                              "secret '%s' holds a zero byte and cannot be a variable: take it as "
                              "a file with --secret %s:NAME",
                              s->name, use->name);
        at += len;
    }
    g->n = n;
    return 0;
}

static int open_for(struct vg_control *c, const struct vg_user *u, const Vg__Pb__TaskSpec *spec,
                    struct vg_given *ret, struct vg_err *err) {
    *ret = (struct vg_given){0};
    /* The pointers, and behind them what they point at. */
    size_t n = spec->n_secret;
    ret->list = vg_alloc(n * (sizeof *ret->list + sizeof **ret->list));
    if (!ret->list)
        return vg_err_sys(err, ENOMEM, "cannot open the task's secrets");
    Vg__Pb__SecretValue *item = (void *)(ret->list + n);
    for (size_t i = 0; i < n; i++) {
        vg__pb__secret_value__init(&item[i]);
        ret->list[i] = &item[i];
    }
    int r = open_all(c, u, spec, ret, err);
    if (r < 0)
        vg_given_done(ret);
    return r;
}

int vg_secrets_check(struct vg_control *c, const struct vg_user *u, uint64_t parent,
                     const Vg__Pb__TaskSpec *spec, struct vg_err *err) {
    struct vg_given g;
    for (size_t i = 0; parent && i < spec->n_secret; i++)
        if (!parent_has(c, parent, spec->secret[i]->name))
            return vg_err_set(err, VG_FORBIDDEN,
                              "a program inside a task can pass on only secrets that its task was "
                              "given, and '%.130s' is not one: give it with --secret outside",
                              spec->secret[i]->name);
    if (!spec->n_secret)
        return 0;
    int r = open_for(c, u, spec, &g, err);
    if (r >= 0)
        vg_given_done(&g);
    return r;
}

int vg_secrets_open(struct vg_control *c, const struct vg_task *t, struct vg_given *ret,
                    struct vg_err *err) {
    const struct vg_user *u;
    *ret = (struct vg_given){0};
    if (!t->spec->n_secret)
        return 0;
    if (!(u = vg_tenants_user(&c->tenants, t->user)))
        return vg_err_set(err, VG_FORBIDDEN, "user '%s' was removed, with all secrets", t->user);
    if (u->disabled)
        return vg_err_set(err, VG_FORBIDDEN, "user '%s' is disabled and is given no secrets",
                          t->user);
    return open_for(c, u, t->spec, ret, err);
}

void vg_given_done(struct vg_given *g) {
    sodium_free(g->bytes);
    free(g->list);
    *g = (struct vg_given){0};
}

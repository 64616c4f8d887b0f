/* `virga audit`: who changed what, and whether the log of it is whole. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"
#include "cli/spec-values.h"

#include <string.h>

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->audits->n_entry; i++) {
        const Vg__Pb__AuditEntry *e = env->audits->entry[i];
        char seq[24], when[32];
        snprintf(seq, sizeof(seq), "%llu", (unsigned long long)e->seq);
        const char *cells[] = {seq, vg_when(e->when_usec, when, sizeof(when)), e->who, e->from,
                               e->what};
        vg_table_row(t, cells);
    }
}

static const char *const headings[] = {"#", "WHEN", "WHO", "FROM", "WHAT", NULL};

static int on_list(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_AUDITS)
        return vg_unexpected(env, err);
    if (l->json) {
        vg_json_print(vg_view_json(&vg_view_audit, env->audits));
        return 0;
    }
    struct vg_table *t = vg_table_new(headings);
    rows(env, t);
    vg_table_print(t, stdout, 0);
    if (env->audits->has_next)
        fprintf(stderr, "there are older ones: --before %llu\n",
                (unsigned long long)env->audits->next);
    return 0;
}

static const struct vg_opt list_opts[] = {
    {"user", 'u', "USER", "only what this user did", 'u'},
    {"search", 0, "TEXT", "only what has this in it", 's'},
    {"since", 0, "TIME", "only since: 2h (ago), 08:00, 2027-01-31", 'Y'},
    {"before", 0, "N", "only entries before this one", 'b'},
    {"limit", 'n', "N", "at most so many (100)", 'n'},
    VG_CMD_OUTPUT,
};

static int list_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__AuditQuery q = VG__PB__AUDIT_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(AUDIT_LIST, audit_list, &q);
    const char *arg;
    uint64_t limit = 0;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        int r = 0;
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 'u')
            q.user = (char *)arg;
        if (id == 's')
            q.search = (char *)arg;
        if (id == 'Y')
            r = vg_spec_since(&l->st, arg, vg_wall_usec(), &q.since_usec);
        if (id == 'b')
            r = vg_opt_u64(&l->st, arg, 1, INT64_MAX, &q.before);
        if (id == 'n')
            r = vg_opt_u64(&l->st, arg, 1, 1000, &limit);
        if (r < 0)
            return vg_cmd_fail_opt(l);
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    q.has_since_usec = q.since_usec != 0;
    q.has_before = q.before != 0;
    q.has_limit = limit != 0;
    q.limit = (uint32_t)limit;
    return vg_call_once(&req, on_list, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

/* ------------------------------------------------------------------ verify */

static int on_verified(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_AUDITS)
        return vg_unexpected(env, err);
    const Vg__Pb__AuditList *a = env->audits;
    l->exit = a->broken ? 1 : 0;
    if (l->json) {
        vg_json_print(vg_view_json(&vg_view_audit_verified, a));
        return 0;
    }
    if (a->broken) {
        char clean[512];
        fprintf(stderr, "virga: the audit log is broken: %s\n",
                vg_clean(clean, sizeof(clean), a->broken, strlen(a->broken)));
        return 0;
    }
    printf("%llu entries, each fits the one before\n", (unsigned long long)a->checked);
    for (size_t i = 0; i < a->head.len; i++)
        printf("%s%02x", i ? "" : "head ", a->head.data[i]);
    printf("%s", a->head.len ? "\n" : "");
    return 0;
}

static const struct vg_opt verify_opts[] = {
    {"head", 0, "HASH", "a head that was noted elsewhere, which the log must still hold", 'h'},
    VG_CMD_OUTPUT,
};

static int parse_hash(const char *arg, uint8_t ret[static 32]) {
    for (size_t i = 0; i < 32; i++) {
        unsigned v;
        if (sscanf(arg + 2 * i, "%2x", &v) != 1)
            return -EINVAL;
        ret[i] = (uint8_t)v;
    }
    return 0;
}

static int verify_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__AuditQuery q = VG__PB__AUDIT_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(AUDIT_LIST, audit_list, &q);
    const char *arg;
    uint8_t head[32];
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id != 'h')
            continue;
        if (strlen(arg) != 64 || strspn(arg, "0123456789abcdefABCDEF") != 64 ||
            parse_hash(arg, head) < 0) {
            vg_err_set(&err, VG_INVALID,
                       "--head wants the 64 hex digits that 'virga audit verify' printed");
            return vg_cmd_fail(&err);
        }
        q.has_head = true;
        q.head = (ProtobufCBinaryData){.data = head, .len = sizeof(head)};
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    q.has_verify = q.verify = true;
    /* As long as the log is: no limit. */
    return vg_call_patient(&req, on_verified, NULL, l, &err) < 0 ? vg_cmd_fail(&err) : l->exit;
}

static const struct vg_cmd subs[] = {
    {"list", "", "who changed what, from where; the newest first", list_opts, VG_COUNT(list_opts),
     .run = list_run},
    {"verify", "", "walk the log's chain; status 1 when something in it was changed or removed",
     verify_opts, VG_COUNT(verify_opts), .run = verify_run},
};

const struct vg_cmd vg_cmd_audit = {.name = "audit",
                                    .args = "",
                                    .summary = "who changed what: list, verify",
                                    .subs = subs,
                                    .n_subs = VG_COUNT(subs)};

/* What REST takes: bodies and queries. Numbers are MAYBE, so that what was taken reads back as it
   was given: a task's spec can be submitted again. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "view/view-int.h"
#include "view/views.h"

#include <string.h>

#define NEED(n) \
    { .name = n, .flags = VG_VIEW_NEED }
#define MOST(n, x) \
    { .name = n, .kind = VG_VIEW_MAYBE, .most = x }
#define WORDS(n, ...)                               \
    {                                               \
        .name = n, .words = (const char *const[]) { \
            __VA_ARGS__, NULL                       \
        }                                           \
    }
#define NAME(n, f) \
    { .name = n, .flags = f, .pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$" }
#define USEC_MAX (100ull * 365 * 86400 * 1000000)
#define WHEN_MAX (9999999999ull * 1000000) /* wall times */

/* ------------------------------------------------------------------ tasks */

TAKEN(want, "Want", resources, MAYBE("cpu_milli"), MAYBE("mem_bytes"), MAYBE("gpus"),
      MAYBE("gpu_milli"), MAYBE("gpu_mem_bytes"), MAYBE("pids"), MAYBE("disk_bytes"));
TAKEN(sweep, "Sweep", sweep, NEED("name"), AS("value", "value"));
TAKEN(dependency, "Dependency", dependency, PLAIN("when"), NEED("task"));
TAKEN(terminal, "Terminal", terminal, MOST("rows", 65535), MOST("cols", 65535));

/* "NAME", or {"name", "as_var", "as_file"}. */
TAKEN(secret_use, "SecretUse", secret_use, NEED("name"), PLAIN("as_var"), PLAIN("as_file"));

static json_t *spec_secrets(const ProtobufCMessage *m) {
    const Vg__Pb__TaskSpec *s = (const Vg__Pb__TaskSpec *)m;
    json_t *all = json_array();
    vg_view_append(all, &vg_view_secret_use, (void *const *)s->secret, s->n_secret);
    return all;
}

static int take_secret(Vg__Pb__TaskSpec *s, const json_t *one, struct vg_err *err) {
    ProtobufCMessage *use = NULL;
    json_t *named = json_is_string(one) ? json_object() : json_incref((json_t *)one);
    if (json_is_string(one))
        json_object_set(named, "name", (json_t *)one);
    int r = vg_view_take(&vg_view_secret_use, named, &use, err);
    json_decref(named);
    if (r < 0)
        return vg_err_wrap(err, "in 'secrets'");
    s->secret[s->n_secret++] = (Vg__Pb__SecretUse *)use;
    return 0;
}

static int take_secrets(ProtobufCMessage *m, const json_t *value, struct vg_err *err) {
    Vg__Pb__TaskSpec *s = (Vg__Pb__TaskSpec *)m;
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > 1000)
        return vg_err_set(err, VG_INVALID, "'secrets' must be a list of at most 1000 names");
    s->secret = vg_alloc((n + 1) * sizeof *s->secret);
    if (!s->secret)
        return vg_err_sys(err, ENOMEM, "cannot take the request");
    int r = 0;
    for (size_t i = 0; i < n && r >= 0; i++)
        r = take_secret(s, json_array_get(value, i), err);
    return r;
}

/* Where its files come from: the control plane finds out what else the spec must say about it. */
static int take_files(ProtobufCMessage *m, const json_t *value, const char *name, bool image,
                      struct vg_err *err) {
    Vg__Pb__TaskSpec *s = (Vg__Pb__TaskSpec *)m;
    const char *ref = json_string_value(value);
    if (!ref || !*ref || strlen(ref) > 512)
        return vg_err_set(err, VG_INVALID, "'%s' must be text of 1 to 512 bytes", name);
    if (s->mirror)
        return vg_err_set(err, VG_INVALID,
                          "a task has an environment or an image, not both: leave one out");
    s->mirror = (Vg__Pb__MirrorSpec *)vg_view_new(&vg__pb__mirror_spec__descriptor);
    char *copy = s->mirror ? vg_strdup(ref) : NULL;
    if (!copy)
        return vg_err_sys(err, ENOMEM, "cannot take the request");
    if (image)
        s->mirror->image = copy;
    else
        s->mirror->env = copy;
    return 0;
}

static int take_environment(ProtobufCMessage *m, const json_t *value, struct vg_err *err) {
    return take_files(m, value, "environment", false, err);
}

static int take_image(ProtobufCMessage *m, const json_t *value, struct vg_err *err) {
    return take_files(m, value, "image", true, err);
}

static json_t *spec_environment(const ProtobufCMessage *m) {
    const Vg__Pb__TaskSpec *s = (const Vg__Pb__TaskSpec *)m;
    return s->mirror && s->mirror->env && *s->mirror->env ? vg_json_text(s->mirror->env)
                                                          : json_null();
}

static json_t *spec_image(const ProtobufCMessage *m) {
    const Vg__Pb__TaskSpec *s = (const Vg__Pb__TaskSpec *)m;
    bool only = s->mirror && s->mirror->image && !(s->mirror->env && *s->mirror->env);
    return only ? vg_json_text(s->mirror->image) : json_null();
}

#define REF_SCHEMA "{\"type\": [\"string\", \"null\"], \"minLength\": 1, \"maxLength\": 512}"
#define SECRETS_SCHEMA                                                               \
    "{\"type\": [\"array\", \"null\"], \"maxItems\": 1000, \"items\": {\"anyOf\": [" \
    "{\"type\": \"string\", \"maxLength\": 4096}, {\"$ref\": "                       \
    "\"#/components/schemas/SecretUse\"}]}}"

TAKEN(task_spec, "TaskSpec", task_spec, {.name = "argv", .flags = VG_VIEW_NEED}, FILLED("name"),
      FILLED("pool"), AS("also_pools", "also_pool"), FILLED("project"), PLAIN("cwd"),
      LABELS("env", "env"), INSIDE("want", "want", want), PLAIN("gpu_model"), MAYBE("gpu_hard"),
      LABELS("node_labels", "node_label"), LABELS("labels", "label"), MAYBE("priority"),
      MOST("time_limit_usec", USEC_MAX), MAYBE("retries"), AS("retry_on", "retry_on"),
      MOST("backoff_usec", USEC_MAX), MOST("backoff_max_usec", USEC_MAX), MAYBE("preemptible"),
      MAYBE("grace_signal"), MOST("grace_usec", USEC_MAX), MAYBE("max_cost_micro"), MAYBE("shards"),
      MAYBE("gang"), PLAIN("gang_policy"), INSIDE("sweep", "sweep", sweep),
      INSIDE("after", "after", dependency), MOST("not_before_usec", WHEN_MAX), FILLED("schedule"),
      FILLED("session"), MOST("session_keep_usec", USEC_MAX),
      {.name = "secrets",
       .kind = VG_VIEW_MADE,
       .make = spec_secrets,
       .take = take_secrets,
       .schema = SECRETS_SCHEMA},
      {.name = "environment",
       .kind = VG_VIEW_MADE,
       .make = spec_environment,
       .take = take_environment,
       .schema = REF_SCHEMA},
      {.name = "image",
       .kind = VG_VIEW_MADE,
       .make = spec_image,
       .take = take_image,
       .schema = REF_SCHEMA},
      INSIDE("tty", "tty", terminal), MAYBE("stdin_open"), FILLED("key"));

#define TASK_FILTER                                                                                \
    AS("state", "state"), LABELS("label", "label"), PLAIN("pool"), PLAIN("name"), PLAIN("search"), \
        MOST("since_usec", WHEN_MAX), MAYBE("all_users"), MAYBE("flat"), PLAIN("of")
TAKEN(task_filter, "TaskFilter", task_query, TASK_FILTER);
TAKEN(task_query, "TaskQuery", task_query, TASK_FILTER, MAYBE("limit"), PLAIN("before"));
TAKEN(task_cancel, "TaskCancel", task_signal, MOST("signal", 64), MOST("grace_usec", USEC_MAX));
TAKEN(
    tasks_cancel, "TasksCancel", task_signal,
    {.name = "matching", .kind = VG_VIEW_INSIDE, .of = &vg_view_task_filter, .flags = VG_VIEW_NEED},
    MOST("signal", 64), MOST("grace_usec", USEC_MAX));
TAKEN(share_set, "ShareSet", task_share, MOST("gpu_milli", 1000), MAYBE("gpu_mem_bytes"),
      MAYBE("gpu_hard"));
TAKEN(log_query, "LogQuery", log_req, MAYBE("tail_bytes"), MAYBE("attempt"), MAYBE("all_attempts"),
      MAYBE("follow"));
TAKEN(series_query, "SeriesQuery", series_query, MOST("since_usec", WHEN_MAX), MAYBE("points"),
      MAYBE("live"));
/* ?timeout= in seconds; not of the wire, so another message lends its room. */
TAKEN(wait_query, "WaitQuery", series_query,
      {.name = "timeout", .kind = VG_VIEW_MAYBE, .from = "points", .most = 600});
TAKEN(event_query, "EventQuery", event_query,
      {.name = "topics",
       .from = "topic",
       .words = (const char *const[]){"tasks", "nodes", "gpus", "queue", "budgets", "status",
                                      NULL}});
/* A terminal's size; not of the wire's request, so other numbers lend their room. */
TAKEN(attach_query, "AttachQuery", attach_req, MAYBE("observe"),
      {.name = "rows", .kind = VG_VIEW_MAYBE, .from = "stream", .most = 65535},
      {.name = "cols", .kind = VG_VIEW_MAYBE, .from = "fd_mask", .most = 65535});
TAKEN(forward_query, "ForwardQuery", forward_req,
      {.name = "port", .kind = VG_VIEW_MAYBE, .most = 65535});
TAKEN(queue_query, "QueueQuery", queue_query, PLAIN("pool"), MAYBE("limit"));
TAKEN(gpu_query, "GpuQuery", gpu_query, PLAIN("node"), MAYBE("live"));

/* ------------------------------------------------------------------ the cloud */

TAKEN(node_set, "NodeSet", node_set,
      {.name = "state",
       .words = (const char *const[]){"ready", "draining", NULL},
       .flags = VG_VIEW_NEED});
TAKEN(invite, "Invite", invite_req, MOST("ttl_usec", USEC_MAX), LABELS("labels", "label"));
TAKEN(gpu_set, "GpuSet", gpu_set,
      {.name = "state",
       .words = (const char *const[]){"ready", "drained", NULL},
       .flags = VG_VIEW_NEED},
      {.name = "text", .most = 200});
TAKEN(env_share, "EnvironmentShare", env_req, NEED("team"));
/* What makes a task of its own; other members of the message lend their room. */
#define IMAGE_PATTERN "^[A-Za-z0-9_:@+][A-Za-z0-9._/:@+-]{0,199}$"
TAKEN(env_import, "EnvironmentImport", env_req,
      {.name = "image", .from = "ref", .flags = VG_VIEW_NEED, .pattern = IMAGE_PATTERN},
      {.name = "name", .from = "source", .pattern = IMAGE_PATTERN},
      {.name = "platform", .from = "config", .pattern = IMAGE_PATTERN}, AS("pool", "team"),
      AS("login", "user"));

/* ------------------------------------------------------------------ people */

#define ROLES WORDS("role", "admin", "lead", "member", "viewer")
TAKEN(user_new, "UserNew", user_set, NAME("name", VG_VIEW_NEED), PLAIN("team"), ROLES, MAYBE("uid"),
      MAYBE("gid"), MAYBE("service"), {.name = "email", .most = 254},
      {.name = "full_name", .most = 254});
TAKEN(user_set, "UserSet", user_set, PLAIN("team"), ROLES, MAYBE("disabled"),
      {.name = "email", .most = 254}, {.name = "full_name", .most = 254});
TAKEN(team_new, "TeamNew", user_set, NAME("name", VG_VIEW_NEED), PLAIN("org"));
TAKEN(team_set, "TeamSet", team_set, PLAIN("org"));
TAKEN(org_new, "OrgNew", org_set, NAME("name", VG_VIEW_NEED));
TAKEN(token_req, "TokenRequest", token_req, PLAIN("user"), {.name = "name", .most = 200},
      MOST("ttl_usec", USEC_MAX),
      {.name = "scopes",
       .from = "scope",
       .words = (const char *const[]){"read", "run", "secrets", "admin", NULL}},
      PLAIN("replaces"), MAYBE("once"));
/* What POST /login has; it is not a request of the wire, so another message lends its room. */
TAKEN(sign_in, "SignIn", token_new, PLAIN("token"), AS("code", "id"));
TAKEN(audit_query, "AuditQuery", audit_query, MAYBE("before"), MAYBE("after"), MAYBE("limit"),
      PLAIN("user"), PLAIN("search"), MOST("since_usec", WHEN_MAX));
TAKEN(verify_query, "VerifyQuery", audit_query, {.name = "head", .kind = VG_VIEW_HEX, .most = 64});
TAKEN(secret_set, "SecretSet", secret_set, {.name = "value", .flags = VG_VIEW_NEED, .most = 65536});
TAKEN(secret_query, "SecretQuery", secret_ref, PLAIN("team"));
TAKEN(secret_put_query, "SecretPutQuery", secret_set, PLAIN("team"));
TAKEN(device_begin, "DeviceBegin", login_req, {.name = "name", .most = 60});
TAKEN(device_poll, "DevicePoll", login_req, NEED("id"));
TAKEN(oidc_begin_query, "OidcBeginQuery", login_req, AS("next", "redirect"));
TAKEN(oidc_end_query, "OidcEndQuery", login_req, PLAIN("code"), PLAIN("state"),
      AS("error", "name"));

/* ------------------------------------------------------------------ money and hooks */

TAKEN(price_set, "PriceSet", price, PLAIN("pool"), AS("class", "class_name"),
      MOST("from_usec", WHEN_MAX), MAYBE("gpu_hour_micro"), MAYBE("cpu_hour_micro"),
      MAYBE("gib_hour_micro"), MAYBE("storage_gib_month_micro"), MAYBE("idle_milli"),
      MAYBE("preemptible_milli"), PLAIN("currency"));
TAKEN(price_query, "PriceQuery", price_query, MAYBE("history"));
#define COST_FILTER                                                                          \
    MOST("from_usec", WHEN_MAX), MOST("until_usec", WHEN_MAX), PLAIN("user"), PLAIN("team"), \
        PLAIN("org"), PLAIN("pool"), PLAIN("project"), PLAIN("task"), MAYBE("limit")
TAKEN(cost_query, "CostQuery", cost_query, PLAIN("by"), COST_FILTER, MAYBE("zone_minutes"),
      PLAIN("zone_changes"));
TAKEN(ledger_query, "LedgerQuery", cost_query, COST_FILTER, PLAIN("before"));
TAKEN(credit, "Credit", credit_add, PLAIN("user"), PLAIN("team"), PLAIN("project"),
      {.name = "amount_micro", .kind = VG_VIEW_MAYBE, .flags = VG_VIEW_NEED},
      {.name = "text", .flags = VG_VIEW_NEED});
TAKEN(budget_new, "BudgetRequest", budget_set, NEED("scope"),
      {.name = "limit_micro", .kind = VG_VIEW_MAYBE, .flags = VG_VIEW_NEED},
      WORDS("period", "day", "week", "month", "year", "once"), PLAIN("warn_percent"),
      WORDS("policy", "warn", "queue", "stop"), MOST("grace_usec", USEC_MAX), MAYBE("paused"));
TAKEN(hook_new, "HookRequest", hook_set, NEED("url"), AS("events", "event"), PLAIN("scope"),
      PLAIN("secret"), MAYBE("paused"));

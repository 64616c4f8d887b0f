/* Tasks: submitting them, asking what one would cost, waiting for one.

   A submission may need an answer first: what the environment or image is that its files come from.
   Then RUN is asked, and when the store has the task, how it is now is the answer. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/rest-int.h"
#include "view/image.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define NOBODY 65534u
#define WORDS_MAX 4096 /* of an image's configuration */
/* Last the programs of this cloud, as every sandbox has them: a task may make others. */
#define PATH "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/virga/bin"

enum { SUBMIT, ESTIMATE, SCHEDULE }; /* the route's op */

static void fail(struct vg_rest_call *call, const struct vg_err *err) {
    vg_rest_fail(call, err);
}

static void no_memory(struct vg_rest_call *call) {
    struct vg_err err = VG_ERR_INIT;
    vg_err_sys(&err, ENOMEM, "cannot take the request");
    fail(call, &err);
}

static Vg__Pb__TaskSpec *spec_of(struct vg_rest_call *call) {
    return call->data;
}

static void spec_free(void *data) {
    if (data)
        vg__pb__task_spec__free_unpacked(data, NULL);
}

/* ------------------------------------------------------------------ answers */

static void ask_task(struct vg_rest_call *call, uint64_t id, bool spec) {
    Vg__Pb__TaskRef *m = (Vg__Pb__TaskRef *)vg_view_new(&vg__pb__task_ref__descriptor);
    char text[VG_ID_LEN + 1];
    vg_id_format(id, text);
    if (m && (m->task = vg_strdup(text))) {
        m->has_spec = m->spec = spec;
        vg_rest_ask(call, B(TASK_GET), &m->base);
    } else {
        if (m)
            protobuf_c_message_free_unpacked(&m->base, NULL);
        no_memory(call);
    }
}

static void told_task(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    (void)more;
    if (vg_rest_failed(call, env))
        return;
    int status = call->status ? call->status : 200;
    if (env->body_case == B(TASK))
        vg_rest_message(call, status, &vg_view_task, env->task);
    else
        vg_rest_json(call, status, NULL);
}

static void told_schedules(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    const Vg__Pb__ScheduleInfo *found = NULL;
    (void)more;
    if (vg_rest_failed(call, env))
        return;
    for (size_t i = 0; env->body_case == B(SCHEDULES) && i < env->schedules->n_schedule; i++)
        if (env->schedules->schedule[i]->id == call->id)
            found = env->schedules->schedule[i];
    vg_rest_json(call, 201, found ? vg_view_json(&vg_view_schedule, found) : NULL);
}

static void set_location(struct vg_rest_call *call, const char *what, uint64_t id) {
    char text[80];
    snprintf(text, sizeof text, VG_REST_PREFIX "/%s/%016llx", what, (unsigned long long)id);
    vg_web_set(call->req, "Location", text);
}

/* The wire's events: the first says that it is taken, and what it is called. */
static void told_run(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    (void)more;
    if (vg_rest_failed(call, env) || env->body_case != B(RUN_EVENT))
        return;
    const Vg__Pb__RunEvent *e = env->run_event;
    if (call->route->op == ESTIMATE) {
        vg_rest_json(call, 200, vg_view_json(&vg_view_why, e->forecast));
    } else if (e->kind == VG__PB__RUN_EVENT__KIND__ACCEPTED && call->route->op == SCHEDULE) {
        call->id = e->task_id;
        call->told = told_schedules;
        set_location(call, "schedules", e->task_id);
        ProtobufCMessage *m = vg_view_new(&vg__pb__empty__descriptor);
        if (m)
            vg_rest_ask(call, B(SCHEDULE_LIST), m);
        else
            no_memory(call);
    } else if (e->kind == VG__PB__RUN_EVENT__KIND__ACCEPTED) {
        /* A key that was used before finds the first task. */
        call->status = e->task_id == call->id ? vg_rest_status(call->route) : 200;
        call->told = told_task;
        set_location(call, "tasks", e->task_id);
        ask_task(call, e->task_id, true);
    }
}

/* ------------------------------------------------------------------ what the command finds */

static bool has_var(const Vg__Pb__TaskSpec *s, const char *var) {
    size_t n = strcspn(var, "=") + 1;
    for (size_t i = 0; i < s->n_env; i++)
        if (s->env[i].len >= n && memcmp(s->env[i].data, var, n) == 0)
            return true;
    return false;
}

static int add_var(Vg__Pb__TaskSpec *s, const char *var) {
    if (has_var(s, var))
        return 0;
    ProtobufCBinaryData *grown = vg_realloc(s->env, (s->n_env + 1) * sizeof *grown);
    char *copy = grown ? vg_strdup(var) : NULL;
    if (grown)
        s->env = grown;
    if (!copy)
        return -ENOMEM;
    s->env[s->n_env++] = (ProtobufCBinaryData){.data = (uint8_t *)copy, .len = strlen(copy)};
    return 0;
}

/* There is no caller's environment to take over: what commands expect to find. */
static int add_defaults(struct vg_rest_call *call, Vg__Pb__TaskSpec *s, const char *home) {
    vg_auto_free char *user = vg_fmt("USER=%s", call->peer->who.user);
    vg_auto_free char *dir = vg_fmt("HOME=%s", home);
    int r = user && dir ? 0 : -ENOMEM;
    if (r >= 0)
        r = add_var(s, PATH);
    if (r >= 0)
        r = add_var(s, dir);
    if (r >= 0)
        r = add_var(s, user);
    if (r >= 0)
        r = add_var(s, "LANG=C.UTF-8");
    if (r >= 0 && s->tty)
        r = add_var(s, "TERM=xterm-256color");
    return r;
}

/* ------------------------------------------------------------------ submitting */

static Vg__Pb__RunReq *make_run(struct vg_rest_call *call) {
    Vg__Pb__RunReq *m = (Vg__Pb__RunReq *)vg_view_new(&vg__pb__run_req__descriptor);
    Vg__Pb__TaskSpec *s = spec_of(call);
    if (!m)
        return NULL;
    call->id = vg_id_new();
    m->has_task_id = m->has_wait_durable = m->wait_durable = true;
    m->task_id = call->id;
    m->has_dry_run = m->dry_run = call->route->op == ESTIMATE;
    s->has_detached = s->detached = true;
    m->spec = s;
    call->data = NULL;
    return m;
}

static void run(struct vg_rest_call *call) {
    Vg__Pb__TaskSpec *s = spec_of(call);
    Vg__Pb__RunReq *m = NULL;
    if (!s->mirror)
        s->has_node_files = s->node_files = true;
    if (add_defaults(call, s, s->mirror ? "/root" : "/tmp") < 0 || !(m = make_run(call))) {
        no_memory(call);
        return;
    }
    call->told = told_run;
    vg_rest_ask(call, B(RUN), &m->base);
}

/* ------------------------------------------------------------------ environments and images */

static bool begins_with(const Vg__Pb__TaskSpec *s, const json_t *list, size_t n) {
    bool same = n <= s->n_argv;
    for (size_t i = 0; same && i < n; i++) {
        const json_t *word = json_array_get(list, i);
        size_t len = json_string_length(word);
        same = json_is_string(word) && s->argv[i].len == len &&
               (!len || memcmp(s->argv[i].data, json_string_value(word), len) == 0);
    }
    return same;
}

static int take_words(const json_t *list, bool variables, Vg__Pb__TaskSpec *s) {
    size_t n = VG_MIN(json_array_size(list), (size_t)WORDS_MAX);
    int r = 0;
    if (variables) {
        for (size_t i = 0; i < n && r >= 0; i++) {
            const char *word = json_string_value(json_array_get(list, i));
            r = word && strchr(word, '=') ? add_var(s, word) : 0;
        }
        return r;
    }
    if (begins_with(s, list, n))
        return 0; /* a spec that was read back has it already */
    ProtobufCBinaryData *v = n ? vg_alloc((n + s->n_argv) * sizeof *v) : NULL;
    if (!v)
        return n ? -ENOMEM : 0;
    for (size_t i = 0; i < n; i++) {
        const char *word = json_string_value(json_array_get(list, i));
        char *copy = vg_strdup(word ? word : "");
        v[i] = (ProtobufCBinaryData){.data = (uint8_t *)copy, .len = copy ? strlen(copy) : 0};
    }
    memcpy(v + n, s->argv, s->n_argv * sizeof *v);
    free(s->argv);
    s->argv = v;
    s->n_argv += n;
    return 0;
}

static char *dup_bytes(const char *text, ProtobufCBinaryData *out) {
    char *copy = vg_strdup(text);
    *out = (ProtobufCBinaryData){.data = (uint8_t *)copy, .len = copy ? strlen(copy) : 0};
    return copy;
}

/* What an image says about how commands run in it. */
static int take_config(const char *config, Vg__Pb__TaskSpec *s, struct vg_err *err) {
    json_t *j = json_loads(config, 0, NULL);
    const json_t *c = json_object_get(j, "config");
    const char *dir = json_string_value(json_object_get(c, "WorkingDir"));
    int r = vg_image_user(json_string_value(json_object_get(c, "User")), &s->mirror->uid,
                          &s->mirror->gid, err);
    if (r >= 0 && (take_words(json_object_get(c, "Env"), true, s) < 0 ||
                   take_words(json_object_get(c, "Entrypoint"), false, s) < 0))
        r = vg_err_sys(err, ENOMEM, "cannot take the image");
    if (r >= 0 && !s->has_cwd)
        s->has_cwd = dup_bytes(dir && dir[0] == '/' ? dir : "/", &s->cwd) != NULL;
    json_decref(j);
    return r;
}

static int take_environment(struct vg_rest_call *call, const Vg__Pb__EnvInfo *e,
                            struct vg_err *err) {
    Vg__Pb__TaskSpec *s = spec_of(call);
    Vg__Pb__MirrorSpec *m = s->mirror;
    char *ref = e->owner && e->name ? vg_fmt("%s//%s@%u", e->owner, e->name, e->version) : NULL;
    uint8_t *machine = vg_memdup(e->machine.data, e->machine.len);
    if (!ref || !machine) {
        free(ref);
        free(machine);
        return vg_err_sys(err, ENOMEM, "cannot take the environment");
    }
    free(m->env);
    m->env = ref;
    m->has_machine = true;
    m->machine = (ProtobufCBinaryData){.data = machine, .len = e->machine.len};
    m->has_uid = m->has_gid = true;
    m->uid = call->peer->who.uid == NOBODY ? 0 : (uint32_t)call->peer->who.uid;
    m->gid = call->peer->who.gid == NOBODY ? 0 : (uint32_t)call->peer->who.gid;
    int r = e->config ? take_config(e->config, s, err) : 0;
    if (r >= 0)
        m->has_home = dup_bytes(m->uid ? "/" : "/root", &m->home) != NULL;
    return r;
}

static void told_environment(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    struct vg_err err = VG_ERR_INIT;
    const Vg__Pb__TaskSpec *s = spec_of(call);
    (void)more;
    bool none = env->body_case == B(ERROR) && env->error->reason == VG_NOT_FOUND;
    if (none && s->mirror->image) {
        vg_err_set(&err, VG_NOT_FOUND,
                   "the image '%.200s' is not in the cloud's store: POST " VG_REST_PREFIX
                   "/environments or 'virga env import' brings it",
                   s->mirror->image);
        fail(call, &err);
    } else if (vg_rest_failed(call, env)) {
        return;
    } else if (env->body_case != B(ENVS) || env->envs->n_env != 1) {
        vg_err_set(&err, VG_NOT_FOUND, "there is no such environment");
        fail(call, &err);
    } else if (take_environment(call, env->envs->env[0], &err) < 0) {
        fail(call, &err);
    } else {
        run(call);
    }
}

static void ask_environment(struct vg_rest_call *call) {
    const Vg__Pb__MirrorSpec *mirror = spec_of(call)->mirror;
    Vg__Pb__EnvReq *m = (Vg__Pb__EnvReq *)vg_view_new(&vg__pb__env_req__descriptor);
    if (!m || !(m->ref = vg_strdup(mirror->image ? mirror->image : mirror->env))) {
        if (m)
            protobuf_c_message_free_unpacked(&m->base, NULL);
        no_memory(call);
        return;
    }
    m->has_op = true;
    m->op = VG__PB__ENV_REQ__OP__GET;
    call->told = told_environment;
    vg_rest_ask(call, B(ENV), &m->base);
}

/* ------------------------------------------------------------------ the routes */

bool vg_rest_takes_key(const struct vg_rest_route *r) {
    return r->special == vg_rest_import || (r->special == vg_rest_submit && r->op == SUBMIT);
}

/* The header names the submission as the member does; together they must agree. */
static int take_key(struct vg_rest_call *call, Vg__Pb__TaskSpec *s, struct vg_err *err) {
    const char *key = vg_web_header(call->req, "idempotency-key");
    if (!key)
        return 0;
    if (s->key && strcmp(s->key, key) != 0)
        return vg_err_set(err, VG_INVALID,
                          "'key' and the header Idempotency-Key differ: leave one out");
    if (!s->key)
        s->key = vg_strdup(key);
    return s->key ? 0 : vg_err_sys(err, ENOMEM, "cannot take the request");
}

static int check_when(struct vg_rest_call *call, const Vg__Pb__TaskSpec *s, struct vg_err *err) {
    bool again = s->schedule && *s->schedule;
    if (call->route->op == SCHEDULE && !again)
        return vg_err_set(err, VG_INVALID,
                          "'schedule' is missing: \"every 30m\", or five fields "
                          "as cron has them");
    if (call->route->op == SUBMIT && again)
        return vg_err_set(err, VG_INVALID,
                          "a schedule is made by POST " VG_REST_PREFIX "/schedules");
    return 0;
}

void vg_rest_submit(struct vg_rest_call *call) {
    struct vg_err err = VG_ERR_INIT;
    ProtobufCMessage *m = NULL;
    int r = vg_rest_body(call, &m, &err);
    if (r >= 0) {
        call->data = m;
        call->free_data = spec_free;
        r = vg_rest_query(call, m, &err);
    }
    if (r >= 0 && vg_rest_takes_key(call->route))
        r = take_key(call, call->data, &err);
    if (r >= 0)
        r = check_when(call, call->data, &err);
    if (r < 0)
        fail(call, &err);
    else if (spec_of(call)->mirror)
        ask_environment(call);
    else
        run(call);
}

void vg_rest_run(struct vg_rest_call *call, Vg__Pb__TaskSpec *spec) {
    struct vg_err err = VG_ERR_INIT;
    call->data = spec;
    call->free_data = spec_free;
    if (take_key(call, spec, &err) < 0)
        fail(call, &err);
    else
        run(call);
}

/* ------------------------------------------------------------------ waiting */

static void waited(void *user) {
    struct vg_rest_call *call = user;
    call->timer = NULL;
    if (call->over)
        return;
    Vg__Pb__TaskRef *m = (Vg__Pb__TaskRef *)vg_view_new(&vg__pb__task_ref__descriptor);
    if (m && (m->task = vg_strdup(call->part[0])))
        vg_rest_ask(call, B(TASK_GET), &m->base);
    else
        no_memory(call);
}

/* The task when it has ended, or as it is when the time is over. */
void vg_rest_wait(struct vg_rest_call *call) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__SeriesQuery q = VG__PB__SERIES_QUERY__INIT; /* lends its room to ?timeout= */
    Vg__Pb__TaskRef *m = NULL;
    if (vg_rest_query(call, &q.base, &err) < 0) {
        fail(call, &err);
        return;
    }
    m = (Vg__Pb__TaskRef *)vg_view_new(&vg__pb__task_ref__descriptor);
    if (!m || !(m->task = vg_strdup(call->part[0]))) {
        if (m)
            protobuf_c_message_free_unpacked(&m->base, NULL);
        no_memory(call);
        return;
    }
    call->told = told_task;
    call->timer = vg_timer_start(
        call->ctl->loop, q.has_points ? q.points * VG_USEC : VG_REST_WAIT_USEC, waited, call);
    vg_rest_ask(call, B(TASK_WAIT), &m->base);
}

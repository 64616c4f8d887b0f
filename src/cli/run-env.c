/* --env and --image: the task's files are a saved environment's. Finds it (an image that is not
   there yet is imported first), and takes over what an image says about how commands run in it. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/cmd-env.h"
#include "cli/run-int.h"
#include "cli/spec-opts.h"
#include "view/image.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX 4096 /* variables, and words of an entry point */

static Vg__Pb__MirrorSpec spec = VG__PB__MIRROR_SPEC__INIT;

struct found {
    char ref[2 * VG_ENV_NAME_MAX + 32]; /* OWNER//NAME@VERSION */
    uint8_t machine[16];
    char *config; /* owned, or NULL */
};

static int take(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct found *f = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_ENVS || env->envs->n_env != 1)
        return vg_unexpected(env, err);
    const Vg__Pb__EnvInfo *e = env->envs->env[0];
    if (e->machine.len != sizeof(f->machine) || !e->name || !e->owner)
        return vg_unexpected(env, err);
    memcpy(f->machine, e->machine.data, sizeof(f->machine));
    snprintf(f->ref, sizeof(f->ref), "%s//%s@%u", e->owner, e->name, e->version);
    f->config = vg_strdup(e->config);
    return 0;
}

static int find(const char *ref, struct found *f, struct vg_err *err) {
    Vg__Pb__EnvReq m = vg_ecmd_request(VG__PB__ENV_REQ__OP__GET, ref);
    Vg__Pb__Envelope req = vg_request(ENV, env, &m);
    return vg_call_once(&req, take, f, err);
}

/* The newest import of it; the first time it is fetched. */
static int find_image(const struct run *r, const char *image, struct found *f, struct vg_err *err) {
    char name[VG_ENV_NAME_MAX + 1];
    uint32_t version;
    int e = access(image, F_OK) == 0 ? -ENOENT : find(image, f, err);
    if (e != -ENOENT)
        return e;
    *err = VG_ERR_INIT;
    if (!r->quiet)
        run_say(r, "importing %s", image);
    const struct vg_ecmd_from from = {0};
    e = vg_ecmd_import(image, &from, NULL, name, &version, err);
    return e < 0 ? e : find(name, f, err);
}

static ProtobufCBinaryData bytes_of(const char *s) {
    return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)s};
}

static bool has_var(const ProtobufCBinaryData *v, size_t n, const char *var) {
    size_t name = strcspn(var, "=") + 1;
    for (size_t i = 0; i < n; i++)
        if (v[i].len >= name && strncmp((const char *)v[i].data, var, name) == 0)
            return true;
    return false;
}

/* -e first, then the image's, then what a terminal needs. Nothing else of this machine is meant. */
static int take_env(struct run *r, const struct vg_spec_opts *set, const json_t *image) {
    static const char *const ours[] = {"TERM", "COLORTERM", "LANG", "LC_ALL", "TZ"};
    static const char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    const char *home = spec.uid ? "HOME=/" : "HOME=/root";
    size_t n = 0, max = set->n_set_env + json_array_size(image) + VG_COUNT(ours) + 2;
    ProtobufCBinaryData *v = vg_alloc((max + 1) * sizeof(*v));
    if (!v || json_array_size(image) > WORDS_MAX)
        return -ENOMEM;
    for (size_t i = 0; i < set->n_set_env; i++)
        v[n++] = bytes_of(set->set_env[i]);
    for (size_t i = 0; i < json_array_size(image); i++) {
        const char *s = json_string_value(json_array_get(image, i));
        if (s && strchr(s, '=') && !has_var(v, n, s))
            v[n++] = bytes_of(vg_strdup(s) ?: "");
    }
    for (size_t i = 0; i < VG_COUNT(ours); i++) {
        const char *value = getenv(ours[i]);
        char *s = value ? vg_fmt("%s=%s", ours[i], value) : NULL;
        if (s && !has_var(v, n, s))
            v[n++] = bytes_of(s);
    }
    if (!has_var(v, n, path))
        v[n++] = bytes_of(path);
    if (!has_var(v, n, home))
        v[n++] = bytes_of(home);
    r->spec.env = v;
    r->spec.n_env = n;
    return 0;
}

static int take_entry(struct run *r, const json_t *entry) {
    size_t n = json_array_size(entry), k = 0;
    if (n == 0)
        return 0;
    ProtobufCBinaryData *v = vg_alloc((n + r->spec.n_argv + 1) * sizeof(*v));
    if (!v || n > WORDS_MAX)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        v[k++] = bytes_of(vg_strdup(json_string_value(json_array_get(entry, i)) ?: "") ?: "");
    for (size_t i = 0; i < r->spec.n_argv; i++)
        v[k++] = r->spec.argv[i];
    r->spec.argv = v;
    r->spec.n_argv = k;
    return 0;
}

/* The folder it was typed in goes along, so the command begins there. */
static bool in_project(const struct run *r) {
    const char *cwd = (const char *)r->spec.cwd.data;
    for (size_t i = 0; i < spec.n_view; i++) {
        const char *path = (const char *)spec.view[i]->path.data;
        size_t n = strlen(path);
        if (strncmp(cwd, path, n) == 0 && (!cwd[n] || cwd[n] == '/'))
            return true;
    }
    return false;
}

/* The project of a command that somebody waits for. What nobody waits for may outlive this
   machine's presence, and several tasks would write into one folder. */
static bool takes_project(struct run *r) {
    if (r->spec.detached || vg_spec_opts_several(&r->spec))
        return false;
    if (spec.uid == 0 || spec.uid == getuid())
        return true;
    char text[160];
    snprintf(text, sizeof(text),
             "the image's commands run as user %u, who has no rights in your folders: none of them "
             "goes along",
             spec.uid);
    run_note(r, text);
    return false;
}

static int image_user(const char *config, struct vg_err *err) {
    json_t *j = json_loads(config, 0, NULL);
    const json_t *user = json_object_get(json_object_get(j, "config"), "User");
    int e = vg_image_user(json_string_value(user), &spec.uid, &spec.gid, err);
    json_decref(j);
    return e;
}

static int take_image(struct run *r, const struct vg_spec_opts *set, const char *config,
                      struct vg_err *err) {
    json_t *j = json_loads(config, 0, NULL);
    const json_t *c = json_object_get(j, "config");
    const char *dir = json_string_value(json_object_get(c, "WorkingDir"));
    int e = 0;
    if ((take_env(r, set, json_object_get(c, "Env")) < 0 ||
         take_entry(r, json_object_get(c, "Entrypoint")) < 0))
        e = vg_err_set(err, VG_INTERNAL, "out of memory");
    if (e == 0 && !set->dir && !in_project(r)) {
        r->spec.has_cwd = true;
        r->spec.cwd = bytes_of(dir && dir[0] == '/' ? vg_strdup(dir) ?: "/" : "/");
    }
    spec.has_home = true;
    spec.home = bytes_of(spec.uid ? "/" : "/root");
    json_decref(j);
    return e;
}

int run_environment(struct run *r, const struct vg_spec_opts *set, struct vg_err *err) {
    static struct found f;
    int e = set->image ? find_image(r, set->image, &f, err) : find(set->environment, &f, err);
    if (e < 0)
        return e;
    spec.has_machine = true;
    spec.machine = (ProtobufCBinaryData){sizeof(f.machine), f.machine};
    spec.env = f.ref;
    spec.has_strict = spec.strict = set->strict;
    spec.has_uid = spec.has_gid = true;
    spec.uid = getuid();
    spec.gid = getgid();
    const char *home = getenv("HOME");
    if (home && home[0] == '/') {
        spec.has_home = true;
        spec.home = bytes_of(home);
    }
    if (f.config && (e = image_user(f.config, err)) < 0)
        return e;
    if (takes_project(r) && run_mirror_beside(r, set, &spec, err) < 0)
        return err->code;
    if (f.config)
        e = take_image(r, set, f.config, err);
    /* the folder is one of the environment's, not the one that is open here */
    if (r->cwd_fd >= 0)
        close(r->cwd_fd);
    r->cwd_fd = -1;
    r->spec.mirror = &spec;
    return e;
}

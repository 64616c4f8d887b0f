/* Environments from images that nobody has imported yet. A registry is asked by a task on a node,
   not by the control plane: what it may reach and use is bounded as the person's other tasks are,
   and its output says what happened. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "control/rest-int.h"
#include "sandbox/sandbox.h"

#include <string.h>

#define REF_MAX 200

/* What registries and `virga env` write; a path or an option is none of it. */
static int check(const char *what, const char *text, struct vg_err *err) {
    size_t n =
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:@+");
    if (!*text || text[n] || strchr("./-", text[0]) || n > REF_MAX)
        return vg_err_set(err, VG_INVALID,
                          "'%s' must have letters, digits and ._-/:@+, at most %d, and begin with "
                          "neither '.', '/' nor '-'",
                          what, REF_MAX);
    return 0;
}

/* Written out whole: a short name could be a folder of the node. */
static char *whole(const char *image) {
    size_t n = strcspn(image, "/");
    bool host = image[n] && (memchr(image, '.', n) || memchr(image, ':', n) ||
                             (n == 9 && memcmp(image, "localhost", n) == 0));
    return vg_fmt("%s%s", host ? "" : image[n] ? "docker.io/" : "docker.io/library/", image);
}

/* A registry that wants to know who asks: what `docker login` keeps, as a secret. */
static int add_login(Vg__Pb__TaskSpec *s, const char *secret) {
    Vg__Pb__SecretUse *use = (Vg__Pb__SecretUse *)vg_view_new(&vg__pb__secret_use__descriptor);
    s->secret = vg_alloc(sizeof *s->secret);
    s->env = vg_alloc(sizeof *s->env);
    char *where = vg_strdup("DOCKER_CONFIG=" VG_SANDBOX_SECRETS);
    if (use && s->secret)
        s->secret[s->n_secret++] = use;
    if (where && s->env)
        s->env[s->n_env++] = (ProtobufCBinaryData){strlen(where), (uint8_t *)where};
    bool good = use && s->n_secret && s->n_env && (use->name = vg_strdup(secret)) &&
                (use->as_file = vg_strdup("config.json"));
    if (!s->n_secret)
        free(use);
    if (!s->n_env)
        free(where);
    return good ? 0 : -ENOMEM;
}

static Vg__Pb__TaskSpec *spec_of(const Vg__Pb__EnvReq *m) {
    vg_auto_free char *image = whole(m->ref);
    const char *const words[] = {"virga",
                                 "env",
                                 "import",
                                 "--name",
                                 m->source ? m->source : m->ref,
                                 m->config ? "--platform" : NULL,
                                 m->config,
                                 "--",
                                 image};
    Vg__Pb__TaskSpec *s = (Vg__Pb__TaskSpec *)vg_view_new(&vg__pb__task_spec__descriptor);
    bool good = s && image && (s->argv = vg_alloc(VG_COUNT(words) * sizeof *s->argv)) &&
                (!m->team || (s->pool = vg_strdup(m->team))) &&
                (!m->user || add_login(s, m->user) >= 0);
    for (size_t i = 0; good && i < VG_COUNT(words); i++) {
        char *copy = words[i] ? vg_strdup(words[i]) : NULL;
        good = copy || !words[i];
        if (copy)
            s->argv[s->n_argv++] = (ProtobufCBinaryData){strlen(copy), (uint8_t *)copy};
    }
    if (!good && s)
        protobuf_c_message_free_unpacked(&s->base, NULL);
    return good ? s : NULL;
}

void vg_rest_import(struct vg_rest_call *call) {
    struct vg_err err = VG_ERR_INIT;
    ProtobufCMessage *taken = NULL;
    Vg__Pb__TaskSpec *s = NULL;
    int r = vg_rest_body(call, &taken, &err);
    const Vg__Pb__EnvReq *m = (const Vg__Pb__EnvReq *)taken;
    if (r >= 0)
        r = check("image", m->ref, &err);
    if (r >= 0 && m->source)
        r = check("name", m->source, &err);
    if (r >= 0 && m->config)
        r = check("platform", m->config, &err);
    if (r >= 0 && !(s = spec_of(m)))
        r = vg_err_sys(&err, ENOMEM, "cannot take the request");
    if (taken)
        protobuf_c_message_free_unpacked(taken, NULL);
    if (r < 0)
        vg_rest_fail(call, &err);
    else
        vg_rest_run(call, s);
}

/* Images from a registry (the OCI distribution protocol): manifests and blobs by GET, tokens where
   it asks for them, names and passwords as `docker login` keeps them, authorities as Docker's
   daemon does. Plain HTTP only to this machine. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/http.h"
#include "fs/store/oci.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define REDIRECTS_MAX 5
#define BLOB_MAX (UINT64_C(1) << 40)
#define ACCEPT                                                                              \
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, " \
    "application/vnd.docker.distribution.manifest.list.v2+json, "                           \
    "application/vnd.docker.distribution.manifest.v2+json"

struct registry {
    char host[256], repo[256], tag[160];
    char scheme[8];
    char *auth;   /* owned; what the last request needed */
    char *login;  /* owned; "Basic …" or NULL */
    char ca[600]; /* a file of certificates to trust, or "" */
};

static bool is_here(const char *host) {
    return strncmp(host, "localhost", 9) == 0 || strncmp(host, "127.", 4) == 0 ||
           strncmp(host, "[::1]", 5) == 0;
}

static int parse_ref(const char *ref, struct registry *g, struct vg_err *err) {
    const char *slash = strchr(ref, '/'), *rest = ref;
    size_t n = slash ? (size_t)(slash - ref) : 0;
    bool host =
        n && (memchr(ref, '.', n) || memchr(ref, ':', n) || strncmp(ref, "localhost", n) == 0);
    snprintf(g->host, sizeof(g->host), "%.*s", host ? (int)n : 9, host ? ref : "docker.io");
    if (host)
        rest = slash + 1;
    const char *digest = strchr(rest, '@'), *end = digest ? digest : rest + strlen(rest);
    const char *colon = NULL;
    for (const char *p = rest; p < end; p++)
        colon = *p == ':' ? p : *p == '/' ? NULL : colon;
    int len = (int)((colon ? colon : end) - rest);
    bool hub = strcmp(g->host, "docker.io") == 0;
    snprintf(g->repo, sizeof(g->repo), "%s%.*s",
             hub && !memchr(rest, '/', (size_t)len) ? "library/" : "", len, rest);
    if (digest)
        snprintf(g->tag, sizeof(g->tag), "%s", digest + 1);
    else if (colon)
        snprintf(g->tag, sizeof(g->tag), "%.*s", (int)(end - colon - 1), colon + 1);
    else
        snprintf(g->tag, sizeof(g->tag), "latest");
    if (hub)
        snprintf(g->host, sizeof(g->host), "registry-1.docker.io");
    static const char good[] = "abcdefghijklmnopqrstuvwxyz0123456789._-/";
    if (!g->repo[0] || !g->tag[0] || strspn(g->repo, good) != strlen(g->repo) ||
        strstr(g->repo, "..") ||
        strspn(g->tag, "ABCDEFGHIJKLMNOPQRSTUVWXYZ:abcdefghijklmnopqrstuvwxyz"
                       "0123456789._-") != strlen(g->tag) ||
        (digest && !vg_oci_digest_good(g->tag)))
        return vg_err_set(err, VG_INVALID,
                          "'%.200s' is neither a file or folder here nor the name of an image "
                          "(HOST/REPOSITORY:TAG)",
                          ref);
    return 0;
}

/* What was named, else where Docker looks. A registry of this machine speaks plain HTTP unless
   there is an authority for it. */
static void find_authority(struct registry *g, const char *ca) {
    const char *home = getenv("HOME");
    const char *const tops[] = {"/etc", home ? home : "/nowhere"};
    for (size_t i = 0; !ca && i < VG_COUNT(tops); i++) {
        snprintf(g->ca, sizeof(g->ca), "%s/%s/certs.d/%s/ca.crt", tops[i],
                 i ? ".config/docker" : "docker", g->host);
        if (access(g->ca, R_OK) == 0)
            ca = g->ca;
    }
    if (ca != g->ca)
        snprintf(g->ca, sizeof(g->ca), "%s", ca ? ca : "");
    snprintf(g->scheme, sizeof(g->scheme), "%s", is_here(g->host) && !g->ca[0] ? "http" : "https");
}

static struct vg_http_conf http_conf(const struct registry *g) {
    return (struct vg_http_conf){.ca = g->ca[0] ? g->ca : NULL};
}

/* The entry for a host: `docker login` writes the name, older ones an address. */
static const json_t *login_of(const json_t *auths, const char *host) {
    static const char *const forms[] = {"%s", "https://%s", "https://%s/v1/", "https://%s/v2/"};
    if (strcmp(host, "registry-1.docker.io") == 0)
        return json_object_get(auths, "https://index.docker.io/v1/");
    for (size_t i = 0; i < VG_COUNT(forms); i++) {
        char key[300];
        snprintf(key, sizeof(key), forms[i], host);
        const json_t *found = json_object_get(auths, key);
        if (found)
            return found;
    }
    return NULL;
}

/* ~/.docker/config.json: {"auths": {"host": {"auth": "base64"}}} */
static void find_login(struct registry *g) {
    const char *home = getenv("HOME"), *dir = getenv("DOCKER_CONFIG");
    vg_auto_free char *path = dir    ? vg_fmt("%s/config.json", dir)
                              : home ? vg_fmt("%s/.docker/config.json", home)
                                     : NULL;
    vg_auto_free char *text = NULL;
    size_t n;
    if (!path || vg_read_file(path, 1u << 20, &text, &n) < 0)
        return;
    json_t *j = json_loads(text, 0, NULL);
    const char *auth =
        json_string_value(json_object_get(login_of(json_object_get(j, "auths"), g->host), "auth"));
    if (auth && !strpbrk(auth, "\r\n"))
        g->login = vg_fmt("Basic %s", auth);
    json_decref(j);
}

/* A value of: Bearer realm="…",service="…",scope="…" */
static bool parameter(const char *text, const char *key, char *out, size_t n) {
    char want[32];
    snprintf(want, sizeof(want), "%s=\"", key);
    const char *p = strstr(text, want);
    if (!p)
        return false;
    p += strlen(want);
    const char *end = strchr(p, '"');
    if (!end || (size_t)(end - p) >= n)
        return false;
    snprintf(out, n, "%.*s", (int)(end - p), p);
    return true;
}

static int get_token(struct registry *g, const char *challenge, struct vg_err *err) {
    char realm[1024], service[512] = "", scope[512];
    struct vg_buf url = {0}, body = {0};
    struct vg_http_answer a;
    const struct vg_http_conf conf = http_conf(g);
    if (strncasecmp(challenge, "basic", 5) == 0 && g->login) {
        free(g->auth);
        g->auth = vg_strdup(g->login);
        return g->auth ? 0 : vg_err_sys(err, -ENOMEM, "cannot log in");
    }
    if (strncasecmp(challenge, "bearer", 6) != 0 ||
        !parameter(challenge, "realm", realm, sizeof(realm)))
        return vg_err_set(err, VG_FORBIDDEN,
                          "%s wants a login: 'docker login %s' keeps one for this, too", g->host,
                          g->host);
    parameter(challenge, "service", service, sizeof(service));
    if (!parameter(challenge, "scope", scope, sizeof(scope)))
        snprintf(scope, sizeof(scope), "repository:%.250s:pull", g->repo);
    /* the password goes nowhere unencrypted but to this machine itself */
    if (strncmp(realm, "https://", 8) != 0 &&
        !(strncmp(realm, "http://", 7) == 0 && is_here(realm + 7)))
        return vg_err_set(err, VG_FORBIDDEN, "%s sends us to %.100s for a token, which is not safe",
                          g->host, realm);
    int r = vg_buf_printf(&url, "%s%sservice=", realm, strchr(realm, '?') ? "&" : "?");
    if (r == 0)
        r = vg_http_escape(&url, service, "");
    if (r == 0)
        r = vg_buf_printf(&url, "&scope=");
    if (r == 0)
        r = vg_http_escape(&url, scope, "");
    if (r == 0)
        r = vg_buf_append(&url, "", 1);
    if (r < 0)
        vg_err_sys(err, r, "cannot ask for a token");
    else
        r = vg_http_get((char *)vg_buf_data(&url), &conf, g->login, NULL, -1, &body, 1u << 20, &a,
                        err);
    if (r == 0 && a.status != 200)
        r = vg_err_set(err, VG_FORBIDDEN, "%s gives no token for %s: status %d", g->host, g->repo,
                       a.status);
    if (r == 0) {
        json_t *j = json_loadb((char *)vg_buf_data(&body), vg_buf_len(&body), 0, NULL);
        const char *t = json_string_value(json_object_get(j, "token"));
        if (!t)
            t = json_string_value(json_object_get(j, "access_token"));
        free(g->auth);
        g->auth = t && !strpbrk(t, "\r\n") ? vg_fmt("Bearer %s", t) : NULL;
        if (!g->auth)
            r = vg_err_set(err, VG_PROTOCOL, "%s gave no token", g->host);
        json_decref(j);
    }
    vg_buf_done(&url);
    vg_buf_done(&body);
    return r;
}

static bool same_host(const char *a, const char *b) {
    const char *x = strstr(a, "://"), *y = strstr(b, "://");
    size_t n = x ? strcspn(x + 3, "/") : 0;
    return x && y && n == strcspn(y + 3, "/") && strncmp(x, y, n + 3) == 0;
}

/* GET with a token where one is asked for and redirections followed, which do not get it. */
static int get(struct registry *g, const char *path, const char *accept, int fd, struct vg_buf *out,
               uint64_t max, struct vg_http_answer *a, struct vg_err *err) {
    char url[VG_HTTP_URL_MAX], next[VG_HTTP_URL_MAX];
    snprintf(url, sizeof(url), "%s://%s/v2/%s/%s", g->scheme, g->host, g->repo, path);
    const struct vg_http_conf conf = http_conf(g);
    bool asked = false;
    char first[VG_HTTP_URL_MAX];
    snprintf(first, sizeof(first), "%s", url);
    for (int n = 0; n < REDIRECTS_MAX; n++) {
        bool ours = same_host(url, first);
        int r = vg_http_get(url, &conf, ours ? g->auth : NULL, accept, fd, out, max, a, err);
        if (r < 0)
            return r;
        if (a->status == 401 && ours && !asked) {
            asked = true;
            if ((r = get_token(g, a->authenticate, err)) < 0)
                return r;
            if (out)
                vg_buf_clear(out);
            continue;
        }
        bool moved = a->status >= 300 && a->status < 400 && a->location[0];
        if (!moved)
            return 0;
        if (out)
            vg_buf_clear(out);
        if (a->location[0] == '/')
            snprintf(next, sizeof(next), "%s://%.255s%.3000s", g->scheme, g->host, a->location);
        else
            snprintf(next, sizeof(next), "%s", a->location);
        if (strncmp(url, "https://", 8) == 0 && strncmp(next, "https://", 8) != 0)
            return vg_err_set(err, VG_FORBIDDEN, "%s sends us on without encryption", g->host);
        memcpy(url, next, sizeof(url));
    }
    return vg_err_set(err, VG_UNAVAILABLE, "%s sends us round in circles", g->host);
}

static int status_error(const struct registry *g, int status, const char *what,
                        struct vg_err *err) {
    if (status == 404)
        return vg_err_set(err, VG_NOT_FOUND, "%s has no %s of %s", g->host, what, g->repo);
    if (status == 401 || status == 403)
        return vg_err_set(
            err, VG_FORBIDDEN,
            "%s does not let us read %s: 'docker login %s' keeps a login for this, too", g->host,
            g->repo, g->host);
    return vg_err_set(err, VG_UNAVAILABLE, "%s answers %s of %s with status %d", g->host, what,
                      g->repo, status);
}

static int temp_file(struct vg_err *err) {
    const char *tmp = getenv("TMPDIR");
    int fd = open(tmp && *tmp ? tmp : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return fd < 0 ? vg_err_sys(err, errno, "cannot make a temporary file") : fd;
}

/* Manifests and blobs have different addresses; both are found by digest. */
static int registry_blob(void *user, const char *digest, struct vg_oci_blob *ret,
                         struct vg_err *err) {
    struct registry *g = user;
    struct vg_http_answer a;
    char path[128];
    vg_auto_fd int fd = temp_file(err);
    if (fd < 0)
        return fd;
    snprintf(path, sizeof(path), "blobs/%s", digest);
    int r = get(g, path, NULL, fd, NULL, BLOB_MAX, &a, err);
    if (r == 0 && a.status == 404) {
        snprintf(path, sizeof(path), "manifests/%s", digest);
        r = get(g, path, ACCEPT, fd, NULL, VG_OCI_JSON_MAX, &a, err);
    }
    if (r == 0 && a.status != 200)
        r = status_error(g, a.status, digest, err);
    if (r < 0)
        return r;
    off_t size = lseek(fd, 0, SEEK_END);
    *ret = (struct vg_oci_blob){.size = (uint64_t)size};
    ret->fd = vg_take_fd(fd);
    return 0;
}

/* The digest that the tag has now. */
static int resolve(struct registry *g, char digest[72], struct vg_err *err) {
    struct vg_http_answer a;
    struct vg_buf body = {0};
    char path[200];
    snprintf(path, sizeof(path), "manifests/%s", g->tag);
    int r = get(g, path, ACCEPT, -1, &body, VG_OCI_JSON_MAX, &a, err);
    if (r == 0 && a.status != 200)
        r = status_error(g, a.status, g->tag, err);
    if (r == 0)
        vg_oci_digest(vg_buf_data(&body), vg_buf_len(&body), digest);
    if (r == 0 && vg_oci_digest_good(g->tag) && strcmp(g->tag, digest) != 0)
        r = vg_err_set(err, VG_INVALID, "%s sent another image than the one asked for", g->host);
    vg_buf_done(&body);
    return r;
}

int vg_oci_pull(const char *ref, const char *platform, const char *ca, struct vg_estore *store,
                struct vg_ftree **ret, char **ret_config, struct vg_err *err) {
    struct registry g = {0};
    struct vg_oci o = {.blob = registry_blob, .user = &g, .platform = platform};
    char digest[72];
    int r = parse_ref(ref, &g, err);
    if (r == 0) {
        find_authority(&g, ca);
        find_login(&g);
        r = resolve(&g, digest, err);
    }
    if (r == 0) {
        json_t *d = json_pack("{s:s}", "digest", digest);
        r = d ? vg_oci_unpack(&o, d, store, ret, ret_config, err)
              : vg_err_sys(err, -ENOMEM, "cannot read the image");
        json_decref(d);
    }
    free(g.auth);
    free(g.login);
    return r;
}

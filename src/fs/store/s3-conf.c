/* Where a bucket is, and what lets us in. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/s3.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

int vg_s3_conf_url(struct vg_s3_conf *c, const char *url, struct vg_err *err) {
    const char *b = strncmp(url, "s3://", 5) == 0 ? url + 5 : "";
    size_t n = strcspn(b, "/");
    const char *p = b + n + (b[n] == '/');
    bool good = n >= 3 && n < sizeof(c->bucket) && strlen(p) <= VG_S3_PREFIX_MAX;
    for (size_t i = 0; good && i < n; i++)
        good = islower((unsigned char)b[i]) || isdigit((unsigned char)b[i]) || strchr(".-", b[i]);
    for (size_t i = 0; good && p[i]; i++)
        good = isalnum((unsigned char)p[i]) || strchr("._-/", p[i]);
    if (!good || strstr(p, "//") || strstr(p, "..") || p[0] == '/')
        return vg_err_set(err, VG_INVALID,
                          "'%.200s' names no bucket: write s3://BUCKET or s3://BUCKET/PREFIX", url);
    snprintf(c->bucket, sizeof(c->bucket), "%.*s", (int)n, b);
    size_t len = strlen(p);
    snprintf(c->prefix, sizeof(c->prefix), "%s%s", p, len && p[len - 1] != '/' ? "/" : "");
    return 0;
}

static int set(char *out, size_t n, const char *what, const char *value, struct vg_err *err) {
    size_t len = strlen(value);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)value[i] <= ' ' || value[i] == 127)
            len = n;
    if (len >= n)
        return vg_err_set(err, VG_INVALID, "the bucket's %s is no good one", what);
    memcpy(out, value, len + 1);
    return 0;
}

static int set_all(struct vg_s3_conf *c, const char *id, const char *secret, const char *token,
                   const char *from, struct vg_err *err) {
    if (!id || !secret || !*id || !*secret)
        return vg_err_set(err, VG_INVALID,
                          "%s has no credentials for the bucket: aws_access_key_id and "
                          "aws_secret_access_key are needed",
                          from);
    int r = set(c->auth.id, sizeof(c->auth.id), "key's name", id, err);
    if (r == 0)
        r = set(c->auth.secret, sizeof(c->auth.secret), "secret key", secret, err);
    return r == 0 && token ? set(c->auth.token, sizeof(c->auth.token), "token", token, err) : r;
}

/* `key = value` lines; of several sections the one called default, or what stands before any. */
static void from_ini(char *text, const char **id, const char **secret, const char **token) {
    bool ours = true;
    for (char *save, *line = strtok_r(text, "\r\n", &save); line;
         line = strtok_r(NULL, "\r\n", &save)) {
        line += strspn(line, " \t");
        if (*line == '[')
            ours = strncmp(line, "[default]", 9) == 0;
        char *eq = strchr(line, '=');
        if (!ours || !eq || *line == '#' || *line == ';')
            continue;
        char *value = eq + 1 + strspn(eq + 1, " \t"), *end = value + strlen(value);
        while (end > value && isspace((unsigned char)end[-1]))
            *--end = '\0';
        size_t n = strcspn(line, " \t=");
        const struct {
            const char *name;
            const char **out;
        } keys[] = {{"aws_access_key_id", id},
                    {"aws_secret_access_key", secret},
                    {"aws_session_token", token}};
        for (size_t i = 0; i < VG_COUNT(keys); i++)
            if (strlen(keys[i].name) == n && strncasecmp(line, keys[i].name, n) == 0)
                *keys[i].out = value;
    }
}

int vg_s3_conf_credentials(struct vg_s3_conf *c, const char *file, struct vg_err *err) {
    if (!file)
        return set_all(c, getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY"),
                       getenv("AWS_SESSION_TOKEN"),
                       "neither env.credentials nor the environment of virgad", err);
    struct stat st;
    vg_auto_free char *text = NULL;
    const char *id = NULL, *secret = NULL, *token = NULL;
    size_t n;
    if (stat(file, &st) < 0)
        return vg_err_sys(err, errno, "cannot read the bucket's credentials, %s", file);
    if (st.st_mode & 077)
        return vg_err_set(err, VG_FORBIDDEN,
                          "%s holds the key of a bucket and others may read it: 'chmod 600 %s'",
                          file, file);
    int r = vg_read_file(file, 64u << 10, &text, &n);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read the bucket's credentials, %s", file);
    from_ini(text, &id, &secret, &token);
    return set_all(c, id, secret, token, file, err);
}

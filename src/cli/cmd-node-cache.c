/* What a node keeps of files: the public store, which its operator fills, and the caches of its
   users, of which this only tells the sizes. For root on the node itself; needs no control plane.
 */
#include "cli/cmd-node-cache.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/endpoint.h"
#include "cli/table.h"
#include "fs/fsd.h"
#include "fs/node/public.h"
#include "view/json.h"

#include <dirent.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define ANSWER_SEC 5

const struct vg_opt vg_node_seed_opts[2] = {
    {"check", 0, NULL, "read everything that was seeded and remove what is damaged", 'c'},
    VG_CMD_OUTPUT,
};

static int fs_dir(char *out, size_t n, struct vg_err *err) {
    char home[VG_ENDPOINT_PATH_MAX];
    int r = vg_home_dir(home, sizeof home, err);
    if (r < 0)
        return r;
    if (geteuid() != 0)
        return vg_err_set(err, VG_NEEDS_ROOT,
                          "a node's files are root's: run this as root on the node");
    if (snprintf(out, n, "%s/node/fs", home) >= (int)n)
        return vg_err_set(err, VG_INVALID, "VIRGA_HOME is too long");
    return 0;
}

static int say_seeded(const struct vg_cmd_line *l, const struct vg_public_stat *s, bool check) {
    char a[32], b[32];
    if (l->json)
        return vg_json_print(json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "files",
                                       (json_int_t)s->files, "bytes", (json_int_t)s->bytes, "added",
                                       (json_int_t)s->added, "added_bytes",
                                       (json_int_t)s->added_bytes, "skipped",
                                       (json_int_t)s->skipped, "bad", (json_int_t)s->bad));
    vg_format_size(s->bytes, a, sizeof a);
    vg_format_size(s->added_bytes, b, sizeof b);
    if (check)
        printf("%llu files checked, %s; %llu were damaged and are gone\n",
               (unsigned long long)s->files, a, (unsigned long long)s->bad);
    else
        printf("%llu files, %s; %llu new, %s; %llu left out, as not everybody may read them\n",
               (unsigned long long)s->files, a, (unsigned long long)s->added, b,
               (unsigned long long)s->skipped);
    return 0;
}

int vg_node_seed_run(struct vg_cmd_line *l) {
    char dir[VG_ENDPOINT_PATH_MAX + 32];
    struct vg_public_stat stat;
    struct vg_err err = VG_ERR_INIT;
    bool check = false;
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        check |= id == 'c';
    }
    if (!vg_cmd_args(l, check ? 0 : 1, check ? 0 : -1))
        return l->exit;
    if (fs_dir(dir, sizeof dir - 8, &err) < 0)
        return vg_cmd_fail(&err);
    memcpy(dir + strlen(dir), "/public", sizeof "/public");
    vg_auto_free char **paths = vg_alloc(((size_t)l->n_args + 1) * sizeof *paths);
    if (!paths) {
        vg_err_sys(&err, -ENOMEM, "cannot seed");
        return vg_cmd_fail(&err);
    }
    memcpy(paths, l->args, (size_t)l->n_args * sizeof *paths);
    int r = check ? vg_public_check(dir, &stat, &err) : vg_public_seed(dir, paths, &stat, &err);
    return r < 0 ? vg_cmd_fail(&err) : say_seeded(l, &stat, check);
}

/* ------------------------------------------------------------------ cache */

/* What a running daemon says of itself; NULL: there is none, or it does not answer. */
static json_t *ask(const char *dir, uint32_t slot) {
    static char text[64 << 10];
    struct vg_fsd_head head;
    vg_auto_fd int fd = -1;
    size_t n_fds = 0;
    if (vg_fsd_connect_running(dir, slot, &fd) < 0)
        return NULL;
    struct timeval limit = {.tv_sec = ANSWER_SEC};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) < 0 ||
        vg_fsd_send(fd, VG_FSD_STATUS, NULL, 0, NULL, 0) < 0 ||
        vg_fsd_recv(fd, &head, text, sizeof text, NULL, &n_fds) != 1 ||
        head.kind != VG_FSD_STATUS_TEXT || head.len > sizeof text)
        return NULL;
    return json_loadb(text, head.len, 0, NULL);
}

/* What the last daemon wrote when it ended. */
static json_t *remembered(const char *dir, uint32_t slot) {
    char path[VG_ENDPOINT_PATH_MAX + 64], boot[40];
    unsigned long long bytes, objects, partial;
    vg_auto_free char *text = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/%u/cache/used", dir, slot);
    if (vg_read_file(path, 256, &text, &n) < 0 ||
        sscanf(text, "%36s %llu %llu %llu", boot, &bytes, &objects, &partial) != 4)
        return json_object();
    return json_pack("{s:{s:I, s:I, s:I}}", "cache", "bytes", (json_int_t)bytes, "objects",
                     (json_int_t)objects, "partial", (json_int_t)partial);
}

static json_t *all(const char *dir, struct vg_err *err) {
    json_t *list = json_array();
    DIR *d = opendir(dir);
    if (!d && errno != ENOENT) {
        vg_err_sys(err, -errno, "cannot read %s", dir);
        json_decref(list);
        return NULL;
    }
    for (struct dirent *e; d && (e = readdir(d));) {
        uint64_t slot;
        if (vg_parse_u64(e->d_name, &slot) < 0 || slot > UINT32_MAX)
            continue;
        json_t *one = ask(dir, (uint32_t)slot);
        bool runs = one && json_is_object(one);
        if (!runs) {
            json_decref(one);
            one = remembered(dir, (uint32_t)slot);
        }
        json_object_set_new(one, "slot", json_integer((json_int_t)slot));
        json_object_set_new(one, "running", json_boolean(runs));
        json_array_append_new(list, one);
    }
    if (d)
        closedir(d);
    return list;
}

static const char *const headings[] = {"SLOT",    "DAEMON", "USED",   "LIMIT",  "OBJECTS",
                                       "PARTIAL", "HITS",   "MISSES", "PUBLIC", "EVICTED",
                                       "BAD",     "FULL",   NULL};

/* A count, or NULL when it is not known. */
static const char *count(const json_t *cache, const char *key, char out[24]) {
    const json_t *v = json_object_get(cache, key);
    if (!json_is_integer(v))
        return NULL;
    snprintf(out, 24, "%lld", (long long)json_integer_value(v));
    return out;
}

static const char *size(const json_t *cache, const char *key, char out[24]) {
    const json_t *v = json_object_get(cache, key);
    return json_is_integer(v) ? vg_format_size((uint64_t)json_integer_value(v), out, 24) : NULL;
}

static void row(struct vg_table *t, const json_t *one) {
    const json_t *c = json_object_get(one, "cache");
    char b[9][24], slot[24];
    const char *cells[] = {
        count(one, "slot", slot),      json_is_true(json_object_get(one, "running")) ? "runs" : "-",
        size(c, "bytes", b[0]),        size(c, "max_bytes", b[1]),
        count(c, "objects", b[2]),     count(c, "partial", b[3]),
        count(c, "hits", b[4]),        count(c, "misses", b[5]),
        count(c, "public_hits", b[6]), count(c, "evicted", b[7]),
        count(c, "bad", b[8]),         json_is_true(json_object_get(c, "full")) ? "full" : "-"};
    vg_table_row(t, cells);
}

int vg_node_cache_run(struct vg_cmd_line *l) {
    char dir[VG_ENDPOINT_PATH_MAX + 32];
    struct vg_err err = VG_ERR_INIT;
    if (!vg_cmd_plain(l, 0, 0))
        return l->exit;
    json_t *list = fs_dir(dir, sizeof dir, &err) < 0 ? NULL : all(dir, &err);
    if (!list)
        return vg_cmd_fail(&err);
    if (l->json)
        return vg_json_print(list);
    struct vg_table *t = vg_table_new(headings);
    for (size_t i = 0; t && i < json_array_size(list); i++)
        row(t, json_array_get(list, i));
    json_decref(list);
    vg_table_print(t, stdout, 0);
    return 0;
}

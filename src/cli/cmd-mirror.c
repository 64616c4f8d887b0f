/* `virga mirror`: the file service of this machine and user. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"
#include "cli/cmd.h"
#include "cli/mirror-serve.h"
#include "cli/mirror-sock.h"
#include "view/json.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pwd.h>
#include <string.h>

#define IDLE (600 * VG_USEC)
#define LOG_MAX (1 << 20)

static const char *home_of_user(void) {
    const char *home = getenv("HOME");
    const struct passwd *pw = home && home[0] == '/' ? NULL : getpwuid(geteuid());
    return home && home[0] == '/' ? home : pw && pw->pw_dir ? pw->pw_dir : "/";
}

struct places {
    char state[PATH_MAX], own[PATH_MAX], sock[PATH_MAX];
};

static int find_places(struct places *p, struct vg_mirror_conf *conf, struct vg_err *err) {
    int r = vg_serve_state(p->state, sizeof(p->state), err);
    if (r >= 0)
        r = vg_home_dir(p->own, sizeof(p->own), err);
    *conf = (struct vg_mirror_conf){
        .root = "/", .home = home_of_user(), .state = p->state, .own = p->own, .level = -1};
    return r;
}

static int find_sock(struct places *p, struct vg_err *err) {
    struct vg_endpoint e;
    int r = vg_endpoint_find(&e, err);
    return r < 0 ? r : vg_mirror_sock_path(&e, p->sock, sizeof(p->sock), err);
}

/* Words for whoever looks for the reason later. */
static void log_to_file(const char *state) {
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/log", state);
    if (vg_mkdir_p(state, 0700) < 0)
        return;
    vg_auto_fd int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat st;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_size > LOG_MAX && ftruncate(fd, 0) < 0)
        return;
    dup2(fd, STDERR_FILENO);
}

enum {
    O_READY = 1,
    O_IDLE,
    O_FD,
    O_ROOT,
    O_STATE,
    O_HOME,
    O_TASK,
    O_CWD,
    O_LEVEL,
    O_ALLOW,
    O_WRITABLE
};
static const struct vg_opt serve_opts[] = {
    {"idle", 0, "DURATION", "leave when nothing was to do for so long (10m)", O_IDLE},
    {"ready", 0, "FD", NULL, O_READY},
    /* Without a cloud, over a descriptor. */
    {"fd", 0, "FD", NULL, O_FD},
    {"root", 0, "DIR", NULL, O_ROOT},
    {"state", 0, "DIR", NULL, O_STATE},
    {"home", 0, "DIR", NULL, O_HOME},
    {"task", 0, "N", NULL, O_TASK},
    {"cwd", 0, "DIR", NULL, O_CWD},
    {"level", 0, "N", NULL, O_LEVEL},
    {"allow", 0, "PATH", NULL, O_ALLOW},
    {"writable", 0, "DIR", NULL, O_WRITABLE},
};

struct serving {
    struct vg_serve_conf conf;
    struct vg_serve_fd fd;
    const char *allow[16], *writable[16];
    uint64_t fd_no, ready, level, task;
    bool by_fd;
};

static int serve_option(struct vg_cmd_line *l, struct serving *s, int id, const char *arg) {
    switch (id) {
    case O_IDLE:
        return vg_opt_duration(&l->st, arg, &s->conf.idle_usec);
    case O_READY:
        return vg_opt_u64(&l->st, arg, 3, 1u << 20, &s->ready);
    case O_FD:
        s->by_fd = true;
        return vg_opt_u64(&l->st, arg, 0, 1u << 20, &s->fd_no);
    case O_TASK:
        return vg_opt_u64(&l->st, arg, 1, UINT64_MAX, &s->task);
    case O_LEVEL:
        return vg_opt_u64(&l->st, arg, 0, 19, &s->level);
    case O_ROOT:
        s->conf.mirror.root = arg;
        return 0;
    case O_STATE:
        s->conf.mirror.state = arg;
        return 0;
    case O_HOME:
        s->conf.mirror.home = arg;
        return 0;
    case O_CWD:
        s->fd.run.cwd = arg;
        return 0;
    case O_ALLOW:
        if (s->fd.run.n_allow == VG_COUNT(s->allow))
            return vg_opt_bad(&l->st, "too many");
        s->allow[s->fd.run.n_allow++] = arg;
        return 0;
    default:
        if (s->fd.run.n_writable == VG_COUNT(s->writable))
            return vg_opt_bad(&l->st, "too many");
        s->writable[s->fd.run.n_writable++] = arg;
        return 0;
    }
}

static int serve_by_fd(struct vg_cmd_line *l, struct serving *s) {
    char *argv[64];
    int n = VG_MIN(l->n_args, 63);
    memcpy(argv, l->args, (size_t)n * sizeof(*argv));
    argv[n] = NULL;
    s->fd.mirror = s->conf.mirror;
    s->fd.fd = (int)s->fd_no;
    s->fd.run.task = s->task;
    s->fd.run.argv = argv;
    s->fd.run.allow = s->allow;
    s->fd.run.writable = s->writable;
    s->fd.run.path_env = getenv("PATH");
    return vg_serve_fd(&s->fd);
}

static int serve_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct places p;
    struct serving s = {.level = UINT64_MAX, .task = 1};
    const char *arg;
    int r = find_places(&p, &s.conf.mirror, &err);
    if (r < 0)
        return vg_cmd_fail(&err);
    s.conf.idle_usec = IDLE;
    s.fd.run.cwd = "/";
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (serve_option(l, &s, id, arg) < 0)
            return vg_cmd_fail_opt(l);
    }
    if (s.level != UINT64_MAX)
        s.conf.mirror.level = (int)s.level;
    if (s.by_fd)
        return serve_by_fd(l, &s);
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    if (find_sock(&p, &err) < 0)
        return vg_cmd_fail(&err);
    s.conf.sock = p.sock;
    s.conf.ready_fd = s.ready ? (int)s.ready : -1;
    if (s.ready)
        log_to_file(p.state);
    return vg_serve_run(&s.conf);
}

/* ---- about a service ---- */

static int call(const char *op, struct vg_mpkt *p, struct vg_err *err) {
    struct places at;
    int r = find_sock(&at, err);
    if (r < 0)
        return r;
    vg_auto_fd int fd = vg_mirror_sock_connect(at.sock);
    if (fd == -ENOENT || fd == -ECONNREFUSED)
        return vg_err_set(err, VG_NOT_FOUND,
                          "no file service runs here: vrun starts it when it is needed");
    if (fd < 0)
        return vg_err_sys(err, fd, "cannot reach the file service");
    vg_mpkt_clear(p);
    vg_mpkt_add(p, "op", op);
    return vg_mirror_sock_call(fd, p, NULL, err);
}

static long long count(const json_t *j, const char *key) {
    return json_integer_value(json_object_get(j, key));
}

static void print_status(const json_t *j, const char *cloud) {
    char sent[32], pushed[32], asked[32];
    size_t i;
    const json_t *it;
    printf("cloud      %s\n", cloud ? cloud : "?");
    printf("folders    %lld watched, %lld looked at when a command starts\n", count(j, "watched"),
           count(j, "looked_at"));
    printf("sent       %s: %lld folders, %s pushed, %s asked for in %lld requests\n",
           vg_format_size((uint64_t)count(j, "sent_bytes"), sent, sizeof(sent)),
           count(j, "folders_sent"),
           vg_format_size((uint64_t)count(j, "pushed_bytes"), pushed, sizeof(pushed)),
           vg_format_size((uint64_t)count(j, "demand_bytes"), asked, sizeof(asked)),
           count(j, "demands"));
    printf("remembers  the content of %lld files\n", count(j, "remembered"));
    json_array_foreach(json_object_get(j, "nodes"), i, it) printf(
        "node       %s: knows %lld folders, %lld links\n",
        json_string_value(json_object_get(it, "node")), count(it, "folders"), count(it, "links"));
    json_array_foreach(json_object_get(j, "tasks"), i, it) {
        const char *project = json_string_value(json_object_get(it, "project"));
        printf("task       %s: %s%s\n", json_string_value(json_object_get(it, "task")),
               project ? "writes back " : "writes nothing back", project ? project : "");
    }
}

static int status_run(struct vg_cmd_line *l) {
    static struct vg_mpkt p;
    struct vg_err err = VG_ERR_INIT;
    if (!vg_cmd_plain(l, 0, 0))
        return l->exit;
    if (call("status", &p, &err) < 0)
        return vg_cmd_fail(&err);
    const char *text = vg_mpkt_get(&p, "json"), *cloud = vg_mpkt_get(&p, "cloud");
    json_t *j = json_loads(text ? text : "{}", 0, NULL);
    if (!j) {
        vg_err_set(&err, VG_PROTOCOL, "the file service gave no good answer");
        return vg_cmd_fail(&err);
    }
    json_object_set_new(j, "cloud", vg_json_text(cloud ? cloud : ""));
    unsigned ready = 0, taken = 0;
    const char *ways = vg_mpkt_get(&p, "ways");
    if (ways && sscanf(ways, "%u %u", &ready, &taken) == 2) {
        json_object_set_new(j, "ways_ready", json_integer(ready));
        json_object_set_new(j, "ways_taken", json_integer(taken));
    }
    if (l->json) {
        vg_json_print(j);
        return 0;
    }
    print_status(j, cloud);
    json_decref(j);
    return 0;
}

static int stop_run(struct vg_cmd_line *l) {
    static struct vg_mpkt p;
    struct vg_err err = VG_ERR_INIT;
    if (!vg_cmd_plain(l, 0, 0))
        return l->exit;
    return call("stop", &p, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

static int explain_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_mirror_conf conf;
    struct places p;
    if (!vg_cmd_plain(l, 1, -1))
        return l->exit;
    if (find_places(&p, &conf, &err) < 0)
        return vg_cmd_fail(&err);
    for (int i = 0; i < l->n_args; i++) {
        char *text, full[PATH_MAX], dir[PATH_MAX];
        const char *path = l->args[i];
        if (path[0] != '/') {
            if (!getcwd(dir, sizeof(dir)) ||
                snprintf(full, sizeof(full), "%s/%s", dir, path) >= (int)sizeof(full)) {
                vg_err_sys(&err, errno, "cannot tell where '%s' is", path);
                return vg_cmd_fail(&err);
            }
            path = full;
        }
        char *real = realpath(path, NULL);
        int r = vg_mirror_explain(&conf, real ? real : path, &text, &err);
        free(real);
        if (r < 0)
            return vg_cmd_fail(&err);
        fputs(text, stdout);
        free(text);
    }
    return 0;
}

static const struct vg_opt status_opts[] = {VG_CMD_OUTPUT};
static const struct vg_cmd subs[] = {
    {"status", "", "what the file service does", status_opts, VG_COUNT(status_opts),
     .run = status_run},
    {"explain", "PATH...", "may a node read this, and why", .run = explain_run},
    {"stop", "", "end the file service; the next vrun starts it", .run = stop_run},
    {"serve", "[COMMAND...]", "be the file service; vrun starts it by itself", serve_opts,
     VG_COUNT(serve_opts), .run = serve_run},
};

const struct vg_cmd vg_cmd_mirror = {
    .name = "mirror",
    .args = "",
    .summary = "this machine's files on other machines: status, explain, stop",
    .subs = subs,
    .n_subs = VG_COUNT(subs)};

/* vrun's part in the environment mirror: asks the file service to begin, and says in the request
   where the task's files are. Only when the cloud is another machine, or when it says that the task
   will run on one. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/mirror-sock.h"
#include "cli/run-int.h"
#include "cli/spec-opts.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARGS_MAX 64 /* enough to know the command again */
#define ARG_MAX_LEN 1024
#define CALLS_MAX 3
#define VIEWS_MAX 16
#define GROUPS_MAX 1024

static Vg__Pb__MirrorSpec spec = VG__PB__MIRROR_SPEC__INIT;

static ProtobufCBinaryData bytes_of(const char *s) {
    return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)s};
}

static int add_number(struct vg_mpkt *p, const char *key, uint64_t v) {
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
    return vg_mpkt_add(p, key, text);
}

static int add_paths(struct vg_mpkt *p, const char *key, const char *const *path, size_t n,
                     struct vg_err *err) {
    for (size_t i = 0; i < n; i++) {
        char real[PATH_MAX];
        if (!realpath(path[i], real))
            return vg_err_sys(err, errno, "option '--%s': '%s'", key, path[i]);
        if (vg_mpkt_add(p, key, real) < 0)
            return vg_err_set(err, VG_TOO_BIG, "too many --%s", key);
    }
    return 0;
}

static int add_ids(struct vg_mpkt *p) {
    gid_t groups[GROUPS_MAX];
    int n = getgroups(GROUPS_MAX, groups);
    int r = add_number(p, "uid", getuid());
    if (r == 0)
        r = add_number(p, "gid", getgid());
    for (int i = 0; r == 0 && i < n; i++)
        r = add_number(p, "group", groups[i]);
    const char *home = getenv("HOME");
    if (r == 0 && home && home[0] == '/')
        r = vg_mpkt_add(p, "home", home);
    return r;
}

static int add_command(struct run *r, struct vg_mpkt *p) {
    char id[VG_ID_LEN + 1];
    vg_id_format(r->task_id, id);
    int e = vg_mpkt_add(p, "task", id);
    if (e == 0)
        e = vg_mpkt_add(p, "cwd", (const char *)r->spec.cwd.data);
    const char *path = getenv("PATH");
    if (e == 0 && path && strlen(path) < 16384)
        e = vg_mpkt_add(p, "path", path);
    /* Long arguments are cut: they only help to guess what of this machine the command will use. */
    for (size_t i = 0; !r->beside && e == 0 && i < r->spec.n_argv && i < ARGS_MAX; i++) {
        char cut[ARG_MAX_LEN];
        snprintf(cut, sizeof(cut), "%s", (const char *)r->spec.argv[i].data);
        e = vg_mpkt_add(p, "arg", cut);
    }
    return e;
}

static int hex16(const char *text, uint8_t out[16]) {
    if (!text || strlen(text) != 32)
        return -EBADMSG;
    for (int i = 0; i < 16; i++) {
        unsigned v;
        if (sscanf(text + 2 * i, "%2x", &v) != 1)
            return -EBADMSG;
        out[i] = (uint8_t)v;
    }
    return 0;
}

static void fill_ids(void) {
    static uint32_t groups[GROUPS_MAX];
    gid_t list[GROUPS_MAX];
    int n = getgroups(GROUPS_MAX, list);
    for (int i = 0; i < n; i++)
        groups[i] = list[i];
    spec.has_uid = spec.has_gid = true;
    spec.uid = getuid();
    spec.gid = getgid();
    spec.n_groups = n > 0 ? (size_t)n : 0;
    spec.groups = groups;
    const char *home = getenv("HOME");
    if (home && home[0] == '/') {
        spec.has_home = true;
        spec.home = bytes_of(home);
    }
}

static int fill_views(const struct vg_mpkt *answer, Vg__Pb__MirrorSpec *to) {
    static Vg__Pb__MirrorView view[VIEWS_MAX], *each[VIEWS_MAX];
    size_t at = 0;
    for (const char *path; (path = vg_mpkt_next(answer, "view", &at)) && to->n_view < VIEWS_MAX;) {
        char *own = vg_strdup(path);
        if (!own)
            return -ENOMEM;
        Vg__Pb__MirrorView *v = each[to->n_view] = &view[to->n_view];
        *v = (Vg__Pb__MirrorView)VG__PB__MIRROR_VIEW__INIT;
        v->has_path = v->has_write = v->write = true;
        v->path = bytes_of(own);
        to->n_view++;
    }
    to->view = each;
    return 0;
}

static int fill_spec(const struct vg_mpkt *answer, const struct vg_spec_opts *set, bool pin) {
    static uint8_t machine[16];
    if (hex16(vg_mpkt_get(answer, "machine"), machine) < 0)
        return -EBADMSG;
    spec.has_machine = spec.has_offered = true;
    spec.machine = (ProtobufCBinaryData){sizeof(machine), machine};
    spec.offered = true;
    spec.env = (char *)set->environment;
    spec.has_strict = spec.strict = set->strict;
    spec.has_sync = spec.sync = set->sync;
    spec.has_pin = spec.pin = pin;
    /* of a pinned task: what it changes in these is kept */
    if (fill_views(answer, &spec) < 0)
        return -ENOMEM;
    fill_ids();
    return 0;
}

void run_note(struct run *r, const char *text) {
    if (r->quiet)
        return;
    free(r->note);
    r->note = r->accepted ? NULL : vg_strdup(text);
    if (!r->note)
        run_say(r, "%s", text);
}

/* One that was about to end when it was called did nothing: the next is asked. */
static int call_service(const char *path, struct vg_mpkt *p, int *ret_way, struct vg_err *err) {
    for (int tries = 0;; tries++) {
        int fd = vg_mirror_sock_start(path, err);
        if (fd < 0)
            return fd;
        int e = vg_mirror_sock_call(fd, p, ret_way, err);
        if (e == 0)
            return fd;
        close(fd);
        if (tries == CALLS_MAX - 1 || (e != -ECONNRESET && e != -EPIPE))
            return e;
        *err = VG_ERR_INIT;
    }
}

/* The connection stays open: while it is, the service knows that somebody waits. */
static int begin(struct run *r, const struct vg_spec_opts *set, bool pin, struct vg_mpkt *p,
                 struct vg_err *err) {
    char path[PATH_MAX];
    if (vg_mirror_sock_path(&r->ep, path, sizeof(path), err) < 0)
        return err->code;
    vg_mpkt_clear(p);
    int e = vg_mpkt_add(p, "op", "begin");
    if (e == 0)
        e = add_command(r, p);
    if (e == 0)
        e = add_ids(p);
    if (e == 0 && set->strict)
        e = vg_mpkt_add(p, "strict", "1");
    if (e == 0 && set->sync)
        e = vg_mpkt_add(p, "sync", "1");
    if (e == 0 && pin)
        e = vg_mpkt_add(p, "pin", "1");
    if (e < 0)
        return vg_err_set(err, VG_TOO_BIG, "the command line is too long for the file service");
    if (add_paths(p, "writable", set->writable, set->n_writable, err) < 0 ||
        add_paths(p, "allow", set->allow, set->n_allow, err) < 0)
        return err->code;
    /* What the service has ready knows nothing of our environment. */
    bool first = r->ctl < 0 && !r->beside && !getenv("VIRGA_NO_DIRECT");
    if (first && vg_mpkt_add(p, "way", "1") < 0)
        return vg_err_set(err, VG_TOO_BIG, "the command line is too long for the file service");
    int fd = call_service(path, p, first ? &r->way : NULL, err);
    if (fd < 0)
        return fd;
    r->mirror_fd = fd;
    return 0;
}

static int bad_answer(struct vg_err *err) {
    return vg_err_set(err, VG_PROTOCOL,
                      "the file service gave no good answer: "
                      "'virga mirror stop' ends it, the next vrun starts it");
}

int run_mirror(struct run *r, const struct vg_spec_opts *set, struct vg_err *err) {
    static struct vg_mpkt p;
    bool pin = r->spec.detached && vg_spec_opts_pins(set); /* nobody need stay here to serve it */
    int e = begin(r, set, pin, &p, err);
    if (e < 0 || r->beside)
        return e;
    const char *note = vg_mpkt_get(&p, "note");
    if (note)
        run_note(r, note);
    if (fill_spec(&p, set, pin) < 0)
        return bad_answer(err);
    r->pinning = r->pinned = pin;
    r->spec.mirror = &spec;
    return 0;
}

/* A folder that an environment has for itself, or that holds such. */
static bool of_the_root(const char *path) {
    static const char *const below[] = {"/usr",   "/bin",   "/sbin", "/lib",
                                        "/lib32", "/lib64", "/etc",  "/boot"};
    static const char *const exact[] = {"/root", "/home", "/opt", "/srv", "/mnt", "/media"};
    for (size_t i = 0; i < VG_COUNT(below); i++) {
        size_t n = strlen(below[i]);
        if (strncmp(path, below[i], n) == 0 && (!path[n] || path[n] == '/'))
            return true;
    }
    for (size_t i = 0; i < VG_COUNT(exact); i++)
        if (strcmp(path, exact[i]) == 0)
            return true;
    return false;
}

int run_mirror_beside(struct run *r, const struct vg_spec_opts *set, Vg__Pb__MirrorSpec *to,
                      struct vg_err *err) {
    static struct vg_mpkt p;
    static uint8_t machine[16];
    size_t at = 0;
    r->beside = true;
    int e = begin(r, set, false, &p, err);
    if (e < 0)
        return e;
    bool fits = vg_mpkt_get(&p, "view") != NULL;
    for (const char *path; fits && (path = vg_mpkt_next(&p, "view", &at));)
        if (of_the_root(path)) {
            char text[PATH_MAX + 128];
            snprintf(text, sizeof(text),
                     "%s does not go along: an environment has a folder of its own there", path);
            run_note(r, text);
            fits = false;
        }
    if (!fits) {
        vg_close(&r->mirror_fd);
        r->beside = false;
        return 0;
    }
    if (hex16(vg_mpkt_get(&p, "machine"), machine) < 0 || fill_views(&p, to) < 0)
        return bad_answer(err);
    to->has_project = to->has_offered = to->offered = true;
    to->project = (ProtobufCBinaryData){sizeof(machine), machine};
    to->has_sync = to->sync = set->sync;
    return 0;
}

/* The service has ended, and with it whoever moved our bytes: their memory tells nothing of that.
 */
static void lose_way(struct run *r) {
    r->by_way = false;
    vg_close(&r->ctl);
    for (size_t i = 0; i < VG_COUNT(r->chan); i++)
        r->chan[i].broken = r->chan[i].fd >= 0;
}

void run_mirror_ready(struct run *r) {
    static struct vg_mpkt p;
    struct vg_err err = VG_ERR_INIT;
    if (vg_mpkt_recv(r->mirror_fd, &p, NULL) > 0)
        return; /* of a newer version: nothing we know */
    vg_close(&r->mirror_fd);
    if (r->by_way)
        lose_way(r);
    if (r->ended || r->exited)
        return;
    spec.n_view = 0;
    if (run_mirror(r, r->set, &err) < 0)
        run_say(r, "this machine's files are not served to the task any more: %s", err.msg);
}

void run_mirror_end(struct run *r) {
    static struct vg_mpkt p;
    char id[VG_ID_LEN + 1];
    if (r->mirror_fd <= 0 || r->detach || !(r->exited || r->ended))
        return;
    vg_id_format(r->task_id, id);
    vg_mpkt_clear(&p);
    vg_mpkt_add(&p, "op", "end");
    vg_mpkt_add(&p, "task", id);
    (void)vg_mpkt_send(r->mirror_fd, &p, -1); /* it finds out by itself, only later */
}

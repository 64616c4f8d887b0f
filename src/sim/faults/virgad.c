/* virgad in the world: its own start, its own stop, and what it stands on at the edges: home
   folder, certificates, listening sockets, who somebody is. Its store is its own too, on the
   world's disk, written by passes that the world times instead of by a thread. */
#include "sim/faults/world.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/authority.h"
#include "control/control.h"
#include "control/home.h"
#include "control/listen.h"
#include "control/peer.h"
#include "control/users.h"
#include "model/node.h"
#include "store/internal.h"

#include <ftw.h>
#include <string.h>

static char home_dir[64];
static uint8_t *fresh_db; /* a database that was just made */
static size_t fresh_db_bytes;

static const char config[] = "lease: 10s\n"
                             "heartbeat: 2s\n"
                             "limits:\n"
                             "  log_head: 4096\n"
                             "  log_tail: 4096\n"
                             "default_pool: batch\n"
                             "pools:\n"
                             "  - name: batch\n"
                             "    network: host\n"
                             "    shape: {cpus: 1}\n"
                             "    price: {gpu_hour: 2.497, cpu_hour: 0.0413}\n"
                             "  - name: part\n"
                             "    class: shared\n"
                             "    network: host\n"
                             "    shape: {cpus: 1}\n"
                             "    price: {gpu_hour: 1.333333}\n";

const char *vg_w_logs(void) {
    return "/logs";
}

/* ------------------------------------------------------------------ edges */

int __wrap_vg_home_open(const char *dir, const char *conf, struct vg_home *ret, struct vg_err *err);
void __wrap_vg_home_close(struct vg_home *h);
int __wrap_vg_authority_open(struct vg_authority *a, const struct vg_home *home, const char *cloud,
                             struct vg_err *err);
int __wrap_vg_authority_renew(struct vg_authority *a, const struct vg_home *home,
                              uint64_t wall_usec, struct vg_err *err);
int __wrap_vg_listen_start(struct vg_control *c, const char *listen, struct vg_err *err);
void __wrap_vg_listen_stop(struct vg_control *c);
int __wrap_vg_who_from_socket(int fd, struct vg_who *ret);
int __wrap_vg_who_settle(struct vg_control *c, struct vg_peer *p, const char *token,
                         struct vg_err *err);
const struct vg_account *__wrap_vg_account_get(struct vg_control *c, uid_t uid);

int __wrap_vg_home_open(const char *dir, const char *conf, struct vg_home *ret,
                        struct vg_err *err) {
    (void)dir;
    (void)conf;
    (void)err;
    *ret = (struct vg_home){.dir = vg_strdup("/virga"),
                            .sock = vg_strdup("/sock"),
                            .config = vg_fmt("%s/config.yaml", home_dir),
                            .control = vg_strdup(home_dir),
                            .logs = vg_strdup(vg_w_logs()),
                            .db = vg_fmt("%s/state.db", home_dir),
                            .address = vg_strdup("/address"),
                            .pid = vg_strdup("/pid"),
                            .lock_fd = -1};
    return 0;
}

void __wrap_vg_home_close(struct vg_home *h) {
    free(h->dir);
    free(h->sock);
    free(h->config);
    free(h->control);
    free(h->logs);
    free(h->db);
    free(h->address);
    free(h->pid);
    *h = (struct vg_home){.lock_fd = -1};
}

int __wrap_vg_authority_open(struct vg_authority *a, const struct vg_home *home, const char *cloud,
                             struct vg_err *err) {
    (void)home;
    (void)cloud;
    (void)err;
    memset(a->task_key, 7, sizeof a->task_key);
    return 0;
}

int __wrap_vg_authority_renew(struct vg_authority *a, const struct vg_home *home,
                              uint64_t wall_usec, struct vg_err *err) {
    (void)a;
    (void)home;
    (void)wall_usec;
    (void)err;
    return 0;
}

int __wrap_vg_listen_start(struct vg_control *c, const char *listen, struct vg_err *err) {
    (void)c;
    (void)listen;
    (void)err;
    return 0;
}

void __wrap_vg_listen_stop(struct vg_control *c) {
    (void)c;
}

int __wrap_vg_who_from_socket(int fd, struct vg_who *ret) {
    (void)fd;
    *ret = (struct vg_who){.local = true};
    return 0;
}

/* Everybody is one of a few users; which does not matter here. */
int __wrap_vg_who_settle(struct vg_control *c, struct vg_peer *p, const char *token,
                         struct vg_err *err) {
    struct vg_account a = {.uid = 1000, .gid = 1000, .name = (char *)"ada", .home = (char *)""};
    struct vg_user *u = NULL;
    (void)token;
    int r = vg_users_for_account(c, &a, true, &u, err);
    if (r >= 0)
        snprintf(p->who.user, sizeof p->who.user, "%s", u->name);
    p->who.scope = VG_SCOPE_ALL;
    return r;
}

const struct vg_account *__wrap_vg_account_get(struct vg_control *c, uid_t uid) {
    (void)c;
    (void)uid;
    return NULL;
}

/* ------------------------------------------------------------------ the store's writer */

int __real_vg_store_open(const struct vg_store_opts *opts, struct vg_store **ret,
                         struct vg_err *err);
int __wrap_vg_store_open(const struct vg_store_opts *opts, struct vg_store **ret,
                         struct vg_err *err);
int __real_store_queue(struct vg_store *s, enum stmt stmt, enum vg_store_sync sync,
                       const struct val *val, unsigned n, vg_store_cb *cb, void *arg);
int __wrap_store_queue(struct vg_store *s, enum stmt stmt, enum vg_store_sync sync,
                       const struct val *val, unsigned n, vg_store_cb *cb, void *arg);

int __wrap_vg_store_open(const struct vg_store_opts *opts, struct vg_store **ret,
                         struct vg_err *err) {
    struct vg_store_opts o = *opts;
    o.inline_writes = o.inline_writes || vg_w;
    int r = __real_vg_store_open(&o, ret, err);
    if (vg_w && r >= 0)
        vg_w->store = *ret;
    return r;
}

static void arm_pass(uint64_t wait);

static void pass(void *unused, uint64_t at) {
    struct vg_world *w = vg_w;
    (void)unused;
    if (!w->pass_armed || at != w->pass_at)
        return;
    w->pass_armed = false;
    store_pass(w->store);
    if (w->store->stuck)
        arm_pass(VG_USEC);
}

/* Sooner is allowed, later is not: one pass takes everything that waits. */
static void arm_pass(uint64_t wait) {
    struct vg_world *w = vg_w;
    uint64_t at = w->now + wait;
    if (w->pass_armed && w->pass_at <= at)
        return;
    w->pass_armed = true;
    w->pass_at = at;
    vg_w_at(at, &w->virgad, pass, NULL, at);
}

int __wrap_store_queue(struct vg_store *s, enum stmt stmt, enum vg_store_sync sync,
                       const struct val *val, unsigned n, vg_store_cb *cb, void *arg) {
    int r = __real_store_queue(s, stmt, sync, val, n, cb, arg);
    if (r < 0 || !vg_w || !vg_w->virgad.alive)
        return r;
    bool slow = vg_w->disk_slow_until > vg_w->now;
    uint64_t wait = vg_w_between(&vg_w->disk_rng, slow ? 100000 : 50, slow ? 2000000 : 2000);
    if (sync == VG_STORE_LAZY)
        wait += VG_STORE_LINGER_USEC;
    arm_pass(wait);
    return r;
}

/* ------------------------------------------------------------------ life */

void vg_w_virgad_start(void *unused, uint64_t unused2) {
    struct vg_world *w = vg_w;
    struct vg_control_opts opts = {0};
    struct vg_err err = VG_ERR_INIT;
    (void)unused;
    (void)unused2;
    if (w->control)
        return;
    w->virgad.alive = true;
    w->virgad.life++;
    w->cur = &w->virgad;
    w->control_lives++;
    struct vg_control *c = vg_alloc(sizeof *c);
    if (!c)
        abort();
    w->store = NULL;
    w->pass_armed = false;
    vg_w_story("virgad starts");
    int r = vg_control_start(c, &w->virgad.loop, &opts, &err);
    if (r < 0) {
        free(c);
        w->virgad.alive = false;
        if (w->disk_full_until > w->now) { /* its supervisor tries again */
            vg_w_at(w->now + VG_USEC, NULL, vg_w_virgad_start, NULL, 0);
            return;
        }
        vg_w_violate("start", "virgad cannot start again: %s", err.msg);
        return;
    }
    w->control = c;
    w->cur = NULL;
}

/* Its memory is given back in order, but nobody hears or sees anything of that. */
static void bury(void) {
    struct vg_world *w = vg_w;
    struct vg_control *c = vg_take_ptr(w->control);
    FILE *tell = vg_take_ptr(w->tell);
    w->cur = &w->virgad;
    vg_w_uv_reset();
    vg_control_stop(c, NULL);
    vg_w_net_finish(&w->virgad);
    vg_control_done(c);
    vg_w_uv_drain(&w->virgad.loop);
    vg_w_uv_forget(&w->virgad.loop);
    free(c);
    w->store = NULL;
    w->pass_armed = false;
    w->cur = NULL;
    w->tell = tell;
}

void vg_w_virgad_crash(bool power) {
    struct vg_world *w = vg_w;
    if (!w->control)
        return;
    vg_w_disk_crash(power);
    vg_w_net_gone(&w->virgad, power);
    w->virgad.alive = false;
    w->virgad.life++;
    bury();
    vg_w_disk_again();
}

/* ------------------------------------------------------------------ once a process */

static int save(const char *name, const char *text, struct vg_err *err) {
    vg_auto_free char *path = vg_fmt("%s/%s", home_dir, name);
    FILE *f = path ? fopen(path, "we") : NULL;
    if (!f || fputs(text, f) < 0 || fclose(f) < 0)
        return vg_err_sys(err, errno, "cannot write below %s", home_dir);
    return 0;
}

int vg_w_virgad_setup(struct vg_err *err) {
    snprintf(home_dir, sizeof home_dir, "/tmp/virga-sim-XXXXXX");
    if (!mkdtemp(home_dir))
        return vg_err_sys(err, errno, "cannot make a folder in /tmp");
    int r = save("config.yaml", config, err);
    return r < 0 ? r : save("state.db", "", err); /* the store makes it only when it is missing */
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

void vg_w_virgad_cleanup(void) {
    free(vg_take_ptr(fresh_db));
    if (home_dir[0])
        nftw(home_dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ------------------------------------------------------------------ a disk to begin with */

static void put_node(struct vg_store *s, const struct vg_w_node *n) {
    char name[16];
    snprintf(name, sizeof name, "n%d", n->index);
    struct vg_node_row row = {.id = n->id, .name = name, .state = "lost", .joined_usec = 1};
    vg_store_put_node(s, &row, VG_STORE_DURABLE, NULL, NULL);
}

/* A cloud whose nodes have joined. The schema is made once and copied. */
int vg_w_disk_format(struct vg_err *err) {
    vg_auto_free char *path = vg_fmt("%s/state.db", home_dir);
    struct vg_store_opts o = {.path = path, .inline_writes = true};
    struct vg_store *s = NULL;
    if (fresh_db) {
        struct vg_w_file *f = vg_w_file_open(path, true);
        vg_w_file_write(f, fresh_db, fresh_db_bytes, 0);
        vg_w_file_close(f);
    } else {
        vg_w_file_close(vg_w_file_open(path, true));
    }
    int r = vg_store_open(&o, &s, err);
    if (r < 0)
        return r;
    for (int i = 0; fresh_db && i < vg_w->plan->n_nodes; i++)
        put_node(s, &vg_w->node[i]);
    vg_store_close(s);
    vg_w->store = NULL;
    struct vg_w_file *f = vg_w_file_open(path, false);
    vg_w_file_sync(f);
    if (!fresh_db) {
        fresh_db_bytes = vg_w_file_size(f);
        fresh_db = vg_alloc(fresh_db_bytes);
        if (!fresh_db)
            abort();
        vg_w_file_read(f, fresh_db, fresh_db_bytes, 0);
        vg_w_file_close(f);
        vg_w_file_remove(path);
        return vg_w_disk_format(err);
    }
    vg_w_file_close(f);
    return 0;
}

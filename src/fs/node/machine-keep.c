/* What a task changed goes to the store (keep.h) before its end is told. All of it goes out on the
   one link that carries operations. When that is another than it was, or the store lost the thread,
   everything is told again under another number: the store forgets what it had of the last. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/keep.h"
#include "fs/node/machine-int.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

#define BACKLOG_MAX (4u << 20)
#define PATHS_MAX 16
#define NAP_NSEC 1000000

struct mkeep {
    int upper, merged; /* owned */
    char *text;        /* owned: the paths */
    const char *path[PATHS_MAX];
    size_t n_path;
    /* under the machine's lock */
    uint64_t round; /* of this telling; 0: none is under way */
    bool answered;
    int code;
    char why[200];
};

void vg_mkeep_free(struct mkeep *k) {
    if (!k)
        return;
    vg_close(&k->upper);
    vg_close(&k->merged);
    free(k->text);
    free(k);
}

static int take_paths(struct mkeep *k, const char *paths, size_t len) {
    if (len && paths[len - 1])
        return -EBADMSG;
    k->text = vg_memdup(paths, len + !len);
    if (!k->text)
        return -ENOMEM;
    for (size_t at = 0; at < len; at += strlen(k->text + at) + 1) {
        if (k->n_path == PATHS_MAX || k->text[at] != '/')
            return -EBADMSG;
        k->path[k->n_path++] = k->text + at;
    }
    return 0;
}

int vg_machine_keep(struct vg_machine *m, uint64_t task, int upper, int merged, const char *paths,
                    size_t len) {
    struct mkeep *k = vg_alloc(sizeof(*k));
    if (!k) {
        vg_close(&upper);
        vg_close(&merged);
        return -ENOMEM;
    }
    k->upper = upper;
    k->merged = merged;
    int r = take_paths(k, len ? paths : "", len);
    pthread_mutex_lock(&m->lock);
    struct mtask *t = r == 0 ? vg_mtask(m, task) : NULL;
    if (r == 0)
        r = !t ? -ENOENT : t->keep ? -EALREADY : 0;
    if (r == 0)
        t->keep = vg_take_ptr(k);
    pthread_mutex_unlock(&m->lock);
    vg_mkeep_free(k);
    return r;
}

/* ------------------------------------------------------------------ its place on disk */

/* What overlayfs takes as an upper layer: not itself, and nothing that lies elsewhere. */
static bool can_be_upper(const char *path) {
    struct statfs fs;
    return statfs(path, &fs) == 0 &&
           (fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == XFS_SUPER_MAGIC ||
            fs.f_type == BTRFS_SUPER_MAGIC || fs.f_type == TMPFS_MAGIC);
}

int vg_mkeep_place(struct vg_machine *m, struct mtask *t) {
    if (t->place || !can_be_upper(m->dir) ||
        !(t->place = vg_fmt("%s/up-%016llx-%llx", m->dir, (unsigned long long)t->task,
                            (unsigned long long)t->since_usec)))
        return -1;
    int fd = mkdir(t->place, 0700) < 0 ? -errno : vg_mount_clone(t->place);
    if (fd < 0)
        vg_warn("task=%016llx has no place on disk: %s", (unsigned long long)t->task,
                strerror(-fd));
    return fd < 0 ? -1 : fd;
}

void vg_mkeep_clear(struct vg_machine *m, struct mtask *t, void *arg) {
    (void)m, (void)arg;
    vg_machine_clear(t->place);
}

/* ------------------------------------------------------------------ from the store */

void vg_mkeep_answered(struct vg_machine *m, const Vg__Mr__Kept *a) {
    pthread_mutex_lock(&m->lock);
    struct mtask *t = vg_mtask(m, a->task);
    struct mkeep *k = t ? t->keep : NULL;
    if (k && k->round && k->round == a->round) {
        k->answered = true;
        k->code = a->errno_ && a->errno_ < 4096 ? (int)a->errno_ : 0;
        snprintf(k->why, sizeof(k->why), "%s", a->text ? a->text : "");
        pthread_cond_broadcast(&m->kept);
    }
    pthread_mutex_unlock(&m->lock);
}

void vg_mkeep_resend(struct vg_machine *m) {
    pthread_mutex_lock(&m->lock);
    m->resends++;
    pthread_cond_broadcast(&m->kept);
    pthread_mutex_unlock(&m->lock);
}

/* ------------------------------------------------------------------ telling */

struct telling {
    struct vg_machine *m;
    struct mtask *t;
    uint64_t round, link; /* the machine's count of links when it began */
};

/* -ECANCELED: nobody waits any more; -ENOTCONN: by another link now; -EDQUOT, ...: it was answered
   before it was over, because it is too much. */
static int may_go_on(const struct telling *s) {
    struct mkeep *k = s->t->keep;
    pthread_mutex_lock(&s->m->lock);
    int r = s->m->stopping || s->t->gone ? -ECANCELED
            : s->m->resends != s->link   ? -ENOTCONN
            : k->answered && k->code     ? -k->code
                                         : 0;
    pthread_mutex_unlock(&s->m->lock);
    return r;
}

static int make_room(const struct telling *s) {
    for (;;) {
        int r = may_go_on(s);
        if (r < 0 || vg_links_backlog(s->m->links) <= BACKLOG_MAX)
            return r;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NSEC}, NULL);
    }
}

static int send_keep(void *user, Vg__Mr__Keep *k) {
    const struct telling *s = user;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    k->has_task = k->has_round = k->has_kind = true;
    k->task = s->t->task;
    k->round = s->round;
    msg.body_case = VG__MR__MSG__BODY_KEEP;
    msg.keep = k;
    int r = make_room(s);
    return r < 0 ? r : vg_links_send(s->m->links, &msg);
}

static int send_bytes(void *user, uint64_t number, uint64_t off, const void *data, size_t n) {
    const struct telling *s = user;
    int r = make_room(s);
    return r < 0 ? r : vg_links_write(s->m->links, 0, number, off, data, n);
}

static int send_mark(struct telling *s, Vg__Mr__Keep__Kind kind) {
    Vg__Mr__Keep k = VG__MR__KEEP__INIT;
    k.kind = kind;
    return send_keep(s, &k);
}

static uint32_t id_in(void *user, uint32_t id) {
    const struct telling *s = user;
    return vg_fs_id_in(&s->m->conf.ids, id);
}

static int await_answer(const struct telling *s) {
    struct vg_machine *m = s->m;
    struct mkeep *k = s->t->keep;
    pthread_mutex_lock(&m->lock);
    while (!k->answered && !m->stopping && !s->t->gone && m->resends == s->link)
        pthread_cond_wait(&m->kept, &m->lock);
    int r = k->answered ? -k->code : m->stopping || s->t->gone ? -ECANCELED : -ENOTCONN;
    pthread_mutex_unlock(&m->lock);
    return r;
}

static int tell_once(struct vg_machine *m, struct mtask *t, struct vg_keep_walk *w) {
    struct telling s = {.m = m, .t = t};
    struct mkeep *k = t->keep;
    vg_random(&s.round, sizeof(s.round));
    s.round |= 1; /* never 0 */
    pthread_mutex_lock(&m->lock);
    s.link = m->resends;
    k->round = s.round;
    k->answered = false;
    k->code = 0;
    pthread_mutex_unlock(&m->lock);
    *w = (struct vg_keep_walk){.upper = k->upper,
                               .merged = k->merged,
                               .path = k->path,
                               .n_path = k->n_path,
                               .id_in = id_in,
                               .tell = send_keep,
                               .write = send_bytes,
                               .user = &s};
    int r = send_mark(&s, VG__MR__KEEP__KIND__BEGIN);
    if (r == 0)
        r = vg_keep_walk(w);
    if (r == 0)
        r = send_mark(&s, VG__MR__KEEP__KIND__END);
    return r == 0 ? await_answer(&s) : r;
}

/* Until a link is there; the keeper's patience is the limit, and its leaving ends it. */
static int await_link(struct vg_machine *m, struct mtask *t) {
    for (;;) {
        pthread_mutex_lock(&m->lock);
        bool over = m->stopping || t->gone;
        pthread_mutex_unlock(&m->lock);
        if (over || vg_links_up(m->links))
            return over ? -ECANCELED : 0;
        nanosleep(&(struct timespec){.tv_nsec = 20 * NAP_NSEC}, NULL);
    }
}

/* One after another: on the link their frames must not mix. */
static int await_turn(struct vg_machine *m, struct mtask *t) {
    pthread_mutex_lock(&m->lock);
    while (m->keeping && !m->stopping && !t->gone)
        pthread_cond_wait(&m->kept, &m->lock);
    int r = m->stopping || t->gone ? -ECANCELED : 0;
    if (r == 0)
        m->keeping = true;
    pthread_mutex_unlock(&m->lock);
    return r;
}

static void turn_over(struct vg_machine *m) {
    pthread_mutex_lock(&m->lock);
    m->keeping = false;
    pthread_cond_broadcast(&m->kept);
    pthread_mutex_unlock(&m->lock);
}

int vg_mkeep_tell(struct vg_machine *m, struct mtask *t, char *text, size_t n) {
    struct vg_keep_walk w = {.failed = ""};
    int r = await_turn(m, t);
    bool mine = r == 0;
    do {
        r = mine ? await_link(m, t) : r;
        if (r == 0)
            r = tell_once(m, t, &w);
    } while (r == -ENOTCONN || r == -ESTALE);
    if (mine)
        turn_over(m);
    if (r < 0) {
        pthread_mutex_lock(&m->lock);
        if (t->keep->answered && t->keep->why[0])
            snprintf(text, n, "what the task changed could not be kept: %s", t->keep->why);
        else
            snprintf(text, n, "what the task changed could not be kept: %.120s%s%s", w.failed,
                     w.failed[0] ? ": " : "", strerror(-r));
        pthread_mutex_unlock(&m->lock);
    }
    return r;
}

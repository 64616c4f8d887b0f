/* The master key of the control plane's secrets: read, made and changed on a worker thread, one
   thing at a time; requests that need it wait in a list meanwhile.

   A rotation never loses anything, wherever it is cut off: the new key is on disk before the first
   value is sealed with it, each row is replaced whole, and the old keys go only when the store has
   every row. Loop thread, but for work(). */
#include "control/secrets-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/later.h"
#include "control/secrets-ring.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#define COMMAND_USEC (20 * VG_USEC)

#define BATCH 64 /* rows of a rotation on their way to the store */

enum what { READ, GROW, SHRINK };

struct job {
    uv_work_t req;
    struct vg_control *ctl;
    enum what what;
    bool make;      /* READ: a file that is not there is made */
    char *path;     /* owned; the file of keys */
    char **command; /* owned; NULL: the file */
    struct vg_ring *ring;
    struct vg_err err;
    int result;
};

/* ------------------------------------------------------------------ the keys */

/* Whoever can make this process dump its memory would have everything. */
static void take_ring(struct vg_secrets *x, struct vg_ring *ring) {
    prctl(PR_SET_DUMPABLE, 0);
    vg_ring_free(x->ring);
    x->ring = ring;
}

static void job_free(struct job *j) {
    for (size_t i = 0; j->command && j->command[i]; i++)
        free(j->command[i]);
    free(j->command);
    free(j->path);
    free(j);
}

static struct job *job_new(struct vg_control *c, enum what what) {
    const struct vg_strings *words = &c->conf.secrets.key_command;
    struct job *j = vg_alloc(sizeof *j);
    if (!j)
        return NULL;
    *j = (struct job){.ctl = c, .what = what, .path = vg_home_file(&c->home, "master.key")};
    j->make = vg_map_len(&c->secrets->map) == 0;
    bool good = j->path && (!words->n || (j->command = vg_alloc((words->n + 1) * sizeof(char *))));
    for (size_t i = 0; good && i < words->n; i++)
        good = (j->command[i] = vg_strdup(words->item[i])) != NULL;
    if (good)
        return j;
    job_free(j);
    return NULL;
}

/* Blocking: on a worker thread, or before the loop turns. */
static int read_keys(struct job *j) {
    if (j->command)
        return vg_ring_read_command(j->command, COMMAND_USEC, &j->ring, &j->err);
    int r = vg_ring_read_file(j->path, &j->ring, &j->err);
    if (r < 0 && j->err.reason == VG_NOT_FOUND && j->make) {
        j->err = (struct vg_err)VG_ERR_INIT;
        r = vg_ring_grow_file(j->path, NULL, &j->ring, &j->err);
    }
    return r;
}

static void work(uv_work_t *req) {
    struct job *j = req->data;
    struct vg_ring *next = NULL;
    j->result = read_keys(j);
    if (j->result < 0 || j->command || j->what == READ)
        return;
    if (j->what == GROW) {
        j->result = vg_ring_grow_file(j->path, j->ring, &next, &j->err);
    } else {
        j->result = vg_ring_shrink_file(j->path, j->ring, &j->err);
        if (j->result >= 0)
            j->result = vg_ring_read_file(j->path, &next, &j->err);
    }
    vg_ring_free(j->ring);
    j->ring = next;
}

static void rotate_on(struct vg_control *c);
static void rotated(struct vg_control *c, const struct vg_err *err);
static void begin(struct vg_control *c, enum what what);

static void worked(uv_work_t *req, int status) {
    struct job *j = req->data;
    struct vg_control *c = j->ctl;
    struct vg_secrets *x = c->secrets;
    enum what what = j->what;
    struct vg_err err = j->err;
    int r = status < 0 ? vg_err_sys(&err, status, "cannot read the master key") : j->result;
    x->busy = false;
    if (r >= 0)
        take_ring(x, vg_take_ptr(j->ring));
    else
        x->why = err;
    vg_ring_free(j->ring);
    job_free(j);
    vg_list_for_each_safe (it, &x->waiting) {
        struct setting *g = vg_list_entry(it, struct setting, link);
        if (x->ring)
            secrets_set_now(c, g);
        else
            secrets_setting_failed(c, g, &err);
    }
    if (what == SHRINK || (what == GROW && r < 0))
        rotated(c, r < 0 ? &err : NULL);
    else if (what == GROW)
        rotate_on(c);
    else if (x->rotation) /* it came while the keys were read */
        begin(c, GROW);
}

/* One at a time: what comes meanwhile waits for it. */
static void begin(struct vg_control *c, enum what what) {
    struct vg_secrets *x = c->secrets;
    struct vg_err err = VG_ERR_INIT;
    struct job *j = job_new(c, what);
    if (j)
        j->req.data = j;
    if (!j || c->stopping || uv_queue_work(c->loop, &j->req, work, worked) < 0) {
        vg_err_set(&err, VG_INTERNAL, "the control plane cannot look for the master key now");
        if (j)
            job_free(j);
        vg_list_for_each_safe (it, &x->waiting)
            secrets_setting_failed(c, vg_list_entry(it, struct setting, link), &err);
        if (x->rotation)
            rotated(c, &err);
        return;
    }
    x->busy = true;
}

const struct vg_ring *vg_secrets_ring(struct vg_control *c, struct vg_err *err) {
    struct vg_secrets *x = c->secrets;
    if (!x->ring && !x->busy)
        begin(c, READ);
    if (!x->ring)
        vg_err_set(err, VG_UNAVAILABLE, "%s",
                   x->why.msg[0] ? x->why.msg : "the master key is being read: try again");
    return x->ring;
}

void secrets_read_keys(struct vg_control *c) {
    begin(c, READ);
}

int secrets_first_keys(struct vg_control *c, struct vg_err *err) {
    struct vg_secrets *x = c->secrets;
    struct job *j = job_new(c, READ);
    if (!j)
        return vg_err_sys(err, ENOMEM, "cannot load secrets");
    if (read_keys(j) >= 0) {
        take_ring(x, j->ring);
    } else { /* everything else works without it */
        x->why = j->err;
        vg_error("secrets cannot be used: %s", j->err.msg);
    }
    job_free(j);
    return 0;
}

/* ------------------------------------------------------------------ rotation */

/* Its end, for whoever asked; err NULL: it went well. */
static void rotated(struct vg_control *c, const struct vg_err *err) {
    struct rotation *t = vg_take_ptr(c->secrets->rotation);
    if (!t)
        return;
    struct vg_peer *p = vg_peer_find(c, t->peer);
    char text[256];
    if (!err)
        snprintf(text, sizeof text, "%zu secret%s sealed anew with master key %s", t->sealed,
                 t->sealed == 1 ? " is" : "s are", vg_ring_newest(c->secrets->ring));
    if (p && err)
        vg_peer_fail(p, t->req, err);
    else if (p)
        vg_peer_ok(p, t->req, text);
    vg_audit_note(c, t->user, t->from, "master key rotated: %s", err ? err->msg : text);
    free(t->user);
    free(t);
}

static void row_stored(void *arg, int result) {
    struct rotation *t = arg;
    t->in_store--;
    if (result < 0)
        t->failed = result;
    if (!t->in_store)
        rotate_on(t->ctl);
}

/* The same value and version, sealed with the newest key. 0: on its way to the store. */
static int reseal(struct vg_control *c, struct vg_secret *s) {
    struct vg_secrets *x = c->secrets;
    struct vg_err err = VG_ERR_INIT;
    struct vg_seal_name n = {s->scope, s->name, s->version};
    size_t len = s->sealed_len - VG_MIN(s->sealed_len, (size_t)VG_SEAL_EXTRA);
    uint8_t *value = vg_hidden_alloc(len + 1);
    if (!value)
        return -ENOMEM;
    int r = vg_unseal(x->ring, s->key, &n, s->wrapped, sizeof s->wrapped, s->sealed, s->sealed_len,
                      value, &err);
    if (r < 0) {
        vg_error("rotation leaves out %s: %s", s->scope, err.msg);
        s->stuck = true;
        x->rotation->stuck++;
    } else {
        secrets_seal(x->ring, s, value, len);
        r = secrets_store(c, s, row_stored, x->rotation);
        if (r >= 0) {
            x->rotation->in_store++;
            x->rotation->sealed++;
        }
    }
    sodium_free(value);
    return r;
}

/* The next rows, so that neither the loop nor the store's queue is filled with all of them. */
static int next_batch(struct vg_control *c) {
    struct vg_secrets *x = c->secrets;
    size_t n = 0;
    vg_map_for_each (it, &x->map) {
        struct vg_secret *s = it->value;
        if (n == BATCH)
            break;
        if (s->stuck || strcmp(s->key, vg_ring_newest(x->ring)) == 0)
            continue;
        int r = reseal(c, s);
        if (r < 0 && !s->stuck)
            return r;
        n++;
    }
    return (int)n;
}

static void rotate_on(struct vg_control *c) {
    struct vg_secrets *x = c->secrets;
    struct rotation *t = x->rotation;
    struct vg_err err = VG_ERR_INIT;
    if (!t || c->stopping)
        return;
    int r = t->failed;
    while (r >= 0 && !t->in_store && (r = next_batch(c)) > 0)
        continue; /* again only when all of a batch are stuck */
    if (r < 0 && !t->failed)
        t->failed = r;
    if (t->in_store)
        return; /* goes on when the store has them */
    if (t->failed)
        vg_err_sys(&err, t->failed, "the old master key is kept, for not every secret was stored");
    else if (t->stuck)
        vg_err_set(
            &err, VG_INTERNAL,
            "%zu secrets are sealed anew; %zu do not open and were left as they are, with the "
            "old master key: see virgad's log, and set them again",
            t->sealed, t->stuck);
    if (err.msg[0])
        rotated(c, &err);
    else if (c->conf.secrets.key_command.n || vg_ring_len(x->ring) < 2)
        rotated(c, NULL);
    else
        begin(c, SHRINK);
}

void vg_api_secret_rotate(struct vg_call *call) {
    struct vg_secrets *x = call->ctl->secrets;
    struct rotation *t = x->rotation ? NULL : vg_alloc(sizeof *t);
    char *user = t ? vg_strdup(call->user->name) : NULL;
    if (!user) {
        free(t);
        vg_peer_error(call->peer, call->req, x->rotation ? VG_CONFLICT : VG_INTERNAL, "%s",
                      x->rotation ? "the master key is being rotated already: wait for that"
                                  : "the control plane is out of memory");
        return;
    }
    *t = (struct rotation){
        .ctl = call->ctl, .peer = call->peer->serial, .req = call->req, .user = user};
    snprintf(t->from, sizeof t->from, "%s", call->peer->who.from);
    x->rotation = t;
    vg_info("rotation of the master key begun by %s", t->user); /* its end is in the audit log */
    vg_map_for_each (it, &x->map) {
        ((struct vg_secret *)it->value)->stuck = false;
    }
    if (!x->busy)
        begin(call->ctl, GROW);
}

#pragma once
/* The file service on the person's machine: `virga mirror`. One libuv loop; files are read, hashed
   and packed on libuv's worker threads. */
#include "base/err.h"
#include "mirror/stamp.h"

#include <uv.h>

struct vg_mirror;
struct vg_mirror_conf {
    const char *root;  /* "/"; tests serve another folder as the machine's root */
    const char *home;  /* the user's */
    const char *state; /* ~/.local/state/virga: machine id, traces, memo of hashes, applied ops */
    const char *own;   /* Virga's home folder, never served; NULL: none */
    int level;         /* zstd: -1 by the speed of the link, 0 never, 1 … */
};
int vg_mirror_new(uv_loop_t *loop, const struct vg_mirror_conf *conf, struct vg_mirror **ret,
                  struct vg_err *err);
void vg_mirror_free(struct vg_mirror *m);
/* What nodes call the copy of it that is kept for one task. */
void vg_mirror_pinned(uint64_t task, uint8_t out[VG_MID]);
const uint8_t *vg_mirror_machine(const struct vg_mirror *m); /* VG_MID bytes */

/* What vrun says of one run. */
struct vg_mirror_run {
    uint64_t task;
    char *const *argv;
    const char *cwd;
    const char *path_env;        /* $PATH, to find the program */
    const char *const *writable; /* besides the project; absolute */
    size_t n_writable;
    const char *const *allow;
    size_t n_allow;
    bool strict, sync;
};
/* Which folders will be written back (the project first); the caller puts them into the task's
   MirrorSpec. Strings live as long as the run. Then the link's first flight is ready. */
struct vg_mirror_task;
int vg_mirror_begin(struct vg_mirror *m, const struct vg_mirror_run *run,
                    struct vg_mirror_task **ret, struct vg_err *err);
size_t vg_mirror_views(const struct vg_mirror_task *t, const char *const **ret);
/* A sentence for the person who started it; NULL: none. */
const char *vg_mirror_note(const struct vg_mirror_task *t);
/* A connected socket (or one end of a pair) that carries the link. Takes it. May be called again
   for the same task when a link broke. */
int vg_mirror_link(struct vg_mirror_task *t, int fd);
void vg_mirror_end(struct vg_mirror_task *t);
/* No task, no link, no unanswered op. */
bool vg_mirror_idle(const struct vg_mirror *m);
bool vg_mirror_linkless(const struct vg_mirror *m); /* every link is closed */
/* How often a node has said hello on a link of this task. */
unsigned vg_mirror_greetings(const struct vg_mirror_task *t);
/* Its command has ended: what was allowed for it is allowed no more. */
void vg_mirror_over(struct vg_mirror_task *t);
/* All that its links have sent has arrived. */
void vg_mirror_settled(struct vg_mirror_task *t);
/* Closes the task's links; others may follow. What they told last is told again, unless it is known
   to have arrived. */
void vg_mirror_unlink(struct vg_mirror_task *t);
/* What it does and did, as JSON. NULL: out of memory. */
char *vg_mirror_status(const struct vg_mirror *m);
/* `virga mirror explain PATH`: a text of several lines. Needs no service. */
int vg_mirror_explain(const struct vg_mirror_conf *conf, const char *path, char **ret,
                      struct vg_err *err);

#pragma once
/* Commands that run vrun for the user (virga ssh, virga notebook): vrun's options around a word of
   their own, and vrun itself as a child. */
#include "base/err.h"

#include <stddef.h>
#include <sys/types.h>

struct vg_around {
    const char *program; /* "virga ssh" */
    const char *usage;   /* shown by --help above the options */
    char **options;      /* room for argc of them; vrun's, as they were given */
    size_t n_options;
    const char *word; /* NULL: none was given */
    int rest;         /* the first that is neither: after "--", or a second word */
};

/* Options may stand on both sides of the word. 0, 1 when help was shown, or -errno with a sentence:
   wrong options, and those that make no sense here (--detach, --session, --dry-run). */
int vg_around_read(struct vg_around *a, int argc, char **argv, struct vg_err *err);

/* vrun with these words, NULL-ended and without its name. `in` and `out` become its standard input
   and output; -1: as ours. Both stay the caller's. The pid, or -errno. */
pid_t vg_around_start(char *const *words, int in, int out, struct vg_err *err);
int vg_around_wait(pid_t pid); /* its exit status as a shell has it */

/* What a task of ours says first: one line, without its end. 0: it said none. */
#define VG_AROUND_LINE 1024
ssize_t vg_around_line(int fd, char out[static VG_AROUND_LINE]);
int vg_around_relay(int fd); /* the rest, to standard output, until its end */

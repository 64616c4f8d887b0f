#pragma once
/* What a command that was never run here will read: the program, the libraries it is linked to, a
   script's interpreter, what Python loads. Reads files beneath root_fd only; guesses cost nothing
   but bytes. */
#include "mirror/trace.h"

struct vg_guess {
    int root_fd; /* O_PATH of the machine's root */
    const char *program;
    char *const *argv;
    size_t n_argv;
    const char *cwd, *path_env;
};
/* Where the command is, as a shell would find it: absolute, allocated. NULL: nowhere. */
char *vg_guess_program(int root_fd, const char *name, const char *cwd, const char *path_env);
/* Appends in the order of use. 0 or -ENOMEM. */
int vg_guess(const struct vg_guess *g, struct vg_trace *ret);

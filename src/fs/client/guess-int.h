#pragma once
/* Inside guess.c, guess-elf.c, guess-python.c. */
#include "fs/client/guess.h"

#include "base/map.h"

#include <limits.h>
#include <sys/stat.h>

#define GUESS_ITEMS 3000u
#define GUESS_WHOLE (8u << 20) /* larger files are asked for as they are needed */

struct guess {
    const struct vg_guess *in;
    struct vg_trace *out;
    struct vg_map seen; /* by path; keys are the map's own, freed at the end */
    char *cache;        /* ld.so.cache */
    size_t cache_len;
    bool no_cache;
    size_t budget; /* bytes of file content still to be named */
    int err;
};
/* Follows links, naming every folder on the way. 0 with the real path and its stat, or -errno. */
int guess_resolve(struct guess *g, const char *path, char real[PATH_MAX], struct stat *st);
/* Names a file (or folder) with all on the way to it. False: there is none. */
bool guess_add(struct guess *g, const char *path, char real[PATH_MAX]);
/* The beginning of a file into an allocated buffer; *ret_n bytes. NULL: none. */
char *guess_read(struct guess *g, const char *real, size_t max, size_t *ret_n);
/* A program or library and what it is linked to. */
void guess_elf(struct guess *g, const char *path, int depth);
void guess_python(struct guess *g, const char *program, const char *real, char *const *args,
                  size_t n);

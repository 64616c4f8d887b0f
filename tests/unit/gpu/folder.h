#pragma once
/* A folder that stands for the machine: what the kernel and the driver show is laid into it. */
#include "base/util.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/vg-machine-XXXXXX";

static inline void folder_make(void) {
    cr_assert_not_null(mkdtemp(root));
}

static inline int folder_drop(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline void folder_remove(void) {
    nftw(root, folder_drop, 16, FTW_DEPTH | FTW_PHYS);
}

/* A file, with the folders above it. */
static inline void put(const char *path, const char *text) {
    char full[PATH_MAX], *slash;
    snprintf(full, sizeof(full), "%s%s", root, path);
    slash = strrchr(full, '/');
    *slash = 0;
    cr_assert_eq(vg_mkdir_p(full, 0700), 0);
    *slash = '/';
    cr_assert_eq(vg_write_file(full, text, strlen(text), 0600), 0);
}

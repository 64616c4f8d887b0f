#pragma once
/* What the store's tests share: a folder of their own, a store in it, rows. */
#include "store/store.h"

#define DIR_MAX 64

/* A fresh folder under the temporary one; `done` removes it with the store's files. */
void helper_dir(char out[static DIR_MAX]);
void helper_dir_done(const char *dir);
struct vg_store *helper_open(const char *dir, const struct vg_store_opts *base);
struct vg_task_row helper_task(uint64_t id);
/* A callback that keeps the last result in an int and counts itself in the next int. */
void helper_note(void *arg, int result);
int helper_count_row(void *arg, const struct vg_task_row *row);

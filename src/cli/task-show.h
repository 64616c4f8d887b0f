#pragma once
/* A task as people and programs read it. */
#include "cli/table.h"
#include "proto/virga.pb-c.h"

#include <stdbool.h>

#define VG_TASK_SHORT_ID 8 /* hex digits shown in tables; any unique prefix is accepted */

/* The command as one would type it; control characters made harmless. */
char *vg_task_command(const Vg__Pb__TaskInfo *t, char *out, size_t n);
/* How long it ran or has run, or waits. */
char *vg_task_time(const Vg__Pb__TaskInfo *t, char *out, size_t n);
bool vg_task_ended(const Vg__Pb__TaskInfo *t);
/* "failed (1)", "running 37/256" of a group, "running +2/5" with children, or the state alone. */
char *vg_task_state(const Vg__Pb__TaskInfo *t, char *out, size_t n);

struct vg_table *vg_task_table(void);
void vg_task_row(struct vg_table *table, const Vg__Pb__TaskInfo *t);
/* To be freed with free_unpacked; NULL: no memory. */
Vg__Pb__TaskInfo *vg_task_copy(const Vg__Pb__TaskInfo *t);
/* Key and value lines. */
void vg_task_print(const Vg__Pb__TaskInfo *t);
/* What a program that waited for the task exits with. */
int vg_task_exit(const Vg__Pb__TaskInfo *t);

/* "2 GPUs, 4 CPUs, 16 GiB memory"; "" for nothing. Returns out. */
char *vg_resources_text(const Vg__Pb__Resources *r, char *out, size_t n);
/* "2026-11-15 12:40:00 (in 12m)", "now", or "-" for 0. Returns out. */
char *vg_soon(uint64_t wall_usec, char *out, size_t n);

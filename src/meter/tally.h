#pragma once
/* Rows of the ledger added up by user, team, day and so on. Pure; one thread at a time.

   A row that reaches beyond the time that is asked about, or over midnight when days are asked for,
   is divided: it was held at one price, so each part has its part of everything, rounded so that
   the parts add up to the row. Amounts of different currencies are never added. */
#include "base/err.h"
#include "base/map.h"
#include "meter/charge.h"
#include "store/rows.h"

#define VG_TALLY_BY_MAX 4
#define VG_TALLY_GROUPS_MAX 100000
#define VG_TALLY_TASKS_MAX 4000000        /* beyond these tasks are not counted any more */
#define VG_TALLY_HOURS_MAX (24 * 366 * 5) /* beyond these nobody looks for the busiest hour */
#define VG_TALLY_KEY_MAX 300
#define VG_TALLY_ZONES_MAX 64 /* changes of where days begin: two a year */

enum vg_tally_by {
    VG_BY_USER,
    VG_BY_TEAM,
    VG_BY_ORG,
    VG_BY_PROJECT,
    VG_BY_POOL,
    VG_BY_CLASS,
    VG_BY_NODE,
    VG_BY_TASK,
    VG_BY_KIND,
    VG_BY_DAY,
    VG_BY_MONTH,
    VG_BY_LABEL, /* with its key */
};

struct vg_sums {
    int64_t cost_micro;
    uint64_t idle_micro; /* of it: for GPUs that were held and did nothing */
    /* Held, times microseconds; less than nothing only in between. */
    __int128 gpu_milli, cpu_milli, mem_bytes, storage_bytes;
    int64_t held_usec, gpu_busy_usec;
    int64_t energy_mj;
    uint32_t tasks;
};

struct vg_group {
    char *key; /* owned; parts behind each other, each with its NUL; the last is the currency */
    size_t key_len;
    struct vg_sums sums;
};

struct vg_tally {
    enum vg_tally_by by[VG_TALLY_BY_MAX];
    char label[VG_TALLY_BY_MAX][64];
    size_t n_by;
    uint64_t from_usec, until_usec;
    int64_t zone_usec; /* east of UTC: where days begin ... */
    struct {
        uint64_t from_usec;
        int64_t usec;
    } zone[VG_TALLY_ZONES_MAX]; /* ... and from then on; in the order of time */
    size_t n_zones;
    const char *currency; /* of rows that have none; borrowed */
    struct vg_map groups; /* key (hex text) -> struct vg_group, owned */
    struct vg_map seen;   /* group and task -> itself */
    struct vg_map pools;  /* name -> hours of a pool, owned */
    uint32_t left_out;    /* rows of groups beyond the limit */
    int64_t date_day;     /* whose name this is; 0: none's */
    char date[16];
};

/* "team", "label:exp". INVALID with a sentence. */
int vg_tally_by(struct vg_tally *t, const char *word, struct vg_err *err);
/* "USEC:MINUTES,...": from when on days begin so far east of UTC. INVALID with a sentence. */
int vg_tally_zones(struct vg_tally *t, const char *text, struct vg_err *err);
void vg_tally_done(struct vg_tally *t);
/* 0 or -ENOMEM. */
int vg_tally_add(struct vg_tally *t, const struct vg_ledger_row *row);
/* The groups in order: by time where that was asked for, else the most expensive first. Caller
   frees the array. NULL: no memory. */
struct vg_group **vg_tally_sorted(const struct vg_tally *t, size_t *ret_n);
const char *vg_group_part(const struct vg_group *g, size_t i); /* of its key; n_by: the currency */

/* The most GPUs of each pool that were held in any hour, as their mean over it. */
typedef void vg_tally_peak_fn(void *arg, const char *pool, const char *class, uint64_t gpu_milli);
void vg_tally_peaks(const struct vg_tally *t, vg_tally_peak_fn *fn, void *arg);

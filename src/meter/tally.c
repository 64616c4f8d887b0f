/* Adding up; see the header. */
#include "meter/tally.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HOUR_USEC (3600ULL * 1000000)

struct hours {
    char pool[64], class[16];
    size_t n;
    __int128 held[]; /* thousandths times microseconds */
};

static const char *const words[] = {
    [VG_BY_USER] = "user",       [VG_BY_TEAM] = "team",   [VG_BY_ORG] = "org",
    [VG_BY_PROJECT] = "project", [VG_BY_POOL] = "pool",   [VG_BY_CLASS] = "class",
    [VG_BY_NODE] = "node",       [VG_BY_TASK] = "task",   [VG_BY_KIND] = "kind",
    [VG_BY_DAY] = "day",         [VG_BY_MONTH] = "month",
};

int vg_tally_by(struct vg_tally *t, const char *word, struct vg_err *err) {
    if (t->n_by == VG_TALLY_BY_MAX)
        return vg_err_set(err, VG_INVALID, "at most %d things to add up by", VG_TALLY_BY_MAX);
    if (strncmp(word, "label:", 6) == 0 && word[6] && strlen(word + 6) < sizeof t->label[0]) {
        snprintf(t->label[t->n_by], sizeof t->label[0], "%s", word + 6);
        t->by[t->n_by++] = VG_BY_LABEL;
        return 0;
    }
    for (size_t i = 0; i < VG_COUNT(words); i++)
        if (strcmp(words[i], word) == 0) {
            t->by[t->n_by++] = (enum vg_tally_by)i;
            return 0;
        }
    return vg_err_set(err, VG_INVALID,
                      "cannot add up by '%.60s': user, team, org, project, pool, class, node, "
                      "task, kind, day, month or label:KEY",
                      word);
}

void vg_tally_done(struct vg_tally *t) {
    vg_map_for_each (s, &t->groups) {
        struct vg_group *g = s->value;
        free((char *)s->key);
        free(g->key);
        free(g);
    }
    vg_map_for_each (s, &t->pools)
        free(s->value);
    vg_map_done(&t->groups);
    vg_map_done(&t->seen);
    vg_map_done(&t->pools);
}

/* ------------------------------------------------------------------ keys */

static int64_t zone_at(const struct vg_tally *t, uint64_t usec) {
    int64_t zone = t->zone_usec;
    for (size_t i = 0; i < t->n_zones && t->zone[i].from_usec <= usec; i++)
        zone = t->zone[i].usec;
    return zone;
}

/* When the next day begins. Where clocks change at midnight itself, with the change. */
static uint64_t next_day(const struct vg_tally *t, uint64_t at) {
    int64_t day = (int64_t)VG_DAY_USEC, zone = zone_at(t, at);
    int64_t local = (int64_t)at + zone;
    int64_t begins = local - (local % day + day) % day + day; /* by its own clock */
    for (size_t i = 0; i < t->n_zones; i++) {
        int64_t change = (int64_t)t->zone[i].from_usec;
        if (change <= (int64_t)at)
            continue;
        if (begins - zone <= change)
            break;
        zone = t->zone[i].usec;
        if (begins - zone <= change)
            return (uint64_t)change;
    }
    return (uint64_t)(begins - zone);
}

int vg_tally_zones(struct vg_tally *t, const char *text, struct vg_err *err) {
    for (const char *s = text; *s;) {
        unsigned long long from;
        int minutes, used = 0;
        if (t->n_zones == VG_TALLY_ZONES_MAX || *s < '0' || *s > '9' ||
            sscanf(s, "%18llu:%5d%n", &from, &minutes, &used) != 2 || !used ||
            (s[used] && s[used] != ',') || minutes < -1440 || minutes > 1440 ||
            (t->n_zones && t->zone[t->n_zones - 1].from_usec >= from))
            return vg_err_set(err, VG_INVALID,
                              "zone_changes is USEC:MINUTES,... in the order of time, at most %d",
                              VG_TALLY_ZONES_MAX);
        t->zone[t->n_zones].from_usec = from;
        t->zone[t->n_zones++].usec = minutes * 60000000LL;
        s += used + (s[used] == ',');
    }
    return 0;
}

static void date_text(struct vg_tally *t, uint64_t usec, bool month, char *out, size_t n) {
    time_t local = (time_t)(((int64_t)usec + zone_at(t, usec)) / 1000000);
    int64_t day = local / 86400 + 1;
    struct tm tm;
    if (day != t->date_day) { /* rows come in the order of time, mostly */
        gmtime_r(&local, &tm);
        strftime(t->date, sizeof t->date, "%Y-%m-%d", &tm);
        t->date_day = day;
    }
    snprintf(out, n, "%.*s", month ? 7 : 10, t->date);
}

static void label_text(const char *labels, const char *key, char *out, size_t n) {
    size_t len = strlen(key);
    out[0] = '\0';
    for (const char *l = labels; l && *l; l = strchr(l, '\n'), l = l ? l + 1 : NULL)
        if (strncmp(l, key, len) == 0 && l[len] == '=') {
            snprintf(out, n, "%.*s", (int)strcspn(l + len + 1, "\n"), l + len + 1);
            return;
        }
}

static void key_part(struct vg_tally *t, size_t i, const struct vg_ledger_row *row, uint64_t at,
                     char *out, size_t n) {
    const char *s = "";
    switch (t->by[i]) {
    case VG_BY_DAY:
    case VG_BY_MONTH:
        date_text(t, at, t->by[i] == VG_BY_MONTH, out, n);
        return;
    case VG_BY_LABEL:
        label_text(row->labels, t->label[i], out, n);
        return;
    case VG_BY_TASK:
        out[0] = '\0';
        if (row->task)
            snprintf(out, n, "%016llx", (unsigned long long)row->task);
        return;
    case VG_BY_USER:
        s = row->user;
        break;
    case VG_BY_TEAM:
        s = row->team;
        break;
    case VG_BY_ORG:
        s = row->org;
        break;
    case VG_BY_PROJECT:
        s = row->project;
        break;
    case VG_BY_POOL:
        s = row->pool;
        break;
    case VG_BY_CLASS:
        s = row->class_name;
        break;
    case VG_BY_NODE:
        s = row->node;
        break;
    case VG_BY_KIND:
        s = row->kind;
        break;
    }
    snprintf(out, n, "%s", s ? s : "");
}

/* The parts behind each other; returns their length. In the map a part ends with a byte that no
   text has. */
static size_t make_key(struct vg_tally *t, const struct vg_ledger_row *row, uint64_t at, char *key,
                       char *flat, size_t room) {
    size_t n = 0;
    for (size_t i = 0; i <= t->n_by; i++) {
        char part[VG_TALLY_KEY_MAX];
        if (i < t->n_by)
            key_part(t, i, row, at, part, sizeof part);
        else
            snprintf(part, sizeof part, "%s",
                     row->currency && *row->currency ? row->currency : t->currency);
        size_t len = strlen(part) + 1;
        if (n + len > room)
            break;
        memcpy(key + n, part, len);
        memcpy(flat + n, part, len);
        flat[n + len - 1] = '\xff';
        n += len;
    }
    flat[n] = '\0';
    return n;
}

static struct vg_group *group_of(struct vg_tally *t, const struct vg_ledger_row *row, uint64_t at,
                                 int *ret_err) {
    char key[(VG_TALLY_BY_MAX + 1) * VG_TALLY_KEY_MAX], flat[sizeof key + 1];
    size_t n = make_key(t, row, at, key, flat, sizeof key);
    struct vg_group *g = vg_map_get(&t->groups, flat);
    if (g)
        return g;
    if (vg_map_len(&t->groups) >= VG_TALLY_GROUPS_MAX) {
        t->left_out++;
        return NULL;
    }
    g = vg_alloc(sizeof *g);
    char *name = vg_strdup(flat);
    if (g)
        g->key = vg_memdup(key, n);
    if (!g || !name || !g->key || vg_map_put(&t->groups, name, g) < 0) {
        if (g)
            free(g->key);
        free(g);
        free(name);
        *ret_err = -ENOMEM;
        return NULL;
    }
    g->key_len = n;
    return g;
}

const char *vg_group_part(const struct vg_group *g, size_t i) {
    const char *s = g->key;
    for (; i && s < g->key + g->key_len; i--)
        s += strlen(s) + 1;
    return s < g->key + g->key_len ? s : "";
}

/* ------------------------------------------------------------------ values */

static int64_t part_of(int64_t v, uint64_t a, uint64_t b, uint64_t whole) {
    uint64_t abs = v < 0 ? -(uint64_t)v : (uint64_t)v;
    int64_t part = (int64_t)(vg_part(abs, b, whole) - vg_part(abs, a, whole));
    return v < 0 ? -part : part;
}

static int count_task(struct vg_tally *t, struct vg_group *g, uint64_t task) {
    uint64_t key = (task ^ (uint64_t)(uintptr_t)g * 0x9e3779b97f4a7c15ULL) | 1;
    if (!task || vg_map_len(&t->seen) >= VG_TALLY_TASKS_MAX || vg_map_get_u64(&t->seen, key))
        return 0;
    g->sums.tasks++;
    return vg_map_put_u64(&t->seen, key, g);
}

/* `a`..`b` of the row's `whole`. */
static void add_values(struct vg_sums *s, const struct vg_ledger_row *row, uint64_t a, uint64_t b,
                       uint64_t whole) {
    bool back = strcmp(row->kind, "back") == 0, kept = strcmp(row->kind, "storage") == 0;
    bool held = back || strcmp(row->kind, "held") == 0;
    __int128 usec = back ? -(__int128)(b - a) : (__int128)(b - a);
    s->cost_micro = vg_micro_add(s->cost_micro,
                                 whole ? part_of(row->cost_micro, a, b, whole) : row->cost_micro);
    if (kept)
        s->storage_bytes += usec * (__int128)row->mem_bytes;
    if (!held)
        return;
    uint64_t cards = (row->gpu_milli + 999) / 1000;
    uint64_t idle =
        vg_part(row->gpu_micro, VG_MIN(row->gpu_unused_usec, cards * whole), cards * whole);
    s->gpu_milli += usec * (__int128)row->gpu_milli;
    s->cpu_milli += usec * (__int128)row->cpu_milli;
    s->mem_bytes += usec * (__int128)row->mem_bytes;
    s->held_usec += (int64_t)usec;
    s->gpu_busy_usec += part_of((int64_t)row->gpu_busy_usec, a, b, whole);
    s->energy_mj += part_of((int64_t)row->energy_mj, a, b, whole);
    s->idle_micro += back ? 0 : vg_part(idle, b, whole) - vg_part(idle, a, whole);
}

static struct hours *hours_of(struct vg_tally *t, const struct vg_ledger_row *row) {
    struct hours *h = vg_map_get(&t->pools, row->pool);
    uint64_t n = (t->until_usec - t->from_usec) / HOUR_USEC + 1;
    if (h || n > VG_TALLY_HOURS_MAX || strlen(row->pool) >= sizeof h->pool)
        return h;
    h = vg_alloc(sizeof *h + n * sizeof h->held[0]);
    if (!h)
        return NULL;
    snprintf(h->pool, sizeof h->pool, "%s", row->pool);
    snprintf(h->class, sizeof h->class, "%s", row->class_name);
    h->n = n;
    if (vg_map_put(&t->pools, h->pool, h) < 0) {
        free(h);
        return NULL;
    }
    return h;
}

static void add_hours(struct vg_tally *t, const struct vg_ledger_row *row, uint64_t a, uint64_t b) {
    bool back = strcmp(row->kind, "back") == 0;
    struct hours *h =
        row->gpu_milli && (back || strcmp(row->kind, "held") == 0) ? hours_of(t, row) : NULL;
    for (uint64_t at = a; h && at < b;) {
        uint64_t i = (at - t->from_usec) / HOUR_USEC;
        uint64_t end = VG_MIN(t->from_usec + (i + 1) * HOUR_USEC, b);
        __int128 held = (__int128)(end - at) * (__int128)row->gpu_milli;
        if (i < h->n)
            h->held[i] += back ? -held : held;
        at = end;
    }
}

static bool asks_days(const struct vg_tally *t) {
    for (size_t i = 0; i < t->n_by; i++)
        if (t->by[i] == VG_BY_DAY || t->by[i] == VG_BY_MONTH)
            return true;
    return false;
}

int vg_tally_add(struct vg_tally *t, const struct vg_ledger_row *row) {
    uint64_t from = VG_MAX(row->from_usec, t->from_usec);
    uint64_t until = VG_MIN(row->until_usec, t->until_usec);
    uint64_t whole = row->until_usec - row->from_usec;
    bool days = asks_days(t);
    int r = 0;
    if (!whole ? row->from_usec < t->from_usec || row->from_usec >= t->until_usec : from >= until)
        return 0;
    for (uint64_t at = from; r >= 0;) {
        uint64_t end = days ? VG_MIN(next_day(t, at), until) : until;
        struct vg_group *g = group_of(t, row, at, &r);
        if (g) {
            add_values(&g->sums, row, at - row->from_usec, VG_MAX(end, at) - row->from_usec, whole);
            r = count_task(t, g, row->task);
        }
        if (end >= until)
            break;
        at = end;
    }
    add_hours(t, row, from, until);
    return r;
}

/* ------------------------------------------------------------------ answers */

static int by_key(const void *a, const void *b) {
    const struct vg_group *x = *(struct vg_group *const *)a, *y = *(struct vg_group *const *)b;
    size_t n = VG_MIN(x->key_len, y->key_len);
    int c = memcmp(x->key, y->key, n);
    return c ? c : (x->key_len > y->key_len) - (x->key_len < y->key_len);
}

static int by_cost(const void *a, const void *b) {
    const struct vg_sums *x = &(*(struct vg_group *const *)a)->sums,
                         *y = &(*(struct vg_group *const *)b)->sums;
    int c = (x->cost_micro < y->cost_micro) - (x->cost_micro > y->cost_micro);
    c = c ? c : (x->gpu_milli < y->gpu_milli) - (x->gpu_milli > y->gpu_milli);
    c = c ? c : (x->held_usec < y->held_usec) - (x->held_usec > y->held_usec);
    return c ? c : by_key(a, b);
}

struct vg_group **vg_tally_sorted(const struct vg_tally *t, size_t *ret_n) {
    size_t n = 0;
    struct vg_group **list = vg_alloc((vg_map_len(&t->groups) + 1) * sizeof *list);
    if (!list)
        return NULL;
    vg_map_for_each (s, &t->groups)
        list[n++] = s->value;
    qsort(list, n, sizeof *list, asks_days(t) ? by_key : by_cost);
    *ret_n = n;
    return list;
}

void vg_tally_peaks(const struct vg_tally *t, vg_tally_peak_fn *fn, void *arg) {
    vg_map_for_each (s, &t->pools) {
        const struct hours *h = s->value;
        __int128 most = 0;
        for (size_t i = 0; i < h->n; i++)
            most = VG_MAX(most, h->held[i]);
        fn(arg, h->pool, h->class, (uint64_t)((most + HOUR_USEC - 1) / HOUR_USEC));
    }
}

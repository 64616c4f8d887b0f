/* Costs and charges; see the header. */
#include "cli/money-show.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/money-values.h"
#include "cli/table.h"
#include "view/csv.h"
#include "view/views.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS_MAX 16
#define HOUR_MSEC 3600000ULL
#define KWH_MJ 3600000000ULL

/* Thousandths as "12.345". */
static char *milli_text(uint64_t v, char *out, size_t n) {
    snprintf(out, n, "%llu.%03llu", (unsigned long long)(v / 1000), (unsigned long long)(v % 1000));
    return out;
}

/* Of something times milliseconds: hours. */
static char *hours(uint64_t msec, char *out, size_t n) {
    return milli_text((uint64_t)((unsigned __int128)msec * 1000 / HOUR_MSEC), out, n);
}

struct cells {
    char text[COLUMNS_MAX][40];
    const char *cell[COLUMNS_MAX];
    size_t n;
};

static char *next(struct cells *c) {
    c->cell[c->n] = c->text[c->n];
    return c->text[c->n++];
}
#define ROOM sizeof((struct cells){0}.text[0])

static void add_values(struct cells *c, const Vg__Pb__CostRow *row, bool usage) {
    if (!usage) {
        vg_micro_text(row->cost_micro, next(c), ROOM);
        snprintf(next(c), ROOM, "%s", row->currency ? row->currency : "");
        if (row->idle_cost_micro)
            vg_micro_text((int64_t)row->idle_cost_micro, next(c), ROOM);
        else
            c->cell[c->n++] = NULL;
    }
    hours(row->gpu_msec, next(c), ROOM);
    if (usage && row->gpu_msec)
        snprintf(next(c), ROOM, "%llu%%",
                 (unsigned long long)((unsigned __int128)row->gpu_busy_msec * 100 / row->gpu_msec));
    else if (usage)
        c->cell[c->n++] = NULL;
    hours(row->cpu_msec, next(c), ROOM);
    hours(row->mem_gib_msec, next(c), ROOM);
    if (usage) {
        milli_text((uint64_t)((unsigned __int128)row->energy_mj * 1000 / KWH_MJ), next(c), ROOM);
        milli_text(row->co2_mg / 1000, next(c), ROOM);
    }
    snprintf(next(c), ROOM, "%u", row->tasks);
}

static void show_table(const Vg__Pb__CostInfo *m, const struct vg_money_how *how) {
    static const char *const cost[] = {"COST",      "CURRENCY",  "UNUSED", "GPU-HOURS",
                                       "CPU-HOURS", "GIB-HOURS", "TASKS"};
    static const char *const usage[] = {"GPU-HOURS", "BUSY",   "CPU-HOURS", "GIB-HOURS",
                                        "KWH",       "KG CO2", "TASKS"};
    const char *headings[COLUMNS_MAX + 1] = {0};
    char keys[4][80];
    size_t n = 0;
    for (; n < how->n_by && n < VG_COUNT(keys); n++) {
        snprintf(keys[n], sizeof keys[n], "%s", how->by[n]);
        for (char *s = keys[n]; *s && strncmp(how->by[n], "label:", 6) != 0; s++)
            *s = (char)toupper((unsigned char)*s);
        headings[n] = keys[n];
    }
    size_t by = n;
    for (size_t i = 0; i < VG_COUNT(cost); i++)
        headings[n++] = how->usage ? usage[i] : cost[i];
    struct vg_table *t = vg_table_new(headings);
    for (size_t i = 0; i < m->n_row; i++) {
        struct cells c = {0};
        for (; c.n < by; c.n++)
            c.cell[c.n] =
                c.n < m->row[i]->n_key && *m->row[i]->key[c.n] ? m->row[i]->key[c.n] : NULL;
        add_values(&c, m->row[i], how->usage);
        vg_table_row(t, c.cell);
    }
    for (size_t i = 0; i < 1 + m->n_other; i++) {
        struct cells c = {0};
        for (; c.n < by; c.n++)
            c.cell[c.n] = c.n ? NULL : "total";
        if (i || m->total)
            add_values(&c, i ? m->other[i - 1] : m->total, how->usage);
        vg_table_row(t, c.cell);
    }
    vg_table_print(t, stdout, 0);
}

/* What the same GPUs would have cost, held all the time. */
static void show_savings(const Vg__Pb__CostInfo *m) {
    char all[40], saved[40];
    int64_t spent = m->total ? m->total->cost_micro : 0;
    if (!m->around_clock_micro || (int64_t)m->around_clock_micro <= spent)
        return;
    uint64_t diff = m->around_clock_micro - (uint64_t)(spent > 0 ? spent : 0);
    printf("%llu GPU%s held around the clock would have cost %s %s: %s (%llu%%) saved\n",
           (unsigned long long)(m->around_clock_gpu_milli / 1000),
           m->around_clock_gpu_milli == 1000 ? "" : "s",
           vg_micro_text((int64_t)m->around_clock_micro, all, sizeof all),
           m->currency ? m->currency : "", vg_micro_text((int64_t)diff, saved, sizeof saved),
           (unsigned long long)((unsigned __int128)diff * 100 / m->around_clock_micro));
}

static int print_csv(const json_t *rows, bool heading) {
    struct vg_buf b = {0};
    int r = vg_csv_rows(&b, rows, heading);
    if (r >= 0 && vg_buf_len(&b) &&
        fwrite(vg_buf_data(&b), 1, vg_buf_len(&b), stdout) != vg_buf_len(&b))
        r = -EIO;
    vg_buf_done(&b);
    return r;
}

/* Each key in a column of its own, under what it is. */
static json_t *flat(const Vg__Pb__CostRow *row, const struct vg_money_how *how) {
    json_t *out = json_object(), *all = vg_view_json(&vg_view_cost_row, row);
    for (size_t i = 0; i < how->n_by; i++)
        json_object_set_new(out, how->by[i], vg_json_text(i < row->n_key ? row->key[i] : ""));
    json_object_del(all, "key");
    json_object_update(out, all);
    json_decref(all);
    return out;
}

static int show_csv(const Vg__Pb__CostInfo *m, const struct vg_money_how *how) {
    json_t *rows = json_array();
    for (size_t i = 0; i < m->n_row; i++)
        json_array_append_new(rows, flat(m->row[i], how));
    if (!how->n_by && m->total)
        json_array_append_new(rows, flat(m->total, how));
    for (size_t i = 0; !how->n_by && i < m->n_other; i++)
        json_array_append_new(rows, flat(m->other[i], how));
    int r = print_csv(rows, true);
    json_decref(rows);
    return r;
}

int vg_money_show(const Vg__Pb__CostInfo *info, const struct vg_money_how *how) {
    if (how->format == VG_MONEY_JSON)
        return vg_json_print(vg_view_json(&vg_view_cost, info)) ? -EIO : 0;
    if (how->format == VG_MONEY_CSV)
        return show_csv(info, how);
    show_table(info, how);
    if (!how->usage)
        show_savings(info);
    return fflush(stdout) ? -EIO : 0;
}

int vg_money_show_charges(const Vg__Pb__LedgerList *m, enum vg_money_format format, bool first) {
    json_t *rows = json_array();
    int r = 0;
    for (size_t i = 0; i < m->n_row; i++) {
        json_t *j = vg_view_json(&vg_view_charge, m->row[i]);
        if (format == VG_MONEY_JSON) {
            vg_json_print_line(j);
            continue;
        }
        json_object_del(j, "labels");
        json_array_append_new(rows, j);
    }
    if (format != VG_MONEY_JSON)
        r = print_csv(rows, first);
    json_decref(rows);
    return r < 0 || ferror(stdout) ? -EIO : 0;
}

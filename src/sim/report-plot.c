/* The plot: for each load a row of three panels: how many jobs waited at most so long, GPUs in use
   over time, service of each tenant. SVG, written by hand: lines, bars and text are all it takes.
 */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sim/report.h"

#include <math.h>
#include <string.h>

#define PANEL_W 420.0
#define PANEL_H 240.0
#define GAP_X 70.0
#define GAP_Y 80.0
#define LEFT 60.0
#define TOP 50.0
#define WAIT_MIN_S 1.0
#define WAIT_MAX_S 1e8

static const char *const colour[] = {"#4c72b0", "#dd8452", "#55a868", "#8172b3",
                                     "#c44e52", "#937860", "#da8bc3", "#8c8c8c"};

struct panel {
    FILE *f;
    double x, y;
};

static void text(FILE *f, double x, double y, const char *anchor, int size, const char *s) {
    fprintf(f, "<text x='%.1f' y='%.1f' text-anchor='%s' font-size='%d'>", x, y, anchor, size);
    for (; *s; s++)
        if (*s == '<' || *s == '&')
            fputs(*s == '<' ? "&lt;" : "&amp;", f);
        else
            fputc(*s, f);
    fputs("</text>\n", f);
}

static void frame(struct panel *p, const char *title) {
    fprintf(p->f,
            "<rect x='%.1f' y='%.1f' width='%.0f' height='%.0f' fill='none' stroke='#999'/>\n",
            p->x, p->y, PANEL_W, PANEL_H);
    text(p->f, p->x + PANEL_W / 2, p->y - 8, "middle", 13, title);
}

/* A line and its label at height `share` of the panel. */
static void rule(struct panel *p, double share, const char *label) {
    double y = p->y + PANEL_H * (1 - share);
    fprintf(p->f, "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='#ddd'/>\n", p->x,
            p->x + PANEL_W, y, y);
    text(p->f, p->x - 6, y + 4, "end", 10, label);
}

static void begin_line(struct panel *p) {
    fputs("<polyline fill='none' stroke-width='1.5' points='", p->f);
}

static void point(struct panel *p, double x, double y) {
    fprintf(p->f, "%.1f,%.1f ", p->x + PANEL_W * x, p->y + PANEL_H * (1 - y));
}

static void end_line(struct panel *p, size_t row, bool dashed) {
    fprintf(p->f, "' stroke='%s'%s/>\n", colour[row % VG_COUNT(colour)],
            dashed ? " stroke-dasharray='5 3'" : "");
}

static void percents(struct panel *p) {
    rule(p, 0, "0 %");
    rule(p, 0.5, "50 %");
    rule(p, 1, "100 %");
}

static double log_place(double s) {
    double v = log10(VG_MAX(s, WAIT_MIN_S) / WAIT_MIN_S) / log10(WAIT_MAX_S / WAIT_MIN_S);
    return VG_MIN(v, 1.0);
}

static void draw_waits(struct panel *p, const struct vg_report *r, size_t first, size_t end) {
    static const struct {
        double s;
        const char *name;
    } tick[] = {{1, "1 s"}, {60, "1 min"}, {3600, "1 h"}, {86400, "1 d"}, {864000, "10 d"}};
    frame(p, "jobs that waited at most");
    percents(p);
    for (size_t i = 0; i < VG_COUNT(tick); i++)
        text(p->f, p->x + PANEL_W * log_place(tick[i].s), p->y + PANEL_H + 14, "middle", 10,
             tick[i].name);
    for (size_t i = first; i < end; i++) {
        const struct vg_result *x = &r->row[i].result;
        size_t step = VG_MAX((size_t)x->jobs / 300, (size_t)1);
        begin_line(p);
        for (size_t k = 0; k < x->jobs; k += step)
            point(p, log_place(x->wait_s[k]), (double)(k + 1) / (double)x->jobs);
        end_line(p, i - first, r->row[i].preempt);
    }
}

static void draw_use(struct panel *p, const struct vg_report *r, size_t first, size_t end) {
    double longest = 1;
    char label[32];
    frame(p, "GPUs in use over time");
    percents(p);
    for (size_t i = first; i < end; i++)
        longest = VG_MAX(longest, r->row[i].result.makespan_s);
    snprintf(label, sizeof(label), "%.1f days", longest / 86400);
    text(p->f, p->x + PANEL_W, p->y + PANEL_H + 14, "end", 10, label);
    for (size_t i = first; i < end; i++) {
        const struct vg_result *x = &r->row[i].result;
        begin_line(p);
        for (size_t b = 0; b < VG_ACCOUNT_BINS && (double)b * x->bin_s < x->makespan_s; b++)
            point(p, ((double)b + 0.5) * x->bin_s / longest,
                  x->busy[b] / (x->bin_s * (double)r->units));
        end_line(p, i - first, r->row[i].preempt);
    }
}

static void draw_tenants(struct panel *p, const struct vg_report *r, size_t first, size_t end) {
    double slot = PANEL_W / (double)VG_MAX(r->n_tenants, (size_t)1);
    double bar = slot * 0.85 / (double)(end - first);
    frame(p, "service of each tenant against its entitlement");
    percents(p);
    for (size_t k = 0; k < r->n_tenants; k++) {
        for (size_t i = first; i < end; i++) {
            double h = PANEL_H * VG_MIN(r->row[i].result.tenant[k].service, 1.0);
            fprintf(p->f, "<rect x='%.1f' y='%.1f' width='%.2f' height='%.1f' fill='%s'/>\n",
                    p->x + slot * (double)k + bar * (double)(i - first), p->y + PANEL_H - h, bar, h,
                    colour[(i - first) % VG_COUNT(colour)]);
        }
        fprintf(p->f, "<g transform='translate(%.1f %.1f) rotate(-60)'>",
                p->x + slot * ((double)k + 0.6), p->y + PANEL_H + 12);
        text(p->f, 0, 0, "end", 9, r->tenant[k]);
        fputs("</g>\n", p->f);
    }
}

static void legend(FILE *f, const struct vg_report *r, size_t first, size_t end, double y) {
    double x = LEFT;
    char name[80];
    snprintf(name, sizeof(name), "arrivals: %s", r->row[first].load);
    text(f, x, y, "start", 13, name);
    x += 150;
    for (size_t i = first; i < end; i++, x += 120) {
        fprintf(f, "<rect x='%.1f' y='%.1f' width='12' height='12' fill='%s'/>\n", x, y - 11,
                colour[(i - first) % VG_COUNT(colour)]);
        snprintf(name, sizeof(name), "%s%s", r->row[i].policy,
                 r->row[i].preempt ? " (preempting)" : "");
        text(f, x + 16, y, "start", 12, name);
    }
}

static size_t end_of_load(const struct vg_report *r, size_t first) {
    size_t end = first;
    while (end < r->n && strcmp(r->row[end].load, r->row[first].load) == 0)
        end++;
    return end;
}

static void draw(FILE *f, const struct vg_report *r) {
    size_t loads = 0;
    for (size_t i = 0; i < r->n; i = end_of_load(r, i))
        loads++;
    double w = LEFT + 3 * (PANEL_W + GAP_X), h = (double)loads * (TOP + PANEL_H + GAP_Y);
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' font-family="
            "'sans-serif' fill='#333'>\n<rect width='%.0f' height='%.0f' fill='#fff'/>\n",
            w, h, w, h);
    double y = 0;
    for (size_t i = 0, end; i < r->n; i = end, y += TOP + PANEL_H + GAP_Y) {
        end = end_of_load(r, i);
        struct panel p = {.f = f, .x = LEFT, .y = y + TOP};
        legend(f, r, i, end, y + 20);
        draw_waits(&p, r, i, end);
        p.x += PANEL_W + GAP_X;
        draw_use(&p, r, i, end);
        p.x += PANEL_W + GAP_X;
        draw_tenants(&p, r, i, end);
    }
    fputs("</svg>\n", f);
}

int vg_report_plot(const struct vg_report *r, const char *path, struct vg_err *err) {
    FILE *f = fopen(path, "we");
    if (!f)
        return vg_err_sys(err, -errno, "cannot write plot '%s'", path);
    draw(f, r);
    int bad = ferror(f);
    if (fclose(f) != 0 || bad)
        return vg_err_sys(err, errno ? -errno : -EIO, "cannot write plot '%s'", path);
    return 0;
}

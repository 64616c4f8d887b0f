/* The plot: for each load a row of three panels: how many jobs waited at most so long, GPUs in use
   over time, service of each tenant. SVG, written by hand: lines, bars and text are all it takes.
 */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sim/report.h"
#include "sim/svg.h"

#include <math.h>
#include <string.h>

#define WAIT_MIN_S 1.0
#define WAIT_MAX_S 1e8

static double log_place(double s) {
    double v = log10(VG_MAX(s, WAIT_MIN_S) / WAIT_MIN_S) / log10(WAIT_MAX_S / WAIT_MIN_S);
    return VG_MIN(v, 1.0);
}

static void draw_waits(struct vg_svg_panel *p, const struct vg_report *r, size_t first,
                       size_t end) {
    static const struct {
        double s;
        const char *name;
    } tick[] = {{1, "1 s"}, {60, "1 min"}, {3600, "1 h"}, {86400, "1 d"}, {864000, "10 d"}};
    vg_svg_frame(p, "jobs that waited at most");
    vg_svg_percents(p);
    for (size_t i = 0; i < VG_COUNT(tick); i++)
        vg_svg_text(p->f, p->x + VG_SVG_W * log_place(tick[i].s), p->y + VG_SVG_H + 14, "middle",
                    10, tick[i].name);
    for (size_t i = first; i < end; i++) {
        const struct vg_result *x = &r->row[i].result;
        size_t step = VG_MAX((size_t)x->jobs / 300, (size_t)1);
        vg_svg_line(p);
        for (size_t k = 0; k < x->jobs; k += step)
            vg_svg_point(p, log_place(x->wait_s[k]), (double)(k + 1) / (double)x->jobs);
        vg_svg_line_end(p, i - first, r->row[i].preempt);
    }
}

static void draw_use(struct vg_svg_panel *p, const struct vg_report *r, size_t first, size_t end) {
    double longest = 1;
    char label[32];
    vg_svg_frame(p, "GPUs in use over time");
    vg_svg_percents(p);
    for (size_t i = first; i < end; i++)
        longest = VG_MAX(longest, r->row[i].result.makespan_s);
    snprintf(label, sizeof(label), "%.1f days", longest / 86400);
    vg_svg_text(p->f, p->x + VG_SVG_W, p->y + VG_SVG_H + 14, "end", 10, label);
    for (size_t i = first; i < end; i++) {
        const struct vg_result *x = &r->row[i].result;
        vg_svg_line(p);
        for (size_t b = 0; b < VG_ACCOUNT_BINS && (double)b * x->bin_s < x->makespan_s; b++)
            vg_svg_point(p, ((double)b + 0.5) * x->bin_s / longest,
                         x->busy[b] / (x->bin_s * (double)r->units));
        vg_svg_line_end(p, i - first, r->row[i].preempt);
    }
}

static void draw_tenants(struct vg_svg_panel *p, const struct vg_report *r, size_t first,
                         size_t end) {
    double slot = VG_SVG_W / (double)VG_MAX(r->n_tenants, (size_t)1);
    double bar = slot * 0.85 / (double)(end - first);
    vg_svg_frame(p, "service of each tenant against its entitlement");
    vg_svg_percents(p);
    for (size_t k = 0; k < r->n_tenants; k++) {
        for (size_t i = first; i < end; i++) {
            double h = VG_SVG_H * VG_MIN(r->row[i].result.tenant[k].service, 1.0);
            fprintf(p->f, "<rect x='%.1f' y='%.1f' width='%.2f' height='%.1f' fill='%s'/>\n",
                    p->x + slot * (double)k + bar * (double)(i - first), p->y + VG_SVG_H - h, bar,
                    h, vg_svg_colour(i - first));
        }
        fprintf(p->f, "<g transform='translate(%.1f %.1f) rotate(-60)'>",
                p->x + slot * ((double)k + 0.6), p->y + VG_SVG_H + 12);
        vg_svg_text(p->f, 0, 0, "end", 9, r->tenant[k]);
        fputs("</g>\n", p->f);
    }
}

static void legend(FILE *f, const struct vg_report *r, size_t first, size_t end, double y) {
    double x = VG_SVG_LEFT;
    char name[80];
    snprintf(name, sizeof(name), "arrivals: %s", r->row[first].load);
    vg_svg_text(f, x, y, "start", 13, name);
    x += 150;
    for (size_t i = first; i < end; i++, x += 120) {
        snprintf(name, sizeof(name), "%s%s", r->row[i].policy,
                 r->row[i].preempt ? " (preempting)" : "");
        vg_svg_key(f, x, y, i - first, name);
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
    double w = VG_SVG_LEFT + 3 * (VG_SVG_W + VG_SVG_GAP_X),
           h = (double)loads * (VG_SVG_TOP + VG_SVG_H + VG_SVG_GAP_Y);
    vg_svg_begin(f, w, h);
    double y = 0;
    for (size_t i = 0, end; i < r->n; i = end, y += VG_SVG_TOP + VG_SVG_H + VG_SVG_GAP_Y) {
        end = end_of_load(r, i);
        struct vg_svg_panel p = {.f = f, .x = VG_SVG_LEFT, .y = y + VG_SVG_TOP};
        legend(f, r, i, end, y + 20);
        draw_waits(&p, r, i, end);
        p.x += VG_SVG_W + VG_SVG_GAP_X;
        draw_use(&p, r, i, end);
        p.x += VG_SVG_W + VG_SVG_GAP_X;
        draw_tenants(&p, r, i, end);
    }
}

int vg_report_plot(const struct vg_report *r, const char *path, struct vg_err *err) {
    FILE *f = vg_svg_open(path, err);
    if (!f)
        return err->code;
    draw(f, r);
    return vg_svg_close(f, path, err);
}

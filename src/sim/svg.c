/* Panels, lines and text as SVG. */
#include "sim/svg.h"

#include "base/cleanup.h"

static const char *const colour[] = {"#4c72b0", "#dd8452", "#55a868", "#8172b3",
                                     "#c44e52", "#937860", "#da8bc3", "#8c8c8c"};

FILE *vg_svg_open(const char *path, struct vg_err *err) {
    FILE *f = fopen(path, "we");
    if (!f)
        vg_err_sys(err, -errno, "cannot write plot '%s'", path);
    return f;
}

int vg_svg_close(FILE *f, const char *path, struct vg_err *err) {
    fputs("</svg>\n", f);
    int bad = ferror(f);
    if (fclose(f) != 0 || bad)
        return vg_err_sys(err, errno ? -errno : -EIO, "cannot write plot '%s'", path);
    return 0;
}

void vg_svg_begin(FILE *f, double width, double height) {
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' font-family="
            "'sans-serif' fill='#333'>\n<rect width='%.0f' height='%.0f' fill='#fff'/>\n",
            width, height, width, height);
}

const char *vg_svg_colour(size_t row) {
    return colour[row % VG_COUNT(colour)];
}

void vg_svg_text(FILE *f, double x, double y, const char *anchor, int size, const char *s) {
    fprintf(f, "<text x='%.1f' y='%.1f' text-anchor='%s' font-size='%d'>", x, y, anchor, size);
    for (; *s; s++)
        if (*s == '<' || *s == '&')
            fputs(*s == '<' ? "&lt;" : "&amp;", f);
        else
            fputc(*s, f);
    fputs("</text>\n", f);
}

void vg_svg_frame(struct vg_svg_panel *p, const char *title) {
    fprintf(p->f,
            "<rect x='%.1f' y='%.1f' width='%.0f' height='%.0f' fill='none' stroke='#999'/>\n",
            p->x, p->y, VG_SVG_W, VG_SVG_H);
    vg_svg_text(p->f, p->x + VG_SVG_W / 2, p->y - 8, "middle", 13, title);
}

void vg_svg_rule(struct vg_svg_panel *p, double share, const char *label) {
    double y = p->y + VG_SVG_H * (1 - share);
    fprintf(p->f, "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='#ddd'/>\n", p->x,
            p->x + VG_SVG_W, y, y);
    vg_svg_text(p->f, p->x - 6, y + 4, "end", 10, label);
}

void vg_svg_percents(struct vg_svg_panel *p) {
    vg_svg_rule(p, 0, "0 %");
    vg_svg_rule(p, 0.5, "50 %");
    vg_svg_rule(p, 1, "100 %");
}

void vg_svg_line(struct vg_svg_panel *p) {
    fputs("<polyline fill='none' stroke-width='1.5' points='", p->f);
}

void vg_svg_point(struct vg_svg_panel *p, double x, double y) {
    fprintf(p->f, "%.1f,%.1f ", p->x + VG_SVG_W * x, p->y + VG_SVG_H * (1 - y));
}

void vg_svg_line_end(struct vg_svg_panel *p, size_t row, bool dashed) {
    fprintf(p->f, "' stroke='%s'%s/>\n", vg_svg_colour(row),
            dashed ? " stroke-dasharray='5 3'" : "");
}

void vg_svg_key(FILE *f, double x, double y, size_t row, const char *name) {
    fprintf(f, "<rect x='%.1f' y='%.1f' width='12' height='12' fill='%s'/>\n", x, y - 11,
            vg_svg_colour(row));
    vg_svg_text(f, x + 16, y, "start", 12, name);
}

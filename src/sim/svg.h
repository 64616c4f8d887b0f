#pragma once
/* Plots as SVG, written by hand: panels with lines, bars and text are all it takes. */
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define VG_SVG_W 420.0 /* of a panel */
#define VG_SVG_H 240.0
#define VG_SVG_GAP_X 70.0
#define VG_SVG_GAP_Y 80.0
#define VG_SVG_LEFT 60.0
#define VG_SVG_TOP 50.0

struct vg_svg_panel {
    FILE *f;
    double x, y; /* its upper left corner */
};

FILE *vg_svg_open(const char *path, struct vg_err *err); /* NULL: err says why */
int vg_svg_close(FILE *f, const char *path, struct vg_err *err);
void vg_svg_begin(FILE *f, double width, double height); /* once, first */

const char *vg_svg_colour(size_t row);
void vg_svg_text(FILE *f, double x, double y, const char *anchor, int size, const char *s);
void vg_svg_frame(struct vg_svg_panel *p, const char *title);
void vg_svg_rule(struct vg_svg_panel *p, double share, const char *label); /* at this height */
void vg_svg_percents(struct vg_svg_panel *p);
/* A line: begin, points (0 .. 1 of the panel), end. */
void vg_svg_line(struct vg_svg_panel *p);
void vg_svg_point(struct vg_svg_panel *p, double x, double y);
void vg_svg_line_end(struct vg_svg_panel *p, size_t row, bool dashed);
/* A coloured square and its name. */
void vg_svg_key(FILE *f, double x, double y, size_t row, const char *name);

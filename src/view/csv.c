/* CSV; see the header. */
#include "view/csv.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* Spreadsheets calculate what begins so. Labels are anybody's words: they are shown, not done. */
static bool is_formula(const char *s) {
    return *s && strchr("=+-@\t\r", *s);
}

static int csv_text(struct vg_buf *b, const char *s) {
    const char *mark = is_formula(s) ? "'" : "";
    if (!s[strcspn(s, ",\"\r\n")])
        return vg_buf_printf(b, "%s%s", mark, s);
    int r = vg_buf_printf(b, "\"%s", mark);
    for (; *s && r >= 0; s++)
        r = vg_buf_append(b, *s == '"' ? "\"\"" : s, *s == '"' ? 2 : 1);
    return r < 0 ? r : vg_buf_append(b, "\"", 1);
}

/* A list inside a cell is written with spaces between its elements, labels as KEY=VALUE. */
static int csv_cell(struct vg_buf *b, json_t *v) {
    struct vg_buf all = {0};
    const char *key;
    json_t *one;
    int r = 0;
    if (json_is_string(v))
        return csv_text(b, json_string_value(v));
    if (json_is_integer(v))
        return vg_buf_printf(b, "%lld", (long long)json_integer_value(v));
    if (json_is_boolean(v))
        return vg_buf_printf(b, "%d", json_is_true(v));
    for (size_t i = 0; i < json_array_size(v) && r >= 0; i++) {
        const char *s = json_string_value(json_array_get(v, i));
        r = vg_buf_printf(&all, "%s%s", i ? " " : "", s ? s : "");
    }
    json_object_foreach(v, key, one) {
        const char *s = json_string_value(one);
        if (r >= 0)
            r = vg_buf_printf(&all, "%s%s=%s", vg_buf_len(&all) ? " " : "", key, s ? s : "");
    }
    if (r >= 0 && vg_buf_len(&all))
        r = vg_buf_append(&all, "", 1) < 0 ? -ENOMEM : csv_text(b, (const char *)vg_buf_data(&all));
    vg_buf_done(&all);
    return r;
}

static int csv_line(struct vg_buf *b, json_t *row, bool names) {
    const char *key;
    json_t *v;
    int r = 0;
    bool first = true;
    json_object_foreach(row, key, v) {
        if (r >= 0 && !first)
            r = vg_buf_append(b, ",", 1);
        if (r >= 0)
            r = names ? csv_text(b, key) : csv_cell(b, v);
        first = false;
    }
    return r < 0 ? r : vg_buf_append(b, "\r\n", 2);
}

int vg_csv_rows(struct vg_buf *out, const json_t *rows, bool heading) {
    int r = 0;
    for (size_t i = 0; i < json_array_size(rows) && r >= 0; i++) {
        if (i == 0 && heading)
            r = csv_line(out, json_array_get(rows, 0), true);
        if (r >= 0)
            r = csv_line(out, json_array_get(rows, i), false);
    }
    return r;
}

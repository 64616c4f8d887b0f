/* JSON helpers. No state; any thread. */
#include "view/json.h"

#include "base/buf.h"
#include "base/util.h"

#include <string.h>

json_t *vg_json_bytes(const void *p, size_t n) {
    const char *s = p ? p : "";
    json_t *j = json_stringn(s, n);
    struct vg_buf b = {0};
    if (j)
        return j;
    /* Take the longest good character at each place, replace what is none. */
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        for (size_t l = 1; l <= 4 && i + l <= n && !len; l++) {
            json_t *one = json_stringn(s + i, l);
            len = one ? l : 0;
            json_decref(one);
        }
        if (vg_buf_append(&b, len ? s + i : "\xef\xbf\xbd", len ? len : 3) < 0)
            break;
        i += len ? len : 1;
    }
    j = json_stringn((const char *)vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
    return j;
}

json_t *vg_json_text(const char *text) {
    return text ? vg_json_bytes(text, strlen(text)) : json_null();
}

json_t *vg_json_id(uint64_t id) {
    char hex[VG_ID_LEN + 1];
    if (!id)
        return json_null();
    vg_id_format(id, hex);
    return json_string(hex);
}

json_t *vg_json_labels(char **label, size_t n) {
    json_t *j = json_object();
    for (size_t i = 0; i < n; i++) {
        char *eq = strchr(label[i], '=');
        size_t len = eq ? (size_t)(eq - label[i]) : strlen(label[i]);
        char key[256];
        if (len >= sizeof(key))
            continue;
        memcpy(key, label[i], len);
        key[len] = 0;
        json_object_set_new(j, key, vg_json_text(eq ? eq + 1 : ""));
    }
    return j;
}

static int print(json_t *j, size_t flags) {
    int r = j ? json_dumpf(j, stdout, flags) : -1;
    json_decref(j);
    if (r == 0 && fputc('\n', stdout) != EOF)
        return 0;
    return 125;
}

int vg_json_print(json_t *j) {
    return print(j, JSON_INDENT(2));
}

int vg_json_print_line(json_t *j) {
    int r = print(j, JSON_COMPACT);
    return fflush(stdout) == 0 ? r : 125;
}

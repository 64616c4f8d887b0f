/* Names: what is valid, what was probably meant, which labels match. */
#include "base/cleanup.h"
#include "conf/conf.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define WORD_MAX 64

bool vg_conf_name_valid(const char *s) {
    size_t n = strlen(s);
    if (n == 0 || n > VG_CONF_NAME_MAX || !isalnum((unsigned char)s[0]))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] > 126 || (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i])))
            return false;
    return true;
}

/* Edits from a to b: insert, remove, replace, swap neighbours. */
static unsigned distance(const char *a, const char *b) {
    unsigned row[3][WORD_MAX + 2];
    size_t n = strlen(a), m = strlen(b);
    if (n > WORD_MAX || m > WORD_MAX)
        return WORD_MAX;
    for (unsigned j = 0; j <= m; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        unsigned *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned same = up[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = VG_MIN(same, VG_MIN(up[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = VG_MIN(now[j], up2[j - 2] + 1);
        }
    }
    return row[n % 3][m];
}

const char *vg_conf_nearest(const char *word, const char *const *candidates, size_t n) {
    unsigned limit = strlen(word) < 4 ? 1 : strlen(word) < 8 ? 2 : 3, best = limit + 1;
    const char *found = NULL;
    for (size_t i = 0; i < n; i++) {
        unsigned d = distance(word, candidates[i]);
        if (d < best) {
            best = d;
            found = candidates[i];
        }
    }
    return found;
}

bool vg_conf_model_is(const char *have, const char *want, size_t n) {
    for (const char *at = have; n && *at; at++)
        if (strncasecmp(at, want, n) == 0 && (at == have || !isalnum((unsigned char)at[-1])) &&
            !isalnum((unsigned char)at[n]))
            return true;
    return false;
}

static bool has_label(const struct vg_label *want, char *const *labels, size_t n) {
    size_t len = strlen(want->key);
    for (size_t i = 0; i < n; i++)
        if (strncmp(labels[i], want->key, len) == 0 && labels[i][len] == '=' &&
            strcmp(labels[i] + len + 1, want->value) == 0)
            return true;
    return false;
}

bool vg_conf_labels_match(const struct vg_labels *selector, char *const *labels, size_t n) {
    for (size_t i = 0; i < selector->n; i++)
        if (!has_label(&selector->item[i], labels, n))
            return false;
    return true;
}

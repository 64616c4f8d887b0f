/* `virga env diff A B`: what lies in one and not, or otherwise, in the other. With one argument it
   is a task's changes that are wanted. */
#include "base/cleanup.h"
#include "base/map.h"
#include "base/mem.h"
#include "cli/cmd-env-changes.h"
#include "view/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct side {
    struct vg_fitem *item; /* sorted as the tree is; paths and targets owned */
    uint8_t (*id)[VG_HASH];
    size_t n, cap;
};

static int collect(void *user, const struct vg_fitem *i) {
    struct side *s = user;
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 1024;
        void *a = vg_realloc(s->item, cap * sizeof(*s->item));
        if (!a)
            return -ENOMEM;
        s->item = a;
        void *b = vg_realloc(s->id, cap * sizeof(*s->id));
        if (!b)
            return -ENOMEM;
        s->id = b;
        s->cap = cap;
    }
    struct vg_fitem *to = &s->item[s->n];
    *to = *i;
    to->path = vg_strdup(i->path);
    to->target = vg_strndup(i->target ? i->target : "", i->target_len);
    if (i->id)
        memcpy(s->id[s->n], i->id, VG_HASH);
    s->n++;
    return to->path && to->target ? 0 : -ENOMEM;
}

static void side_done(struct side *s) {
    for (size_t i = 0; i < s->n; i++) {
        free((char *)s->item[i].path);
        free((char *)s->item[i].target);
    }
    free(s->item);
    free(s->id);
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const struct vg_fitem *)a)->path, ((const struct vg_fitem *)b)->path);
}

/* Ids move with their items when these are sorted: they are pointed at first. */
static void sort(struct side *s) {
    for (size_t i = 0; i < s->n; i++)
        s->item[i].id = s->item[i].id ? s->id[i] : NULL;
    qsort(s->item, s->n, sizeof(*s->item), by_path);
}

static bool differs(const struct vg_fitem *a, const struct vg_fitem *b) {
    if (a->st.mode != b->st.mode || a->st.uid != b->st.uid || a->st.gid != b->st.gid ||
        strcmp(a->target, b->target) != 0 || !a->id != !b->id)
        return true;
    if (S_ISREG(a->st.mode) && (a->st.size != b->st.size || a->st.mtime != b->st.mtime))
        return true;
    return a->id && memcmp(a->id, b->id, VG_HASH) != 0;
}

static void print_one(json_t *all, char how, const char *path) {
    if (!all) {
        printf("%c %s\n", how, path);
        return;
    }
    json_t *j = json_object();
    json_object_set_new(j, "path", vg_json_text(path));
    json_object_set_new(j, "change",
                        json_string(how == '-'   ? "removed"
                                    : how == '+' ? "added"
                                                 : "changed"));
    json_array_append_new(all, j);
}

/* Into `all`, or as lines when that is NULL. Returns how many there are. */
static size_t print(const struct side *a, const struct side *b, json_t *all) {
    size_t i = 0, k = 0, lines = 0;
    while (i < a->n || k < b->n) {
        int c = i == a->n ? 1 : k == b->n ? -1 : strcmp(a->item[i].path, b->item[k].path);
        if (c < 0)
            print_one(all, '-', a->item[i].path);
        else if (c > 0)
            print_one(all, '+', b->item[k].path);
        else if (differs(&a->item[i], &b->item[k]))
            print_one(all, 'M', a->item[i].path);
        else
            lines--;
        lines++;
        i += c <= 0;
        k += c >= 0;
    }
    return lines;
}

static int load(struct vg_estore *s, const char *ref, struct side *side, struct vg_err *err) {
    struct vg_ftree *t;
    int r = vg_ecmd_take(s, ref, true, &t, NULL, err);
    if (r < 0)
        return r;
    r = vg_ftree_each(t, collect, side, err);
    vg_ftree_unref(t);
    sort(side);
    return r;
}

int vg_ecmd_diff_run(struct vg_cmd_line *l) {
    struct vg_ecmd_box box = {0};
    struct side a = {0}, b = {0};
    struct vg_err err = VG_ERR_INIT;
    if (!vg_cmd_plain(l, 1, 2))
        return l->exit;
    if (l->n_args == 1)
        return vg_ecmd_changes_run(l);
    int r = vg_ecmd_box_open(&box, &err);
    if (r == 0)
        r = load(box.store, l->args[0], &a, &err);
    if (r == 0)
        r = load(box.store, l->args[1], &b, &err);
    json_t *all = r == 0 && l->json ? json_array() : NULL;
    int exit = r < 0 ? vg_cmd_fail(&err) : print(&a, &b, all) ? 1 : 0;
    if (all)
        vg_json_print(all);
    side_done(&a);
    side_done(&b);
    vg_ecmd_box_close(&box);
    return exit;
}

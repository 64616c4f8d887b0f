/* CDI specifications; see the header. The walk follows the schema, whose depth is fixed, and every
   list is bounded; keys that are not known are passed over, as the format's rules have it. */
#include "gpu/cdi.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#define KIND "nvidia.com/gpu"

struct walk {
    yaml_document_t doc;
    struct vg_err *err;
};

int vg_cdi_list_add(struct vg_cdi_list *l, const char *text) {
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->item[i], text))
            return 0;
    if (l->n == VG_CDI_LIST_MAX)
        return -E2BIG;
    char **p = vg_grow(l->item, &l->cap, l->n + 1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    l->item = p;
    p[l->n] = vg_strdup(text);
    return p[l->n] ? (l->n++, 0) : -ENOMEM;
}

void vg_cdi_list_done(struct vg_cdi_list *l) {
    for (size_t i = 0; i < l->n; i++)
        free(l->item[i]);
    free(l->item);
    *l = (struct vg_cdi_list){0};
}

static void edits_done(struct vg_cdi_edits *e) {
    vg_cdi_list_done(&e->nodes);
    vg_cdi_list_done(&e->mounts);
    vg_cdi_list_done(&e->env);
}

void vg_cdi_done(struct vg_cdi *c) {
    for (size_t i = 0; i < c->n_devices; i++) {
        free(c->device[i].name);
        edits_done(&c->device[i].edits);
    }
    free(c->device);
    free(c->kind);
    edits_done(&c->common);
    *c = (struct vg_cdi){0};
}

static yaml_node_t *member(struct walk *w, yaml_node_t *map, const char *key) {
    if (!map || map->type != YAML_MAPPING_NODE)
        return NULL;
    yaml_node_pair_t *p = map->data.mapping.pairs.start, *end = map->data.mapping.pairs.top;
    for (; p < end; p++) {
        yaml_node_t *k = yaml_document_get_node(&w->doc, p->key);
        if (k && k->type == YAML_SCALAR_NODE && !strcmp((char *)k->data.scalar.value, key))
            return yaml_document_get_node(&w->doc, p->value);
    }
    return NULL;
}

static const char *text_of(yaml_node_t *n) {
    return n && n->type == YAML_SCALAR_NODE ? (char *)n->data.scalar.value : NULL;
}

static size_t length(yaml_node_t *n) {
    if (!n || n->type != YAML_SEQUENCE_NODE)
        return 0;
    return (size_t)(n->data.sequence.items.top - n->data.sequence.items.start);
}

static yaml_node_t *item(struct walk *w, yaml_node_t *n, size_t i) {
    return yaml_document_get_node(&w->doc, n->data.sequence.items.start[i]);
}

/* Of each entry the first of these keys that it has; without keys the entry itself. */
static int take_list(struct walk *w, yaml_node_t *list, const char *key, const char *or_key,
                     const char *begins, struct vg_cdi_list *ret) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < length(list); i++) {
        yaml_node_t *n = item(w, list, i);
        const char *text = key ? text_of(member(w, n, key)) : text_of(n);
        if (!text && or_key)
            text = text_of(member(w, n, or_key));
        if (text && !strncmp(text, begins, strlen(begins)) && strlen(text) < 4096)
            r = vg_cdi_list_add(ret, text);
    }
    return r;
}

static int take_edits(struct walk *w, yaml_node_t *n, struct vg_cdi_edits *ret) {
    if (!n)
        return 0;
    ret->hooks += length(member(w, n, "hooks"));
    int r = take_list(w, member(w, n, "deviceNodes"), "path", NULL, "/dev/", &ret->nodes);
    if (r >= 0)
        r = take_list(w, member(w, n, "mounts"), "hostPath", "containerPath", "/", &ret->mounts);
    if (r >= 0)
        r = take_list(w, member(w, n, "env"), NULL, NULL, "", &ret->env);
    return r;
}

static int take_device(struct walk *w, yaml_node_t *n, struct vg_cdi *c) {
    const char *name = text_of(member(w, n, "name"));
    if (!name || c->n_devices == VG_CDI_LIST_MAX)
        return 0;
    struct vg_cdi_device *d =
        vg_grow(c->device, &c->cap_devices, c->n_devices + 1, sizeof(*c->device));
    if (!d)
        return -ENOMEM;
    c->device = d;
    d += c->n_devices;
    *d = (struct vg_cdi_device){.name = vg_strdup(name)};
    if (!d->name)
        return -ENOMEM;
    c->n_devices++;
    return take_edits(w, member(w, n, "containerEdits"), &d->edits);
}

static int take_spec(struct walk *w, struct vg_cdi *c) {
    yaml_node_t *top = yaml_document_get_root_node(&w->doc);
    const char *version = text_of(member(w, top, "cdiVersion"));
    const char *kind = text_of(member(w, top, "kind"));
    if (!version || !kind || !strchr(kind, '/'))
        return vg_err_set(w->err, VG_INVALID, "it has no cdiVersion and kind");
    if (!c->kind && !(c->kind = vg_strdup(kind)))
        return -ENOMEM;
    if (strcmp(kind, c->kind) != 0)
        return 0; /* another sort of device: not asked for */
    yaml_node_t *devices = member(w, top, "devices");
    int r = take_edits(w, member(w, top, "containerEdits"), &c->common);
    for (size_t i = 0; r >= 0 && i < length(devices); i++)
        r = take_device(w, item(w, devices, i), c);
    if (r == -E2BIG)
        r = vg_err_set(w->err, VG_TOO_BIG, "it lists more than %d entries", VG_CDI_LIST_MAX);
    return r;
}

int vg_cdi_parse(struct vg_cdi *c, const char *text, size_t len, struct vg_err *err) {
    struct walk w = {.err = err};
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return -ENOMEM;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    int r = yaml_parser_load(&parser, &w.doc) ? 0 : -EINVAL;
    if (r < 0) {
        vg_err_set(err, VG_INVALID, "line %zu: %s", parser.problem_mark.line + 1,
                   parser.problem ? parser.problem : "not YAML");
    } else {
        r = take_spec(&w, c);
        yaml_document_delete(&w.doc);
    }
    yaml_parser_delete(&parser);
    return r;
}

static int load_one(struct vg_cdi *c, const char *path, struct vg_err *err) {
    vg_auto_free char *text = NULL;
    size_t len;
    int r = vg_read_file(path, VG_CDI_BYTES_MAX, &text, &len);
    r = r < 0 ? vg_err_sys(err, r, "cannot read it") : vg_cdi_parse(c, text, len, err);
    if (r < 0 && r != -ENOMEM)
        vg_err_wrap(err, "%s is left out", path);
    return r;
}

int vg_cdi_load(const char *root, struct vg_cdi *ret, struct vg_err *err) {
    static const char *const folders[] = {"/etc/cdi", "/var/run/cdi"};
    static const char *const ends[] = {"*.yaml", "*.json"};
    struct vg_cdi c = {.kind = vg_strdup(KIND)};
    char pattern[4096];
    int read = 0, r = c.kind ? 0 : -ENOMEM;
    for (size_t i = 0; r >= 0 && i < VG_COUNT(folders) * VG_COUNT(ends); i++) {
        glob_t g = {0};
        snprintf(pattern, sizeof(pattern), "%s%s/%s", root, folders[i / 2], ends[i % 2]);
        if (glob(pattern, 0, NULL, &g) == GLOB_NOSPACE)
            r = -ENOMEM;
        for (size_t k = 0; r != -ENOMEM && k < g.gl_pathc; k++) {
            size_t before = c.n_devices;
            r = load_one(&c, g.gl_pathv[k], err);
            read += c.n_devices > before;
        }
        globfree(&g);
        r = r == -ENOMEM ? r : 0;
    }
    if (r < 0) {
        vg_cdi_done(&c);
        return r;
    }
    *ret = c;
    return read;
}

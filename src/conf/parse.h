#pragma once
/* Inside conf: the parser's state and its value readers. */
#include "conf/conf.h"

#include <yaml.h>

enum key_type {
    TYPE_ADDRESS,
    TYPE_STRING,
    TYPE_NAME,
    TYPE_SIZE,
    TYPE_DURATION,
    TYPE_COUNT,
    TYPE_COUNT32,
    TYPE_MILLI32,
    TYPE_NETWORK,
    TYPE_CLASS,
    TYPE_STRINGS,
    TYPE_PATHS,
    TYPE_LABELS,
    TYPE_ACCESS,
    TYPE_LIMITS,
    TYPE_NODES,
    TYPE_SHAPE,
    TYPE_POOLS,
};

enum section {
    SECTION_top,
    SECTION_access,
    SECTION_limits,
    SECTION_pool,
    SECTION_nodes,
    SECTION_shape,
};

struct key {
    enum section section;
    const char *name;
    enum key_type type;
    size_t offset;
    uint64_t min, max; /* of numbers; of the length of strings */
};

struct parse {
    const char *file;
    yaml_document_t *doc;
    struct vg_err *err;
};

/* "<file>:<line>: <sentence>"; returns the -errno. */
int parse_fail(struct parse *p, const yaml_node_t *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int parse_no_memory(struct parse *p);
/* A piece of somebody's text, short and printable. */
#define SHOWN 80
const char *parse_show(const char *s, char out[static SHOWN]);
/* The scalar's text, or a failure that names the key. The text lives as long as the document. */
int parse_text(struct parse *p, const yaml_node_t *node, const char *key, const char **ret);

/* Reads one value into its place. Sections recurse. */
int parse_value(struct parse *p, const yaml_node_t *node, const struct key *key, void *base);
int parse_section(struct parse *p, const yaml_node_t *node, enum section section, void *base);
int parse_strings(struct parse *p, const yaml_node_t *node, const struct key *key,
                  struct vg_strings *ret);
int parse_labels(struct parse *p, const yaml_node_t *node, const struct key *key,
                 struct vg_labels *ret);
int parse_pools(struct parse *p, const yaml_node_t *node, struct vg_conf *c);

void vg_strings_done(struct vg_strings *l);
void vg_labels_done(struct vg_labels *l);
void vg_pool_conf_done(struct vg_pool_conf *pool);

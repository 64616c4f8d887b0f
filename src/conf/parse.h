#pragma once
/* Inside conf: the parser's state and its value readers. */
#include "conf/conf.h"

#include <yaml.h>

enum key_type {
    TYPE_ADDRESS,
    TYPE_WEB, /* an address, or "off" */
    TYPE_STRING,
    TYPE_NAME,
    TYPE_SIZE,
    TYPE_DURATION,
    TYPE_COUNT,
    TYPE_COUNT32,
    TYPE_MILLI32,
    TYPE_MILLI,
    TYPE_MICRO,
    TYPE_BOOL,
    TYPE_NETWORK,
    TYPE_CLASS,
    TYPE_PLACEMENT,
    TYPE_PREEMPTION,
    TYPE_REPEAT,
    TYPE_CURRENCY,
    TYPE_WHEN,
    TYPE_STRINGS,
    TYPE_PATHS,
    TYPE_LABELS,
    TYPE_ACCESS,
    TYPE_LIMITS,
    TYPE_NODE,
    TYPE_ENV,
    TYPE_SECRETS,
    TYPE_HOOKS,
    TYPE_MAIL,
    TYPE_MAIL_TLS,
    TYPE_NETS,
    TYPE_OIDC,
    TYPE_NODES,
    TYPE_SHAPE,
    TYPE_GPUS,
    TYPE_POOLS,
    TYPE_SCHEDULER,
    TYPE_PRICE,
    TYPE_ENERGY,
    TYPE_AMOUNT,
    TYPE_EACH_USER,
    TYPE_QUEUES,
    TYPE_USERS,
    TYPE_WINDOWS,
    TYPE_RESERVATIONS,
};

enum section {
    SECTION_top,
    SECTION_access,
    SECTION_limits,
    SECTION_env,
    SECTION_secrets,
    SECTION_hooks,
    SECTION_mail,
    SECTION_oidc,
    SECTION_node,
    SECTION_pool,
    SECTION_nodes,
    SECTION_shape,
    SECTION_scheduler,
    SECTION_price,
    SECTION_energy,
    SECTION_queue,
    SECTION_user,
    SECTION_each_user,
    SECTION_amount,
    SECTION_window,
    SECTION_reservation,
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
    struct vg_conf *conf; /* that is being filled */
    int queue;            /* whose keys are being read; -1: none */
    unsigned depth;       /* of queues within queues */
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
int parse_pools(struct parse *p, const yaml_node_t *node);
int parse_queues(struct parse *p, const yaml_node_t *node);
int parse_users(struct parse *p, const yaml_node_t *node);
int parse_windows(struct parse *p, const yaml_node_t *node);
int parse_reservations(struct parse *p, const yaml_node_t *node);
/* A sequence of at most `max`; nothing counts as an empty one. */
int parse_check_list(struct parse *p, const yaml_node_t *node, const char *key, size_t max);
bool parse_is_null(const yaml_node_t *node);
/* Calls `each` for the entries of a list. */
int parse_each(struct parse *p, const yaml_node_t *node, const char *key, size_t max,
               int (*each)(struct parse *p, const yaml_node_t *item));

/* After everything was read: what queues, windows and reservations say of each other and of
   pools. */
int parse_check_queues(struct parse *p);
int parse_check_reservations(struct parse *p);
/* The same with a line of the file in place of a node. */
int parse_fail_line(struct parse *p, unsigned line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

void vg_strings_done(struct vg_strings *l);
void vg_labels_done(struct vg_labels *l);
void vg_pool_conf_done(struct vg_pool_conf *pool);
void vg_queue_conf_done(struct vg_queue_conf *q);
void vg_window_conf_done(struct vg_window_conf *w);
void vg_reservation_conf_done(struct vg_reservation_conf *r);
/* A tenant's policy with everything at its default. */
struct vg_tenant_conf vg_tenant_conf_default(void);

/* The walk over the YAML document: sections by their tables, lists, pools. The document is a graph
   (aliases), but the walk follows the schema, whose depth is fixed, and every list is bounded. */
#include "conf/parse.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/public-addr.h"
#include "base/util.h"

static const struct key keys[] = {
#define KEY(section, name, type, owner, field, min, max) \
    {SECTION_##section, name, TYPE_##type, offsetof(struct owner, field), min, max},
#include "conf/conf-keys.tbl"
#undef KEY
};

static const char *const section_names[] = {
    [SECTION_top] = "the configuration",
    [SECTION_access] = "'access'",
    [SECTION_limits] = "'limits'",
    [SECTION_env] = "'env'",
    [SECTION_node] = "'node'",
    [SECTION_pool] = "a pool",
    [SECTION_nodes] = "'nodes'",
    [SECTION_shape] = "a shape",
    [SECTION_scheduler] = "'scheduler'",
    [SECTION_price] = "a price",
    [SECTION_energy] = "'energy'",
    [SECTION_queue] = "a queue",
    [SECTION_user] = "a user of a queue",
    [SECTION_each_user] = "'each_user'",
    [SECTION_amount] = "an amount",
    [SECTION_window] = "a window",
    [SECTION_reservation] = "a reservation",
    [SECTION_secrets] = "'secrets'",
    [SECTION_hooks] = "'hooks'",
    [SECTION_mail] = "'mail'",
    [SECTION_oidc] = "'oidc'",
};

static int fail_unknown(struct parse *p, const yaml_node_t *at, enum section section,
                        const char *name) {
    const char *names[VG_COUNT(keys)] = {0};
    char shown[SHOWN], list[512];
    size_t n = 0, used = 0;
    for (size_t i = 0; i < VG_COUNT(keys); i++)
        if (keys[i].section == section)
            names[n++] = keys[i].name;
    const char *near = vg_conf_nearest(name, names, n);
    parse_show(name, shown);
    if (near)
        return parse_fail(p, at, "unknown key '%s' in %s; did you mean '%s'?", shown,
                          section_names[section], near);
    for (size_t i = 0; i < n && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, i ? ", %s" : "%s", names[i]);
    return parse_fail(p, at, "unknown key '%s' in %s; the keys there are %s", shown,
                      section_names[section], list);
}

/* *ret_bit: its place in the section, in a word that remembers which keys were seen. */
static const struct key *find_key(enum section section, const char *name, uint64_t *ret_bit) {
    uint64_t bit = 1; /* no section has 64 keys: a shift too far would let a key stand twice */
    for (size_t i = 0; i < VG_COUNT(keys); i++) {
        if (keys[i].section != section)
            continue;
        if (strcmp(keys[i].name, name) == 0) {
            *ret_bit = bit;
            return &keys[i];
        }
        bit <<= 1;
    }
    return NULL;
}

/* Nothing (or null) stands for an empty section. */
bool parse_is_null(const yaml_node_t *node) {
    return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (node->data.scalar.length == 0 || strcmp((char *)node->data.scalar.value, "~") == 0 ||
            strcmp((char *)node->data.scalar.value, "null") == 0);
}

static int read_pair(struct parse *p, const yaml_node_pair_t *pair, enum section section,
                     void *base, uint64_t *seen) {
    const yaml_node_t *k = yaml_document_get_node(p->doc, pair->key);
    const yaml_node_t *v = yaml_document_get_node(p->doc, pair->value);
    const char *name;
    int r = parse_text(p, k, "a key", &name);
    if (r < 0)
        return r;
    uint64_t bit = 0;
    const struct key *key = find_key(section, name, &bit);
    if (!key)
        return fail_unknown(p, k, section, name);
    if (*seen & bit)
        return parse_fail(p, k, "'%s' stands twice in %s; keep one", name, section_names[section]);
    *seen |= bit;
    return parse_value(p, v, key, base);
}

int parse_section(struct parse *p, const yaml_node_t *node, enum section section, void *base) {
    uint64_t seen = 0;
    if (parse_is_null(node))
        return 0;
    if (node->type != YAML_MAPPING_NODE)
        return parse_fail(p, node, "%s must be a mapping of keys to values, like 'key: value'",
                          section_names[section]);
    for (const yaml_node_pair_t *i = node->data.mapping.pairs.start;
         i < node->data.mapping.pairs.top; i++) {
        int r = read_pair(p, i, section, base, &seen);
        if (r < 0)
            return r;
    }
    return 0;
}

static int add_string(struct parse *p, struct vg_strings *l, const char *s) {
    char **item = vg_grow(l->item, &l->cap, l->n + 1, sizeof *item);
    if (!item)
        return parse_no_memory(p);
    l->item = item;
    if (!(item[l->n] = vg_strdup(s)))
        return parse_no_memory(p);
    l->n++;
    return 0;
}

int parse_check_list(struct parse *p, const yaml_node_t *node, const char *key, size_t max) {
    if (node->type != YAML_SEQUENCE_NODE)
        return parse_fail(p, node, "'%s' must be a list, like '%s: [a, b]'", key, key);
    if ((size_t)(node->data.sequence.items.top - node->data.sequence.items.start) > max)
        return parse_fail(p, node, "'%s' has more than %zu entries; shorten the list", key, max);
    return 0;
}

int parse_strings(struct parse *p, const yaml_node_t *node, const struct key *key,
                  struct vg_strings *ret) {
    if (parse_is_null(node))
        return 0;
    int r = parse_check_list(p, node, key->name, VG_CONF_LIST_MAX);
    const yaml_node_item_t *i = r < 0 ? NULL : node->data.sequence.items.start;
    for (; r >= 0 && i < node->data.sequence.items.top; i++) {
        const yaml_node_t *item = yaml_document_get_node(p->doc, *i);
        const char *s;
        r = parse_text(p, item, key->name, &s);
        if (r >= 0 && (strlen(s) < key->min || strlen(s) > key->max))
            r = parse_fail(p, item, "an entry of '%s' is empty or longer than %llu bytes",
                           key->name, (unsigned long long)key->max);
        if (r >= 0 && key->type == TYPE_PATHS && (s[0] != '/' || strstr(s, "/../")))
            r = parse_fail(p, item, "'%s' lists absolute paths without '..', not '%.64s'",
                           key->name, s);
        struct vg_addr_net net;
        if (r >= 0 && key->type == TYPE_NETS && vg_addr_net_parse(s, &net) < 0)
            r = parse_fail(p, item, "'%s' lists addresses and nets, like 10.0.0.0/8, not '%.64s'",
                           key->name, s);
        if (r >= 0)
            r = add_string(p, ret, s);
    }
    return r;
}

static int add_label(struct parse *p, struct vg_labels *l, const char *k, const char *v) {
    struct vg_label *item = vg_grow(l->item, &l->cap, l->n + 1, sizeof *item);
    if (!item)
        return parse_no_memory(p);
    l->item = item;
    item[l->n] = (struct vg_label){vg_strdup(k), vg_strdup(v)};
    l->n++;
    return item[l->n - 1].key && item[l->n - 1].value ? 0 : parse_no_memory(p);
}

int parse_labels(struct parse *p, const yaml_node_t *node, const struct key *key,
                 struct vg_labels *ret) {
    if (parse_is_null(node))
        return 0;
    if (node->type != YAML_MAPPING_NODE)
        return parse_fail(p, node, "'%s' must be a mapping, like '{gpu: a100}'", key->name);
    const yaml_node_pair_t *i = node->data.mapping.pairs.start, *top = node->data.mapping.pairs.top;
    if (top - i > VG_CONF_LIST_MAX)
        return parse_fail(p, node, "'%s' has more than %d entries; shorten it", key->name,
                          VG_CONF_LIST_MAX);
    int r = 0;
    for (; r >= 0 && i < top; i++) {
        const yaml_node_t *k = yaml_document_get_node(p->doc, i->key);
        const char *ks = "", *vs = "";
        r = parse_text(p, k, key->name, &ks);
        if (r >= 0)
            r = parse_text(p, yaml_document_get_node(p->doc, i->value), key->name, &vs);
        if (r >= 0 && (!*ks || strchr(ks, '=') || strlen(ks) > key->max || strlen(vs) > key->max))
            r = parse_fail(p, k, "a label needs a key without '=' of 1 to %llu bytes",
                           (unsigned long long)key->max);
        if (r >= 0)
            r = add_label(p, ret, ks, vs);
    }
    return r;
}

/* What GPUs its class gives: whole ones, or parts of one. */
static int check_class(struct parse *p, const yaml_node_t *at, const struct vg_pool_conf *pool) {
    const char *class = vg_pool_class_name(pool->class);
    const struct vg_res *s = &pool->shape, *m = &pool->max;
    if (vg_pool_class_shares(pool->class) && (s->gpus || m->gpus))
        return parse_fail(
            p, at,
            "pool '%s': class '%s' gives parts of one GPU, so 'gpus' must be below 1, "
            "like 0.5; whole GPUs need class 'dedicated'",
            pool->name, class);
    if (!vg_pool_class_shares(pool->class) && (s->gpu_milli || m->gpu_milli))
        return parse_fail(p, at,
                          "pool '%s': class '%s' gives whole GPUs, so 'gpus' must be a whole "
                          "number; shares of a GPU need class 'shared'",
                          pool->name, class);
    if (pool->gpu_turn_usec && pool->class != VG_CLASS_SHARED)
        return parse_fail(p, at, "pool '%s': 'gpu_turn' is for class 'shared'; its class is '%s'",
                          pool->name, class);
    return 0;
}

static int check_pool(struct parse *p, const yaml_node_t *at, const struct vg_conf *c,
                      const struct vg_pool_conf *pool) {
    if (!pool->name)
        return parse_fail(p, at, "a pool has no name; add 'name: ...'");
    const struct vg_pool_conf *same = vg_conf_pool(c, pool->name);
    if (same)
        return parse_fail(p, at, "pool '%s' stands at line %u already; rename or remove one",
                          pool->name, same->line);
    const struct vg_res *s = &pool->shape, *m = &pool->max;
    const char *over =
        m->cpu_milli && s->cpu_milli > m->cpu_milli   ? "cpus"
        : m->mem_bytes && s->mem_bytes > m->mem_bytes ? "mem"
        : (m->gpus || m->gpu_milli) && s->gpus * 1000 + s->gpu_milli > m->gpus * 1000 + m->gpu_milli
            ? "gpus"
        : m->gpu_mem_bytes && s->gpu_mem_bytes > m->gpu_mem_bytes ? "gpu_mem"
        : m->pids && s->pids > m->pids                            ? "pids"
        : m->disk_bytes && s->disk_bytes > m->disk_bytes          ? "disk"
                                                                  : NULL;
    if (over)
        return parse_fail(p, at, "pool '%s': 'shape' gives more %s than 'max' allows; raise max.%s",
                          pool->name, over, over);
    return check_class(p, at, pool);
}

static int add_pool(struct parse *p, const yaml_node_t *node) {
    struct vg_conf *c = p->conf;
    struct vg_pool_conf pool = {.max_priority = VG_PRIORITY_MAX,
                                .mirror = true,
                                .rdma = true,
                                .line = (unsigned)node->start_mark.line + 1};
    int r = parse_section(p, node, SECTION_pool, &pool);
    if (r >= 0)
        r = check_pool(p, node, c, &pool);
    if (pool.class == VG_CLASS_BARE)
        pool.network = VG_NETWORK_HOST; /* there is no other on a node that is given whole */
    if (r >= 0 && !pool.description && !(pool.description = vg_strdup("")))
        r = parse_no_memory(p);
    struct vg_pool_conf *all =
        r < 0 ? NULL : vg_grow(c->pool, &c->pools_cap, c->n_pools + 1, sizeof *all);
    if (r >= 0 && !all)
        r = parse_no_memory(p);
    if (r < 0) {
        vg_pool_conf_done(&pool);
        return r;
    }
    c->pool = all;
    c->pool[c->n_pools++] = pool;
    return 0;
}

int parse_each(struct parse *p, const yaml_node_t *node, const char *key, size_t max,
               int (*each)(struct parse *p, const yaml_node_t *item)) {
    if (parse_is_null(node))
        return 0;
    int r = parse_check_list(p, node, key, max);
    const yaml_node_item_t *i = r < 0 ? NULL : node->data.sequence.items.start;
    for (; r >= 0 && i < node->data.sequence.items.top; i++)
        r = each(p, yaml_document_get_node(p->doc, *i));
    return r;
}

int parse_pools(struct parse *p, const yaml_node_t *node) {
    return parse_each(p, node, "pools", VG_CONF_POOLS_MAX, add_pool);
}

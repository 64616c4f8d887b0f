/* Single values: text to its type, within its limits, into its place; failures with a remedy. */
#include "conf/parse.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <ctype.h>

int parse_fail(struct parse *p, const yaml_node_t *at, const char *fmt, ...) {
    char text[VG_ERR_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return vg_err_set(p->err, VG_INVALID, "%s:%zu: %s", p->file, at->start_mark.line + 1, text);
}

int parse_fail_line(struct parse *p, unsigned line, const char *fmt, ...) {
    char text[VG_ERR_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return vg_err_set(p->err, VG_INVALID, "%s:%u: %s", p->file, line, text);
}

int parse_no_memory(struct parse *p) {
    return vg_err_sys(p->err, -ENOMEM, "cannot read %s", p->file);
}

const char *parse_show(const char *s, char out[static SHOWN]) {
    size_t i = 0;
    for (; s[i] && i < SHOWN - 4; i++)
        out[i] = isprint((unsigned char)s[i]) ? s[i] : '?';
    if (s[i])
        memcpy(out + i, "...", 3), i += 3;
    out[i] = 0;
    return out;
}

int parse_text(struct parse *p, const yaml_node_t *node, const char *key, const char **ret) {
    if (node->type != YAML_SCALAR_NODE)
        return parse_fail(p, node, "%s must be plain text or a number, not a list or mapping", key);
    const char *s = (const char *)node->data.scalar.value;
    if (strlen(s) != node->data.scalar.length)
        return parse_fail(p, node, "%s holds a zero byte; remove it", key);
    *ret = s;
    return 0;
}

static int fail_value(struct parse *p, const yaml_node_t *node, const struct key *key,
                      const char *s, const char *expected) {
    char shown[SHOWN];
    return parse_fail(p, node, "'%s' is '%s', but must be %s", key->name, parse_show(s, shown),
                      expected);
}

static int put_string(struct parse *p, char **place, const char *s) {
    char *copy = vg_strdup(s);
    if (!copy)
        return parse_no_memory(p);
    free(*place);
    *place = copy;
    return 0;
}

static int read_string(struct parse *p, const yaml_node_t *node, const struct key *key,
                       const char *s, char **place) {
    size_t n = strlen(s);
    if (n < key->min || n > key->max)
        return parse_fail(p, node, "'%s' must be %llu to %llu bytes long", key->name,
                          (unsigned long long)key->min, (unsigned long long)key->max);
    if (key->type == TYPE_NAME && !vg_conf_name_valid(s))
        return fail_value(p, node, key, s,
                          "letters, digits, '.', '_' or '-', beginning with a letter or digit");
    if (key->type == TYPE_ADDRESS || (key->type == TYPE_WEB && strcmp(s, "off") != 0)) {
        const char *colon = strrchr(s, ':');
        uint64_t port;
        if (!colon || colon == s || vg_parse_u64(colon + 1, &port) < 0 || port > 65535)
            return fail_value(p, node, key, s,
                              key->type == TYPE_WEB
                                  ? "HOST:PORT, like 0.0.0.0:7443, or off"
                                  : "HOST:PORT, like 127.0.0.1:7480 or [::]:7480");
    }
    return put_string(p, place, s);
}

static const struct {
    int (*parse)(const char *, uint64_t *);
    const char *expected;
} numbers[] = {
    [TYPE_SIZE] = {vg_parse_size, "a size, like 512M or 8G"},
    [TYPE_DURATION] = {vg_parse_duration, "a duration, like 90s, 30m or 1h30m"},
    [TYPE_COUNT] = {vg_parse_u64, "a whole number"},
    [TYPE_COUNT32] = {vg_parse_u64, "a whole number"},
    [TYPE_MILLI32] = {vg_parse_milli, "a number of CPUs, like 2 or 0.5"},
    [TYPE_MILLI] = {vg_parse_milli, "a number, like 2 or 0.5"},
    [TYPE_MICRO] = {vg_parse_micro, "a price with at most six decimals, like 2.5 or 0.000125"},
};

static void show_number(enum key_type type, uint64_t v, char *out, size_t n) {
    if (type == TYPE_SIZE)
        vg_format_size(v, out, n);
    else if (type == TYPE_DURATION)
        snprintf(out, n, "%gs", (double)v / (double)VG_USEC);
    else if (type == TYPE_MILLI32 || type == TYPE_MILLI)
        snprintf(out, n, "%.12g", (double)v / 1000);
    else if (type == TYPE_MICRO)
        snprintf(out, n, "%.12g", (double)v / 1e6);
    else
        snprintf(out, n, "%llu", (unsigned long long)v);
}

static int read_number(struct parse *p, const yaml_node_t *node, const struct key *key,
                       const char *s, void *place) {
    uint64_t v;
    if (numbers[key->type].parse(s, &v) < 0)
        return fail_value(p, node, key, s, numbers[key->type].expected);
    if (v < key->min || v > key->max) {
        char shown[SHOWN], lo[40], hi[40];
        show_number(key->type, key->min, lo, sizeof lo);
        show_number(key->type, key->max, hi, sizeof hi);
        return parse_fail(p, node, "'%s' is %s, but must be between %s and %s", key->name,
                          parse_show(s, shown), lo, hi);
    }
    if (key->type == TYPE_COUNT32 || key->type == TYPE_MILLI32)
        *(uint32_t *)place = (uint32_t)v;
    else
        *(uint64_t *)place = v;
    return 0;
}

static const char *const networks[] = {
    [VG_NETWORK_NAT] = "nat",
    [VG_NETWORK_HOST] = "host",
    [VG_NETWORK_NONE] = "none",
};
static const char *const mail_ways[] = {
    [VG_MAIL_STARTTLS] = "starttls",
    [VG_MAIL_TLS] = "tls",
    [VG_MAIL_PLAIN] = "none",
};
static const struct {
    const char *name;
    bool shares;
    const char *domain;
} classes[VG_CLASSES] = {
    [VG_CLASS_DEDICATED] = {"dedicated", false, "own card; shared kernel and driver"},
    [VG_CLASS_SHARED] = {"shared", true, "own context; shared card, kernel and driver"},
    [VG_CLASS_MPS] = {"mps", true, "one context for all on the card"},
    [VG_CLASS_MIG] = {"mig", false, "own part of a card; shared kernel and driver"},
    [VG_CLASS_BARE] = {"bare-metal", false, "own node"},
};

const char *vg_network_name(enum vg_network n) {
    return (unsigned)n < VG_COUNT(networks) ? networks[n] : "?";
}

const char *vg_pool_class_name(enum vg_pool_class c) {
    return (unsigned)c < VG_COUNT(classes) ? classes[c].name : "?";
}

int vg_pool_class_parse(const char *name, enum vg_pool_class *ret) {
    for (unsigned i = 0; i < VG_COUNT(classes); i++)
        if (strcmp(name, classes[i].name) == 0) {
            *ret = (enum vg_pool_class)i;
            return 0;
        }
    return -EINVAL;
}

bool vg_pool_class_shares(enum vg_pool_class c) {
    return (unsigned)c < VG_COUNT(classes) && classes[c].shares;
}

const char *vg_pool_class_domain(enum vg_pool_class c) {
    return (unsigned)c < VG_COUNT(classes) ? classes[c].domain : "?";
}

/* "dedicated, shared or mps": those that a file may name. Returns out. */
static char *class_names(char *out, size_t n) {
    size_t at = 0;
    out[0] = 0;
    for (unsigned i = 0; i < VG_COUNT(classes) && at < n; i++) {
        size_t left = VG_COUNT(classes) - i;
        at += (size_t)snprintf(out + at, n - at, "%s%s", classes[i].name,
                               left > 2    ? ", "
                               : left == 2 ? " or "
                                           : "");
    }
    return out;
}

static const char *const placements[] = {
    [VG_PLACE_LEAST_STRANDED] = "least-stranded",
    [VG_PLACE_BEST_FIT] = "best-fit",
    [VG_PLACE_SPREAD] = "spread",
};
static const char *const preemptions[] = {
    [VG_PREEMPT_NO] = "no",
    [VG_PREEMPT_AGREED] = "agreed",
    [VG_PREEMPT_YES] = "yes",
};
static const char *const repeats[] = {
    [VG_REPEAT_ONCE] = "once",
    [VG_REPEAT_DAILY] = "daily",
    [VG_REPEAT_WEEKLY] = "weekly",
};

const char *vg_placement_name(enum vg_placement p) {
    return (unsigned)p < VG_COUNT(placements) ? placements[p] : "?";
}

const char *vg_preemption_name(enum vg_preemption p) {
    return (unsigned)p < VG_COUNT(preemptions) ? preemptions[p] : "?";
}

/* The place of a word in a short list of words; *place is an enum. */
static int read_word(struct parse *p, const yaml_node_t *node, const struct key *key, const char *s,
                     const char *const *words, unsigned n, const char *expected, unsigned *place) {
    for (unsigned i = 0; i < n; i++)
        if (strcmp(s, words[i]) == 0) {
            *place = i;
            return 0;
        }
    return fail_value(p, node, key, s, expected);
}

static int read_bool(struct parse *p, const yaml_node_t *node, const struct key *key, const char *s,
                     void *place) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (unsigned i = 0; i < VG_COUNT(words); i++)
        if (strcmp(s, words[i]) == 0) {
            *(unsigned char *)place = i % 2; /* a bool or an int8_t */
            return 0;
        }
    return fail_value(p, node, key, s, "yes or no");
}

/* As it is printed behind amounts of money. */
static int read_currency(struct parse *p, const yaml_node_t *node, const struct key *key,
                         const char *s, char **place) {
    size_t n = strlen(s);
    bool good = n >= key->min && n <= key->max;
    for (size_t i = 0; i < n; i++)
        good = good && isalpha((unsigned char)s[i]);
    return good ? put_string(p, place, s)
                : fail_value(p, node, key, s, "a name of 1 to 8 letters, like EUR");
}

static int read_when(struct parse *p, const yaml_node_t *node, const struct key *key, const char *s,
                     struct vg_when *place) {
    if (vg_parse_when(s, place) < 0)
        return fail_value(p, node, key, s,
                          "a date and time, like '2026-12-01 02:00' or '2026-12-01T02:00Z'");
    return 0;
}

static int read_class(struct parse *p, const yaml_node_t *node, const struct key *key,
                      const char *s, enum vg_pool_class *place) {
    enum vg_pool_class c;
    char names[96];
    if (vg_pool_class_parse(s, &c) < 0)
        return fail_value(p, node, key, s, class_names(names, sizeof names));
    *place = c;
    return 0;
}

static int read_scalar(struct parse *p, const yaml_node_t *node, const struct key *key,
                       void *place) {
    char name[64];
    const char *s;
    snprintf(name, sizeof name, "'%s'", key->name);
    int r = parse_text(p, node, name, &s);
    if (r < 0)
        return r;
    switch (key->type) {
    case TYPE_ADDRESS:
    case TYPE_WEB:
    case TYPE_STRING:
    case TYPE_NAME:
        return read_string(p, node, key, s, place);
    case TYPE_NETWORK:
        return read_word(p, node, key, s, networks, VG_COUNT(networks), "nat, host or none", place);
    case TYPE_MAIL_TLS:
        return read_word(p, node, key, s, mail_ways, VG_COUNT(mail_ways), "starttls, tls or none",
                         place);
    case TYPE_PLACEMENT:
        return read_word(p, node, key, s, placements, VG_COUNT(placements),
                         "least-stranded, best-fit or spread", place);
    case TYPE_PREEMPTION:
        return read_word(p, node, key, s, preemptions, VG_COUNT(preemptions), "no, agreed or yes",
                         place);
    case TYPE_REPEAT:
        return read_word(p, node, key, s, repeats, VG_COUNT(repeats), "once, daily or weekly",
                         place);
    case TYPE_BOOL:
        return read_bool(p, node, key, s, place);
    case TYPE_CURRENCY:
        return read_currency(p, node, key, s, place);
    case TYPE_WHEN:
        return read_when(p, node, key, s, place);
    case TYPE_CLASS:
        return read_class(p, node, key, s, place);
    default:
        return read_number(p, node, key, s, place);
    }
}

/* Whole GPUs, or a share of one: never both. */
static int read_gpus(struct parse *p, const yaml_node_t *node, const struct key *key,
                     struct vg_res *res) {
    const char *s;
    uint64_t milli;
    int r = parse_text(p, node, "'gpus'", &s);
    if (r < 0)
        return r;
    if (vg_parse_milli(s, &milli) < 0 || (milli > 1000 && milli % 1000))
        return fail_value(p, node, key, s, "a whole number, or a share of one GPU like 0.25");
    if (milli / 1000 > key->max)
        return parse_fail(p, node, "'gpus' is %s, but must be between 0 and %llu", s,
                          (unsigned long long)key->max);
    res->gpus = (uint32_t)(milli / 1000);
    res->gpu_milli = (uint32_t)(milli % 1000);
    return 0;
}

int parse_value(struct parse *p, const yaml_node_t *node, const struct key *key, void *base) {
    void *place = (char *)base + key->offset;
    switch (key->type) {
    case TYPE_STRINGS:
    case TYPE_PATHS:
    case TYPE_NETS:
        return parse_strings(p, node, key, place);
    case TYPE_LABELS:
        return parse_labels(p, node, key, place);
    case TYPE_ACCESS:
        return parse_section(p, node, SECTION_access, base);
    case TYPE_LIMITS:
        return parse_section(p, node, SECTION_limits, base);
    case TYPE_ENV:
        return parse_section(p, node, SECTION_env, base);
    case TYPE_SECRETS:
        return parse_section(p, node, SECTION_secrets, base);
    case TYPE_HOOKS:
        return parse_section(p, node, SECTION_hooks, base);
    case TYPE_MAIL:
        return parse_section(p, node, SECTION_mail, base);
    case TYPE_OIDC:
        return parse_section(p, node, SECTION_oidc, base);
    case TYPE_NODE:
        return parse_section(p, node, SECTION_node, base);
    case TYPE_NODES:
        return parse_section(p, node, SECTION_nodes, place);
    case TYPE_SHAPE:
        return parse_section(p, node, SECTION_shape, place);
    case TYPE_GPUS:
        return read_gpus(p, node, key, base);
    case TYPE_POOLS:
        return parse_pools(p, node);
    case TYPE_SCHEDULER:
        return parse_section(p, node, SECTION_scheduler, place);
    case TYPE_PRICE:
        return parse_section(p, node, SECTION_price, place);
    case TYPE_ENERGY:
        return parse_section(p, node, SECTION_energy, place);
    case TYPE_AMOUNT:
        return parse_section(p, node, SECTION_amount, place);
    case TYPE_EACH_USER:
        return parse_section(p, node, SECTION_each_user, place);
    case TYPE_QUEUES:
        return parse_queues(p, node);
    case TYPE_USERS:
        return parse_users(p, node);
    case TYPE_WINDOWS:
        return parse_windows(p, node);
    case TYPE_RESERVATIONS:
        return parse_reservations(p, node);
    default:
        return read_scalar(p, node, key, place);
    }
}

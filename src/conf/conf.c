/* Loading: file, YAML document, defaults for what was not said, checks across keys. */
#include "conf/conf.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "conf/parse.h"

static void set_numbers(struct vg_conf *c) {
    c->limits.log_head_bytes = 8u << 20;
    c->limits.log_tail_bytes =
        1u << 20; /* the keeper holds this in memory: it should fit a cache */
    c->limits.tasks = 1000000;
    c->limits.user_tasks = 250000;
    c->limits.changes_usec = 30ULL * 86400 * VG_USEC;
    c->limits.web_rate = 500;
    c->limits.web_burst = 2000;
    c->limits.history_usec = 30ULL * 86400 * VG_USEC;
    c->hooks.retry_usec = 5 * VG_USEC;
    c->hooks.give_up_usec = 86400 * VG_USEC;
    c->hooks.pause_usec = 3ULL * 86400 * VG_USEC;
    c->lease_usec = 60 * VG_USEC;
    c->node_cert_usec = 86400 * VG_USEC;
    c->energy.pue_milli = 1000;
    c->scheduler = (struct vg_scheduler_conf){.half_life_usec = 7 * 86400 * VG_USEC,
                                              .backfill = 2,
                                              .preemption = VG_PREEMPT_UNSAID,
                                              .min_run_usec = 300 * VG_USEC,
                                              .grace_usec = 30 * VG_USEC,
                                              .gang_timeout_usec = 60 * VG_USEC};
}

/* A guarantee is worth something only if it can be taken back from others. */
static enum vg_preemption usual_preemption(const struct vg_conf *c) {
    for (size_t i = 0; i < c->n_queues; i++) {
        const struct vg_amount *q = &c->queue[i].self.quota, *u = &c->queue[i].each_user.quota;
        if (q->gpu_milli || q->cpu_milli || q->mem_bytes || u->gpu_milli || u->cpu_milli ||
            u->mem_bytes)
            return VG_PREEMPT_YES;
    }
    return VG_PREEMPT_AGREED;
}

/* What the file left open. */
static int fill(struct vg_conf *c) {
    if (!c->listen && !(c->listen = vg_strdup("127.0.0.1:0")))
        return -ENOMEM;
    if (!c->advertise && !(c->advertise = vg_strdup("")))
        return -ENOMEM;
    if (!c->metrics && !(c->metrics = vg_strdup("")))
        return -ENOMEM;
    if (!c->web && !(c->web = vg_strdup("")))
        return -ENOMEM;
    if (!c->web_cert && !(c->web_cert = vg_strdup("")))
        return -ENOMEM;
    if (!c->web_key && !(c->web_key = vg_strdup("")))
        return -ENOMEM;
    if (!c->currency && !(c->currency = vg_strdup("USD")))
        return -ENOMEM;
    if (c->scheduler.preemption == VG_PREEMPT_UNSAID)
        c->scheduler.preemption = usual_preemption(c);
    if (!c->heartbeat_usec)
        c->heartbeat_usec = VG_MIN(c->lease_usec / 6, 10 * VG_USEC);
    if (!c->n_pools) {
        struct vg_pool_conf *p = vg_grow(c->pool, &c->pools_cap, 1, sizeof *p);
        if (!p)
            return -ENOMEM;
        c->pool = p;
        *p = (struct vg_pool_conf){.name = vg_strdup("default"),
                                   .description = vg_strdup("every node, nothing reserved"),
                                   .max_priority = VG_PRIORITY_MAX,
                                   .mirror = true,
                                   .rdma = true};
        c->n_pools = 1;
        if (!p->name || !p->description)
            return -ENOMEM;
    }
    if (!c->default_pool && !(c->default_pool = vg_strdup(c->pool[0].name)))
        return -ENOMEM;
    return 0;
}

int vg_conf_default(struct vg_conf *ret) {
    struct vg_conf c = {0};
    set_numbers(&c);
    if (fill(&c) < 0) {
        vg_conf_done(&c);
        *ret = (struct vg_conf){0};
        return -ENOMEM;
    }
    *ret = c;
    return 0;
}

static int check_store(struct parse *p, const yaml_node_t *root, const struct vg_conf *c) {
    if (c->env.store && *c->env.store && strncmp(c->env.store, "s3://", 5) != 0)
        return parse_fail(p, root,
                          "'env.store' is '%s': write s3://BUCKET/PREFIX, or leave it out to keep "
                          "environments in virgad's own folder",
                          c->env.store);
    if (c->env.endpoint && *c->env.endpoint && strncmp(c->env.endpoint, "https://", 8) != 0 &&
        strncmp(c->env.endpoint, "http://", 7) != 0)
        return parse_fail(p, root, "'env.endpoint' is '%s': write https://HOST or http://HOST",
                          c->env.endpoint);
    return 0;
}

/* An address as SMTP takes it: no name, no brackets. */
static bool is_mail_address(const char *s) {
    const char *at = strchr(s, '@');
    return at && at != s && at[1] && !strpbrk(s, " \t\r\n<>,\"");
}

static int check_mail(struct parse *p, const yaml_node_t *root, const struct vg_conf *c) {
    if (c->mail.server && !c->mail.from)
        return parse_fail(p, root, "'mail' needs 'from', the address that mail comes from");
    if (c->mail.from && !is_mail_address(c->mail.from))
        return parse_fail(p, root, "'mail.from' is '%.64s': write an address like gpu@example.org",
                          c->mail.from);
    if (!c->mail.user != !c->mail.password_file)
        return parse_fail(p, root, "'mail.user' and 'mail.password_file' go together; give both");
    if (c->mail.user && c->mail.tls == VG_MAIL_PLAIN)
        return parse_fail(
            p, root,
            "'mail.tls' is none, so the password would be sent readable; use starttls "
            "or tls, or leave 'user' out");
    return 0;
}

static bool is_near(const char *url) {
    static const char *const near[] = {"http://127.0.0.1", "http://localhost", "http://[::1]"};
    for (size_t i = 0; i < VG_COUNT(near); i++) {
        size_t n = strlen(near[i]);
        if (strncmp(url, near[i], n) == 0 && (!url[n] || url[n] == ':' || url[n] == '/'))
            return true;
    }
    return false;
}

static int check_oidc(struct parse *p, const yaml_node_t *root, const struct vg_conf *c) {
    static const char *const roles[] = {"admin", "lead", "member", "viewer"};
    const char *issuer = c->oidc.issuer;
    if (!issuer && (c->oidc.client_id || c->oidc.secret_file || c->oidc.teams.n))
        return parse_fail(p, root,
                          "'oidc' needs an 'issuer': the address of the identity provider");
    if (!issuer)
        return 0;
    if (strncmp(issuer, "https://", 8) != 0 && !is_near(issuer))
        return parse_fail(p, root, "'oidc.issuer' is '%s': write https://HOST/PATH", issuer);
    if (!c->oidc.client_id)
        return parse_fail(p, root,
                          "'oidc' needs a 'client_id': as the identity provider calls this cloud");
    for (size_t i = 0; i < c->oidc.roles.n; i++) {
        bool known = false;
        for (size_t k = 0; k < VG_COUNT(roles); k++)
            known |= strcmp(c->oidc.roles.item[i].value, roles[k]) == 0;
        if (!known)
            return parse_fail(p, root,
                              "'oidc.roles' gives '%s' the role '%s'; choose admin, lead, member "
                              "or viewer",
                              c->oidc.roles.item[i].key, c->oidc.roles.item[i].value);
    }
    return 0;
}

static int check_whole(struct parse *p, const yaml_node_t *root, const struct vg_conf *c) {
    if (check_store(p, root, c) < 0 || check_mail(p, root, c) < 0 || check_oidc(p, root, c) < 0)
        return p->err->code;
    if (c->heartbeat_usec * 3 > c->lease_usec)
        return parse_fail(
            p, root, "'heartbeat' must be at most a third of 'lease'; lower it or raise 'lease'");
    if (vg_conf_pool(c, c->default_pool)) {
        int r = parse_check_queues(p);
        return r < 0 ? r : parse_check_reservations(p);
    }
    const char *names[VG_CONF_POOLS_MAX];
    for (size_t i = 0; i < c->n_pools; i++)
        names[i] = c->pool[i].name;
    const char *near = vg_conf_nearest(c->default_pool, names, c->n_pools);
    return parse_fail(p, root, "'default_pool' names '%s', which is not among 'pools'; use '%s'",
                      c->default_pool, near ? near : c->pool[0].name);
}

static int read_document(struct parse *p, struct vg_conf *c) {
    const yaml_node_t *root = yaml_document_get_root_node(p->doc);
    set_numbers(c);
    int r = root ? parse_section(p, root, SECTION_top, c) : 0;
    if (r < 0)
        return r;
    if (fill(c) < 0)
        return parse_no_memory(p);
    return root ? check_whole(p, root, c) : 0;
}

static int fail_yaml(const yaml_parser_t *y, const char *name, struct vg_err *err) {
    if (y->error == YAML_MEMORY_ERROR)
        return vg_err_sys(err, -ENOMEM, "cannot read %s", name);
    size_t line = y->error == YAML_READER_ERROR ? y->mark.line : y->problem_mark.line;
    return vg_err_set(err, VG_INVALID, "%s:%zu: not valid YAML: %s; check indentation and quotes",
                      name, line + 1, y->problem ? y->problem : "unreadable text");
}

static int parse_open(yaml_parser_t *y, const char *name, struct vg_conf *c, struct vg_err *err) {
    yaml_document_t doc, more;
    if (!yaml_parser_load(y, &doc))
        return fail_yaml(y, name, err);
    struct parse p = {.file = name, .doc = &doc, .err = err, .conf = c, .queue = -1};
    int r = read_document(&p, c);
    if (r >= 0 && yaml_document_get_root_node(&doc)) {
        if (!yaml_parser_load(y, &more)) {
            r = fail_yaml(y, name, err);
        } else {
            const yaml_node_t *again = yaml_document_get_root_node(&more);
            if (again)
                r = parse_fail(&p, again, "a second document begins here; keep one a file");
            yaml_document_delete(&more);
        }
    }
    yaml_document_delete(&doc);
    return r;
}

int vg_conf_parse(const char *text, size_t len, const char *name, struct vg_conf *ret,
                  struct vg_err *err) {
    yaml_parser_t y;
    struct vg_conf c = {0};
    if (len > VG_CONF_BYTES_MAX)
        return vg_err_set(err, VG_TOO_BIG, "%s is larger than %u bytes; shorten it", name,
                          VG_CONF_BYTES_MAX);
    if (vg_fault("alloc") < 0 || !yaml_parser_initialize(&y))
        return vg_err_sys(err, -ENOMEM, "cannot read %s", name);
    yaml_parser_set_input_string(&y, (const unsigned char *)text, len);
    int r = parse_open(&y, name, &c, err);
    yaml_parser_delete(&y);
    if (r < 0) {
        vg_conf_done(&c);
        return r;
    }
    *ret = c;
    return 0;
}

int vg_conf_load(const char *path, struct vg_conf *ret, struct vg_err *err) {
    vg_auto_free char *text = NULL;
    size_t len = 0;
    int r = vg_read_file(path, VG_CONF_BYTES_MAX, &text, &len);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read the configuration %s", path);
    return vg_conf_parse(text, len, path, ret, err);
}

const struct vg_pool_conf *vg_conf_pool(const struct vg_conf *c, const char *name) {
    for (size_t i = 0; i < c->n_pools; i++)
        if (c->pool[i].name && strcmp(c->pool[i].name, name) == 0)
            return &c->pool[i];
    return NULL;
}

void vg_strings_done(struct vg_strings *l) {
    for (size_t i = 0; i < l->n; i++)
        free(l->item[i]);
    free(l->item);
    *l = (struct vg_strings){0};
}

void vg_labels_done(struct vg_labels *l) {
    for (size_t i = 0; i < l->n; i++) {
        free(l->item[i].key);
        free(l->item[i].value);
    }
    free(l->item);
    *l = (struct vg_labels){0};
}

void vg_pool_conf_done(struct vg_pool_conf *pool) {
    free(pool->name);
    free(pool->description);
    vg_labels_done(&pool->nodes);
    vg_strings_done(&pool->shared);
    vg_strings_done(&pool->model);
    vg_strings_done(&pool->idle_exempt);
    *pool = (struct vg_pool_conf){0};
}

void vg_conf_done(struct vg_conf *c) {
    free(c->listen);
    free(c->advertise);
    free(c->metrics);
    free(c->web);
    free(c->web_cert);
    free(c->web_key);
    free(c->default_pool);
    vg_strings_done(&c->access.groups);
    vg_strings_done(&c->access.users);
    vg_strings_done(&c->node.libraries);
    vg_strings_done(&c->secrets.key_command);
    vg_strings_done(&c->oidc.scopes);
    vg_labels_done(&c->oidc.teams);
    vg_labels_done(&c->oidc.roles);
    free(c->oidc.issuer);
    free(c->oidc.client_id);
    free(c->oidc.secret_file);
    free(c->oidc.name);
    free(c->oidc.ca);
    free(c->oidc.user_claim);
    free(c->oidc.group_claim);
    free(c->env.store);
    free(c->env.endpoint);
    free(c->env.region);
    free(c->env.credentials);
    free(c->env.ca);
    vg_strings_done(&c->hooks.allow);
    free(c->hooks.proxy);
    free(c->hooks.ca);
    free(c->mail.server);
    free(c->mail.from);
    free(c->mail.user);
    free(c->mail.password_file);
    free(c->mail.ca);
    for (size_t i = 0; i < c->n_pools; i++)
        vg_pool_conf_done(&c->pool[i]);
    free(c->pool);
    for (size_t i = 0; i < c->n_queues; i++)
        vg_queue_conf_done(&c->queue[i]);
    free(c->queue);
    for (size_t i = 0; i < c->n_windows; i++)
        vg_window_conf_done(&c->window[i]);
    free(c->window);
    for (size_t i = 0; i < c->n_reservations; i++)
        vg_reservation_conf_done(&c->reservation[i]);
    free(c->reservation);
    free(c->currency);
    *c = (struct vg_conf){0};
}

/* Who a peer is. What always holds: identity numbers (uid, gid, groups) come from the kernel or
   from a user record, never from what a client says. */
#include "control/who.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/job.h"
#include "control/keys.h"
#include "control/nodes.h"
#include "control/peer.h"
#include "control/users.h"

#include <grp.h>
#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define ACCOUNT_FRESH_USEC (60 * VG_USEC)

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

int vg_who_from_socket(int fd, struct vg_who *ret) {
    struct ucred cred;
    socklen_t n = sizeof cred;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
        return -errno;
    *ret = (struct vg_who){.local = true, .uid = cred.uid, .gid = cred.gid, .from = "local"};
    uint32_t groups[VG_WHO_GROUPS_MAX];
    n = sizeof groups;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &n) < 0 || n == 0)
        return 0;
    ret->groups = vg_memdup(groups, n);
    if (!ret->groups)
        return -ENOMEM;
    ret->n_groups = n / sizeof groups[0];
    return 0;
}

void vg_who_from_address(int fd, struct vg_who *ret) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getpeername(fd, (struct sockaddr *)&a, &n) < 0 ||
        getnameinfo((struct sockaddr *)&a, n, ret->from, sizeof ret->from, NULL, 0,
                    NI_NUMERICHOST) != 0)
        snprintf(ret->from, sizeof ret->from, "unknown");
}

void vg_who_done(struct vg_who *w) {
    free(w->groups);
    *w = (struct vg_who){0};
}

/* ------------------------------------------------------------------ accounts */

void vg_account_free(struct vg_account *a) {
    if (!a)
        return;
    for (size_t i = 0; i < a->groups.n; i++)
        free(a->groups.item[i]);
    free(a->groups.item);
    free(a->name);
    free(a->home);
    free(a);
}

static void read_groups(struct vg_account *a) {
    gid_t gids[VG_WHO_GROUPS_MAX];
    int n = VG_WHO_GROUPS_MAX;
    if (getgrouplist(a->name, a->gid, gids, &n) < 0)
        n = VG_WHO_GROUPS_MAX;
    a->groups.item = vg_alloc(sizeof(char *) * (size_t)n);
    for (int i = 0; a->groups.item && i < n; i++) {
        struct group *g = getgrgid(gids[i]);
        char *name = g ? vg_strdup(g->gr_name) : NULL;
        if (name)
            a->groups.item[a->groups.n++] = name;
    }
}

static struct vg_account *account_read(uid_t uid) {
    struct passwd *pw = getpwuid(uid);
    if (!pw)
        return NULL;
    struct vg_account *a = vg_alloc(sizeof *a);
    if (!a)
        return NULL;
    a->uid = uid;
    a->gid = pw->pw_gid;
    a->name = vg_strdup(pw->pw_name);
    a->home = vg_strdup(pw->pw_dir);
    a->read_usec = vg_now_usec();
    if (!a->name || !a->home) {
        vg_account_free(a);
        return NULL;
    }
    read_groups(a);
    return a;
}

const struct vg_account *vg_account_get(struct vg_control *c, uid_t uid) {
    struct vg_account *a = vg_map_get_u64(&c->accounts, (uint64_t)uid + 1);
    if (a && vg_now_usec() - a->read_usec < ACCOUNT_FRESH_USEC)
        return a;
    if (a)
        vg_map_del_u64(&c->accounts, (uint64_t)uid + 1);
    vg_account_free(a);
    a = account_read(uid);
    if (a && vg_map_put_u64(&c->accounts, (uint64_t)uid + 1, a) < 0) {
        vg_account_free(a);
        return NULL;
    }
    return a;
}

/* ------------------------------------------------------------------ decisions */

static bool listed(const struct vg_strings *list, const char *name) {
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->item[i], name) == 0)
            return true;
    return false;
}

enum vg_entry vg_who_decide(const struct vg_conf *conf, const struct vg_tenants *tenants,
                            const struct vg_account *account, uid_t own_uid) {
    if (account->uid == 0 || account->uid == own_uid)
        return VG_ENTRY_ADMIN;
    if (vg_tenants_by_uid(tenants, account->uid))
        return VG_ENTRY_USER;
    if (listed(&conf->access.users, account->name))
        return VG_ENTRY_ACCESS;
    for (size_t i = 0; i < account->groups.n; i++)
        if (listed(&conf->access.groups, account->groups.item[i]))
            return VG_ENTRY_ACCESS;
    return VG_ENTRY_NO;
}

static void set_user(struct vg_who *w, const char *name) {
    snprintf(w->user, sizeof w->user, "%s", name);
}

static int refuse_local(const struct vg_account *a, struct vg_err *err) {
    return vg_err_set(err, VG_FORBIDDEN,
                      "user '%s' may not use this cloud: ask its administrator to run 'virga user "
                      "add %s --uid %u' or to list one of your groups under access.groups in "
                      "config.yaml",
                      a->name, a->name, (unsigned)a->uid);
}

/* A local account without a token. */
static int settle_local(struct vg_control *c, struct vg_who *w, struct vg_err *err) {
    const struct vg_account *a = vg_account_get(c, w->uid);
    struct vg_account nameless = {.uid = w->uid, .gid = w->gid};
    char name[24];
    if (!a) { /* a uid without a passwd entry: containers have them */
        snprintf(name, sizeof name, "uid-%u", (unsigned)w->uid);
        nameless.name = name;
        a = &nameless;
    }
    enum vg_entry entry = vg_who_decide(&c->conf, &c->tenants, a, geteuid());
    if (entry == VG_ENTRY_NO)
        return refuse_local(a, err);
    w->admin = entry == VG_ENTRY_ADMIN;
    w->scope = VG_SCOPE_ALL;
    struct vg_user *u = NULL;
    int r = vg_users_for_account(c, a, w->admin, &u, err);
    if (r >= 0 && u->disabled)
        r = vg_users_say_disabled(u, err);
    if (r >= 0)
        set_user(w, u->name);
    return r;
}

/* A client inside a task speaks for the task's owner, as the same ids of the same machine. */
static int settle_nested(struct vg_control *c, struct vg_peer *p, const char *token,
                         struct vg_err *err) {
    uint64_t task = 0;
    struct vg_job *j = NULL;
    if (vg_task_token_parse(token, &task) == 0)
        j = vg_job_get(c, task);
    if (!j || !p->nested_node || j->task->attempt.node != p->nested_node ||
        vg_task_token_check(c->ca.task_key, token, task, j->task->who) < 0)
        return vg_err_set(err, VG_UNAUTHENTICATED,
                          "the task's token is valid only inside its task while that runs");
    const Vg__Pb__Identity *id = j->task->who;
    vg_who_done(&p->who);
    p->who = (struct vg_who){
        .parent = task, .uid = 65534, .gid = 65534, .scope = VG_SCOPE_READ | VG_SCOPE_RUN};
    snprintf(p->who.from, sizeof p->who.from, "task %016llx", (unsigned long long)task);
    set_user(&p->who, j->task->user);
    if (!id)
        return 0;
    const struct vg_nodelink *node = vg_nodelink_get(c, p->nested_node);
    p->who.local = id->local && node && node->local; /* of this machine, not of another's word */
    p->who.uid = id->uid;
    p->who.gid = id->gid;
    if (id->n_groups)
        p->who.groups = vg_memdup(id->groups, id->n_groups * sizeof id->groups[0]);
    p->who.n_groups = p->who.groups ? id->n_groups : 0;
    return 0;
}

static int settle_token(struct vg_control *c, struct vg_peer *p, const char *token,
                        struct vg_err *err) {
    const struct vg_apikey *key = NULL;
    int r = vg_key_check(c, token, &key, err);
    if (r < 0)
        return r;
    const char *user = key->user;
    struct vg_user *u = vg_tenants_user(&c->tenants, user);
    if (!u)
        return vg_err_set(err, VG_UNAUTHENTICATED, "the token's user '%s' is gone", user);
    if (u->disabled)
        return vg_users_say_disabled(u, err);
    set_user(&p->who, user);
    p->who.scope = key->scope;
    snprintf(p->who.key, sizeof p->who.key, "%s", key->id);
    if (!p->unix_socket) {
        p->who.uid = u->uid >= 0 ? (uid_t)u->uid : 65534;
        p->who.gid = u->uid >= 0 && u->gid >= 0 ? (gid_t)u->gid : 65534;
    }
    return 0;
}

int vg_who_settle(struct vg_control *c, struct vg_peer *p, const char *token, struct vg_err *err) {
    if (token && strncmp(token, "vgk_", 4) == 0)
        return settle_nested(c, p, token, err);
    if (p->nested_node)
        return vg_err_set(err, VG_UNAUTHENTICATED,
                          "a client inside a task must present the task's token (VIRGA_TOKEN)");
    if (token && *token)
        return settle_token(c, p, token, err);
    if (p->unix_socket)
        return settle_local(c, &p->who, err);
    return vg_err_set(err, VG_UNAUTHENTICATED,
                      "this cloud wants an API token: ask its administrator for one ('virga token "
                      "create --user NAME') and log in with 'virga login'");
}

/* API tokens: checked against the hash in memory, used times written behind. */
#include "control/keys.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/peer.h"

#include <stdio.h>
#include <string.h>

#define USED_STEP_USEC (60 * VG_USEC) /* how exactly the last use is kept */

static int key_judge(const struct vg_apikey *k, struct vg_err *err) {
    if (!k)
        return vg_err_set(err, VG_UNAUTHENTICATED,
                          "the token is not valid on this cloud: it was revoked or belongs to "
                          "another; make a new one with 'virga token create'");
    if (k->expires_usec && vg_wall_usec() >= k->expires_usec)
        return vg_err_set(err, VG_UNAUTHENTICATED,
                          "the token has expired: make a new one with 'virga token create'");
    return 0;
}

int vg_key_still_good(struct vg_control *c, const char *id, struct vg_err *err) {
    return key_judge(vg_map_get(&c->keys, id), err);
}

int vg_key_check(struct vg_control *c, const char *text, const struct vg_apikey **ret,
                 struct vg_err *err) {
    struct vg_token t;
    if (vg_token_parse(text, &t) < 0 || strcmp(t.prefix, "vgt") != 0)
        return vg_err_set(err, VG_UNAUTHENTICATED,
                          "this is not an API token: it begins with 'vgt_' and is shown once by "
                          "'virga token create'");
    struct vg_apikey *k = vg_map_get(&c->keys, t.id);
    int r = key_judge(k && vg_token_check(&t, k->hash) >= 0 ? k : NULL, err);
    if (r < 0)
        return r;
    uint64_t now = vg_wall_usec();
    if (now > k->used_usec + USED_STEP_USEC) {
        k->used_usec = now;
        vg_store_touch_token(c->store, k->id, now);
    }
    *ret = k;
    return 0;
}

static void key_free(struct vg_apikey *k) {
    if (!k)
        return;
    free(k->user);
    free(k->name);
    free(k);
}

int vg_key_add(struct vg_control *c, const struct vg_token_row *row) {
    struct vg_apikey *k = vg_alloc(sizeof *k);
    if (!k || strlen(row->id) >= sizeof k->id || row->hash.len != sizeof k->hash) {
        free(k);
        return k ? -EINVAL : -ENOMEM;
    }
    memcpy(k->id, row->id, strlen(row->id) + 1);
    memcpy(k->hash, row->hash.data, sizeof k->hash);
    k->user = vg_strdup(row->user);
    k->name = vg_strdup(row->name ? row->name : "");
    k->created_usec = row->created_usec;
    k->expires_usec = row->expires_usec;
    k->used_usec = row->used_usec;
    k->scope = row->scope ? row->scope : VG_SCOPE_ALL;
    if (!k->user || !k->name || vg_map_put(&c->keys, k->id, k) < 0) {
        key_free(k);
        return -ENOMEM;
    }
    return 0;
}

void vg_key_remove(struct vg_control *c, const char *id) {
    key_free(vg_map_del(&c->keys, id));
}

void vg_keys_remove_user(struct vg_control *c, const char *user) {
    vg_map_for_each (s, &c->keys) {
        struct vg_apikey *k = s->value;
        if (strcmp(k->user, user) == 0)
            key_free(vg_map_del(&c->keys, k->id));
    }
}

void vg_key_session_name(const char *key, char out[static VG_KEY_SESSION_MAX]) {
    snprintf(out, VG_KEY_SESSION_MAX, VG_KEY_SESSION "%s%.16s", key ? " " : "", key ? key : "");
}

bool vg_key_is_session(const struct vg_apikey *k) {
    static const char head[] = VG_KEY_SESSION " ";
    return strncmp(k->name, head, sizeof head - 1) == 0 && strlen(k->name) == sizeof head - 1 + 16;
}

void vg_keys_end_sessions(struct vg_control *c, const char *user, const char *key) {
    char name[VG_KEY_SESSION_MAX];
    vg_key_session_name(key, name);
    vg_map_for_each (s, &c->keys) {
        const struct vg_apikey *k = s->value;
        if (strcmp(k->user, user) != 0 || strcmp(k->name, name) != 0)
            continue;
        char id[sizeof k->id];
        memcpy(id, k->id, sizeof id);
        vg_store_del_token(c->store, id, NULL, NULL);
        vg_key_remove(c, id);
        vg_peers_cut(c, user, id, NULL);
    }
}

void vg_keys_drop_over(struct vg_control *c, const char *user) {
    uint64_t now = vg_wall_usec();
    vg_map_for_each (s, &c->keys) {
        const struct vg_apikey *k = s->value;
        if (strcmp(k->user, user) == 0 && k->expires_usec && k->expires_usec < now &&
            vg_store_del_token(c->store, k->id, NULL, NULL) >= 0)
            vg_key_remove(c, k->id);
    }
}

void vg_keys_done(struct vg_control *c) {
    vg_map_for_each (s, &c->keys) {
        key_free(s->value);
    }
    vg_map_done(&c->keys);
}

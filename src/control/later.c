/* Answers that wait for the store; see the header. */
#include "control/later.h"

#include "base/mem.h"
#include "control/keys.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

struct vg_later *vg_later_new(const struct vg_call *call) {
    struct vg_later *l = vg_alloc(sizeof *l);
    if (l)
        *l = (struct vg_later){.ctl = call->ctl, .peer = call->peer->serial, .req = call->req};
    return l;
}

void vg_later_stored(void *arg, int result) {
    struct vg_later *l = arg;
    struct vg_peer *p = vg_peer_find(l->ctl, l->peer);
    if (p && result < 0) {
        vg_peer_error(p, l->req, result == -ENOSPC ? VG_DISK_FULL : VG_INTERNAL,
                      "the change could not be stored: %s; look at the disk of %s, then ask again",
                      strerror(-result), l->ctl->home.dir);
    } else if (p && l->token[0]) {
        VG_ENVELOPE(env);
        Vg__Pb__TokenNew m = VG__PB__TOKEN_NEW__INIT;
        m.token = l->token;
        m.id = l->id;
        env.body_case = VG__PB__ENVELOPE__BODY_TOKEN_NEW;
        env.token_new = &m;
        vg_peer_send(p, l->req, false, &env);
    } else if (p) {
        vg_peer_ok(p, l->req, NULL);
    }
    if (result < 0 && l->token[0])
        vg_key_remove(l->ctl, l->id); /* nobody was told it */
    OPENSSL_cleanse(l->token, sizeof l->token);
    free(l);
}

#pragma once
/* Contents from the same user's daemons on other nodes, so that the client's uplink need not carry
   them again. By file id and verified, so a peer can give nothing but what was asked for; and never
   waited for: what a program needs now is asked of the client as ever. The control plane joins two
   daemons by a stream; it does so for daemons of one user only. Thread-safe. */
#include "base/buf.h"
#include "fs/node/cache.h"

#define VG_PEERS_MAX 4                       /* links at a time */
#define VG_PEER_FILES 1024                   /* of one ask */
#define VG_PEER_FILE_MAX (UINT64_C(1) << 30) /* larger ones come from the client */
#define VG_PEER_FILE_MIN 4096u               /* smaller ones are here before an answer is */

struct vg_peers;
struct vg_peer_file {
    uint64_t object; /* the asker's own number for it */
    uint64_t size;
    uint8_t id[VG_HASH];
};
/* These are on their way. On a peer's thread; must not call vg_peers_*. */
typedef void vg_peers_have(void *user, const uint64_t *object, size_t n);

int vg_peers_new(struct vg_cache *cache, struct vg_peers **ret);
void vg_peers_free(struct vg_peers *p);
/* Takes the socket: a stream to another daemon of this user. Both ends may ask. */
int vg_peers_add(struct vg_peers *p, int fd);
void vg_peers_tidy(struct vg_peers *p); /* lets go of links that have ended */
/* At most VG_PEER_FILES. Without a peer it is remembered for a while, in case one comes. */
void vg_peers_ask(struct vg_peers *p, const struct vg_peer_file *file, size_t n,
                  vg_peers_have *have, void *user);
/* No more calls of `have` for that user after this. */
void vg_peers_forget(struct vg_peers *p, void *user);
int vg_peers_json(struct vg_peers *p, struct vg_buf *out);

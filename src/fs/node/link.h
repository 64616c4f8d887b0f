#pragma once
/* The node's side of the links to one machine (client): sends what views ask for, hands what comes
   to them. One receiving thread; sends from any thread. Knows nothing of files.
   A machine lives while a task of it lives and for the daemon's idle time after. */
#include "base/err.h"
#include "mirror/dirrec.h"
#include "mirror/mwire.h"

struct vg_machine; /* a client's machine as this node knows it; has an env view, project views */

struct vg_link_ops { /* on the receiving thread; must not block for long */
    void (*hello)(void *user, const Vg__Mr__Hello *m, bool same_epoch);
    void (*run)(void *user, const Vg__Mr__Run *m);
    void (*inval)(void *user, const Vg__Mr__Inval *m);
    /* A whole record; rec stays valid during the call. req 0: pushed. */
    void (*dir)(void *user, uint64_t req, const struct vg_dirrec *rec);
    /* False: the bytes are of another state of the file than the owner believes in. `missed`
       follows, when a demand that they answered is over. */
    bool (*data)(void *user, uint64_t req, uint64_t object, uint64_t offset, uint64_t size,
                 uint32_t tag, const void *data, size_t n);
    void (*missed)(void *user, uint64_t object);
    /* No more of it comes by itself: who waits for it must ask. */
    void (*ended)(void *user, uint64_t object);
    void (*fail)(void *user, const Vg__Mr__Fail *m);
    void (*ack)(void *user, const Vg__Mr__Ack *m);
    void (*note)(void *user, const Vg__Mr__Note *m);
    void (*kept)(void *user, const Vg__Mr__Kept *m);
    /* All links are gone (up = false) or one is there again (Hello has come). On up, requests that
       have not been answered were sent again already. */
    void (*state)(void *user, bool up);
    /* Another link than before carries the operations now: they are sent again from next_op. */
    void (*resend)(void *user);
    uint64_t (*next_op)(void *user); /* the oldest that is not acknowledged, for our Hello */
};
/* `user` calls may be made from inside all of these, vg_links_free excepted. Any may be NULL. */

struct vg_links;
int vg_links_new(const struct vg_link_ops *ops, void *user, const uint8_t daemon[VG_MID],
                 const char *node, struct vg_links **ret);
/* Ends the receiving thread: no op is called any more, what is asked waits for ever. */
void vg_links_stop(struct vg_links *l);
void vg_links_free(struct vg_links *l);
/* Takes the socket, also when it fails. */
int vg_links_add(struct vg_links *l, int fd, uint64_t task);
bool vg_links_up(struct vg_links *l);
/* The machine's name for people, from its Hello ("" before). */
void vg_links_host(struct vg_links *l, char *out, size_t n);
/* Demands: returns the request's number; asked again on another link when one breaks, until
   answered by dir/data/fail; 0 for content that is being pushed. Never fails: without a link it
   waits for one. Equal demands that are under way are asked once. When the service is another one
   (hello, same_epoch false) all of them are forgotten: its objects have other numbers. */
uint64_t vg_links_get_dir(struct vg_links *l, uint64_t object);
/* Also when it was asked for before: the answer must not be older than this call. */
uint64_t vg_links_get_dir_anew(struct vg_links *l, uint64_t object, unsigned urgency);
uint64_t vg_links_get_data(struct vg_links *l, uint64_t object, uint64_t off, uint64_t len,
                           unsigned urgency);
uint64_t vg_links_get_xattrs(struct vg_links *l, uint64_t object);
uint64_t vg_links_get_xattrs_anew(struct vg_links *l, uint64_t object);
/* Fire and forget; 0, or -ENOTCONN when there is no link (ops are then sent by `resend`). */
int vg_links_send(struct vg_links *l, const Vg__Mr__Msg *m);
int vg_links_write(struct vg_links *l, uint64_t op, uint64_t object, uint64_t offset,
                   const void *data, size_t n);
/* While they are held, operations (vg_links_send, _write) wait until there are some: many small
   ones make one write. */
void vg_links_hold(struct vg_links *l, bool hold);
/* Bytes waiting to go out: writers slow down above a few MiB. */
size_t vg_links_backlog(struct vg_links *l);
struct vg_links_stat {
    uint64_t demands;              /* Gets that a program waited for: at most as many round trips */
    uint64_t met;                  /* of these, met by a push that was on its way already */
    uint64_t ahead;                /* Gets that nobody waited for yet */
    uint64_t demand_bytes;         /* of content and records that came for either */
    uint64_t pushed, pushed_bytes; /* records and leaves that came unasked */
    uint64_t sent_bytes, received_bytes, links, breaks;
};
void vg_links_stats(struct vg_links *l, struct vg_links_stat *ret);

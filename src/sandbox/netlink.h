#pragma once
/* Just enough netlink: messages are laid one after another into a batch, the batch goes out in one
   system call, and the first message that the kernel refused is the answer. The kernel handles
   netlink requests inside sendmsg(), so that nothing here ever waits. One thread. */
#include <linux/netlink.h>
#include <stddef.h>
#include <stdint.h>

struct vg_nl {
    int fd; /* owned; -1 when closed. Talks to the network namespace it was opened in. */
    uint32_t seq;
};

int vg_nl_open(struct vg_nl *nl, int protocol); /* NETLINK_ROUTE, NETLINK_NETFILTER */
void vg_nl_close(struct vg_nl *nl);

/* Messages in the making. Zero-initialised is empty and valid; reusing one costs no allocation.
   A lack of memory is remembered and reported when the batch is sent. */
struct vg_nlb {
    uint8_t *data; /* owned */
    size_t len, cap;
    size_t msg;   /* where the message in the making begins */
    size_t nest;  /* free for one nest of the caller's that spans calls */
    uint32_t n;   /* messages so far */
    uint32_t ack; /* the message, from 1, whose answer is the batch's last; 0: the last message */
    int failed;   /* -errno */
};

void vg_nlb_done(struct vg_nlb *b);
void vg_nlb_reset(struct vg_nlb *b);
/* Ends the message before and starts one with a fixed header of its family. NLM_F_REQUEST is
   implied. */
void vg_nlb_begin(struct vg_nlb *b, uint16_t type, unsigned flags, const void *hdr, size_t n);
/* The message in the making is the last one that the kernel will answer. */
void vg_nlb_ack(struct vg_nlb *b);
void vg_nlb_attr(struct vg_nlb *b, unsigned type, const void *data, size_t n);
void vg_nlb_u8(struct vg_nlb *b, unsigned type, uint8_t v);
void vg_nlb_u32(struct vg_nlb *b, unsigned type, uint32_t v);
void vg_nlb_str(struct vg_nlb *b, unsigned type, const char *s); /* with its NUL */
size_t vg_nlb_nest(struct vg_nlb *b, unsigned type);             /* pass the result to `end` */
void vg_nlb_end(struct vg_nlb *b, size_t nest);
/* Bytes without an attribute's header, padded: a fixed header inside a nest. */
void vg_nlb_raw(struct vg_nlb *b, const void *data, size_t n);

/* Sends the batch. 0, or the -errno of the first refused message; its number (from 0) goes to
   *ret_which when that is not NULL. Messages after a refused one were still tried by the routing
   family; nf_tables takes all or nothing. */
int vg_nl_send(struct vg_nl *nl, struct vg_nlb *b, uint32_t *ret_which);

/* Sends the batch's only message as a dump and calls `each` for every answer, which may come more
   than once (a dump torn by a change is started over). `each` returns 0 to go on; anything else
   ends the dump and is returned. -EINTR when the kernel's tables kept changing under the dump: what
   was seen may be incomplete. */
typedef int vg_nl_each(const struct nlmsghdr *h, void *arg);
int vg_nl_dump(struct vg_nl *nl, struct vg_nlb *b, vg_nl_each *each, void *arg);

/* Walks attributes within [p, p+n): NULL at the end or at anything malformed. Start with NULL. */
const struct nlattr *vg_nla_next(const struct nlattr *a, const void *p, size_t n);
/* The attribute of this type behind a fixed header of `hdr` bytes, or NULL. */
const struct nlattr *vg_nla_find(const struct nlmsghdr *h, size_t hdr, unsigned type);
static inline const void *vg_nla_data(const struct nlattr *a) {
    return (const char *)a + NLA_HDRLEN;
}
static inline size_t vg_nla_len(const struct nlattr *a) {
    return (size_t)a->nla_len - NLA_HDRLEN;
}
uint32_t vg_nla_u32(const struct nlattr *a);    /* 0 when absent or short */
const char *vg_nla_str(const struct nlattr *a); /* "" when absent or not NUL-ended */

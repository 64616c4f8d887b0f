/* Netlink batches. See netlink.h.

   Always: a batch's messages carry consecutive sequence numbers, and only the last one asks for an
   acknowledgement: the kernel reports refusals unasked, and in order. Answers with other numbers
   are leftovers and are skipped. */
#include "sandbox/netlink.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#define BATCH_MAX_BYTES (1u << 20)
#define RECV_BYTES 32768
#define DUMP_TRIES 8

int vg_nl_open(struct vg_nl *nl, int protocol) {
    nl->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    nl->seq = 0;
    if (nl->fd < 0)
        return -errno;
    /* Refusals then carry the request's header only, not all of it back. */
    int on = 1;
    setsockopt(nl->fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
    return 0;
}

void vg_nl_close(struct vg_nl *nl) {
    vg_close(&nl->fd);
}

void vg_nlb_done(struct vg_nlb *b) {
    free(b->data);
    *b = (struct vg_nlb){0};
}

void vg_nlb_reset(struct vg_nlb *b) {
    b->len = b->msg = 0;
    b->n = b->ack = 0;
    b->failed = 0;
}

/* Room for n zeroed bytes and the padding behind them; NULL once the batch has failed. */
static void *extend(struct vg_nlb *b, size_t n) {
    size_t room = NLMSG_ALIGN(n);
    if (b->failed)
        return NULL;
    if (b->len + room > BATCH_MAX_BYTES) {
        b->failed = -EMSGSIZE;
        return NULL;
    }
    if (b->len + room > b->cap) {
        void *grown = vg_grow(b->data, &b->cap, b->len + room, 1);
        if (!grown) {
            b->failed = -ENOMEM;
            return NULL;
        }
        b->data = grown;
    }
    void *at = b->data + b->len;
    memset(at, 0, room);
    b->len += room;
    return at;
}

static struct nlmsghdr *message(struct vg_nlb *b) {
    return (struct nlmsghdr *)(void *)(b->data + b->msg);
}

static void seal(struct vg_nlb *b) {
    if (b->n && !b->failed)
        message(b)->nlmsg_len = (uint32_t)(b->len - b->msg);
}

void vg_nlb_begin(struct vg_nlb *b, uint16_t type, unsigned flags, const void *hdr, size_t n) {
    seal(b);
    size_t at = b->len;
    struct nlmsghdr *h = extend(b, sizeof *h);
    if (!h)
        return;
    b->msg = at;
    h->nlmsg_type = type;
    h->nlmsg_flags = (uint16_t)(flags | NLM_F_REQUEST);
    h->nlmsg_seq = b->n++;
    vg_nlb_raw(b, hdr, n);
}

void vg_nlb_ack(struct vg_nlb *b) {
    if (b->failed || !b->n)
        return;
    message(b)->nlmsg_flags |= NLM_F_ACK;
    b->ack = b->n;
}

void vg_nlb_raw(struct vg_nlb *b, const void *data, size_t n) {
    void *at = extend(b, n);
    if (at && n)
        memcpy(at, data, n);
}

void vg_nlb_attr(struct vg_nlb *b, unsigned type, const void *data, size_t n) {
    struct nlattr *a = extend(b, NLA_HDRLEN + n);
    if (!a)
        return;
    a->nla_type = (uint16_t)type;
    a->nla_len = (uint16_t)(NLA_HDRLEN + n);
    if (n)
        memcpy((char *)a + NLA_HDRLEN, data, n);
}

void vg_nlb_u8(struct vg_nlb *b, unsigned type, uint8_t v) {
    vg_nlb_attr(b, type, &v, sizeof v);
}

void vg_nlb_u32(struct vg_nlb *b, unsigned type, uint32_t v) {
    vg_nlb_attr(b, type, &v, sizeof v);
}

void vg_nlb_str(struct vg_nlb *b, unsigned type, const char *s) {
    vg_nlb_attr(b, type, s, strlen(s) + 1);
}

size_t vg_nlb_nest(struct vg_nlb *b, unsigned type) {
    size_t at = b->len;
    vg_nlb_attr(b, type | NLA_F_NESTED, NULL, 0);
    return at;
}

void vg_nlb_end(struct vg_nlb *b, size_t nest) {
    if (b->failed)
        return;
    struct nlattr *a = (struct nlattr *)(void *)(b->data + nest);
    a->nla_len = (uint16_t)(b->len - nest);
}

/* Gives the messages their final numbers and hands them to the kernel. */
static int transmit(struct vg_nl *nl, struct vg_nlb *b, uint32_t *ret_first) {
    seal(b);
    int r = b->failed ? b->failed : vg_fault("netlink.send");
    if (r < 0)
        return r;
    uint32_t first = nl->seq + 1;
    for (size_t at = 0; at < b->len;) {
        struct nlmsghdr *h = (struct nlmsghdr *)(void *)(b->data + at);
        h->nlmsg_seq = ++nl->seq;
        at += NLMSG_ALIGN(h->nlmsg_len);
    }
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    ssize_t sent = sendto(nl->fd, b->data, b->len, 0, (struct sockaddr *)&kernel, sizeof kernel);
    if (sent < 0)
        return -errno;
    *ret_first = first;
    return 0;
}

/* NLMSG_OK, which compares signed with unsigned. `n` goes below zero after a last message that is
   padded beyond the end. */
static bool is_message(const struct nlmsghdr *h, int n) {
    return n >= (int)sizeof(*h) && h->nlmsg_len >= sizeof(*h) && h->nlmsg_len <= (uint32_t)n;
}

struct verdict {
    uint32_t first, last;
    uint32_t which;
    int error;
    bool complete;
};

static void judge(struct verdict *v, const char *data, int n) {
    const struct nlmsghdr *h = (const void *)data;
    for (; is_message(h, n); h = NLMSG_NEXT(h, n)) {
        uint32_t i = h->nlmsg_seq - v->first;
        if (h->nlmsg_type != NLMSG_ERROR || i > v->last - v->first)
            continue;
        const struct nlmsgerr *e = NLMSG_DATA(h);
        if (h->nlmsg_len < NLMSG_LENGTH(sizeof *e))
            continue;
        if (e->error && !v->error) {
            v->error = e->error;
            v->which = i;
        }
        if (h->nlmsg_seq == v->last)
            v->complete = true;
    }
}

int vg_nl_send(struct vg_nl *nl, struct vg_nlb *b, uint32_t *ret_which) {
    if (!b->n && !b->failed)
        return 0;
    if (!b->ack)
        vg_nlb_ack(b);
    struct verdict v = {0};
    int r = transmit(nl, b, &v.first);
    if (r < 0)
        return r;
    v.last = v.first + b->ack - 1;
    char data[RECV_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
    while (!v.complete) {
        ssize_t n = recv(nl->fd, data, sizeof data, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) /* a refused nf_tables batch need not acknowledge its last message */
            return v.error ? v.error : errno == EAGAIN ? -EPROTO : -errno;
        judge(&v, data, (int)n);
    }
    if (v.error && ret_which)
        *ret_which = v.which;
    return v.error;
}

/* One datagram of a dump. 1: done, 0: more to come. */
static int digest(const char *data, int n, uint32_t seq, bool *torn, vg_nl_each *each, void *arg) {
    const struct nlmsghdr *h = (const void *)data;
    for (; is_message(h, n); h = NLMSG_NEXT(h, n)) {
        if (h->nlmsg_seq != seq)
            continue;
        if (h->nlmsg_flags & NLM_F_DUMP_INTR)
            *torn = true;
        const struct nlmsgerr *e = NLMSG_DATA(h);
        if (h->nlmsg_type == NLMSG_ERROR)
            return h->nlmsg_len < NLMSG_LENGTH(sizeof *e) ? -EPROTO : e->error ? e->error : 1;
        if (h->nlmsg_type == NLMSG_DONE)
            return 1;
        int r = each(h, arg);
        if (r)
            return r < 0 ? r : -ECANCELED;
    }
    return 0;
}

/* Takes what is left of a dump that ended early, so that the next request is not refused. */
static void drain(struct vg_nl *nl) {
    char data[RECV_BYTES];
    while (recv(nl->fd, data, sizeof data, MSG_DONTWAIT) > 0)
        ;
}

static int dump_once(struct vg_nl *nl, struct vg_nlb *b, bool *torn, vg_nl_each *each, void *arg) {
    uint32_t seq;
    int r = transmit(nl, b, &seq);
    if (r < 0)
        return r;
    char data[RECV_BYTES] __attribute__((aligned(NLMSG_ALIGNTO)));
    do {
        ssize_t n = recv(nl->fd, data, sizeof data, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? -EPROTO : -errno;
        r = digest(data, (int)n, seq, torn, each, arg);
    } while (r == 0);
    if (r < 0)
        drain(nl);
    return r < 0 ? r : 0;
}

int vg_nl_dump(struct vg_nl *nl, struct vg_nlb *b, vg_nl_each *each, void *arg) {
    if (!b->failed)
        message(b)->nlmsg_flags |= NLM_F_DUMP;
    for (int i = 0; i < DUMP_TRIES; i++) {
        bool torn = false;
        int r = dump_once(nl, b, &torn, each, arg);
        if (r < 0 || !torn)
            return r;
    }
    return -EINTR;
}

const struct nlattr *vg_nla_next(const struct nlattr *a, const void *p, size_t n) {
    const char *end = (const char *)p + n;
    const char *at = a ? (const char *)a + NLA_ALIGN(a->nla_len) : p;
    if (at > end || (size_t)(end - at) < NLA_HDRLEN)
        return NULL;
    const struct nlattr *next = (const void *)at;
    if (next->nla_len < NLA_HDRLEN || next->nla_len > end - at)
        return NULL;
    return next;
}

const struct nlattr *vg_nla_find(const struct nlmsghdr *h, size_t hdr, unsigned type) {
    size_t skip = NLMSG_HDRLEN + NLMSG_ALIGN(hdr);
    if (h->nlmsg_len < skip)
        return NULL;
    const char *p = (const char *)h + skip;
    for (const struct nlattr *a = NULL; (a = vg_nla_next(a, p, h->nlmsg_len - skip));)
        if ((a->nla_type & NLA_TYPE_MASK) == type)
            return a;
    return NULL;
}

uint32_t vg_nla_u32(const struct nlattr *a) {
    uint32_t v = 0;
    if (a && vg_nla_len(a) >= sizeof v)
        memcpy(&v, vg_nla_data(a), sizeof v);
    return v;
}

const char *vg_nla_str(const struct nlattr *a) {
    if (!a || vg_nla_len(a) == 0)
        return "";
    const char *s = vg_nla_data(a);
    return s[vg_nla_len(a) - 1] == '\0' ? s : "";
}

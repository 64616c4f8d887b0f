/* The resolver text for tasks: the host's own, without what cannot be reached from inside.

   Loopback resolvers of the host are not reachable from another namespace, and tasks have no IPv6;
   such lines are left out. systemd-resolved's stub is replaced by the resolvers behind it. When
   none is left the gateway's address stands in, and the rules translate it to the host's resolver.
 */
#include "sandbox/netpool-int.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/util.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>
#include <sys/stat.h>

#define RESOLV_MAX_BYTES 65536
#define HOST_FILE "/etc/resolv.conf"
#define BEHIND_STUB "/run/systemd/resolve/resolv.conf"

static bool is_loopback(uint32_t a) {
    return a >> 24 == 127 || a == 0;
}

static bool is_blocked(uint32_t a) {
    for (size_t i = 0; i < vg_net_n_blocked; i++)
        if ((a ^ vg_net_blocked[i].net) >> (32 - vg_net_blocked[i].bits) == 0)
            return true;
    return false;
}

/* The address of a `nameserver` line. 1: found, 0: another kind of line, -1: none we can use. */
static int nameserver(const char *line, size_t n, uint32_t *ret) {
    static const char word[] = "nameserver";
    size_t w = sizeof word - 1;
    if (n <= w || memcmp(line, word, w) != 0 || !isspace((unsigned char)line[w]))
        return 0;
    char text[64] = "";
    size_t used = 0;
    for (size_t i = w; i < n && used < sizeof text - 1; i++) {
        if (!isspace((unsigned char)line[i]))
            text[used++] = line[i];
        else if (used)
            break;
    }
    struct in_addr a;
    if (inet_pton(AF_INET, text, &a) != 1)
        return -1;
    *ret = ntohl(a.s_addr);
    return 1;
}

struct draft {
    struct vg_buf text;
    uint32_t loopback;
    unsigned n_usable;
    uint32_t excepted[VG_NET_DNS_MAX];
    size_t n_excepted;
};

static int take_line(struct draft *d, const char *line, size_t n) {
    uint32_t a = 0;
    int kind = nameserver(line, n, &a);
    if (kind < 0)
        return 0;
    if (kind > 0 && is_loopback(a)) {
        if (!d->loopback)
            d->loopback = a ? a : INADDR_LOOPBACK;
        return 0;
    }
    if (kind > 0) {
        d->n_usable++;
        if (is_blocked(a) && d->n_excepted < VG_NET_DNS_MAX)
            d->excepted[d->n_excepted++] = a;
    }
    int r = vg_buf_append(&d->text, line, n);
    return r < 0 ? r : vg_buf_append(&d->text, "\n", 1);
}

static int read_draft(const char *path, struct draft *d) {
    vg_auto_free char *data = NULL;
    size_t len = 0;
    int r = vg_read_file(path, RESOLV_MAX_BYTES, &data, &len);
    if (r < 0)
        return r == -ENOMEM ? r : 0;
    for (const char *p = data, *end = data + len; p < end && r >= 0;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        r = take_line(d, p, n);
        p += n + 1;
    }
    return r < 0 ? r : 0;
}

/* The draft from the host's file, or from the one behind the stub. */
static int make_draft(struct draft *d) {
    int r = read_draft(HOST_FILE, d);
    if (r < 0 || d->n_usable)
        return r;
    struct draft behind = {0};
    r = read_draft(BEHIND_STUB, &behind);
    if (r >= 0 && behind.n_usable) {
        vg_buf_done(&d->text);
        *d = behind;
        return 0;
    }
    vg_buf_done(&behind.text);
    if (r < 0)
        return r;
    if (!d->loopback)
        d->loopback = INADDR_LOOPBACK;
    return vg_buf_printf(&d->text, "nameserver 169.254.1.1\n");
}

static struct vg_net_stamp stamp(const char *path) {
    struct stat st;
    if (stat(path, &st) < 0)
        return (struct vg_net_stamp){0};
    return (struct vg_net_stamp){st.st_dev, st.st_ino, st.st_size, st.st_mtim.tv_sec,
                                 st.st_mtim.tv_nsec};
}

static bool same(const struct vg_net_stamp *a, const struct vg_net_stamp *b) {
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->sec == b->sec &&
           a->nsec == b->nsec;
}

int vg_net_dns_load(struct vg_net_dns *dns) {
    struct vg_net_stamp now[] = {stamp(HOST_FILE), stamp(BEHIND_STUB)};
    if (dns->text && same(&now[0], &dns->stamps[0]) && same(&now[1], &dns->stamps[1]))
        return 0;
    struct draft d = {0};
    int r = make_draft(&d);
    if (r >= 0)
        r = vg_buf_append(&d.text, "", 1);
    if (r < 0) {
        vg_buf_done(&d.text);
        return r;
    }
    free(dns->text);
    *dns = (struct vg_net_dns){
        .text = (char *)d.text.base, /* nothing was consumed: the text begins at the base */
        .loopback = d.n_usable ? 0 : d.loopback,
        .n_excepted = d.n_excepted,
        .stamps = {now[0], now[1]},
    };
    memcpy(dns->excepted, d.excepted, sizeof d.excepted);
    return 1;
}

void vg_net_dns_done(struct vg_net_dns *dns) {
    free(dns->text);
    *dns = (struct vg_net_dns){0};
}

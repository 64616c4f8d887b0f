/* Which addresses belong to the internet at large; see the header. Every address is looked at as
   128 bits, IPv4 as the mapped form of RFC 4291. */
#include "base/public-addr.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

static bool to_bytes(const struct sockaddr *a, uint8_t out[16]) {
    if (a->sa_family == AF_INET) {
        memcpy(out, mapped, sizeof mapped);
        memcpy(out + 12, &((const struct sockaddr_in *)a)->sin_addr, 4);
        return true;
    }
    if (a->sa_family != AF_INET6)
        return false;
    memcpy(out, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
    return true;
}

static bool within(const uint8_t *a, const uint8_t *net, unsigned bits) {
    if (memcmp(a, net, bits / 8) != 0)
        return false;
    unsigned rest = bits % 8;
    return !rest || (a[bits / 8] ^ net[bits / 8]) >> (8 - rest) == 0;
}

/* RFC 6890 and its successors: everything that is not for everybody. */
static const struct {
    uint8_t net[4];
    unsigned bits;
} not_public4[] = {
    {{0}, 8},
    {{10}, 8},
    {{100, 64}, 10},
    {{127}, 8},
    {{169, 254}, 16},
    {{172, 16}, 12},
    {{192, 0, 0}, 24},
    {{192, 0, 2}, 24},
    {{192, 88, 99}, 24},
    {{192, 168}, 16},
    {{198, 18}, 15},
    {{198, 51, 100}, 24},
    {{203, 0, 113}, 24},
    {{224}, 4},
    {{240}, 4},
};

static bool public4(const uint8_t *a) {
    for (size_t i = 0; i < VG_COUNT(not_public4); i++)
        if (within(a, not_public4[i].net, not_public4[i].bits))
            return false;
    return true;
}

static bool public6(const uint8_t *a) {
    static const uint8_t global[] = {0x20}, six_to_four[] = {0x20, 0x02},
                         special[] = {0x20, 0x01, 0x00}, documents[] = {0x20, 0x01, 0x0d, 0xb8},
                         documents2[] = {0x3f, 0xff, 0x00},
                         translated[12] = {0x00, 0x64, 0xff, 0x9b};
    if (within(a, translated, 96))
        return public4(a + 12);
    if (within(a, six_to_four, 16))
        return public4(a + 2);
    /* 2001::/23 is for protocols: Teredo, ORCHID and the like. */
    return within(a, global, 3) && !within(a, special, 23) && !within(a, documents, 32) &&
           !within(a, documents2, 20);
}

bool vg_addr_public(const struct sockaddr *a) {
    uint8_t b[16];
    if (!to_bytes(a, b))
        return false;
    return within(b, mapped, 96) ? public4(b + 12) : public6(b);
}

int vg_addr_net_parse(const char *text, struct vg_addr_net *ret) {
    char host[INET6_ADDRSTRLEN];
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    struct vg_addr_net net = {.bits = 128};
    uint64_t bits = 0, most = 128;
    if (n >= sizeof host)
        return -EINVAL;
    memcpy(host, text, n);
    host[n] = '\0';
    if (inet_pton(AF_INET, host, net.bytes + 12) == 1) {
        memcpy(net.bytes, mapped, sizeof mapped);
        most = 32;
    } else if (inet_pton(AF_INET6, host, net.bytes) != 1) {
        return -EINVAL;
    }
    if (slash && (vg_parse_u64(slash + 1, &bits) < 0 || bits > most))
        return -EINVAL;
    if (slash)
        net.bits = (unsigned)(bits + 128 - most);
    *ret = net;
    return 0;
}

bool vg_addr_net_has(const struct vg_addr_net *net, const struct sockaddr *a) {
    uint8_t b[16];
    return to_bytes(a, b) && within(b, net->bytes, net->bits);
}

#pragma once
/* Which addresses belong to the internet at large. What a stranger may have the control plane
   connect to is one of them, or one that the administrator named. Pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Neither loopback, nor private, link-local, shared, reserved, multicast or for documentation; of
   an IPv6 address that carries an IPv4 one (mapped, translated, 6to4), that one is judged. */
bool vg_addr_public(const struct sockaddr *a);

struct vg_addr_net {
    uint8_t bytes[16]; /* IPv4 as mapped */
    unsigned bits;     /* of those 128 */
};
/* "10.0.0.0/8", "::1", "fd00::/8". -EINVAL: it is none. */
int vg_addr_net_parse(const char *text, struct vg_addr_net *ret);
bool vg_addr_net_has(const struct vg_addr_net *net, const struct sockaddr *a);

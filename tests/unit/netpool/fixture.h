#pragma once
/* A small world for the pool: the calling process moves to network and mount namespaces of its own,
   which are "the host"; "outside" is another namespace behind the host's link up0. Nothing of the
   real machine is touched.

       slot --- host --- outside       host 10.250.0.1, outside 10.250.0.2 and the metadata address
*/
#include "base/buf.h"
#include "sandbox/netpool.h"

#include <stdint.h>

#define HOST_ADDR "10.250.0.1"
#define OUTSIDE_ADDR "10.250.0.2"
#define METADATA_ADDR "169.254.169.254"
#define PORT 8080

struct world {
    int host, outside; /* namespaces */
};

void world_open(struct world *w); /* skips the test when it may not */
/* One more neighbour of the host: link up<n>, 10.250.<n>.1 - 10.250.<n>.2. Returns its namespace.
 */
int world_neighbour(struct world *w, unsigned n);
void enter(int netns); /* aborts the test when it cannot */
void add_address(int netns, const char *link, const char *address, unsigned bits);
void add_route(int netns, const char *net, unsigned bits, const char *via);

/* A listening TCP socket in a namespace, or a bound UDP one. */
int listen_in(struct world *w, int netns, const char *addr, uint16_t port);
int bind_udp_in(struct world *w, int netns, const char *addr, uint16_t port);
/* Connects from a namespace and takes the connection at `listener`. True when it came through;
 *peer is whom the listener saw. An attempt that must fail gives up soon, one that must work late.
 */
enum patience { MUST_FAIL, MUST_WORK };
bool reaches(struct world *w, int from, const char *addr, int listener, enum patience patience,
             char peer[32]);
/* The rules of a table are replaced by mere address translation: what a check's control needs. */
void only_translate(struct world *w, const char *table);
void drop_table(struct world *w, const char *table);
/* Links, routes, tables and forwarding of the host as text. */
void snapshot(struct world *w, struct vg_buf *out);
void write_text(const char *path, const char *text);

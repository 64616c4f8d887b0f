#pragma once
/* Tickets: what opens one direct stream to a task on the node's own port. Each works once, for its
   task, until it expires. Bounded: when the table is full the oldest gives way. Pure. */
#include <stddef.h>
#include <stdint.h>

#define VG_TICKETS_MAX 4096
#define VG_TICKET_MAX_BYTES 32
#define VG_TICKET_MIN_BYTES 16
#define VG_TICKET_LIFE_USEC (600ULL * 1000000)

struct vg_ticket {
    uint8_t bytes[VG_TICKET_MAX_BYTES];
    uint8_t len;
    uint64_t task;
    uint64_t expires_usec;
};

/* Zero-initialised is empty and valid. Ordered by age, oldest first. */
struct vg_tickets {
    struct vg_ticket *item; /* owned */
    size_t n, cap;
};

void vg_tickets_done(struct vg_tickets *t);
/* 0, -EINVAL for a length out of bounds, -ENOMEM. */
int vg_tickets_add(struct vg_tickets *t, const void *ticket, size_t n, uint64_t task,
                   uint64_t now_usec);
/* Uses a ticket up: 0 and its task, or -EACCES. Takes the same time for every wrong ticket. */
int vg_tickets_use(struct vg_tickets *t, const void *ticket, size_t n, uint64_t now_usec,
                   uint64_t *ret_task);
void vg_tickets_drop_task(struct vg_tickets *t, uint64_t task);
/* Hex digits to bytes: the length, or -EINVAL. */
int vg_ticket_parse(const char *hex, uint8_t out[static VG_TICKET_MAX_BYTES]);

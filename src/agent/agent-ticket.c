/* The ticket table; see the header. A plain array: it is short, and looked at once a connection. */
#include "agent/agent-ticket.h"

#include "base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void vg_tickets_done(struct vg_tickets *t) {
    free(t->item);
    *t = (struct vg_tickets){0};
}

static void remove_at(struct vg_tickets *t, size_t i) {
    memmove(t->item + i, t->item + i + 1, (t->n - i - 1) * sizeof(*t->item));
    t->n--;
}

/* All tickets live equally long, so the expired ones are at the front. */
static void drop_expired(struct vg_tickets *t, uint64_t now_usec) {
    size_t k = 0;
    while (k < t->n && t->item[k].expires_usec <= now_usec)
        k++;
    if (k > 0) {
        memmove(t->item, t->item + k, (t->n - k) * sizeof(*t->item));
        t->n -= k;
    }
}

int vg_tickets_add(struct vg_tickets *t, const void *ticket, size_t n, uint64_t task,
                   uint64_t now_usec) {
    if (n < VG_TICKET_MIN_BYTES || n > VG_TICKET_MAX_BYTES)
        return -EINVAL;
    drop_expired(t, now_usec);
    if (t->n == VG_TICKETS_MAX)
        remove_at(t, 0);
    struct vg_ticket *item = vg_grow(t->item, &t->cap, t->n + 1, sizeof(*item));
    if (!item)
        return -ENOMEM;
    t->item = item;
    struct vg_ticket *k = &t->item[t->n++];
    *k = (struct vg_ticket){
        .len = (uint8_t)n, .task = task, .expires_usec = now_usec + VG_TICKET_LIFE_USEC};
    memcpy(k->bytes, ticket, n);
    return 0;
}

static uint8_t difference(const struct vg_ticket *k, const uint8_t *want, size_t n) {
    uint8_t d = (uint8_t)(k->len ^ n);
    for (size_t i = 0; i < VG_TICKET_MAX_BYTES; i++)
        d = (uint8_t)(d | (k->bytes[i] ^ want[i]));
    return d;
}

int vg_tickets_use(struct vg_tickets *t, const void *ticket, size_t n, uint64_t now_usec,
                   uint64_t *ret_task) {
    uint8_t want[VG_TICKET_MAX_BYTES] = {0};
    if (n < VG_TICKET_MIN_BYTES || n > VG_TICKET_MAX_BYTES)
        return -EACCES;
    memcpy(want, ticket, n);
    drop_expired(t, now_usec);
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < t->n; i++)
        if (difference(&t->item[i], want, n) == 0)
            found = i;
    if (found == SIZE_MAX)
        return -EACCES;
    *ret_task = t->item[found].task;
    remove_at(t, found);
    return 0;
}

void vg_tickets_drop_task(struct vg_tickets *t, uint64_t task) {
    size_t k = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->item[i].task != task)
            t->item[k++] = t->item[i];
    t->n = k;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

int vg_ticket_parse(const char *hex, uint8_t out[static VG_TICKET_MAX_BYTES]) {
    size_t len = strlen(hex);
    if (len % 2 != 0 || len / 2 > VG_TICKET_MAX_BYTES || len / 2 < VG_TICKET_MIN_BYTES)
        return -EINVAL;
    for (size_t i = 0; i < len / 2; i++) {
        int hi = hex_digit(hex[2 * i]), lo = hex_digit(hex[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return -EINVAL;
        out[i] = (uint8_t)(hi * 16 + lo);
    }
    return (int)(len / 2);
}

#include "fs/node/voided.h"

void vg_voided_clear(struct vg_voided *v) {
    vg_map_done(&v->folder);
    *v = (struct vg_voided){0};
}

/* Invals overtake each other as well: a later one may know less. */
static uint64_t since(const struct vg_voided *v, uint64_t folder) {
    uintptr_t at = (uintptr_t)vg_map_get_u64(&v->folder, folder);
    return at ? (uint64_t)at - 2 : 0;
}

void vg_voided_add(struct vg_voided *v, uint64_t folder, uint64_t seq) {
    if (folder && since(v, folder) >= seq)
        return;
    bool kept = folder && vg_map_len(&v->folder) < VG_VOIDED_MAX &&
                vg_map_put_u64(&v->folder, folder, (void *)(uintptr_t)(seq + 2)) == 0;
    if (kept)
        return;
    /* No room for it, or all are meant: asking again for what was good costs little. */
    uint64_t all = seq > v->all ? seq : v->all;
    vg_map_for_each (s, &v->folder)
        all = since(v, s->hash) > all ? since(v, s->hash) : all;
    vg_voided_clear(v);
    v->all = all;
}

bool vg_voided_is(const struct vg_voided *v, uint64_t folder, uint64_t seq) {
    return seq < v->all || seq < since(v, folder);
}

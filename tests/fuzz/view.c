/* Any bytes as a body: refused with a sentence, or a message that reads back as it was given,
   whichever of the views takes it. The first byte chooses the view. */
#include "view/views.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct vg_view *taken_view(unsigned nth) {
    size_t n = 0;
    for (size_t i = 0; vg_views[i]; i++)
        n += vg_views[i]->taken;
    nth %= (unsigned)n;
    for (size_t i = 0; vg_views[i]; i++)
        if (vg_views[i]->taken && nth-- == 0)
            return vg_views[i];
    abort();
}

/* What is shown of a message is taken again, and shows the same. */
static void back(struct vg_view *v, const ProtobufCMessage *m) {
    struct vg_err err = VG_ERR_INIT;
    ProtobufCMessage *again = NULL;
    json_t *j = vg_view_json(v, m);
    if (vg_view_take(v, j, &again, &err) < 0)
        abort();
    json_t *twice = vg_view_json(v, again);
    if (!json_equal(j, twice))
        abort();
    json_decref(j);
    json_decref(twice);
    protobuf_c_message_free_unpacked(again, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct vg_err err = VG_ERR_INIT;
    ProtobufCMessage *m = NULL;
    if (!size)
        return 0;
    struct vg_view *v = taken_view(data[0]);
    json_t *j = json_loadb((const char *)data + 1, size - 1, JSON_REJECT_DUPLICATES, NULL);
    if (!j)
        return 0;
    int r = vg_view_take(v, j, &m, &err);
    if (r < 0 ? err.code != r || !err.msg[0] : !m)
        abort();
    if (m)
        back(v, m);
    protobuf_c_message_free_unpacked(m, NULL);
    json_decref(j);
    return 0;
}

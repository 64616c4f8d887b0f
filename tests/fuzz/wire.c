/* Any bytes as a connection: cut into frames as a reader does it, each message unpacked. A frame
   must lie inside what was given, obey its limits, and need no more bytes than it said. */
#include "net/wire.h"
#include "proto/virga.pb-c.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct vg_frame *f, const uint8_t *at, size_t left, size_t took) {
    bool on_stream = f->kind >= VG_FRAME_DATA && f->kind <= VG_FRAME_RESET;
    if (took > left || f->payload != at + VG_WIRE_HEADER || took != VG_WIRE_HEADER + f->len)
        abort();
    if (f->len > VG_WIRE_MSG_MAX || (f->kind == VG_FRAME_DATA && f->len > VG_WIRE_DATA_MAX))
        abort();
    if (on_stream != (f->stream != 0) || f->stream > 0xffffff)
        abort();
}

/* A shorter view of the same frame asks for more, and never for more than the frame has. */
static void check_truncated(const uint8_t *at, size_t took) {
    for (size_t n = 0; n < took && n < 32; n++) {
        struct vg_frame f;
        struct vg_err err = VG_ERR_INIT;
        size_t need = 0;
        if (vg_frame_parse(at, n, &f, &need, &err) != 0 || need <= n || need > took)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (size_t at = 0; at < size;) {
        struct vg_frame f;
        struct vg_err err = VG_ERR_INIT;
        size_t need = 0;
        int r = vg_frame_parse(data + at, size - at, &f, &need, &err);
        if (r < 0 && (err.reason != VG_PROTOCOL || !err.msg[0]))
            abort();
        if (r == 0 && need <= size - at)
            abort();
        if (r <= 0)
            return 0;
        check(&f, data + at, size - at, (size_t)r);
        check_truncated(data + at, (size_t)r);
        if (f.kind == VG_FRAME_MSG) {
            Vg__Pb__Envelope *env = vg__pb__envelope__unpack(NULL, f.len, f.payload);
            if (env)
                vg__pb__envelope__free_unpacked(env, NULL);
        }
        at += (size_t)r;
    }
    return 0;
}

/* Frames: header and limits. Pure functions; any thread. */
#include "net/wire.h"

#include <string.h>

void vg_frame_header(uint8_t out[static VG_WIRE_HEADER], enum vg_frame_kind kind, uint32_t stream,
                     uint32_t len) {
    uint32_t second = (uint32_t)kind | stream << 8;
    memcpy(out, &len, 4);
    memcpy(out + 4, &second, 4);
}

/* What each kind may look like, once. */
static const struct frame_rule {
    const char *name;
    uint32_t min, max;
    bool on_stream; /* needs a stream number; otherwise it must be 0 */
} rules[] = {
    [VG_FRAME_MSG] = {"MSG", 0, VG_WIRE_MSG_MAX, false},
    [VG_FRAME_DATA] = {"DATA", 0, VG_WIRE_DATA_MAX, true},
    [VG_FRAME_CREDIT] = {"CREDIT", 4, 4, true},
    [VG_FRAME_END] = {"END", 0, 0, true},
    [VG_FRAME_RESET] = {"RESET", 4, 4, true},
    [VG_FRAME_PING] = {"PING", 8, 8, false},
    [VG_FRAME_PONG] = {"PONG", 8, 8, false},
};

static int check_header(uint32_t kind, uint32_t stream, uint32_t len, struct vg_err *err) {
    if (kind < VG_FRAME_MSG || kind > VG_FRAME_PONG)
        return vg_err_set(err, VG_PROTOCOL,
                          "the peer sent a frame of unknown kind %u; both sides should run the "
                          "same version of Virga",
                          kind);
    const struct frame_rule *rule = &rules[kind];
    if (len < rule->min || len > rule->max)
        return vg_err_set(err, VG_PROTOCOL,
                          "the peer sent a %s frame of %u bytes where %u to %u are allowed",
                          rule->name, len, rule->min, rule->max);
    if ((stream != 0) != rule->on_stream)
        return vg_err_set(err, VG_PROTOCOL, "the peer sent a %s frame on stream %u", rule->name,
                          stream);
    return 0;
}

int vg_frame_parse(const uint8_t *data, size_t n, struct vg_frame *ret, size_t *ret_need,
                   struct vg_err *err) {
    if (n < VG_WIRE_HEADER) {
        *ret_need = VG_WIRE_HEADER;
        return 0;
    }
    uint32_t len, second;
    memcpy(&len, data, 4);
    memcpy(&second, data + 4, 4);
    int r = check_header(second & 0xff, second >> 8, len, err);
    if (r < 0)
        return r;
    *ret = (struct vg_frame){.kind = (enum vg_frame_kind)(second & 0xff),
                             .stream = second >> 8,
                             .payload = data + VG_WIRE_HEADER,
                             .len = len};
    size_t need = (size_t)VG_WIRE_HEADER + len;
    if (n < need) {
        *ret_need = need;
        return 0;
    }
    return (int)need;
}

/* A WebSocket's frames as a client may send them. */
#include "http/ws-frame.h"

#include <stdlib.h>

#define MESSAGE_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    while (n) {
        struct vg_ws_frame f;
        int r = vg_ws_frame_parse(data, n, MESSAGE_MAX, &f);
        if (r == 0 && n >= VG_WS_HEAD_MAX)
            abort(); /* it would wait for ever */
        if (r != 1)
            break;
        if (f.head_len > n || f.len > MESSAGE_MAX ||
            (f.op >= VG_WS_CLOSE && f.len > VG_WS_CONTROL_MAX))
            abort();
        if (n - f.head_len < f.len)
            break;
        (void)vg_utf8_valid(data + f.head_len, (size_t)f.len);
        data += f.head_len + f.len;
        n -= f.head_len + (size_t)f.len;
    }
    return 0;
}

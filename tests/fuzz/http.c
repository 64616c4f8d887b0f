/* Heads of requests, as whoever reaches the port may send them. */
#include "net/http.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    size_t path = 0, room = n < VG_HTTP_REQUEST_MAX ? n : VG_HTTP_REQUEST_MAX;
    char *text = malloc(room ? room : 1); /* no byte more than there is */
    if (!text)
        return 0;
    memcpy(text, data, room);
    int status = vg_http_parse(text, room, &path);
    if (status == 200 && (path == 0 || path + 4 > room || text[4] != '/'))
        abort();
    if (status == 0 && room == VG_HTTP_REQUEST_MAX)
        abort(); /* it would wait for ever */
    free(text);
    return 0;
}

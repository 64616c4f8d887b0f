/* Any bytes as an Envelope: unpacking either fails or gives a message that packs and unpacks again
   to the same bytes. */
#include "proto/virga.pb-c.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Vg__Pb__Envelope *first = vg__pb__envelope__unpack(NULL, size, data);
    if (!first)
        return 0;
    size_t len = vg__pb__envelope__get_packed_size(first);
    uint8_t *packed = malloc(len ? len : 1);
    if (!packed || vg__pb__envelope__pack(first, packed) != len)
        abort();
    Vg__Pb__Envelope *second = vg__pb__envelope__unpack(NULL, len, packed);
    if (!second || vg__pb__envelope__get_packed_size(second) != len)
        abort();
    uint8_t *again = malloc(len ? len : 1);
    if (!again || vg__pb__envelope__pack(second, again) != len || memcmp(packed, again, len) != 0)
        abort();
    vg__pb__envelope__free_unpacked(second, NULL);
    vg__pb__envelope__free_unpacked(first, NULL);
    free(again);
    free(packed);
    return 0;
}

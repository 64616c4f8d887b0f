/* What a fake library says of a name that it does not implement. */
#include "strict.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void fake_unknown(const char *name) {
    fprintf(stderr, "fake driver: %s is not implemented\n", name);
    abort();
}

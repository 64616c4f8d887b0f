/* Fault points. Used by tests in one thread; production never arms them. */
#include "base/fault.h"

#include <string.h>

int64_t vg_fault_countdown;
static int fault_error;
static bool fault_fired;
static const char *fault_only;

int vg_fault_hit(const char *point) {
    if (fault_only && strncmp(point, fault_only, strlen(fault_only)) != 0)
        return 0;
    if (--vg_fault_countdown > 0)
        return 0;
    fault_fired = true;
    return -fault_error;
}

void vg_fault_arm(uint64_t nth, int error, const char *only) {
    fault_error = error;
    fault_fired = false;
    fault_only = only;
    vg_fault_countdown = (int64_t)nth;
}

bool vg_fault_disarm(void) {
    vg_fault_countdown = 0;
    return fault_fired;
}

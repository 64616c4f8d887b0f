#pragma once
/* Fault points: "fail the Nth". Every allocation and every I/O step that can fail in the field
   passes through a point; tests arm the Nth passage and check that nothing is lost or leaked.
   When nothing is armed a passage costs one predictable branch. Not for several threads arming. */
#include <stdbool.h>
#include <stdint.h>

extern int64_t vg_fault_countdown; /* internal: <= 0 is unarmed */

int vg_fault_hit(const char *point); /* internal */

/* 0, or the armed -errno on the armed passage. */
static inline int vg_fault(const char *point) {
    if (__builtin_expect(vg_fault_countdown > 0, 0))
        return vg_fault_hit(point);
    return 0;
}

/* Arms the nth (from 1) passage to fail with -error. `only` limits to points with that name
   prefix; NULL means every point. */
void vg_fault_arm(uint64_t nth, int error, const char *only);
/* Disarms; tells whether the fault fired. */
bool vg_fault_disarm(void);

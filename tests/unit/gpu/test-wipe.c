/* Clearing cards between two tenants, against libraries that have one simulated card. */
#include "base/util.h"
#include "gpu/gpu-wipe.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ULL << 20)

struct wipe_state {
    uint64_t total, held, allocated, filled;
    unsigned compute, power, contexts;
};

static struct wipe_state *card(void) {
    void *lib = dlopen(WIPE_LIBS, RTLD_NOW | RTLD_NOLOAD);
    struct wipe_state *s = lib ? dlsym(lib, "wipe_state") : NULL;
    cr_assert(s);
    return s;
}

static struct vg_wiper open_card(void) {
    struct vg_wiper w;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_wiper_nvidia(WIPE_LIBS, WIPE_LIBS, &w, &err), 0, "%s", err.msg);
    cr_assert_eq(w.n, 1);
    return w;
}

Test(wipe, everything_that_can_be_had_is_overwritten_and_given_back) {
    struct vg_wiper w = open_card();
    struct vg_err err = VG_ERR_INIT;
    uint64_t bytes, total;
    cr_assert_eq(w.clear(w.state, 0, &bytes, &total, &err), 0, "%s", err.msg);
    cr_assert_eq(total, 5000 * MIB);
    cr_assert_eq(bytes, 4900 * MIB, "all but what the context itself takes");
    cr_assert_eq(card()->filled, bytes);
    cr_assert_eq(card()->contexts, 0);
    cr_assert_eq(card()->allocated, 0);
    w.close(w.state);
}

Test(wipe, what_somebody_holds_is_not_called_overwritten) {
    setenv("WIPE_HELD_MIB", "3000", 1);
    struct vg_wiper w = open_card();
    struct vg_err err = VG_ERR_INIT;
    uint64_t bytes, total;
    cr_assert_eq(w.clear(w.state, 0, &bytes, &total, &err), 0);
    cr_assert_eq(bytes, 1900 * MIB);
    w.close(w.state);
}

Test(wipe, settings_are_read_and_put_back_and_what_a_card_lacks_is_none) {
    setenv("WIPE_COMPUTE", "3", 1);
    struct vg_wiper w = open_card();
    uint32_t v = 0;
    char uuid[64];
    cr_assert_eq(w.uuid(w.state, 0, uuid, sizeof(uuid)), 0);
    cr_assert_str_eq(uuid, "GPU-of-a-test");
    cr_assert(w.get(w.state, 0, VG_SET_COMPUTE, &v) == 0 && v == 3);
    cr_assert(w.get(w.state, 0, VG_SET_POWER, &v) == 0 && v == 700000);
    cr_assert_eq(w.get(w.state, 0, VG_SET_MIG, &v), -ENOTSUP);
    cr_assert_eq(w.get(w.state, 0, VG_SET_PERSISTENCE, &v), -ENOTSUP, "this library has no such");
    cr_assert_eq(w.get(w.state, 0, VG_SET_SM_CLOCK, &v), -ENOTSUP);
    cr_assert_eq(w.set(w.state, 0, VG_SET_COMPUTE, 0), 0);
    cr_assert_eq(card()->compute, 0);
    cr_assert_eq(w.set(w.state, 0, VG_SET_POWER, 1), -ENOTSUP);
    cr_assert_eq(w.set(w.state, 0, VG_SET_MIG, 1), -ENOTSUP);
    setenv("WIPE_SET", "4", 1);
    cr_assert_eq(w.set(w.state, 0, VG_SET_COMPUTE, 1), -EPERM);
    w.close(w.state);
}

Test(wipe, a_node_that_cannot_clear_its_cards_says_so) {
    struct vg_wiper w;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_lt(vg_wiper_nvidia(WIPE_LIBS, "/nowhere/libcuda.so.1", &w, &err), 0);
    cr_assert_str_eq(err.msg, "the node has no libcuda");
    setenv("WIPE_INIT", "999", 1);
    err = (struct vg_err)VG_ERR_INIT;
    cr_assert_lt(vg_wiper_nvidia(WIPE_LIBS, WIPE_LIBS, &w, &err), 0);
    cr_assert(strstr(err.msg, "CUDA error 999"), "%s", err.msg);
}

Test(wipe, without_its_management_library_memory_is_cleared_all_the_same) {
    struct vg_wiper w;
    struct vg_err err = VG_ERR_INIT;
    uint64_t bytes, total;
    uint32_t v;
    cr_assert_eq(vg_wiper_nvidia("/nowhere/libnvidia-ml.so.1", WIPE_LIBS, &w, &err), 0, "%s",
                 err.msg);
    cr_assert_eq(w.get(w.state, 0, VG_SET_COMPUTE, &v), -ENOTSUP);
    cr_assert_eq(w.clear(w.state, 0, &bytes, &total, &err), 0);
    cr_assert_eq(bytes, 4900 * MIB);
    w.close(w.state);
}

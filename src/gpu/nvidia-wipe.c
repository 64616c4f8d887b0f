/* NVIDIA's cards between two tenants: settings by the management library, memory by the driver.
   What the driver itself does when memory changes hands is its own; here as much of it as can be
   had is allocated and overwritten. */
#include "gpu/gpu-wipe.h"

#include "base/mem.h"
#include "base/util.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CARDS_MAX 64
#define BLOCK_LARGEST (1ULL << 30)
#define BLOCK_SMALLEST (2ULL << 20)
#define UUID_BYTES 96 /* the library's own bound */
enum { CLOCK_SM = 1, CLOCK_MEM = 2 };

typedef void *handle;
typedef unsigned long long device_ptr;

struct nvidia {
    void *nvml, *cuda; /* nvml may be NULL: no setting is known */
    handle card[CARDS_MAX];
};

static void *find(void *lib, const char *name) {
    return lib ? dlsym(lib, name) : NULL;
}

/* ------------------------------------------------------------------ settings */

static const struct {
    const char *get, *set; /* of one number */
} simple[VG_SETTINGS] = {
    [VG_SET_COMPUTE] = {"nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode"},
    [VG_SET_PERSISTENCE] = {"nvmlDeviceGetPersistenceMode", "nvmlDeviceSetPersistenceMode"},
    [VG_SET_POWER] = {"nvmlDeviceGetPowerManagementLimit", "nvmlDeviceSetPowerManagementLimit"},
};

static int nv_uuid(void *state, uint32_t card, char *out, size_t n) {
    struct nvidia *v = state;
    int (*fn)(handle, char *, unsigned) =
        (int (*)(handle, char *, unsigned))find(v->nvml, "nvmlDeviceGetUUID");
    char uuid[UUID_BYTES];
    if (!fn || !v->card[card] || fn(v->card[card], uuid, sizeof(uuid)) != 0)
        return -ENOTSUP;
    uuid[sizeof(uuid) - 1] = 0;
    snprintf(out, n, "%s", uuid);
    return 0;
}

static int nv_get(void *state, uint32_t card, enum vg_setting s, uint32_t *ret) {
    struct nvidia *v = state;
    handle h = v->card[card];
    unsigned value = 0, pending = 0;
    int r = -1;
    void *fn = NULL;
    if (!h)
        return -ENOTSUP;
    if (simple[s].get && (fn = find(v->nvml, simple[s].get)))
        r = ((int (*)(handle, unsigned *))fn)(h, &value);
    else if (s == VG_SET_MIG && (fn = find(v->nvml, "nvmlDeviceGetMigMode")))
        r = ((int (*)(handle, unsigned *, unsigned *))fn)(h, &value, &pending);
    else if ((s == VG_SET_SM_CLOCK || s == VG_SET_MEM_CLOCK) &&
             (fn = find(v->nvml, "nvmlDeviceGetApplicationsClock")))
        r = ((int (*)(handle, int, unsigned *))fn)(h, s == VG_SET_SM_CLOCK ? CLOCK_SM : CLOCK_MEM,
                                                   &value);
    if (r != 0)
        return -ENOTSUP;
    *ret = value;
    return 0;
}

/* Clocks are set as a pair: the other stays as it is. */
static int set_clock(struct nvidia *v, uint32_t card, enum vg_setting s, uint32_t value) {
    void *fn = find(v->nvml, "nvmlDeviceSetApplicationsClocks");
    uint32_t other;
    enum vg_setting rest = s == VG_SET_SM_CLOCK ? VG_SET_MEM_CLOCK : VG_SET_SM_CLOCK;
    if (!fn || nv_get(v, card, rest, &other) < 0)
        return -ENOTSUP;
    unsigned mem = s == VG_SET_MEM_CLOCK ? value : other, sm = s == VG_SET_SM_CLOCK ? value : other;
    return ((int (*)(handle, unsigned, unsigned))fn)(v->card[card], mem, sm) == 0 ? 0 : -EPERM;
}

static int nv_set(void *state, uint32_t card, enum vg_setting s, uint32_t value) {
    struct nvidia *v = state;
    if (s == VG_SET_SM_CLOCK || s == VG_SET_MEM_CLOCK)
        return set_clock(v, card, s, value);
    void *fn = simple[s].set ? find(v->nvml, simple[s].set) : NULL;
    if (!fn || !v->card[card])
        return -ENOTSUP;
    return ((int (*)(handle, unsigned))fn)(v->card[card], value) == 0 ? 0 : -EPERM;
}

/* ------------------------------------------------------------------ memory */

struct cuda {
    int (*device)(int *, int);
    int (*context)(void **, unsigned, int);
    int (*leave)(void *);
    int (*room)(size_t *, size_t *);
    int (*alloc)(device_ptr *, size_t);
    int (*fill)(device_ptr, unsigned char, size_t);
    int (*wait)(void);
};

static bool load(void *lib, struct cuda *c) {
    c->device = (int (*)(int *, int))find(lib, "cuDeviceGet");
    c->context = (int (*)(void **, unsigned, int))find(lib, "cuCtxCreate_v2");
    c->leave = (int (*)(void *))find(lib, "cuCtxDestroy_v2");
    c->room = (int (*)(size_t *, size_t *))find(lib, "cuMemGetInfo_v2");
    c->alloc = (int (*)(device_ptr *, size_t))find(lib, "cuMemAlloc_v2");
    c->fill = (int (*)(device_ptr, unsigned char, size_t))find(lib, "cuMemsetD8_v2");
    c->wait = (int (*)(void))find(lib, "cuCtxSynchronize");
    return c->device && c->context && c->leave && c->room && c->alloc && c->fill && c->wait;
}

/* Everything that can be had, in blocks that get smaller; all is given back with the context. */
static int fill_all(const struct cuda *c, uint64_t *ret_bytes) {
    int r = 0;
    for (uint64_t block = BLOCK_LARGEST; r == 0 && block >= BLOCK_SMALLEST;) {
        device_ptr p;
        if (c->alloc(&p, block) != 0) {
            block /= 2;
            continue;
        }
        r = c->fill(p, 0, block);
        *ret_bytes += r == 0 ? block : 0;
    }
    return r ? r : c->wait();
}

static int nv_clear(void *state, uint32_t card, uint64_t *ret_bytes, uint64_t *ret_total,
                    struct vg_err *err) {
    struct nvidia *v = state;
    struct cuda c;
    void *ctx = NULL;
    size_t free_bytes = 0, total = 0;
    int dev, r = load(v->cuda, &c) ? 0 : -1;
    *ret_bytes = *ret_total = 0;
    if (r < 0)
        return vg_err_set(err, VG_UNSUPPORTED, "this libcuda lacks functions that are needed");
    if ((r = c.device(&dev, (int)card)) == 0)
        r = c.context(&ctx, 0, dev);
    if (r != 0)
        return vg_err_set(err, VG_INTERNAL, "no context on the card (CUDA error %d)", r);
    r = c.room(&free_bytes, &total);
    if (r == 0)
        r = fill_all(&c, ret_bytes);
    c.leave(ctx);
    *ret_total = total;
    return r ? vg_err_set(err, VG_INTERNAL, "the memory could not be written (CUDA error %d)", r)
             : 0;
}

/* ------------------------------------------------------------------ opening */

static void nv_close(void *state) {
    free(state); /* the libraries stay as long as the process */
}

static void open_settings(struct nvidia *v, const char *path) {
    v->nvml = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*init)(void) = (int (*)(void))find(v->nvml, "nvmlInit_v2");
    int (*by_index)(unsigned, handle *) =
        (int (*)(unsigned, handle *))find(v->nvml, "nvmlDeviceGetHandleByIndex_v2");
    if (!init || !by_index || init() != 0)
        return;
    for (unsigned i = 0; i < CARDS_MAX; i++)
        if (by_index(i, &v->card[i]) != 0)
            v->card[i] = NULL;
}

int vg_wiper_nvidia(const char *nvml, const char *cuda, struct vg_wiper *ret, struct vg_err *err) {
    struct nvidia *v = vg_alloc(sizeof(*v));
    int count = 0, r = -1;
    if (!v)
        return vg_err_sys(err, -ENOMEM, "cannot open the GPUs' driver");
    open_settings(v, nvml);
    /* Both libraries then count in the order of the bus, and all cards. */
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    v->cuda = dlopen(cuda, RTLD_NOW | RTLD_LOCAL);
    int (*init)(unsigned) = (int (*)(unsigned))find(v->cuda, "cuInit");
    int (*n)(int *) = (int (*)(int *))find(v->cuda, "cuDeviceGetCount");
    if (init && n && (r = init(0)) == 0)
        r = n(&count);
    if (r != 0 || count < 0 || count > CARDS_MAX) {
        free(v);
        return r < 0 ? vg_err_set(err, VG_UNSUPPORTED, "the node has no libcuda")
                     : vg_err_set(err, VG_INTERNAL, "the driver does not begin (CUDA error %d)", r);
    }
    *ret = (struct vg_wiper){.n = (uint32_t)count,
                             .state = v,
                             .uuid = nv_uuid,
                             .get = nv_get,
                             .set = nv_set,
                             .clear = nv_clear,
                             .close = nv_close};
    return 0;
}

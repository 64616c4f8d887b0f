/* How a program gets in: what is answered before anything is loaded, and the resolver.
 *
 * The resolver is the node's own, asked with the program's name, version and flags; what it finds
 * is an exported address, and goes through the table of names. So versions and per-thread forms
 * need no table of ours, and an address that is in no table does not exist for the program. */
#include "core.h"

#include <dlfcn.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#endif

#define VERSION_WITHOUT_DRIVER 13000 /* of the names in the table */

static CUresult not_ready(void) {
    return CUDA_SYSTEM_NOT_READY;
}
static CUresult refused(void) {
    return CUDA_NOT_SUPPORTED;
}

static const char *path_of(const struct vg_vgpu_page *page) {
    return page->real_cuda;
}

static bool bind_real(void *library) {
    bool whole = true;
#define REAL(name, ...) *(void **)&vg_real.name = dlsym(library, #name);
#define NEED(name, ...) REAL(name) whole = whole && vg_real.name;
#include "real.tbl"
#undef NEED
#undef REAL
    return whole && (vg_real.cuGetProcAddress || vg_real.cuGetProcAddress_v2);
}

const struct vg_shim_kind vg_shim_kind = {
    .not_ready = (void *)not_ready,
    .refused = (void *)refused,
    .missing = (void *)refused,
    .tells = true,
    .path = path_of,
    .bind = bind_real,
};

HOOK(cuInit, unsigned flags) {
    if (!vg_shim_get()->ready)
        return CUDA_SYSTEM_NOT_READY;
    CUresult r = vg_real.cuInit(flags);
    if (r != CUDA_OK)
        return r;
    struct vg_why why;
    if (vg_cards_find(&why))
        return CUDA_OK;
    vg_shim_close(why.text);
    return CUDA_SYSTEM_NOT_READY;
}

/* Runtimes look everything up before they initialise; they must get as far as being told. */
static CUresult resolve_nothing(const char *name, void **ret) {
    int i = name ? vg_shim_find(name) : -1;
    *ret = i < 0 ? NULL : vg_shim_table[i];
    return i < 0 ? CUDA_NOT_FOUND : CUDA_OK;
}

static CUresult substitute(void **address, int *status) {
    if (!*address)
        return CUDA_OK;
    *address = vg_shim_substitute(*address);
    if (*address)
        return CUDA_OK;
    if (status)
        *status = CU_SYMBOL_NOT_FOUND;
    return CUDA_NOT_FOUND;
}

HOOK(cuGetProcAddress, const char *name, void **ret, int version, uint64_t flags) {
    if (!ret)
        return CUDA_INVALID_VALUE;
    if (!vg_shim_get()->ready)
        return resolve_nothing(name, ret);
    CUresult r = vg_real.cuGetProcAddress(name, ret, version, flags);
    return r == CUDA_OK ? substitute(ret, NULL) : r;
}

HOOK(cuGetProcAddress_v2, const char *name, void **ret, int version, uint64_t flags, int *status) {
    if (!ret)
        return CUDA_INVALID_VALUE;
    if (!vg_shim_get()->ready) {
        CUresult r = resolve_nothing(name, ret);
        if (status)
            *status = r == CUDA_OK ? 0 : CU_SYMBOL_NOT_FOUND;
        return r;
    }
    CUresult r = vg_real.cuGetProcAddress_v2(name, ret, version, flags, status);
    return r == CUDA_OK ? substitute(ret, status) : r;
}

static CUresult name_not_ready(CUresult error, const char **ret, const char *text) {
    if (!ret || error != CUDA_SYSTEM_NOT_READY)
        return CUDA_INVALID_VALUE;
    *ret = text;
    return CUDA_OK;
}

HOOK(cuGetErrorName, CUresult error, const char **ret) {
    return vg_shim_get()->ready ? vg_real.cuGetErrorName(error, ret)
                                : name_not_ready(error, ret, "CUDA_ERROR_SYSTEM_NOT_READY");
}

HOOK(cuGetErrorString, CUresult error, const char **ret) {
    return vg_shim_get()->ready ? vg_real.cuGetErrorString(error, ret)
                                : name_not_ready(error, ret, "system not yet initialized");
}

HOOK(cuDriverGetVersion, int *ret) {
    if (vg_shim_get()->ready)
        return vg_real.cuDriverGetVersion(ret);
    if (!ret)
        return CUDA_INVALID_VALUE;
    *ret = VERSION_WITHOUT_DRIVER;
    return CUDA_OK;
}

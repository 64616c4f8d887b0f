/* What every fake libcuda says alike: its version, errors by name, and its resolver by its table of
   names. */
#include "strict.h"
#include "vgpu/cuda-types.h"

#include <stdio.h>
#include <string.h>

EXPORT(cuDriverGetVersion, int *ret) {
    *ret = 13000;
    return CUDA_OK;
}

EXPORT(cuGetErrorName, int error, const char **ret) {
    *ret = error == CUDA_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
    return CUDA_OK;
}

EXPORT(cuGetErrorString, int error, const char **ret) {
    *ret = error == CUDA_OUT_OF_MEMORY ? "out of memory" : "other";
    return CUDA_OK;
}

static const struct fake_name *named(const char *base, const char *suffix) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    for (unsigned i = 0; i < fake_name_count; i++)
        if (strcmp(fake_names[i].name, name) == 0)
            return &fake_names[i];
    return NULL;
}

/* The newest form that the version has, in the per-thread form where that is asked for and there is
 * one. */
EXPORT(cuGetProcAddress_v2, const char *name, void **ret, int version, uint64_t flags,
       int *status) {
    static const struct {
        const char *suffix;
        int since;
    } forms[] = {{"_v4", 12050}, {"_v3", 11040}, {"_v2", 3020}, {"", 0}};
    static const char *const threads[] = {"_ptsz", "_ptds", ""};
    if (!name || !ret || flags > 2)
        return CUDA_INVALID_VALUE;
    for (unsigned i = 0; i < 4; i++)
        for (unsigned t = flags == 2 ? 0 : 2; t < 3; t++) {
            char suffix[16];
            snprintf(suffix, sizeof suffix, "%s%s", forms[i].suffix, threads[t]);
            const struct fake_name *found = version >= forms[i].since ? named(name, suffix) : NULL;
            if (found) {
                *ret = found->address;
                if (status)
                    *status = 0;
                return CUDA_OK;
            }
        }
    *ret = NULL;
    if (status)
        *status = CU_SYMBOL_NOT_FOUND;
    return CUDA_NOT_FOUND;
}

EXPORT(cuGetProcAddress, const char *name, void **ret, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, ret, version, flags, NULL);
}

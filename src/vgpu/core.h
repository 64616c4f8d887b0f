#pragma once
/* What the hooks of the CUDA shim stand on: the node's own functions, and the cards. */
#include "cuda-types.h"
#include "shim.h"

/* A hook is what the table leads to for a name; its prototype is nobody else's business. */
#define HOOK(name, ...)                \
    CUresult hook_##name(__VA_ARGS__); \
    CUresult hook_##name(__VA_ARGS__)

struct vg_real {
#define REAL(name, ...) CUresult (*name)(__VA_ARGS__);
#define NEED REAL
#include "real.tbl"
#undef NEED
#undef REAL
};
extern struct vg_real vg_real;

/* After a good cuInit: which card of the page each device is. False, with a sentence, when one is
 * none of them. */
bool vg_cards_find(struct vg_why *why);
/* The place in the page of the program's device, and of the current context's: CUDA_OK, or what the
 * hook shall answer. */
CUresult vg_card_of(CUdevice device, unsigned *ret);
CUresult vg_card_current(unsigned *ret);

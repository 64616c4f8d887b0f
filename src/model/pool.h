#pragma once
/* What a pool grants to a request. The pool itself is configuration (struct vg_pool_conf). Pure. */
#include "base/err.h"
#include "conf/conf.h"

/* The pool that a task asked for (NULL or "": the default one). NULL and NOT_FOUND with a
   suggestion when there is none of that name. */
const struct vg_pool_conf *vg_pool_find(const struct vg_conf *c, const char *name,
                                        struct vg_err *err);
/* Resolves a request: what is 0 (or a NULL message) takes the pool's shape; what is above the
   pool's max, or of another kind than its class gives, is refused with INVALID; `c` is looked at
   for pools that give it. */
int vg_pool_grant(const struct vg_conf *c, const struct vg_pool_conf *p,
                  const Vg__Pb__Resources *want, struct vg_res *ret, struct vg_err *err);
/* The time limit that holds: the smaller of asked and pool's, 0 for none. */
uint64_t vg_pool_time_usec(const struct vg_pool_conf *p, uint64_t want_usec);

#pragma once
/* Inside the engine: what sentences about waiting tasks are made of. Each may pass over all nodes,
   and over the tasks on those that would do. */
#include "sched/profile.h"

/* Who holds what would do: into ret->holder, largest first. */
void vg_facts_holders(const struct vg_eng *e, const struct fit *f, struct vg_eng_why *ret);
/* "alice (5 GPUs), bob (3) and 2 others"; "" when nobody does. */
void vg_facts_say_holders(const struct vg_eng *e, const struct etenant *viewer,
                          const struct vg_eng_why *w, char *out, size_t n);
/* The tenant's name, if the other may be told. */
const char *vg_facts_name(const struct vg_eng *e, const struct etenant *viewer,
                          const struct etenant *tenant);
/* What is missing: "it needs 2 GPUs on one node and at most 1 is free". */
void vg_facts_say_short(const struct vg_eng *e, const struct fit *f, uint32_t members, char *out,
                        size_t n);
/* Why no node of its pools could ever hold it: "no node of pool 'a100' has 16 GPUs (the largest has
   8)". */
void vg_facts_say_too_big(const struct vg_eng *e, const struct fit *f, char *out, size_t n);
/* "1 GPU", "0.25 of a GPU", "8 CPUs", "2.0 GiB of memory": the first that is asked for. */
void vg_facts_say_need(const struct vg_res *r, char *out, size_t n);
/* The same of a fit: also "a whole node with 8 GPUs". */
void vg_facts_say_fit(const struct fit *f, char *out, size_t n);
/* When the tenant will hold so much less that one more of these is within its limit, if nobody else
   starts; VG_ENG_NEVER: not by what runs now. */
uint64_t vg_facts_below_limit(const struct vg_eng *e, const struct etenant *full,
                              const struct fit *f, uint32_t members);
/* "less than a minute", "4 min", "3 h", "2 days": for estimates. */
char *vg_facts_about(uint64_t usec, char *out, size_t n);

#pragma once
/* The price book of the cloud: loaded at start, grown by the configuration and by administrators.
   An entry never changes and never begins in the past, so what was charged stays right. */
#include "control/control.h"
#include "meter/charge.h"

struct vg_task;
struct vg_pool_conf;
struct vg_call;

#define VG_PRICE_BY_CONF "configuration" /* who set it */

int vg_prices_open(struct vg_control *c, struct vg_err *err);
/* What the configuration says now becomes entries where it differs from what it said last. */
void vg_prices_configured(struct vg_control *c);
/* What a grant of that pool costs for so long from `from` on. */
uint64_t vg_prices_cost(const struct vg_control *c, const struct vg_pool_conf *pool,
                        const struct vg_res *grant, bool preemptible, uint64_t from_usec,
                        uint64_t usec);
/* How long `micro` pays for it from then on; UINT64_MAX: for ever. */
uint64_t vg_prices_pay_usec(const struct vg_control *c, const struct vg_pool_conf *pool,
                            const struct vg_hold *h, uint64_t from_usec, uint64_t micro);
/* How long the task may run by its time limit and by what it may cost; 0: no limit. */
uint64_t vg_prices_limit_usec(const struct vg_control *c, const struct vg_task *t);
struct vg_hold vg_hold_of(const struct vg_res *r, bool preemptible);
/* Whether anything costs anything. */
bool vg_prices_any(const struct vg_control *c);
void vg_price_to_pb(const struct vg_tariff *t, Vg__Pb__Price *ret);

void vg_api_price_list(struct vg_call *call);
void vg_api_price_set(struct vg_call *call);

/* `virga price`: what things cost, since when, and who said so. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"
#include "cli/money-values.h"

#include <stdio.h>

static const char *amount(uint64_t micro, char *out, size_t n) {
    return micro ? vg_micro_text((int64_t)micro, out, n) : NULL;
}

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->prices->n_price; i++) {
        const Vg__Pb__Price *p = env->prices->price[i];
        char from[48], gpu[32], cpu[32], mem[32], kept[32], idle[16], pre[16];
        const char *cells[] = {p->pool && *p->pool ? p->pool : "(every)",
                               p->class_name && *p->class_name ? p->class_name : NULL,
                               vg_when(p->from_usec, from, sizeof from),
                               amount(p->gpu_hour_micro, gpu, sizeof gpu),
                               amount(p->cpu_hour_micro, cpu, sizeof cpu),
                               amount(p->gib_hour_micro, mem, sizeof mem),
                               amount(p->storage_gib_month_micro, kept, sizeof kept),
                               vg_percent_text(p->idle_milli, idle, sizeof idle),
                               vg_percent_text(p->preemptible_milli, pre, sizeof pre),
                               p->currency,
                               p->who};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_PRICES,
    .headings = (const char *const[]){"POOL", "CLASS", "FROM", "GPU-HOUR", "CPU-HOUR", "GIB-HOUR",
                                      "STORAGE", "IDLE", "PREEMPTIBLE", "CURRENCY", "BY", NULL},
    .rows = rows,
    .view = &vg_view_prices};

static const struct vg_opt list_opts[] = {
    {"history", 0, NULL, "also what held before", 'H'},
    VG_CMD_OUTPUT,
};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__PriceQuery q = VG__PB__PRICE_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(PRICE_LIST, price_list, &q);
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        q.has_history = q.history = true;
    }
    return vg_list_run(l, &req, &lister);
}

static const struct vg_opt set_opts[] = {
    {"pool", 'P', "POOL", "of this pool (default: every pool that has no price of its own)", 'P'},
    {"class", 0, "CLASS", "of this class alone: dedicated, shared, mps, mig, bare-metal", 'c'},
    {"gpu-hour", 0, "AMOUNT", "for a GPU and an hour; a share pays its part", 'g'},
    {"cpu-hour", 0, "AMOUNT", "for a CPU and an hour", 'u'},
    {"gib-hour", 0, "AMOUNT", "for a GiB of memory and an hour", 'm'},
    {"storage-gib-month", 0, "AMOUNT",
     "for a GiB kept in the store of environments and 30 days; of no pool", 's'},
    {"idle-discount", 0, "PERCENT", "off GPUs while they are held and do nothing", 'i'},
    {"preemptible-discount", 0, "PERCENT", "off everything, of tasks that may be preempted", 'p'},
    {"from", 0, "TIME", "when it begins: '2026-12-01 00:00' (default: now)", 'f'},
};

static int take(struct vg_cmd_line *l, int id, const char *arg, Vg__Pb__Price *p) {
    switch (id) {
    case 'P':
        p->pool = (char *)arg;
        return 0;
    case 'c':
        p->class_name = (char *)arg;
        return 0;
    case 'g':
        p->has_gpu_hour_micro = true;
        return vg_opt_micro(l, arg, &p->gpu_hour_micro);
    case 'u':
        p->has_cpu_hour_micro = true;
        return vg_opt_micro(l, arg, &p->cpu_hour_micro);
    case 'm':
        p->has_gib_hour_micro = true;
        return vg_opt_micro(l, arg, &p->gib_hour_micro);
    case 's':
        p->has_storage_gib_month_micro = true;
        return vg_opt_micro(l, arg, &p->storage_gib_month_micro);
    case 'i':
        p->has_idle_milli = true;
        return vg_opt_percent(l, arg, &p->idle_milli);
    case 'p':
        p->has_preemptible_milli = true;
        return vg_opt_percent(l, arg, &p->preemptible_milli);
    default:
        p->has_from_usec = true;
        return vg_opt_when(l, arg, &p->from_usec);
    }
}

static int set_run(struct vg_cmd_line *l) {
    Vg__Pb__Price p = VG__PB__PRICE__INIT;
    Vg__Pb__PriceSet m = VG__PB__PRICE_SET__INIT;
    Vg__Pb__Envelope req = vg_request(PRICE_SET, price_set, &m);
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (take(l, id, arg, &p) < 0)
            return vg_cmd_fail_opt(l);
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    if (!p.has_gpu_hour_micro && !p.has_cpu_hour_micro && !p.has_gib_hour_micro &&
        !p.has_storage_gib_month_micro && !p.has_idle_milli && !p.has_preemptible_milli) {
        vg_cmd_say("say what changes: --gpu-hour, --cpu-hour, --gib-hour, --storage-gib-month, "
                   "--idle-discount or --preemptible-discount");
        return vg_reason_exit(VG_INVALID);
    }
    m.price = &p;
    return vg_change_run(&req);
}

static const struct vg_cmd subs[] = {
    {"list", "", "what things cost now, and what is set for later", list_opts, VG_COUNT(list_opts),
     .run = list_run},
    {"set", "", "a new price; what is not said stays as it is", set_opts, VG_COUNT(set_opts),
     .run = set_run},
};

const struct vg_cmd vg_cmd_price = {.name = "price",
                                    .args = "",
                                    .summary = "what things cost: list, set",
                                    .subs = subs,
                                    .n_subs = VG_COUNT(subs)};

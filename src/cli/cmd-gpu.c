/* `virga gpu`: the cloud's GPUs, how they do, who uses them. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/gpu-show.h"
#include "cli/list.h"
#include "cli/top.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TEXT 64

/* "-" for what is not known. */
static const char *number(bool has, uint64_t v, const char *unit, char *out) {
    snprintf(out, TEXT, "%llu%s", (unsigned long long)v, unit);
    return has ? out : NULL;
}

static const char *size_of(bool has, uint64_t bytes, char *out) {
    return has ? vg_format_size(bytes, out, TEXT) : NULL;
}

static void name_of(const Vg__Pb__GpuState *g, char *out, size_t n) {
    snprintf(out, n, "%s:%u", g->node ? g->node : "?", g->index);
}

/* ------------------------------------------------------------------ list */

/* Who has it, and of a card in parts how much is given. Returns out. */
static char *held_text(const Vg__Pb__GpuState *g, char *out, size_t n) {
    uint64_t milli = 0;
    vg_gpu_holders_text(g, out, n);
    for (size_t i = 0; i < g->n_holder; i++)
        milli += g->holder[i]->gpu_milli;
    size_t at = strlen(out);
    if (g->n_holder > 1 || (milli && milli < 1000))
        snprintf(out + at, n - at, ", %g of it", (double)milli / 1000);
    return out;
}

static void list_rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->gpus->n_gpu; i++) {
        const Vg__Pb__GpuState *g = env->gpus->gpu[i];
        char name[96], model[128], mem[TEXT], numa[TEXT], link[TEXT], by[160];
        name_of(g, name, sizeof(name));
        const char *cells[] = {name,
                               g->state,
                               vg_gpu_model_text(g, model, sizeof(model)),
                               size_of(g->has_mem_bytes, g->mem_bytes, mem),
                               number(g->has_numa, g->numa, "", numa),
                               number(g->has_island, g->island, "", link),
                               g->mig ? "yes" : NULL,
                               g->driver && *g->driver ? g->driver : NULL,
                               held_text(g, by, sizeof(by))};
        vg_table_row(t, cells);
    }
}

static void items(const Vg__Pb__Envelope *env, json_t *array) {
    for (size_t i = 0; i < env->gpus->n_gpu; i++)
        json_array_append_new(array, vg_view_json(&vg_view_gpu, env->gpus->gpu[i]));
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_GPUS,
    .headings = (const char *const[]){"GPU", "STATE", "MODEL", "MEMORY", "NUMA", "NVLINK", "MIG",
                                      "DRIVER", "TASK", NULL},
    .rows = list_rows,
    .items = items};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__GpuQuery q = VG__PB__GPU_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(GPU_LIST, gpu_list, &q);
    return vg_list_run(l, &req, &lister);
}

/* ------------------------------------------------------------------ health */

static void health_rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->gpus->n_gpu; i++) {
        const Vg__Pb__GpuState *g = env->gpus->gpu[i];
        char name[96], temp[TEXT], fixed[TEXT], broken[TEXT], xid[TEXT], age[TEXT];
        name_of(g, name, sizeof(name));
        const char *health = g->reason ? "drained" : g->has_age_usec ? "well" : "unknown";
        const char *cells[] = {name,
                               health,
                               number(g->has_temp_c, g->temp_c, " C", temp),
                               number(g->has_ecc_corrected, g->ecc_corrected, "", fixed),
                               number(g->has_ecc_uncorrected, g->ecc_uncorrected, "", broken),
                               number(g->has_xid, g->xid, "", xid),
                               g->has_age_usec ? vg_format_duration(g->age_usec, age, sizeof(age))
                                               : NULL,
                               g->reason ? g->reason : g->fault};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister health_lister = {
    .body = VG__PB__ENVELOPE__BODY_GPUS,
    .headings = (const char *const[]){"GPU", "HEALTH", "TEMP", "ECC FIXED", "ECC LOST", "XID",
                                      "SEEN", "WHY", NULL},
    .rows = health_rows,
    .items = items};

static int health_run(struct vg_cmd_line *l) {
    Vg__Pb__GpuQuery q = VG__PB__GPU_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(GPU_LIST, gpu_list, &q);
    return vg_list_run(l, &req, &health_lister);
}

/* ------------------------------------------------------------------ top */

static const char *const top_headings[] = {"GPU",   "STATE", "SM",     "MEM BUSY", "MEMORY",
                                           "POWER", "TEMP",  "ENERGY", "TASK",     NULL};

static void task_rows(struct vg_table *t, const Vg__Pb__GpuState *g) {
    for (size_t i = 0; i < g->n_holder; i++) {
        const Vg__Pb__GpuHolder *h = g->holder[i];
        const Vg__Pb__GpuUsage *u = h->usage;
        char share[TEXT], sm[TEXT], mem[TEXT], power[TEXT], energy[TEXT], by[160];
        Vg__Pb__GpuState one = VG__PB__GPU_STATE__INIT;
        if (!u)
            continue;
        one.holder = g->holder + i;
        one.n_holder = 1;
        snprintf(share, sizeof(share), "%u.%02u", h->gpu_milli / 1000, h->gpu_milli % 1000 / 10);
        const char *cells[] = {
            "  so far",
            share,
            number(u->has_sm_mean_milli, u->sm_mean_milli / 1000, " %", sm),
            NULL,
            size_of(u->has_mem_peak_bytes, u->mem_peak_bytes, mem),
            number(u->has_power_mw, u->power_mw / 1000, " W", power),
            NULL,
            u->has_energy_mj ? vg_gpu_energy_text(u->energy_mj, energy, sizeof(energy)) : NULL,
            vg_gpu_holders_text(&one, by, sizeof(by))};
        vg_table_row(t, cells);
    }
}

static void top_rows(const Vg__Pb__GpuList *list, struct vg_table *t) {
    for (size_t i = 0; i < list->n_gpu; i++) {
        const Vg__Pb__GpuState *g = list->gpu[i];
        char name[96], sm[TEXT], busy[TEXT], mem[160], a[TEXT], b[TEXT], power[TEXT], temp[TEXT],
            energy[TEXT], model[128];
        name_of(g, name, sizeof(name));
        snprintf(mem, sizeof(mem), "%s/%s", vg_format_size(g->mem_used_bytes, a, sizeof(a)),
                 vg_format_size(g->mem_bytes, b, sizeof(b)));
        const char *cells[] = {
            name,
            g->state,
            number(g->has_sm_percent, g->sm_percent, " %", sm),
            number(g->has_mem_percent, g->mem_percent, " %", busy),
            g->has_mem_used_bytes && g->has_mem_bytes ? mem : NULL,
            number(g->has_power_mw, g->power_mw / 1000, " W", power),
            number(g->has_temp_c, g->temp_c, " C", temp),
            g->has_energy_mj ? vg_gpu_energy_text(g->energy_mj, energy, sizeof(energy)) : NULL,
            vg_gpu_model_text(g, model, sizeof(model))};
        vg_table_row(t, cells);
        task_rows(t, g);
    }
}

static int on_top(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_top *top = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_GPUS)
        return vg_unexpected(env, err);
    if (top->json) {
        json_t *array = json_array();
        items(env, array);
        vg_json_print_line(array);
    } else {
        struct vg_table *t = vg_table_new(top_headings);
        vg_top_clear(top);
        top_rows(env->gpus, t);
        vg_table_print(t, stdout, 0);
    }
    return vg_top_shown(top, err);
}

static const struct vg_opt top_opts[] = {VG_TOP_OPTS, VG_CMD_OUTPUT};

static int look(struct vg_top *top, struct vg_client *c, struct vg_err *err) {
    Vg__Pb__GpuQuery q = VG__PB__GPU_QUERY__INIT;
    Vg__Pb__Envelope req = vg_request(GPU_LIST, gpu_list, &q);
    q.has_live = q.live = true;
    return vg_call(c, &req, VG_CALL_TIMEOUT_USEC, on_top, top, err);
}

static int top_run(struct vg_cmd_line *l) {
    struct vg_top top;
    const char *arg;
    vg_top_init(&top);
    top.look = look;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;)
        if (id == VG_OPT_ERROR || vg_top_opt(l, &top, id, arg) < 0)
            return l->exit;
    return vg_cmd_args(l, 0, 0) ? vg_top_run(l, &top) : l->exit;
}

/* ------------------------------------------------------------------ drain, resume */

/* NODE:INDEX, cut in two. */
static bool split(char *text, char **ret_node, uint32_t *ret_index) {
    char *colon = strrchr(text, ':');
    uint64_t v;
    if (!colon || colon == text || vg_parse_u64(colon + 1, &v) < 0 || v > 1023)
        return false;
    *colon = 0;
    *ret_node = text;
    *ret_index = (uint32_t)v;
    return true;
}

static int set_all(struct vg_cmd_line *l, const char *state, const char *why) {
    int exit = 0;
    for (int i = 0; i < l->n_args && !exit; i++) {
        Vg__Pb__GpuSet s = VG__PB__GPU_SET__INIT;
        Vg__Pb__Envelope req = vg_request(GPU_SET, gpu_set, &s);
        if (!split(l->args[i], &s.node, &s.index)) {
            vg_opt_bad(&l->st, "'%.64s' is not NODE:INDEX as 'virga gpu list' shows it",
                       l->args[i]);
            return vg_cmd_fail_opt(l);
        }
        s.has_index = true;
        s.state = (char *)state;
        s.text = (char *)why;
        exit = vg_change_run(&req);
    }
    return exit;
}

static const struct vg_opt drain_opts[] = {
    {"reason", 'r', "TEXT", "why, for those who wonder", 'r'},
};

static int drain_run(struct vg_cmd_line *l) {
    const char *arg, *why = NULL;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        why = arg;
    }
    return vg_cmd_args(l, 1, -1) ? set_all(l, "drained", why) : l->exit;
}

static int resume_run(struct vg_cmd_line *l) {
    return vg_cmd_plain(l, 1, -1) ? set_all(l, "ready", NULL) : l->exit;
}

static const struct vg_cmd subs[] = {
    {"list", "", "GPUs with what they are and who holds them", VG_LIST_OPTS, .run = list_run},
    {"top", "", "how busy they are, again and again", top_opts, VG_COUNT(top_opts), .run = top_run},
    {"health", "", "temperature, errors, and why one is out of use", VG_LIST_OPTS,
     .run = health_run},
    {"drain", "NODE:INDEX...", "put nothing new there; what runs goes on", drain_opts,
     VG_COUNT(drain_opts), .run = drain_run},
    {"resume", "NODE:INDEX...", "use it again", .run = resume_run},
};

const struct vg_cmd vg_cmd_gpu = {.name = "gpu",
                                  .args = "",
                                  .summary = "GPUs: list, top, health, drain, resume",
                                  .subs = subs,
                                  .n_subs = VG_COUNT(subs)};

/* What tasks use of the node's GPUs: counted sample by sample, told with their end.
   Loop thread.

   The counts of a task lie in a file that is mapped (node/usage/): an agent that dies loses none,
   and the next one goes on with them; the cards' own energy counters cover the time between. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define LAST_LOOK_MS 1000           /* how long the end of a task waits for its last sample */
#define MAGIC 0x7667757361676534ULL /* of this form of the file */
#define ANCESTORS_MAX 64

struct usage_file {
    uint64_t magic;
    struct vg_gpu_use use;
};

struct vg_meter {
    struct usage_file *file; /* owned mapping */
    uint32_t milli;          /* of each card: 1000 is whole */
    uint32_t last_seq;       /* not 0: its end waits for the answer to this */
    uint64_t own_mem[VG_GPUS_MAX];
    uint32_t own_sm[VG_GPUS_MAX];
    uint64_t own; /* cards on which processes of its own were seen */
};

/* ------------------------------------------------------------------ begin and end */

static char *file_path(const struct vg_agent *a, const struct vg_agent_task *t) {
    char name[64];
    snprintf(name, sizeof(name), "usage/%016llx.%u", (unsigned long long)t->id, t->attempt);
    return vg_agent_path(a, name);
}

static struct usage_file *map_file(const struct vg_agent *a, const struct vg_agent_task *t) {
    vg_auto_free char *path = file_path(a, t);
    vg_auto_free char *dir = vg_agent_path(a, "usage");
    if (!path || !dir || vg_mkdir_p(dir, 0700) < 0)
        return NULL;
    vg_auto_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct usage_file)) < 0 ||
        posix_fallocate(fd, 0, sizeof(struct usage_file)) != 0) /* or a full disk would kill us */
        return NULL;
    void *p = mmap(NULL, sizeof(struct usage_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

void vg_meter_begin(struct vg_agent *a, struct vg_agent_task *t, const Vg__Pb__Start *start) {
    uint64_t cards = 0;
    for (size_t i = 0; i < start->n_gpu; i++)
        if (start->gpu[i] < a->gpus.n)
            cards |= 1ULL << start->gpu[i];
    if (!cards || t->meter)
        return;
    struct vg_meter *m = vg_alloc(sizeof(*m));
    if (!m || !(m->file = map_file(a, t))) {
        vg_warn("task=%016llx what it uses of its GPUs cannot be counted",
                (unsigned long long)t->id);
        free(m);
        return;
    }
    if (m->file->magic != MAGIC || m->file->use.cards != cards) {
        vg_gpu_use_init(&m->file->use, cards, vg_now_usec());
        m->file->magic = MAGIC;
    }
    m->milli = start->grant && start->grant->gpu_milli ? start->grant->gpu_milli : 1000;
    t->meter = m;
    a->n_metered++;
    vg_watch_ask(a, cards); /* its first sample is of now */
}

void vg_meter_end(struct vg_agent *a, struct vg_agent_task *t) {
    struct vg_meter *m = vg_take_ptr(t->meter);
    vg_auto_free char *path = m ? file_path(a, t) : NULL;
    if (!m)
        return;
    if (path)
        unlink(path);
    munmap(m->file, sizeof(*m->file));
    free(m);
    a->n_metered--;
}

/* Of tasks that this node has no memory of any more. */
void vg_meter_sweep(struct vg_agent *a) {
    vg_auto_free char *dir = vg_agent_path(a, "usage");
    DIR *d = dir ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char id[VG_ID_LEN + 1];
        uint64_t task;
        snprintf(id, sizeof(id), "%.16s", e->d_name);
        if (vg_id_parse(id, &task) == 0 && !vg_tasks_get(a, task))
            unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d)
        closedir(d);
}

/* ------------------------------------------------------------------ samples */

/* Whether what the card does now is counted for the task. One that has ended is until its last
   sample is there. */
static bool holds(const struct vg_agent_task *t, uint32_t card) {
    return t->meter && (t->meter->file->use.cards >> card & 1) &&
           (t->state != VG_AT_EXITED || t->meter->last_seq);
}

void vg_meter_cards(const struct vg_agent *a, uint64_t *ret_held, uint64_t *ret_shared) {
    *ret_held = *ret_shared = 0;
    if (!a->n_metered)
        return;
    vg_map_for_each (e, &a->tasks) {
        const struct vg_agent_task *t = e->value;
        for (uint32_t i = 0; t->meter && i < a->gpus.n; i++)
            if (holds(t, i)) {
                *ret_shared |= *ret_held & 1ULL << i;
                *ret_held |= 1ULL << i;
            }
    }
}

static pid_t parent_of(pid_t pid) {
    char path[64];
    vg_auto_free char *text = NULL;
    size_t len;
    int parent = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (vg_read_file(path, 4096, &text, &len) < 0)
        return 0;
    const char *after = strrchr(text, ')'); /* a name may hold anything */
    return after && sscanf(after, ") %*c %d", &parent) == 1 ? (pid_t)parent : 0;
}

static struct vg_agent_task *task_of_keeper(struct vg_agent *a, pid_t pid, uint32_t card) {
    vg_list_for_each (it, &a->keepers) {
        struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, link);
        if (k->pid != pid)
            continue;
        vg_list_for_each (at, &k->tasks) {
            struct vg_agent_task *t = vg_list_entry(at, struct vg_agent_task, link);
            if (holds(t, card))
                return t;
        }
    }
    return NULL;
}

/* The task whose keeper is among the ancestors. */
static struct vg_agent_task *owner_of(struct vg_agent *a, pid_t pid, uint32_t card) {
    struct vg_agent_task *t = NULL;
    for (int i = 0; !t && pid > 1 && i < ANCESTORS_MAX; i++, pid = parent_of(pid))
        t = task_of_keeper(a, pid, card);
    return t;
}

/* The task of one of the card's processes, or NULL. */
static struct vg_agent_task *owner_at(struct vg_agent *a, uint32_t card, uint32_t i) {
    struct vg_agent_card *c = &a->card[card];
    struct vg_agent_task *t = NULL;
    if (c->owner[i] == VG_NONE64) {
        t = owner_of(a, (pid_t)c->last.proc[i].pid, card);
        c->owner[i] = t ? t->id : 0;
    } else if (c->owner[i]) {
        t = vg_tasks_get(a, c->owner[i]);
    }
    return t && holds(t, card) ? t : NULL;
}

/* What each of its holders does with the card, by their processes. */
static void attribute(struct vg_agent *a, uint32_t card) {
    const struct vg_card_sample *s = &a->card[card].last;
    vg_map_for_each (e, &a->tasks) {
        struct vg_agent_task *t = e->value;
        if (!holds(t, card))
            continue;
        t->meter->own &= ~(1ULL << card);
        t->meter->own_mem[card] = t->meter->own_sm[card] = 0;
    }
    for (uint32_t i = 0; i < s->n_procs; i++) {
        const struct vg_card_proc *p = &s->proc[i];
        struct vg_agent_task *t = owner_at(a, card, i);
        if (!t)
            continue;
        t->meter->own |= 1ULL << card;
        t->meter->own_mem[card] += p->mem_bytes == VG_NONE64 ? 0 : p->mem_bytes;
        t->meter->own_sm[card] += p->sm_percent == VG_NONE ? 0 : p->sm_percent;
    }
}

/* A share is the warden's to hold; the driver's own count is told to it, to be compared. */
static void audit(struct vg_agent *a, uint32_t card) {
    vg_map_for_each (e, &a->tasks) {
        struct vg_agent_task *t = e->value;
        if (holds(t, card) && t->share.milli && t->keeper && t->state != VG_AT_EXITED &&
            (t->meter->own >> card & 1) &&
            vg_keeper_send(t->keeper, VG_K_AUDIT, t->id, 0, t->meter->own_mem[card], NULL, 0, NULL,
                           0) < 0)
            vg_debug("a keeper could not be told what its task holds");
    }
}

/* Of a card that it has a part of only its own processes' memory counts. */
static struct vg_gpu_holder holder_of(struct vg_agent_task *t, uint32_t card) {
    const struct vg_meter *m = t->meter;
    return (struct vg_gpu_holder){.use = &m->file->use,
                                  .milli = t->share.milli ? t->share.milli : m->milli,
                                  .sm = m->own_sm[card],
                                  .mem_bytes = m->milli < 1000 ? m->own_mem[card] : VG_NONE64};
}

void vg_meter_sample(struct vg_agent *a, const struct vg_card_sample *s) {
    vg_auto_free struct vg_gpu_holder *h = NULL;
    size_t n = 0;
    if (!a->n_metered || !(h = vg_alloc(a->n_metered * sizeof(*h))))
        return; /* the counters tell it with the next sample */
    if (s->full || s->uses)
        attribute(a, s->index);
    if (s->full)
        audit(a, s->index);
    vg_map_for_each (e, &a->tasks)
        if (holds(e->value, s->index) && n < a->n_metered)
            h[n++] = holder_of(e->value, s->index);
    vg_gpu_use_take(h, n, s, a->card[s->index].idle_mw);
}

/* ------------------------------------------------------------------ telling */

bool vg_meter_usage(const struct vg_agent_task *t, Vg__Pb__GpuUsage *ret) {
    if (!t->meter)
        return false;
    const struct vg_gpu_use *u = &t->meter->file->use;
    uint32_t sm = vg_gpu_use_sm_mean(u), mem = vg_gpu_use_mem_mean(u);
    vg__pb__gpu_usage__init(ret);
    ret->has_sm_mean_milli = ret->has_sm_max_percent = ret->has_idle_usec = sm != VG_NONE;
    ret->has_mem_mean_milli = ret->has_mem_max_percent = mem != VG_NONE;
    ret->sm_mean_milli = sm;
    ret->sm_max_percent = u->sm_max;
    ret->mem_mean_milli = mem;
    ret->mem_max_percent = u->mem_max;
    ret->has_mem_peak_bytes = u->begin_usec != 0 || t->share.use.peak_bytes;
    ret->mem_peak_bytes =
        VG_MAX(u->mem_peak_bytes, t->share.use.peak_bytes); /* exact, of a share */
    ret->has_energy_mj = u->energy_known;
    ret->energy_mj = u->energy_mj;
    ret->power_mw = vg_gpu_use_power(u);
    ret->has_power_mw = ret->power_mw != VG_NONE;
    ret->has_pcie_rx_bytes = ret->has_pcie_tx_bytes = u->pcie_known;
    ret->pcie_rx_bytes = u->pcie_rx_bytes;
    ret->pcie_tx_bytes = u->pcie_tx_bytes;
    ret->has_share_limit_bytes = ret->has_share_used_bytes = ret->has_share_peak_bytes =
        ret->has_share_refused = t->share.use.limit_bytes != 0;
    ret->share_limit_bytes = t->share.use.limit_bytes;
    ret->share_used_bytes = t->share.use.used_bytes;
    ret->share_peak_bytes = t->share.use.peak_bytes;
    ret->share_refused = t->share.use.refused;
    ret->has_sampled_usec = true;
    ret->sampled_usec = u->busy_usec;
    ret->has_unused_usec = true;
    ret->unused_usec = u->unused_usec;
    ret->idle_usec = u->end_usec > u->used_usec ? u->end_usec - u->used_usec : 0;
    return true;
}

/* The exit is protobuf's memory: so is what is put into it. */
static void fill_exit(struct vg_agent_task *t) {
    if (!t->exited || t->exited->never_ran)
        return;
    if (!t->exited->gpu_usage)
        t->exited->gpu_usage = vg_alloc(sizeof(*t->exited->gpu_usage));
    if (t->exited->gpu_usage)
        vg_meter_usage(t, t->exited->gpu_usage);
}

void vg_meter_finish(struct vg_agent *a, bool all) {
    vg_map_for_each (e, &a->tasks) {
        struct vg_agent_task *t = e->value;
        if (!t->meter || !t->meter->last_seq || (!all && a->watch.answered < t->meter->last_seq))
            continue;
        t->meter->last_seq = 0;
        fill_exit(t);
        vg_tasks_say_exit(a, t);
    }
}

static void on_late(uv_timer_t *timer) {
    vg_meter_finish(timer->data, true);
}

bool vg_meter_hold(struct vg_agent *a, struct vg_agent_task *t) {
    if (!t->meter || !t->exited)
        return false;
    fill_exit(t);
    if (t->exited->never_ran || a->stopping)
        return false;
    t->meter->last_seq = UINT32_MAX; /* its cards belong to those that are looked at */
    t->meter->last_seq = vg_watch_ask(a, t->meter->file->use.cards);
    if (t->meter->last_seq && !uv_is_active((uv_handle_t *)&a->meter_timer))
        uv_timer_start(&a->meter_timer, on_late, LAST_LOOK_MS, 0);
    return t->meter->last_seq != 0;
}

void vg_meter_init(struct vg_agent *a) {
    uv_timer_init(&a->loop, &a->meter_timer);
    a->meter_timer.data = a;
}

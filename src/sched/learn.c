/* How long tasks run, learnt from those that ended.

   Run times of one kind spread over decades, so what is kept is a histogram of their logarithms:
   one for each command (kin), for each tenant's tasks of one size, for each tenant, and for all. A
   newer run counts more: each adds one after what was there has shrunk a little. An estimate starts
   from what is known of all and bends towards the closer relatives as far as these have been seen,
   so the first run of a command does not outweigh everything, and the third nearly does.

   A task that outlives its estimate is among the longer ones: what is left to it is the half of the
   distribution that lies beyond what it ran already, and beyond everything that was ever seen half
   as long again. It never "ends any moment now".

   The number of histograms is bounded: the ones not touched for longest go. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sched/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BINS 24 /* doublings: up to 1 s, 2 s, ... 97 days */
#define KEYS_MAX 16384
#define UNKNOWN_USEC (30 * 60 * VG_USEC) /* before anything was learnt */
#define STEADY_LOG2 \
    0.5 /* runs of a command that vary by less than this are as long as their mean */
#define UPPER 0.8
#define KIND 0x4c00 /* of records: this, plus twice the level, plus 1 for the bins */

enum level { LEVEL_ALL, LEVEL_TENANT, LEVEL_SIZE, LEVEL_KIN, LEVELS };

/* After how many runs older ones hardly count, and how many runs the next wider level is worth. */
static const struct {
    float memory, prior;
} levels[LEVELS] = {{1024, 1}, {128, 4}, {64, 4}, {16, 0.5F}};

struct sketch {
    struct vg_list lru; /* in learn.lru, least recently noted first */
    uint64_t key;
    enum level level;
    float weight;    /* of the runs in it */
    float mean, m2;  /* of log2 seconds; m2: sum of squared distances from the mean */
    float bin[BINS]; /* sums to weight */
};

struct learn {
    struct vg_map sketches; /* by key */
    struct vg_list lru;
};

uint32_t vg_run_class(uint64_t usec) {
    uint32_t c = 0;
    while (c + 1 < VG_RUN_CLASSES && usec > vg_run_class_max(c))
        c++;
    return c;
}

uint64_t vg_run_class_max(uint32_t c) {
    return c + 1 >= VG_RUN_CLASSES ? VG_ENG_NEVER : VG_USEC << (2 * c);
}

int vg_learn_init(struct vg_eng *e) {
    e->learn = vg_alloc(sizeof *e->learn);
    if (!e->learn)
        return -ENOMEM;
    vg_list_init(&e->learn->lru);
    return 0;
}

static void forget(struct learn *l, struct sketch *s) {
    vg_list_remove(&s->lru);
    vg_map_del_u64(&l->sketches, s->key);
    free(s);
}

void vg_learn_done(struct vg_eng *e) {
    if (!e->learn)
        return;
    vg_list_for_each_safe (it, &e->learn->lru)
        forget(e->learn, vg_list_entry(it, struct sketch, lru));
    vg_map_done(&e->learn->sketches);
    free(e->learn);
    e->learn = NULL;
}

/* Keys must mean the same after a restart, so they are made of what the caller named. */
static uint64_t key_of(const struct etask *t, enum level level) {
    uint64_t k = level;
    switch (level) {
    case LEVEL_ALL:
        break;
    case LEVEL_KIN:
        k = tree_mix(k ^ t->kin);
        break;
    case LEVEL_SIZE:
        k ^= ((uint64_t)t->fit->res.gpus << 32) ^ ((uint64_t)t->fit->res.gpu_milli << 8);
        k = tree_mix(k);
        /* fallthrough */
    case LEVEL_TENANT:
        k = tree_mix(tree_mix(k) ^ t->tenant->id);
        break;
    default:
        break;
    }
    return k ? k : 1;
}

static struct sketch *find(const struct vg_eng *e, const struct etask *t, enum level level) {
    return level == LEVEL_KIN && !t->kin ? NULL
                                         : vg_map_get_u64(&e->learn->sketches, key_of(t, level));
}

/* NULL: no memory, and then one run is not learnt from. */
static struct sketch *get(struct learn *l, uint64_t key, enum level level) {
    struct sketch *s = vg_map_get_u64(&l->sketches, key);
    if (s)
        return s;
    s = vg_alloc(sizeof *s);
    if (!s || vg_map_put_u64(&l->sketches, key, s) < 0) {
        free(s);
        return NULL;
    }
    s->key = key;
    s->level = level;
    vg_list_push_back(&l->lru, &s->lru);
    if (vg_map_len(&l->sketches) > KEYS_MAX)
        forget(l, vg_list_entry(vg_list_first(&l->lru), struct sketch, lru));
    return s;
}

static float log2_sec(uint64_t usec) {
    return log2f((float)VG_MAX(usec, VG_USEC / 64) / (float)VG_USEC);
}

static uint64_t from_log2(double x) {
    double usec = exp2(x) * (double)VG_USEC;
    return usec < 1 ? 1 : usec > 1e15 ? (uint64_t)1e15 : (uint64_t)usec;
}

/* Bin i holds log2 seconds of (i - 1, i]; the first everything up to a second. */
static size_t bin_of(float x) {
    return x <= 0 ? 0 : x >= BINS - 1 ? BINS - 1 : (size_t)ceilf(x);
}

static void add(struct sketch *s, float x) {
    float keep = 1 - 1 / levels[s->level].memory;
    for (size_t i = 0; i < BINS; i++)
        s->bin[i] *= keep;
    s->bin[bin_of(x)] += 1;
    s->m2 *= keep;
    s->weight = s->weight * keep + 1;
    float d = x - s->mean;
    s->mean += d / s->weight;
    s->m2 += d * (x - s->mean);
}

void vg_learn_note(struct vg_eng *e, const struct etask *t, uint64_t ran_usec) {
    float x = log2_sec(ran_usec);
    for (enum level level = 0; level < LEVELS; level++) {
        if (level == LEVEL_KIN && !t->kin)
            continue;
        struct sketch *s = get(e->learn, key_of(t, level), level);
        if (!s)
            continue;
        add(s, x);
        vg_list_remove(&s->lru);
        vg_list_push_back(&e->learn->lru, &s->lru);
    }
}

/* What is known of such a task, as fractions; false: nothing. */
static bool blend(const struct vg_eng *e, const struct etask *t, double p[static BINS]) {
    bool any = false;
    for (enum level level = 0; level < LEVELS; level++) {
        const struct sketch *s = find(e, t, level);
        if (!s || s->weight <= 0)
            continue;
        double prior = any ? (double)levels[level].prior : 0;
        double part = 1 / ((double)s->weight + prior);
        prior *= part;
        for (size_t i = 0; i < BINS; i++)
            p[i] = (double)s->bin[i] * part + (any ? p[i] * prior : 0);
        any = true;
    }
    return any;
}

/* log2 seconds below which the fraction `q` lies, of what lies above `from`; NAN when (nearly)
   nothing was seen there. */
static double quantile(const double p[static BINS], double from, double q) {
    double part[BINS], sum = 0;
    for (size_t i = 0; i < BINS; i++) {
        double low = (double)i - 1, above = from <= low ? 1 : from >= low + 1 ? 0 : low + 1 - from;
        part[i] = p[i] * above;
        sum += part[i];
    }
    if (sum < 0.02)
        return NAN;
    double want = sum * q;
    for (size_t i = 0; i < BINS; i++) {
        if (want <= part[i] && part[i] > 0) {
            double low = VG_MAX((double)i - 1, from);
            return low + ((double)i - low) * want / part[i];
        }
        want -= part[i];
    }
    return BINS - 1;
}

/* A command that always runs about equally long is known better than its bin. */
static bool steady(const struct vg_eng *e, const struct etask *t, double *mean, double *spread) {
    const struct sketch *s = find(e, t, LEVEL_KIN);
    if (!s || s->weight < 1.5F)
        return false;
    *mean = (double)s->mean;
    *spread = sqrt((double)VG_MAX(s->m2, 0) / (double)s->weight);
    return *spread < STEADY_LOG2;
}

static uint64_t within_limit(const struct etask *t, uint64_t usec) {
    return t->limit_usec ? VG_MIN(usec, t->limit_usec) : usec;
}

static uint64_t at_quantile(const struct vg_eng *e, const struct etask *t, double q,
                            double spreads) {
    double p[BINS], mean, spread;
    if (steady(e, t, &mean, &spread))
        return within_limit(t, from_log2(mean + spreads * VG_MAX(spread, 0.05)));
    double x = blend(e, t, p) ? quantile(p, -INFINITY, q) : NAN;
    return within_limit(t, isnan(x) ? UNKNOWN_USEC : from_log2(x));
}

uint64_t vg_learn_expect(const struct vg_eng *e, const struct etask *t) {
    if (t->known_usec)
        return t->known_usec;
    return at_quantile(e, t, 0.5, 0);
}

uint64_t vg_learn_upper(const struct vg_eng *e, const struct etask *t) {
    return at_quantile(e, t, UPPER, 1);
}

/* What it has run already is the best hint at how long it goes on: never less than half of it.
   (Halving what is left of a bin over and over would come to nothing, and be asked for all the
   time.) */
uint64_t vg_learn_expect_given(const struct vg_eng *e, const struct etask *t, uint64_t ran_usec) {
    double p[BINS], mean, spread;
    uint64_t least = ran_usec + VG_MAX(ran_usec / 2, VG_USEC), whole = least;
    if (!ran_usec || t->known_usec > ran_usec)
        return vg_learn_expect(e, t);
    if (steady(e, t, &mean, &spread))
        whole = from_log2(mean);
    else if (blend(e, t, p)) {
        double x = quantile(p, (double)log2_sec(ran_usec), 0.5);
        whole = isnan(x) ? whole : from_log2(x);
    } else {
        whole = VG_MAX(whole, UNKNOWN_USEC);
    }
    whole = VG_MAX(whole, least);
    /* A task past its limit is being stopped: what that takes is not learnt. */
    return t->limit_usec > ran_usec ? VG_MIN(whole, t->limit_usec) : whole;
}

void vg_learn_basis(const struct vg_eng *e, const struct etask *t, char *out, size_t n) {
    static const char *const of[LEVELS] = {"tasks here", "this team's or user's tasks",
                                           "such tasks of this team or user", "this command"};
    for (int level = LEVEL_KIN; level >= 0; level--) {
        const struct sketch *s = find(e, t, (enum level)level);
        if (!s || s->weight < 0.5F)
            continue;
        unsigned runs = (unsigned)lroundf(s->weight);
        snprintf(out, n, "the last %u run%s of %s", runs, runs == 1 ? "" : "s", of[level]);
        return;
    }
    snprintf(out, n,
             t->limit_usec && t->limit_usec <= UNKNOWN_USEC
                 ? "its time limit, since nothing like it has run yet"
                 : "a guess, since nothing like it has run yet");
}

/* ------------------------------------------------------------------ across restarts */

static uint64_t double_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float bits_float(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return (float)x;
}

/* Ten bits for each bin, six bins a word: thousandths of the weight. */
static void save_one(const struct sketch *s, vg_eng_save_fn *fn, void *arg) {
    uint32_t kind = KIND + 2 * (uint32_t)s->level;
    fn(arg, kind, s->key,
       (uint64_t[4]){double_bits((double)s->weight), double_bits((double)s->mean),
                     double_bits((double)s->m2), 0});
    uint64_t bins[4] = {0};
    for (size_t i = 0; i < BINS; i++)
        bins[i / 6] |= (uint64_t)lroundf(s->bin[i] / s->weight * 1000) << (i % 6 * 10);
    fn(arg, kind + 1, s->key, bins);
}

void vg_learn_save(const struct vg_eng *e, vg_eng_save_fn *fn, void *arg) {
    vg_list_for_each (it, &e->learn->lru) {
        const struct sketch *s = vg_list_entry(it, struct sketch, lru);
        if (s->weight > 0)
            save_one(s, fn, arg);
    }
}

static void restore_moments(struct sketch *s, const uint64_t value[4]) {
    float weight = bits_float(value[0]), mean = bits_float(value[1]), m2 = bits_float(value[2]);
    bool sane = weight > 0 && weight <= levels[s->level].memory + 1 && fabsf(mean) < 64 &&
                m2 >= 0 && m2 < 4096 * weight;
    if (!sane)
        return;
    for (size_t i = 0; i < BINS; i++)
        s->bin[i] *= s->weight > 0 ? weight / s->weight : 0;
    if (s->weight <= 0)
        s->bin[bin_of(mean)] = weight; /* until the bins' own record comes */
    s->weight = weight;
    s->mean = mean;
    s->m2 = m2;
}

static void restore_bins(struct sketch *s, const uint64_t value[4]) {
    uint64_t sum = 0;
    for (size_t i = 0; i < BINS; i++)
        sum += value[i / 6] >> (i % 6 * 10) & 1023;
    if (!sum)
        return;
    if (s->weight <= 0)
        s->weight = 1;
    for (size_t i = 0; i < BINS; i++)
        s->bin[i] = (float)(value[i / 6] >> (i % 6 * 10) & 1023) / (float)sum * s->weight;
}

bool vg_learn_restore(struct vg_eng *e, uint32_t kind, uint64_t key, const uint64_t value[4]) {
    if (kind < KIND || kind >= KIND + 2 * LEVELS)
        return false;
    struct sketch *s = get(e->learn, key, (enum level)((kind - KIND) / 2));
    if (s && (kind - KIND) % 2)
        restore_bins(s, value);
    else if (s)
        restore_moments(s, value);
    return true;
}

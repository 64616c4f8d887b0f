/* What requests are likely, and what free capacity is therefore worth.

   Every request that comes is counted by what it asks of GPUs; older ones weigh less and less. From
   these counts follows the worth of a card with r thousandths left: requests of the mix come in
   random order, each that fits takes its part, until one comes too many that does not come in time
   (IMPATIENCE: how often nothing suitable comes although much would fit). So 190 left is worth
   little where nearly nobody asks for so few, and a fresh card is worth less than 1000 where most
   requests leave rests. A node is worth what its cards are, as far as its CPUs and memory can carry
   the requests, and more when untouched cards lie together, some ask for several, and such places
   are scarce.

   Pure; double arithmetic in a fixed order, so that the same requests give the same numbers. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/place.h"

#include <string.h>

#define KINDS_MAX 256   /* kinds of requests that are told apart; the rarest make room */
#define IMPATIENCE 0.01 /* of all requests */
#define HORIZON 1200.0  /* requests ahead for which places for several cards are kept, */
#define PLENTY 3.0      /* and what they are worth to each such request where there are plenty */
#define FADE 1.0001     /* each request weighs this much more than the one before */
#define FADE_RESET 1e12 /* weights are scaled down before they lose precision */
#define SAME_CARD 5.0   /* worth that differs by less everywhere is the same: */
#define SAME_RATIO 0.02 /* scores of all nodes need not be made anew; so are CPUs and memory */
#define SAME_WIDE 0.2   /* a card that differ so little, and places for several cards */
#define KNOWN 256       /* requests after which guesses no longer count */
#define RENEW_MIN 2     /* requests until worth is computed again: half of those seen, */
#define RENEW_MAX 256   /* within these */

struct kind {
    char *model;                        /* owned; as in a request, "" any */
    uint32_t gpus, milli;               /* milli: 1000 for whole ones, 0 for none */
    double count, cpu_milli, mem_bytes; /* the latter two: sums */
    double guess;                       /* counted before much is known */
};

struct mix {
    struct kind kind[KINDS_MAX];
    uint32_t n;
    double weight; /* of the next request */
    uint64_t seen, since;
    uint64_t version;
    struct worth *worth; /* owned; [0] for every model, or by enode.model_no */
    uint32_t n_worth;
};

/* --- counting --- */

static bool is_kind(const struct kind *k, const struct fit *f) {
    uint32_t milli = f->res.gpus ? 1000 : f->res.gpu_milli;
    return k->gpus == f->res.gpus && k->milli == milli && strcmp(k->model, f->model) == 0;
}

static struct kind *rarest(struct mix *m) {
    struct kind *least = &m->kind[0];
    for (uint32_t i = 1; i < m->n; i++)
        if (m->kind[i].count < least->count)
            least = &m->kind[i];
    return least;
}

/* The kind of a fit, a new one if need be; NULL: no memory. */
static struct kind *kind_of(struct mix *m, const struct fit *f) {
    if (f->mix_at < m->n && is_kind(&m->kind[f->mix_at], f))
        return &m->kind[f->mix_at];
    for (uint32_t i = 0; i < m->n; i++)
        if (is_kind(&m->kind[i], f))
            return &m->kind[i];
    char *model = vg_strdup(f->model);
    if (!model)
        return NULL;
    struct kind *k = m->n < KINDS_MAX ? &m->kind[m->n++] : rarest(m);
    free(k->model);
    *k = (struct kind){
        .model = model, .gpus = f->res.gpus, .milli = f->res.gpus ? 1000 : f->res.gpu_milli};
    return k;
}

static void count(struct kind *k, const struct vg_res *r, double weight) {
    k->count += weight;
    k->cpu_milli += weight * r->cpu_milli;
    k->mem_bytes += weight * (double)r->mem_bytes;
}

static void scale_down(struct mix *m) {
    for (uint32_t i = 0; i < m->n; i++) {
        m->kind[i].count /= m->weight;
        m->kind[i].cpu_milli /= m->weight;
        m->kind[i].mem_bytes /= m->weight;
    }
    m->weight = 1;
}

/* --- worth --- */

/* Whether requests with this wish for models may use that one; 0: of any model. */
static bool may_use(const struct fit_world *w, const struct kind *k, uint32_t model_no) {
    if (!*k->model || !model_no)
        return true;
    for (const char *p = k->model; *p; p += strspn(p, "|")) {
        size_t n = strcspn(p, "|");
        char name[64];
        if (n < sizeof name) {
            memcpy(name, p, n);
            name[n] = 0;
            if (vg_names_find(&w->models, name) == model_no)
                return true;
        }
        p += n;
    }
    return false;
}

/* What is summed up over the kinds before worth follows. */
struct sums {
    double card[1001];        /* requests for so many thousandths of a card */
    uint32_t size[KINDS_MAX]; /* those of them that occur, ascending */
    uint32_t n;
    double several[VG_NODE_GPUS_MAX + 1];
    double all, gpu_milli, cpu_milli, mem_bytes;
};

static void sum_up(const struct fit_world *w, uint32_t model_no, struct sums *s) {
    uint64_t seen = w->mix->seen;
    double guessing = seen < KNOWN ? 1 - (double)seen / KNOWN : 0;
    *s = (struct sums){0};
    for (uint32_t i = 0; i < w->mix->n; i++) {
        const struct kind *k = &w->mix->kind[i];
        double n = k->count + k->guess * guessing;
        s->all += n;
        if (!k->milli || n <= 0 || !may_use(w, k, model_no))
            continue;
        uint32_t cards = k->gpus ? k->gpus : 1;
        s->card[k->milli] += n * cards;
        if (cards > 1 && cards <= VG_NODE_GPUS_MAX)
            s->several[cards] += n;
        s->gpu_milli += k->count * k->milli * cards;
        s->cpu_milli += k->cpu_milli;
        s->mem_bytes += k->mem_bytes;
    }
    for (uint32_t r = 1; r <= 1000; r++)
        if (s->card[r] > 0 && s->n < KINDS_MAX)
            s->size[s->n++] = r;
}

/* How many requests for `g` cards the untouched cards of open nodes would hold. */
static double places(const struct fit_world *w, uint32_t g) {
    double n = 0;
    for (uint32_t k = g; k <= VG_NODE_GPUS_MAX; k++)
        n += w->wide[k] * (k / g);
    return n;
}

/* A place for `g` cards is worth them as far as it will be asked for: fully where such places are
   scarce, little where there are plenty. One that lacks few cards may become one. */
static void value_wide(const struct sums *s, uint32_t g, double n, struct worth *ret) {
    double share = s->several[g] / s->all; /* of the requests */
    double wanted = VG_MAX(share * HORIZON / VG_MAX(n, 1.0), share * PLENTY);
    double value = 1000.0 * g * VG_MIN(wanted, 1.0);
    for (uint32_t k = 1; k <= VG_NODE_GPUS_MAX; k++) {
        double rest = (double)(k % g) / g;
        ret->whole[k] += value * (k / g + rest * rest * rest * rest);
    }
}

static void compute(const struct fit_world *w, const struct sums *s, struct worth *ret) {
    ret->card[0] = 0;
    for (uint32_t r = 1; r <= 1000; r++) {
        double used = 0, fit = 0;
        for (uint32_t i = 0; i < s->n && s->size[i] <= r; i++) {
            used += s->card[s->size[i]] * (s->size[i] + ret->card[r - s->size[i]]);
            fit += s->card[s->size[i]];
        }
        ret->card[r] = fit > 0 ? used / (fit + IMPATIENCE * s->all) : 0;
    }
    for (uint32_t g = 2; g <= VG_NODE_GPUS_MAX; g++)
        if (s->several[g] > 0)
            value_wide(s, g, places(w, g), ret);
    ret->cpu_per_milli = s->gpu_milli > 0 ? s->cpu_milli / s->gpu_milli : 0;
    ret->mem_per_milli = s->gpu_milli > 0 ? s->mem_bytes / s->gpu_milli : 0;
}

static bool names_models(const struct mix *m) {
    for (uint32_t i = 0; i < m->n; i++)
        if (*m->kind[i].model)
            return true;
    return false;
}

static bool near(double a, double b, double ratio) {
    double d = a > b ? a - b : b - a;
    return d <= ratio * (a > b ? a : b);
}

static bool same(const struct worth *a, const struct worth *b) {
    for (uint32_t r = 0; r <= 1000; r++)
        if (a->card[r] - b->card[r] > SAME_CARD || b->card[r] - a->card[r] > SAME_CARD)
            return false;
    for (uint32_t k = 0; k <= VG_NODE_GPUS_MAX; k++)
        if (!near(a->whole[k], b->whole[k], SAME_WIDE))
            return false;
    return near(a->cpu_per_milli, b->cpu_per_milli, SAME_RATIO) &&
           near(a->mem_per_milli, b->mem_per_milli, SAME_RATIO);
}

static bool same_all(const struct mix *m, const struct worth *w, uint32_t n) {
    if (m->n_worth != n)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!same(&m->worth[i], &w[i]))
            return false;
    return true;
}

/* Without memory what was known stays. */
static void renew(struct fit_world *w) {
    struct mix *m = w->mix;
    uint32_t n = names_models(m) ? w->models.n + 1 : 1;
    vg_auto_free struct sums *s = vg_alloc(sizeof *s);
    struct worth *worth = vg_alloc(n * sizeof *worth);
    m->since = 0;
    if (!s || !worth) {
        free(worth);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        sum_up(w, i, s);
        compute(w, s, &worth[i]);
    }
    if (same_all(m, worth, n)) {
        free(worth);
        return;
    }
    free(m->worth);
    m->worth = worth;
    m->n_worth = n;
    m->version++;
}

const struct worth *vg_mix_worth(const struct fit_world *w, const struct enode *n) {
    return &w->mix->worth[n->model_no < w->mix->n_worth ? n->model_no : 0];
}

uint64_t vg_mix_version(const struct mix *m) {
    return m->version;
}

/* --- from outside --- */

void vg_score_note(struct vg_eng *e, const struct fit *f) {
    struct mix *m = e->place->mix;
    struct kind *k = kind_of(m, f);
    if (!k)
        return;
    ((struct fit *)f)->mix_at = (uint32_t)(k - m->kind);
    count(k, &f->res, m->weight);
    m->weight *= FADE;
    if (m->weight > FADE_RESET)
        scale_down(m);
    m->seen++;
    if (++m->since >= VG_MIN(VG_MAX(m->seen / 2, RENEW_MIN), RENEW_MAX))
        renew(e->place);
}

static void forget(struct mix *m) {
    for (uint32_t i = 0; i < m->n; i++)
        free(m->kind[i].model);
    memset(m->kind, 0, sizeof m->kind);
    m->n = 0;
    m->weight = 1;
    m->seen = 0;
}

int vg_eng_set_mix(struct vg_eng *e, const struct vg_eng_mix *mix, size_t n) {
    struct mix *m = e->place->mix;
    char none[] = "";
    forget(m);
    for (size_t i = 0; i < n; i++) {
        struct fit like = {.res = mix[i].res,
                           .model = mix[i].model ? (char *)mix[i].model : none,
                           .mix_at = KINDS_MAX};
        struct kind *k = kind_of(m, &like);
        if (!k)
            return -ENOMEM;
        count(k, &mix[i].res, (double)mix[i].count);
        m->seen += mix[i].count;
    }
    renew(e->place);
    return 0;
}

/* Before anything is known: mostly whole cards, some halves and quarters, a few that want several.
 */
static int expect_anything(struct mix *m) {
    static const struct {
        uint32_t gpus, milli;
        double guess;
    } some[] = {{1, 1000, 8}, {0, 500, 2}, {0, 250, 2}, {2, 1000, 1}, {4, 1000, 1}, {8, 1000, 1}};
    for (size_t i = 0; i < VG_COUNT(some); i++) {
        char *model = vg_strdup("");
        if (!model)
            return -ENOMEM;
        m->kind[m->n++] = (struct kind){
            .model = model, .gpus = some[i].gpus, .milli = some[i].milli, .guess = some[i].guess};
    }
    return 0;
}

struct mix *vg_mix_new(void) {
    struct mix *m = vg_alloc(sizeof *m);
    if (!m)
        return NULL;
    struct fit_world w = {.mix = m};
    m->weight = 1;
    if (expect_anything(m) == 0)
        renew(&w);
    if (!m->worth) {
        vg_mix_free(m);
        return NULL;
    }
    return m;
}

void vg_mix_free(struct mix *m) {
    if (!m)
        return;
    forget(m);
    free(m->worth);
    free(m);
}

/* Explanations as text and JSON. No state; any thread. */
#include "cli/why-show.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "cli/table.h"
#include "cli/task-show.h"

#include <inttypes.h>
#include <string.h>

char *vg_milli_text(uint64_t milli, char *out, size_t n) {
    unsigned part = (unsigned)(milli % 1000);
    int digits = part % 10 ? 3 : part % 100 ? 2 : 1;
    if (!part)
        snprintf(out, n, "%" PRIu64, milli / 1000);
    else
        snprintf(out, n, "%" PRIu64 ".%0*u", milli / 1000, digits,
                 digits == 3   ? part
                 : digits == 2 ? part / 10
                               : part / 100);
    return out;
}

char *vg_cost_text(uint64_t micro, const char *currency, char *out, size_t n) {
    uint64_t cents = micro / 10000 + (micro % 10000 >= 5000);
    if (micro && !cents)
        snprintf(out, n, "less than 0.01%s%s", currency ? " " : "", currency ? currency : "");
    else
        snprintf(out, n, "%" PRIu64 ".%02u%s%s", cents / 100, (unsigned)(cents % 100),
                 currency ? " " : "", currency ? currency : "");
    return out;
}

bool vg_why_hopeless(const Vg__Pb__WhyInfo *w) {
    static const char *const codes[] = {"too-big", "never", "cost"};
    for (unsigned i = 0; w->code && i < VG_COUNT(codes); i++)
        if (strcmp(w->code, codes[i]) == 0)
            return true;
    return false;
}

static void put(FILE *out, const char *key, const char *text) {
    char clean[1024];
    if (text && *text)
        fprintf(out, "%-16s%s\n", key, vg_clean(clean, sizeof(clean), text, strlen(text)));
}

static void print_holder(FILE *out, bool first, const Vg__Pb__Holder *h) {
    char text[256], gpus[32], until[80];
    vg_milli_text(h->gpu_milli, gpus, sizeof(gpus));
    size_t n = (size_t)snprintf(text, sizeof(text), "%.100s: %u task%s",
                                h->tenant ? h->tenant : "?", h->tasks, h->tasks == 1 ? "" : "s");
    if (h->gpu_milli && n < sizeof(text))
        n += (size_t)snprintf(text + n, sizeof(text) - n, ", %s GPU%s", gpus,
                              h->gpu_milli > 1000 ? "s" : "");
    if (h->until_usec && n < sizeof(text))
        snprintf(text + n, sizeof(text) - n, ", until about %s",
                 vg_soon(h->until_usec, until, sizeof(until)));
    put(out, first ? "held by" : "", text);
}

void vg_why_print(FILE *out, const Vg__Pb__WhyInfo *w) {
    char text[1024];
    const char *sentence = w->text && *w->text ? w->text : w->state ? w->state : "nothing is known";
    fprintf(out, "%s\n", vg_clean(text, sizeof(text), sentence, strlen(sentence)));
    put(out, "pool", w->pool);
    put(out, "node", w->node);
    if (w->expected_start_usec)
        put(out, "expected start", vg_soon(w->expected_start_usec, text, sizeof(text)));
    put(out, "because", w->basis);
    if (w->expected_run_usec)
        put(out, "expected run", vg_format_duration(w->expected_run_usec, text, sizeof(text)));
    if (w->has_cost_micro && w->cost_micro)
        put(out, "expected cost", vg_cost_text(w->cost_micro, w->currency, text, sizeof(text)));
    for (size_t i = 0; i < w->n_holder; i++)
        print_holder(out, i == 0, w->holder[i]);
}

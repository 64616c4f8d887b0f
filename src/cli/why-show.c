/* Explanations as text and JSON. No state; any thread. */
#include "cli/why-show.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "cli/json.h"
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

json_t *vg_why_json(const Vg__Pb__WhyInfo *w) {
    json_t *j = json_object(), *holders = json_array();
    for (size_t i = 0; i < w->n_holder; i++) {
        const Vg__Pb__Holder *h = w->holder[i];
        json_t *o = json_object();
        json_object_set_new(o, "tenant", vg_json_text(h->tenant));
        json_object_set_new(o, "tasks", vg_json_u64(h->tasks));
        json_object_set_new(o, "gpu_milli", vg_json_u64(h->gpu_milli));
        json_object_set_new(o, "until_usec", vg_json_u64(h->until_usec));
        json_array_append_new(holders, o);
    }
    json_object_set_new(j, "task", vg_json_id(w->task_id));
    json_object_set_new(j, "state", vg_json_text(w->state));
    json_object_set_new(j, "code", vg_json_text(w->code));
    json_object_set_new(j, "text", vg_json_text(w->text));
    json_object_set_new(j, "ahead", vg_json_u64(w->ahead));
    json_object_set_new(j, "pool", vg_json_text(w->pool));
    json_object_set_new(j, "node", vg_json_text(w->node));
    json_object_set_new(j, "holders", holders);
    json_object_set_new(j, "expected_start_usec", vg_json_u64(w->expected_start_usec));
    json_object_set_new(j, "expected_run_usec", vg_json_u64(w->expected_run_usec));
    json_object_set_new(j, "basis", vg_json_text(w->basis));
    json_object_set_new(j, "cost_micro",
                        w->has_cost_micro ? vg_json_u64(w->cost_micro) : json_null());
    json_object_set_new(j, "currency", vg_json_text(w->currency));
    return j;
}

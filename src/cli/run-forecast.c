/* --dry-run: what the control plane says would happen, as lines for people. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/run-int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* What would never start, whatever ends or is waited for. */
static bool is_hopeless(const Vg__Pb__WhyInfo *w) {
    static const char *const codes[] = {"too-big", "never", "impossible", "no-pool", "cost"};
    for (unsigned i = 0; w->code && i < VG_COUNT(codes); i++)
        if (strcmp(w->code, codes[i]) == 0)
            return true;
    return false;
}

static void line(const char *key, const char *text) {
    if (text && *text)
        printf("%-10s%s\n", key, text);
}

static void print_start(uint64_t at) {
    uint64_t now = vg_wall_usec();
    char when[64], wait[32];
    time_t t = (time_t)(at / VG_USEC);
    struct tm tm;
    if (at <= now + VG_USEC) {
        line("start", "now");
        return;
    }
    if (!localtime_r(&t, &tm) || !strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm))
        return;
    printf("%-10sabout %s (in %s)\n", "start", when,
           vg_format_duration(at - now, wait, sizeof(wait)));
}

static void print_cost(const Vg__Pb__WhyInfo *w) {
    if (!w->has_cost_micro)
        return;
    uint64_t cents = w->cost_micro / 10000 + (w->cost_micro % 10000 >= 5000);
    printf("%-10s%" PRIu64 ".%02u %s\n", "cost", cents / 100, (unsigned)(cents % 100),
           w->currency ? w->currency : "");
}

static void print_forecast(const Vg__Pb__WhyInfo *w) {
    char text[32];
    line("pool", w->pool);
    line("node", w->node);
    if (w->expected_start_usec || (w->code && strcmp(w->code, "free") == 0))
        print_start(w->expected_start_usec);
    else
        line("start", "unknown");
    if (w->expected_run_usec)
        line("runs", vg_format_duration(w->expected_run_usec, text, sizeof(text)));
    print_cost(w);
    line("why", w->text);
    line("basis", w->basis);
}

int run_forecast(struct run *r, const Vg__Pb__RunEvent *ev, struct vg_err *err) {
    const Vg__Pb__WhyInfo *w = ev->forecast;
    if (!w)
        return vg_err_set(err, VG_UNSUPPORTED,
                          "this cloud cannot tell beforehand: install the same version on both "
                          "sides");
    if (is_hopeless(w))
        return vg_err_set(err, VG_INVALID, "%s",
                          w->text && *w->text ? w->text : "it could never run");
    print_forecast(w);
    r->exited = true;
    r->status = fflush(stdout) == 0 ? 0 : 125;
    return 0;
}

/* The option parser: the input, cut at its NULs, is an argument vector. Whatever it holds, parsing
   ends, values point into the vector, and errors are one bounded sentence. */
#include "base/cleanup.h"
#include "cli/opt.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARGS_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct vg_opt table[] = {
    {"pool", 'P', "NAME", "", 1}, {"gpus", 0, "N", "", 2},       {"mem", 0, "SIZE", "", 3},
    {"time", 0, "LIMIT", "", 4},  {"tty", 0, "auto|yes", "", 5}, {"quiet", 'q', NULL, "", 6},
    {"detach", 'd', NULL, "", 7}, {NULL, 'I', NULL, "", 8},      {"cpus", 'c', "N", NULL, 9},
};

static void check(bool ok) {
    if (!ok)
        abort();
}

static void value(struct vg_opt_state *st, int id, const char *arg) {
    uint64_t v;
    int which, r = 0;
    if (id == 2)
        r = vg_opt_milli(st, arg, &v);
    if (id == 3)
        r = vg_opt_size(st, arg, &v);
    if (id == 4)
        r = vg_opt_duration(st, arg, &v);
    if (id == 5)
        r = vg_opt_choice(st, arg, (const char *const[]){"auto", "yes", NULL}, &which);
    if (id == 9)
        r = vg_opt_u64(st, arg, 1, 100, &v);
    check(r == 0 || (r == VG_OPT_ERROR && *st->err.msg));
}

static void parse(int argc, char **argv, bool stop_at_first) {
    struct vg_opt_state st = {.program = "vrun",
                              .opts = table,
                              .n_opts = VG_COUNT(table),
                              .argc = argc,
                              .argv = argv,
                              .index = 1,
                              .stop_at_first = stop_at_first};
    const char *arg;
    size_t steps = 0, bytes = 0;
    for (int i = 0; i < argc; i++)
        bytes += strlen(argv[i]) + 1;
    for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;) {
        check(++steps <= bytes);
        if (id == VG_OPT_ERROR) {
            check(*st.err.msg);
            return;
        }
        check((id > 0 && id <= 9) || id == VG_OPT_HELP || (id == VG_OPT_ARG && !stop_at_first));
        if (id > 0)
            value(&st, id, arg);
    }
    check(st.index <= argc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1), *argv[ARGS_MAX + 2] = {(char *)"vrun"};
    int argc = 1;
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    for (size_t at = 0; at <= size && argc <= ARGS_MAX; at += strlen(text + at) + 1)
        argv[argc++] = text + at;
    parse(argc, argv, true);
    parse(argc, argv, false);
    free(text);
    return 0;
}

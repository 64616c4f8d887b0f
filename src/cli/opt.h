#pragma once
/* Command line options from a table: parsing, one-sentence errors with the nearest suggestion, and
   the text of --help. An iterator without global state:

       struct vg_opt_state st = {.program = "vrun", .opts = table, .n_opts = VG_COUNT(table),
                                 .argc = argc, .argv = argv, .index = 1, .stop_at_first = true};
       const char *arg;
       for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;)
           switch (id) { case VG_OPT_ERROR: ... st.err.msg ...; case VG_OPT_HELP: ...; case 'P': ...
   }

   Accepted forms: --name, --name value, --name=value, -P value, -Pvalue, clusters of flags whose
   last may take a value (-qdPname), "--" as the end of options, "-" as an ordinary argument. */
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct vg_opt {
    const char *long_name; /* without dashes; NULL: short only */
    char short_name;       /* 0: long only */
    const char *arg;       /* what the value is called in help, "NAME"; NULL: a flag */
    const char *help;      /* one line; NULL: not shown in help */
    int id;                /* > 0, returned by vg_opt_next */
};

enum {
    VG_OPT_END = 0,
    VG_OPT_ERROR = -1, /* st->err says what; the state must not be used further */
    VG_OPT_HELP = -2,  /* --help, or -h where the table has no -h of its own */
    VG_OPT_ARG = -3,   /* an ordinary argument (only without stop_at_first) */
};

struct vg_opt_state {
    const char *program; /* for messages: "vrun", "virga task list" */
    const struct vg_opt *opts;
    size_t n_opts;
    int argc;
    char **argv;
    int index;          /* set to the first argument to look at; at END: the first not consumed */
    bool stop_at_first; /* END at the first ordinary argument (the command of vrun) */
    struct vg_err err;
    const char *cluster; /* internal: rest of a group of short options */
    bool ended;          /* internal: "--" was seen */
    char typed[64];      /* internal */
};

/* The next option's id, or one of the above. *ret_arg is its value (borrowed from argv), NULL for
   flags. */
int vg_opt_next(struct vg_opt_state *st, const char **ret_arg);

/* Values: parse `arg` of the option that vg_opt_next just returned. 0, or VG_OPT_ERROR with st->err
   set to a sentence that names the option and shows a good value. */
int vg_opt_u64(struct vg_opt_state *st, const char *arg, uint64_t min, uint64_t max, uint64_t *ret);
int vg_opt_size(struct vg_opt_state *st, const char *arg, uint64_t *ret_bytes);
int vg_opt_duration(struct vg_opt_state *st, const char *arg, uint64_t *ret_usec);
int vg_opt_milli(struct vg_opt_state *st, const char *arg, uint64_t *ret_milli);
/* One of the words in NULL-ended `words`; *ret is its index. */
int vg_opt_choice(struct vg_opt_state *st, const char *arg, const char *const *words, int *ret);
/* Any other refusal: "option '--x': <fmt>". Returns VG_OPT_ERROR. */
int vg_opt_bad(struct vg_opt_state *st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The options' part of a help text, aligned. */
void vg_opt_help(FILE *out, const struct vg_opt *opts, size_t n_opts);

/* The word nearest to `typed` among n words (NULLs are skipped), or NULL when none is near. */
const char *vg_nearest(const char *typed, const char *const *words, size_t n);

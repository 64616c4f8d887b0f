/* vbatch's and vrun's options: what each makes of its value, and the sentence of every refusal. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/spec-opts.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct vg_spec_opts set;
static struct vg_err said;

static void clean(void) {
    vg_spec_values_done(&set.spec);
}

TestSuite(spec, .fini = clean);

/* Parses "vbatch ARGS... true"; 0, or -1 with `said`. */
static int parse(bool batch, const char *const *args) {
    char *argv[64] = {(char *)(batch ? "vbatch" : "vrun")};
    struct vg_opt_state st = {.program = argv[0], .index = 1, .argc = 1, .stop_at_first = true};
    const char *arg;
    for (; args[st.argc - 1]; st.argc++)
        argv[st.argc] = (char *)args[st.argc - 1];
    st.argv = argv;
    st.opts = vg_spec_table(batch, &st.n_opts);
    clean();
    vg_spec_opts_init(&set, batch);
    said = VG_ERR_INIT;
    for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;)
        if (id == VG_OPT_ERROR || vg_spec_opt(&set, &st, id, arg) < 0) {
            said = st.err;
            return -1;
        }
    return vg_spec_opts_check(&set, &said) < 0 ? -1 : 0;
}

#define OK(...) \
    cr_assert_eq(parse(true, (const char *const[]){__VA_ARGS__, NULL}), 0, "%s", said.msg)

#define REFUSED(text, ...)                                                                         \
    do {                                                                                           \
        cr_assert_lt(parse(true, (const char *const[]){__VA_ARGS__, NULL}), 0, "taken: %s", text); \
        cr_assert_str_eq(said.msg, text);                                                          \
        cr_assert_eq(said.reason, VG_INVALID);                                                     \
    } while (0)

Test(spec, pools_stand_in_the_order_of_preference) {
    OK("-P", "a100-1,h100,any");
    cr_assert_str_eq(set.spec.pool, "a100-1");
    cr_assert_eq(set.spec.n_also_pool, 2);
    cr_assert_str_eq(set.spec.also_pool[0], "h100");
    cr_assert_str_eq(set.spec.also_pool[1], "any");
    OK("-P", "a,b", "-P", "c");
    cr_assert_str_eq(set.spec.pool, "c");
    cr_assert_eq(set.spec.n_also_pool, 0);
    REFUSED("option '-P': 'a,,b' has an empty name in it: write a100-1,h100 or one pool alone",
            "-P", "a,,b");
    REFUSED("option '--pool': at most 16 pools can be named", "--pool",
            "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q");
}

Test(spec, gpus_are_whole_or_a_share_of_one) {
    OK("--gpus", "2");
    cr_assert_eq(set.want.gpus, 2);
    cr_assert_eq(set.want.gpu_milli, 0);
    OK("--gpus", "0.25", "--gpu-mem", "20G", "--gpu-model", "A100,H100");
    cr_assert_eq(set.want.gpus, 0);
    cr_assert_eq(set.want.gpu_milli, 250);
    cr_assert_eq(set.want.gpu_mem_bytes, 20ull << 30);
    cr_assert_str_eq(set.spec.gpu_model, "A100|H100");
    OK("--gpus", "1.000");
    cr_assert_eq(set.want.gpus, 1);
    const char *sentence = "option '--gpus': '%s' is not a number of GPUs: give whole ones such as "
                           "2, or a share of one such as 0.25";
    static const char *const wrong[] = {"1.5", "-1", "many", "", "2000"};
    for (unsigned i = 0; i < VG_COUNT(wrong); i++) {
        vg_auto_free char *text = NULL;
        cr_assert_gt(asprintf(&text, sentence, wrong[i]), 0);
        REFUSED(text, "--gpus", wrong[i]);
    }
    REFUSED("--gpu-mem needs a GPU: give --gpus 1, or a share", "--gpus", "0", "--gpu-mem", "1G");
    REFUSED("option '--gpu-model': 'A100||H100' is not a list of GPU models such as A100|H100",
            "--gpu-model", "A100||H100");
    REFUSED("option '--gpu-mem': 'big' is not a size such as 512M or 1.5G", "--gpu-mem", "big");
}

static void expect_values(size_t which, const char *name, const char *const *values) {
    const Vg__Pb__Sweep *w = set.spec.sweep[which];
    cr_assert_str_eq(w->name, name);
    for (size_t i = 0; i < w->n_value; i++) {
        cr_assert(values[i], "one too many: %s", w->value[i]);
        cr_assert_str_eq(w->value[i], values[i]);
    }
    cr_assert_null(values[w->n_value]);
}
#define VALUES(which, name, ...) \
    expect_values(which, name, (const char *const[]){__VA_ARGS__, NULL})

Test(spec, sweeps_are_lists_ranges_and_files) {
    OK("--sweep", "lr=0.1,0.01,1e-3", "--sweep", "seed=1..3", "--sweep=n=10..1..4", "--sweep",
       "t=-1..1");
    cr_assert_eq(set.spec.n_sweep, 4);
    VALUES(0, "lr", "0.1", "0.01", "1e-3");
    VALUES(1, "seed", "1", "2", "3");
    VALUES(2, "n", "10", "6", "2");
    VALUES(3, "t", "-1", "0", "1");
    cr_assert_eq(vg_spec_count(&set.spec), 81);
    OK("--sweep", "one=7..7");
    VALUES(0, "one", "7");
    OK("--sweep", "v=1.0..2.0,x");
    VALUES(0, "v", "1.0..2.0", "x");

    char path[] = "/tmp/test-spec-XXXXXX";
    vg_auto_fd int fd = mkstemp(path);
    cr_assert_eq(vg_write_full(fd, "one\n\ntwo words\r\nlast", 20), 0);
    vg_auto_free char *arg = NULL;
    cr_assert_gt(asprintf(&arg, "f=@%s", path), 0);
    OK("--sweep", arg);
    unlink(path);
    VALUES(0, "f", "one", "two words", "last");
}

Test(spec, a_wrong_sweep_is_refused_with_a_right_one) {
    REFUSED("option '--sweep': 'lr' is not NAME=VALUE,VALUE,...: write for example lr=0.1,0.01",
            "--sweep", "lr");
    REFUSED("option '--sweep': '2x=1' is not NAME=VALUE,VALUE,...: write for example lr=0.1,0.01",
            "--sweep", "2x=1");
    REFUSED("option '--sweep': 'k' has an empty value: write k=a,b,c", "--sweep", "k=a,,b");
    REFUSED("option '--sweep': 'k' has an empty value: write k=a,b,c", "--sweep", "k=");
    REFUSED("option '--sweep': 'k' is swept over twice: give all its values at once", "--sweep",
            "k=1", "--sweep", "k=2");
    REFUSED("option '--sweep': '1..9..0' is not a range: write 1..10, or 1..10..2 for every second",
            "--sweep", "k=1..9..0");
    REFUSED("option '--sweep': '1..1000000' is more than 100000 values: sweep over fewer at once",
            "--sweep", "k=1..1000000");
    REFUSED("option '--sweep': '-9223372036854775808..9223372036854775807' is more than 100000 "
            "values: sweep over fewer at once",
            "--sweep", "k=-9223372036854775808..9223372036854775807");
    REFUSED("option '--sweep': the sweep has more than 100000 points: sweep over fewer values at "
            "once",
            "--sweep", "a=1..1000", "--sweep", "b=1..101");
    REFUSED("option '--sweep': cannot read '/does/not/exist': No such file or directory", "--sweep",
            "k=@/does/not/exist");
    REFUSED("option '--sweep': '/dev/null' has no values: put one in each line", "--sweep",
            "k=@/dev/null");
}

Test(spec, a_group_is_shards_or_a_sweep_and_a_gang_has_a_size) {
    OK("-N", "256");
    cr_assert_eq(set.spec.shards, 256);
    cr_assert_eq(vg_spec_count(&set.spec), 256);
    OK("--gang", "-N4", "--gang-policy", "restart");
    cr_assert(set.spec.gang);
    cr_assert_eq(set.spec.gang_policy, VG__PB__TASK_SPEC__GANG_POLICY__RESTART);
    REFUSED("option '-N': '0' is not a whole number from 1 to 100000", "-N", "0");
    OK("-N", "4", "--sweep", "k=1,2");
    cr_assert_eq(vg_spec_count(&set.spec), 8);
    REFUSED("the points of a sweep start one by one, a gang starts as one: make a gang for each "
            "point",
            "--gang", "-N", "4", "--sweep", "k=1,2");
    REFUSED("-N and --sweep make more than 100000 tasks together: sweep over fewer values at once",
            "--sweep", "k=1..1000", "-N", "101");
    REFUSED("a gang needs its size: write --gang -N 4 for four that start together", "--gang");
    REFUSED("--gang-policy is for gangs: give --gang, too", "-N", "4", "--gang-policy", "heal");
    REFUSED("option '--gang-policy': 'cure' is not one of heal, restart or fail", "--gang", "-N",
            "2", "--gang-policy", "cure");
}

Test(spec, dependencies_keep_their_kind_and_order) {
    OK("--after", "3f2a,prepare", "--after-success=x", "--after-fail", "y");
    static const struct {
        const char *task;
        Vg__Pb__Dependency__When when;
    } want[] = {{"3f2a", VG__PB__DEPENDENCY__WHEN__ANY},
                {"prepare", VG__PB__DEPENDENCY__WHEN__ANY},
                {"x", VG__PB__DEPENDENCY__WHEN__SUCCESS},
                {"y", VG__PB__DEPENDENCY__WHEN__FAILURE}};
    cr_assert_eq(set.spec.n_after, VG_COUNT(want));
    for (unsigned i = 0; i < VG_COUNT(want); i++) {
        cr_assert_str_eq(set.spec.after[i]->task, want[i].task);
        cr_assert_eq(set.spec.after[i]->when, want[i].when);
    }
    REFUSED("option '--after': 'a,' has an empty task in it: give ids or names, as in 3f2a,prepare",
            "--after", "a,");
    char many[2 * VG_AFTER_MAX + 3] = "a";
    for (int i = 0; i < VG_AFTER_MAX; i++)
        memcpy(many + 1 + 2 * i, ",b", 3);
    REFUSED("option '--after': a task can wait for at most 256 others: wait for a group instead",
            "--after", many);
}

Test(spec, retries_choose_statuses_and_wait) {
    OK("--retries", "3", "--retry-on", "1,75-77,76", "--backoff", "10s..10m");
    static const int32_t want[] = {1, 75, 76, 77};
    cr_assert_eq(set.spec.n_retry_on, VG_COUNT(want));
    cr_assert_arr_eq(set.spec.retry_on, want, sizeof(want));
    cr_assert_eq(set.spec.backoff_usec, 10 * VG_USEC);
    cr_assert_eq(set.spec.backoff_max_usec, 600 * VG_USEC);
    OK("--retries", "3", "--backoff", "1m");
    cr_assert_not(set.spec.has_backoff_max_usec);
    static const char *const wrong[] = {"0", "256", "a", "5-3", "1,,2", "", "1-2-3"};
    for (unsigned i = 0; i < VG_COUNT(wrong); i++) {
        vg_auto_free char *text = NULL;
        cr_assert_gt(asprintf(&text,
                              "option '--retry-on': '%s' is not a list of exit statuses from 1 to "
                              "255: write 1,75-77",
                              wrong[i]),
                     0);
        REFUSED(text, "--retries", "1", "--retry-on", wrong[i]);
    }
    REFUSED("--retry-on is for retries: give --retries N, too", "--retry-on", "1");
    REFUSED("--backoff is for retries: give --retries N, too", "--backoff", "1s");
    REFUSED("option '--backoff': '5m..1s' ends below its beginning: write the longest wait last",
            "--retries", "1", "--backoff", "5m..1s");
    REFUSED("option '--backoff': 'soon' is not a duration such as 10s, or 10s..10m to say the "
            "longest",
            "--retries", "1", "--backoff", "soon");
}

/* 2026-11-15 12:00:00 UTC, a Sunday. */
#define NOON 1794744000ull

static int begin(const char *text, uint64_t *ret) {
    struct vg_opt_state st = {.typed = "--begin"};
    setenv("TZ", "UTC", 1);
    int r = vg_spec_begin(&st, text, NOON * VG_USEC, ret);
    said = st.err;
    return r;
}

Test(spec, a_beginning_is_a_wait_an_hour_or_a_date) {
    static const struct {
        const char *text;
        uint64_t sec;
    } want[] = {{"+30m", NOON + 1800},
                {"13:00", NOON + 3600},
                {"13:00:05", NOON + 3605},
                {"11:00", NOON + 23 * 3600},
                {"12:00", NOON + 24 * 3600},
                {"2026-11-16", NOON + 12 * 3600},
                {"2026-11-16 06:30", NOON + 18 * 3600 + 1800},
                {"2026-11-16T06:30:01", NOON + 18 * 3600 + 1801}};
    for (unsigned i = 0; i < VG_COUNT(want); i++) {
        uint64_t at = 0;
        cr_assert_eq(begin(want[i].text, &at), 0, "%s: %s", want[i].text, said.msg);
        cr_assert_eq(at, want[i].sec * VG_USEC, "%s: %llu", want[i].text,
                     (unsigned long long)(at / VG_USEC));
    }
    uint64_t at;
    cr_assert_lt(begin("2026-11-15 11:59", &at), 0);
    cr_assert_str_eq(said.msg, "option '--begin': '2026-11-15 11:59' has passed: leave it out to "
                               "begin at once");
    static const char *const wrong[] = {"tomorrow", "25:00", "+later", "2026-02-30", "", "12:00pm"};
    for (unsigned i = 0; i < VG_COUNT(wrong); i++) {
        vg_auto_free char *text = NULL;
        cr_assert_lt(begin(wrong[i], &at), 0, "%s", wrong[i]);
        cr_assert_gt(asprintf(&text,
                              "option '--begin': '%s' is not a time: write +30m, 22:00 or "
                              "2027-01-31 22:00",
                              wrong[i]),
                     0);
        cr_assert_str_eq(said.msg, text);
    }
}

Test(spec, schedules_are_one_interval_or_five_fields) {
    OK("--every", "30m");
    cr_assert_str_eq(set.spec.schedule, "every 30m");
    OK("--cron", "*/5 3 * jan-mar mon,fri");
    cr_assert_str_eq(set.spec.schedule, "*/5 3 * jan-mar mon,fri");
    REFUSED("option '--every': 'day' is not a duration such as 90s or 1h30m", "--every", "day");
    REFUSED("option '--every': '5ms' is too often: once a second is the most", "--every", "5ms");
    REFUSED("option '--cron': '0 3 * *' is not minute, hour, day, month and weekday: write '0 3 * "
            "* *' for every night at 3",
            "--cron", "0 3 * *");
    REFUSED("option '--cron': '0 3 * * $' is not minute, hour, day, month and weekday: write '0 3 "
            "* * *' for every night at 3",
            "--cron", "0 3 * * $");
    REFUSED("option '--cron': a task has one schedule: give --every or --cron once", "--every",
            "1h", "--cron", "0 3 * * *");
    REFUSED("a schedule has no end to wait for: leave -f away, and see its tasks with 'virga task "
            "list'",
            "-f", "--every", "1h");
    REFUSED("a schedule makes tasks again and again: --after, --begin and --key are for tasks that "
            "run once",
            "--every", "1h", "--key", "k");
}

Test(spec, policy_is_carried) {
    OK("--preemptible", "--grace", "30s", "--grace-signal", "sigusr1", "--max-cost", "12.50",
       "--priority", "70", "--time", "2h", "--key", "nightly-1", "--node-label", "rack=b", "-l",
       "a=b", "--project", "vision");
    cr_assert_str_eq(set.spec.project, "vision");
    REFUSED("option '--project': names no project", "--project", "");
    OK("--preemptible", "--grace", "30s", "--grace-signal", "sigusr1", "--max-cost", "12.50",
       "--priority", "70", "--time", "2h", "--key", "nightly-1", "--node-label", "rack=b", "-l",
       "a=b");
    cr_assert(set.spec.preemptible);
    cr_assert_eq(set.spec.grace_usec, 30 * VG_USEC);
    cr_assert_eq(set.spec.grace_signal, SIGUSR1);
    cr_assert_eq(set.spec.max_cost_micro, 12500000);
    cr_assert_eq(set.spec.priority, 70);
    cr_assert_eq(set.spec.time_limit_usec, 7200 * VG_USEC);
    cr_assert_str_eq(set.spec.key, "nightly-1");
    cr_assert_eq(set.spec.n_node_label, 1);
    cr_assert_str_eq(set.spec.node_label[0], "rack=b");
    cr_assert_str_eq(set.spec.label[0], "a=b");
    OK("--max-cost", ".000001");
    cr_assert_eq(set.spec.max_cost_micro, 1);
    REFUSED("option '--grace-signal': 'BOOM' is not a signal such as TERM, USR1 or 15",
            "--grace-signal", "BOOM");
    REFUSED("option '--grace': 'x' is not a duration such as 90s or 1h30m", "--grace", "x");
    REFUSED("option '--max-cost': '12,50' is not an amount such as 12.50", "--max-cost", "12,50");
    REFUSED("option '--max-cost': '0.0' would let nothing run: give an amount above 0",
            "--max-cost", "0.0");
    REFUSED("option '--priority': '101' is not a whole number from 0 to 100", "--priority", "101");
    REFUSED("option '--time': 'long' is not a duration such as 90s or 1h30m", "--time", "long");
    REFUSED("option '--node-label': 'rack' is not of the form KEY=VALUE", "--node-label", "rack");
    REFUSED("option '--key': a key is 1 to 128 bytes without spaces, such as nightly-2027-01-31",
            "--key", "two words");
    REFUSED("option '--key': a key is 1 to 128 bytes without spaces, such as nightly-2027-01-31",
            "--key", "");
}

Test(spec, vrun_leaves_groups_to_vbatch) {
    cr_assert_eq(parse(false, (const char *const[]){"--gpus", "0.5", "--after", "x", NULL}), 0);
    cr_assert_lt(parse(false, (const char *const[]){"--sweep", "k=1", NULL}), 0);
    cr_assert_str_eq(
        said.msg,
        "option '--sweep': this is for tasks that nobody waits at: use vbatch instead of vrun");
}

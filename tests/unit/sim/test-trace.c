/* Trace readers: whole files arrive whole, and every mistake is named with file and line. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sim/trace.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <unistd.h>

#define NODES "sn,cpu_milli,memory_mib,gpu,model\n"
#define JOBS "timestamp,duration,num_gpus,gpu_time,cluster\n"
#define TASKS                                                                           \
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time," \
    "deletion_time,scheduled_time\n"

static char path[64];

static void write_trace(const char *text) {
    snprintf(path, sizeof(path), "/tmp/vg-trace-%d.csv", (int)getpid());
    cr_assert_eq(vg_write_file(path, text, strlen(text), 0600), 0);
}

static void forget(void) {
    unlink(path);
}

TestSuite(trace, .fini = forget);

Test(trace, philly_arrives_whole_and_in_order) {
    struct vg_trace_jobs t;
    struct vg_err err = VG_ERR_INIT;
    uint64_t gpu_sec = 0;
    cr_assert_eq(vg_trace_read_jobs(VG_TRACES "/philly.csv.gz", &t, &err), 0, "%s", err.msg);
    cr_assert_eq(t.n, 82247);
    cr_assert_eq(t.n_tenants, 15);
    cr_assert_eq(t.job[0].arrive_sec, 0);
    for (size_t i = 0; i < t.n; i++) {
        cr_assert(i == 0 || t.job[i - 1].arrive_sec <= t.job[i].arrive_sec);
        cr_assert_lt(t.job[i].tenant, t.n_tenants);
        gpu_sec += t.job[i].run_sec * t.job[i].gpus;
    }
    cr_assert_eq(gpu_sec / 3600, 978078); /* GPU hours, as a spreadsheet sums them */
    vg_trace_jobs_done(&t);
}

Test(trace, alibaba_arrives_whole) {
    struct vg_trace_nodes n;
    struct vg_trace_tasks t;
    struct vg_err err = VG_ERR_INIT;
    uint32_t gpus = 0, shares = 0;
    cr_assert_eq(vg_trace_read_nodes(VG_TRACES "/openb_node_list_gpu_node.csv.gz", &n, &err), 0,
                 "%s", err.msg);
    cr_assert_eq(n.n, 1213);
    for (size_t i = 0; i < n.n; i++)
        gpus += n.node[i].gpus;
    cr_assert_eq(gpus, 6212);
    cr_assert_eq(vg_trace_read_tasks(VG_TRACES "/openb_pod_list_default.csv.gz", &t, &err), 0, "%s",
                 err.msg);
    cr_assert_eq(t.n, 8152);
    for (size_t i = 0; i < t.n; i++)
        shares += t.task[i].gpus == 1 && t.task[i].gpu_milli < 1000;
    cr_assert_eq(shares, 3078);
    vg_trace_nodes_done(&n);
    vg_trace_tasks_done(&t);
}

Test(trace, plain_text_is_read_as_well_as_gzip) {
    struct vg_trace_jobs t;
    struct vg_err err = VG_ERR_INIT;
    write_trace(JOBS "2017-10-09 07:00:10,66.0,1,66.0,b\n\n2017-10-09 07:00:00,0.4,16,9,a\r\n");
    cr_assert_eq(vg_trace_read_jobs(path, &t, &err), 0, "%s", err.msg);
    cr_assert_eq(t.n, 2);
    cr_assert_str_eq(t.tenant[t.job[0].tenant], "a");
    cr_assert_eq(t.job[0].gpus, 16);
    cr_assert_eq(t.job[0].run_sec, 1, "nothing runs for no time");
    cr_assert_eq(t.job[1].arrive_sec, 10);
    cr_assert_eq(t.job[1].run_sec, 66);
    vg_trace_jobs_done(&t);
}

static void refuse_jobs(const char *text, const char *why) {
    struct vg_trace_jobs t;
    struct vg_err err = VG_ERR_INIT;
    char want[256];
    write_trace(text);
    cr_assert_lt(vg_trace_read_jobs(path, &t, &err), 0, "accepted: %s", text);
    snprintf(want, sizeof(want), "%s:%s", path, why);
    cr_assert(strncmp(err.msg, want, strlen(want)) == 0, "'%s' does not begin with '%s'", err.msg,
              want);
    cr_assert_null(t.job);
}

Test(trace, every_mistake_in_jobs_is_named_with_its_line) {
    refuse_jobs("a,b\n", "1: the header is not");
    refuse_jobs("", "1: the header is not");
    refuse_jobs(JOBS, "1: no job follows");
    refuse_jobs(JOBS "2017-10-09 07:01:55,66,1,66\n", "2: 4 columns where 5 belong");
    refuse_jobs(JOBS "2017-10-09 07:01:55,66,1,66,a\n\n2017-10-09 07:01:55,66,1,66,a,b\n",
                "4: more than 5 columns");
    refuse_jobs(JOBS "2017-13-09 07:01:55,66,1,66,a\n", "2: column 1: '2017-13-09 07:01:55'");
    refuse_jobs(JOBS "yesterday,66,1,66,a\n", "2: column 1: 'yesterday'");
    refuse_jobs(JOBS "2017-10-09 07:01:55,-1,1,66,a\n", "2: column 2: '-1' is no number");
    refuse_jobs(JOBS "2017-10-09 07:01:55,,1,66,a\n", "2: column 2: ''");
    refuse_jobs(JOBS "2017-10-09 07:01:55,1e9,1,66,a\n", "2: column 2: '1e9'");
    refuse_jobs(JOBS "2017-10-09 07:01:55,99999999999,1,66,a\n",
                "2: column 2: 99999999999 is more");
    refuse_jobs(JOBS "2017-10-09 07:01:55,66,0,66,a\n", "2: column 3: a job of 0 GPUs");
    refuse_jobs(JOBS "2017-10-09 07:01:55,66,1,66,\n", "2: column 5: the tenant is missing");
}

Test(trace, every_mistake_in_alibaba_files_is_named) {
    struct vg_trace_nodes n;
    struct vg_trace_tasks t;
    struct vg_err err = VG_ERR_INIT;
    write_trace(NODES "n1,64000,262144,65,T4\n");
    cr_assert_lt(vg_trace_read_nodes(path, &n, &err), 0);
    cr_assert(strstr(err.msg, ":2: column 4: 65 is more than 64"), "%s", err.msg);
    write_trace(TASKS "p,1,1,1,0,,LS,Running,0,1,1\n");
    cr_assert_lt(vg_trace_read_tasks(path, &t, &err), 0);
    cr_assert(strstr(err.msg, ":2: 1 GPUs of 0 thousandths"), "%s", err.msg);
    write_trace(TASKS "p,1,1,2,500,,LS,Running,0,1,1\n");
    cr_assert_lt(vg_trace_read_tasks(path, &t, &err), 0);
    cr_assert(strstr(err.msg, ":2: a share of 2 GPUs"), "%s", err.msg);
    write_trace(TASKS "p,1,1,1,500,T4|P100,LS,Pending,0,,\n");
    cr_assert_eq(vg_trace_read_tasks(path, &t, &err), 0, "%s", err.msg);
    cr_assert_str_eq(t.task[0].gpu_spec, "T4|P100");
    vg_trace_tasks_done(&t);
}

Test(trace, damaged_gzip_and_missing_files_are_errors) {
    struct vg_trace_jobs t;
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free char *data = NULL;
    size_t n = 0;
    cr_assert_eq(vg_read_file(VG_TRACES "/philly.csv.gz", 8 << 20, &data, &n), 0);
    write_trace("");
    memset(data + n / 2, 0x55, 64);
    cr_assert_eq(vg_write_file(path, data, n, 0600), 0);
    cr_assert_lt(vg_trace_read_jobs(path, &t, &err), 0);
    cr_assert_lt(vg_trace_read_jobs("/nowhere/x.csv", &t, &err), 0);
    cr_assert(strstr(err.msg, "cannot open trace '/nowhere/x.csv': No such file"), "%s", err.msg);
}

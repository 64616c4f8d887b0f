/* Times of a pool's life: netpool-try [SLOTS]. Everything happens in a network namespace of its
   own, which stands for the host. */
#include "base/util.h"
#include "sandbox/netpool.h"

#include <sched.h>
#include <sys/resource.h>

static uint64_t cpu_usec(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * VG_USEC +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

struct watch {
    uint64_t wall, cpu;
};

static struct watch start(void) {
    return (struct watch){vg_now_usec(), cpu_usec()};
}

static void report(const char *what, struct watch w, uint64_t n) {
    uint64_t wall = vg_now_usec() - w.wall, cpu = cpu_usec() - w.cpu;
    printf("%-8s %6llu times: %9.1f us each, %9.1f us of CPU each\n", what, (unsigned long long)n,
           (double)wall / (double)n, (double)cpu / (double)n);
}

static int get_all(struct vg_netpool *p, uint64_t n, uint32_t *indexes, struct vg_err *err) {
    for (uint64_t i = 0; i < n; i++) {
        struct vg_net_slot s;
        int r = vg_netpool_get(p, 7, &s, err);
        if (r < 0)
            return r;
        indexes[i] = s.index;
    }
    return 0;
}

static int try(uint64_t n, struct vg_err *err) {
    static uint32_t indexes[65536];
    struct vg_netpool *p;
    struct watch w = start();
    int r = vg_netpool_open("7e57", NULL, &p, err);
    if (r < 0)
        return r;
    report("open", w, 1);
    w = start();
    r = get_all(p, n, indexes, err);
    if (r < 0)
        return r;
    report("make", w, n);
    w = start();
    for (uint64_t i = 0; i < n; i++)
        vg_netpool_put(p, indexes[i]);
    report("put", w, n);
    w = start();
    uint64_t kept = n < 64 ? n : 64;
    r = get_all(p, kept, indexes, err);
    report("reuse", w, kept);
    w = start();
    vg_netpool_close(p);
    report("close", w, 1);
    return r;
}

int main(int argc, char **argv) {
    uint64_t n = 100;
    struct vg_err err = VG_ERR_INIT;
    if (argc > 1 && (vg_parse_u64(argv[1], &n) < 0 || n == 0 || n > 60000)) {
        fprintf(stderr, "usage: netpool-try [SLOTS]\n");
        return 2;
    }
    if (unshare(CLONE_NEWNET) < 0) {
        fprintf(stderr, "netpool-try: needs root\n");
        return 1;
    }
    if (try(n, &err) < 0) {
        fprintf(stderr, "netpool-try: %s\n", err.msg);
        return 1;
    }
    return 0;
}

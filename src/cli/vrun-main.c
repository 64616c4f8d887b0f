/* The small vrun: the local path and nothing else, linked without TLS and loop so that the system
   starts it as fast as it starts `true`. For everything else it becomes the whole program, which
   lies beside it; `virga` under the name vrun does the same without it. */
#include "cli/run-int.h"
#include "cli/run.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int run_become_full(char **argv, struct vg_err *err) {
    char path[PATH_MAX + 16];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    if (n < 0)
        return vg_err_sys(err, errno, "cannot find my own file");
    path[n] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 16, "virga");
    execv(path, argv);
    return vg_err_sys(err, errno, "cannot start %s, which this needs", path);
}

/* Never reached: run_become_full() comes first. */
int run_bridge(const struct vg_endpoint *ep, struct vg_err *err) {
    (void)ep;
    return vg_err_set(err, VG_UNSUPPORTED, "this program speaks to the local cloud only");
}

int run_forward(const struct vg_endpoint *ep, uint64_t task_id, const char *const *specs, size_t n,
                struct vg_err *err) {
    (void)ep, (void)task_id, (void)specs, (void)n;
    return vg_err_set(err, VG_UNSUPPORTED, "this program forwards no ports");
}

int run_forecast(struct run *r, const Vg__Pb__RunEvent *ev, struct vg_err *err) {
    (void)r, (void)ev;
    return vg_err_set(err, VG_UNSUPPORTED, "this program makes no forecasts");
}

int run_environment(struct run *r, const struct vg_spec_opts *set, struct vg_err *err) {
    (void)r, (void)set;
    return vg_err_set(err, VG_UNSUPPORTED, "this program knows no environments");
}

int run_follow_stored(const struct run *r) {
    (void)r;
    return 125;
}

void run_say_kept(const struct run *r) {
    (void)r;
}

int main(int argc, char **argv) {
    struct vg_err err = VG_ERR_INIT;
    const char *name = argc > 0 ? strrchr(argv[0], '/') : NULL;
    name = name ? name + 1 : argc > 0 ? argv[0] : "vrun";
    /* Without HOME the user database must be asked, which a static program should not. */
    if (!getenv("HOME") && !getenv("VIRGA_HOME") && run_become_full(argv, &err) < 0) {
        fprintf(stderr, "%s: %s\n", name, err.msg);
        return 125;
    }
    return vg_run_main(argc, argv, strcmp(name, "vbatch") == 0);
}

/* virgad: the control plane, in the foreground. */
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/control.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char usage[] =
    "usage: virgad [--home DIR] [--listen HOST:PORT] [--web HOST:PORT] [--config FILE]\n"
    "\n"
    "The control plane of a Virga cloud, in the foreground. 'virga up' starts it together with a\n"
    "node on this machine.\n"
    "\n"
    "  --home DIR          where the cloud's state lies (default $VIRGA_HOME, else ~/.virga)\n"
    "  --listen HOST:PORT  the TLS port for other machines (default as in the configuration)\n"
    "  --web HOST:PORT     the dashboard and REST, when the configuration does not say (default\n"
    "                      none)\n"
    "  --config FILE       the configuration (default DIR/config.yaml, which may be missing)\n"
    "  --version           print the version and leave\n"
    "  --help              print this and leave\n";

static const struct option options[] = {{"home", required_argument, NULL, 'H'},
                                        {"listen", required_argument, NULL, 'l'},
                                        {"web", required_argument, NULL, 'w'},
                                        {"config", required_argument, NULL, 'c'},
                                        {"version", no_argument, NULL, 'V'},
                                        {"help", no_argument, NULL, 'h'},
                                        {0}};

/* -1: run; else the exit status. */
static int parse(int argc, char **argv, struct vg_control_opts *ret) {
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'H':
            ret->home = optarg;
            break;
        case 'l':
            ret->listen = optarg;
            break;
        case 'w':
            ret->web = optarg;
            break;
        case 'c':
            ret->config = optarg;
            break;
        case 'V':
            puts("virgad " VG_VERSION);
            return 0;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            fputs("virgad: see 'virgad --help' for what can be given\n", stderr);
            return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "virgad: unexpected argument '%s': see 'virgad --help'\n", argv[optind]);
        return 2;
    }
    return -1;
}

/* Each waiting client holds up to three descriptors, each connection one. */
static void raise_limits(void) {
    struct rlimit rl;
    if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < rl.rlim_max) {
        rl.rlim_cur = rl.rlim_max;
        setrlimit(RLIMIT_NOFILE, &rl);
    }
}

int main(int argc, char **argv) {
    static struct vg_control control;
    struct vg_control_opts opts = {0};
    struct vg_err err = VG_ERR_INIT;
    uv_loop_t loop;
    int status = parse(argc, argv, &opts);
    if (status >= 0)
        return status;
    vg_mem_huge_heap(256u << 20);
    vg_log_init("virgad");
    signal(SIGPIPE, SIG_IGN);
    umask(0022); /* private files say so themselves; the folder must let others reach the socket */
    raise_limits();
    uv_loop_init(&loop);
    if (vg_control_start(&control, &loop, &opts, &err) < 0) {
        fprintf(stderr, "virgad: %s\n", err.msg);
        uv_loop_close(&loop);
        return 1;
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    vg_control_done(&control);
    uv_loop_close(&loop);
    return 0;
}

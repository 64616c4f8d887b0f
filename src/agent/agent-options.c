/* The options of `virga agent`. */
#include "agent/agent-int.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define LABELS_MAX 64
#define FAKE "fake:"

const char vg_agent_usage[] =
    "usage: virga agent [options]\n"
    "\n"
    "Offers this machine to a cloud. Needs root.\n"
    "\n"
    "  --home DIR                where the node keeps its state (default $VIRGA_HOME or ~/.virga)\n"
    "  --control unix:PATH       the control plane on this machine (default DIR/sock)\n"
    "  --control HOST:PORT       the control plane this machine has joined\n"
    "  --join TOKEN@HOST:PORT    join a cloud with a token of `virga node invite`\n"
    "  --join HOST:PORT --token T\n"
    "  --name NAME               the node's name (default: host name)\n"
    "  --label K=V               may be repeated\n"
    "  --gpus N --gpu-model M    instead of what is found\n"
    "  --gpus fake:N             simulated ones, for tests and demonstrations\n"
    "  --gpu-timeout DURATION    how long the GPUs' driver may be silent (default 30s)\n"
    "  --cpus N --mem SIZE       what is offered (default: all)\n"
    "  --shared PATH             a path that is the same on all machines; may be repeated\n"
    "  --listen HOST:PORT|none   port for direct streams\n"
    "  --warm N                  sandboxes held ready for a user (default 2, at most 16)\n"
    "  --no-passthrough          mirrored files as on a kernel without FUSE passthrough\n"
    "  --no-erofs                and without EROFS images\n";

enum {
    OPT_HOME = 256,
    OPT_CONTROL,
    OPT_JOIN,
    OPT_TOKEN,
    OPT_NAME,
    OPT_LABEL,
    OPT_GPUS,
    OPT_GPU_MODEL,
    OPT_CPUS,
    OPT_MEM,
    OPT_SHARED,
    OPT_LISTEN,
    OPT_WARM,
    OPT_NO_PASSTHROUGH,
    OPT_NO_EROFS,
    OPT_GPU_TIMEOUT,
};

static const struct option options[] = {
    {"home", required_argument, NULL, OPT_HOME},
    {"control", required_argument, NULL, OPT_CONTROL},
    {"join", required_argument, NULL, OPT_JOIN},
    {"token", required_argument, NULL, OPT_TOKEN},
    {"name", required_argument, NULL, OPT_NAME},
    {"label", required_argument, NULL, OPT_LABEL},
    {"gpus", required_argument, NULL, OPT_GPUS},
    {"gpu-model", required_argument, NULL, OPT_GPU_MODEL},
    {"cpus", required_argument, NULL, OPT_CPUS},
    {"mem", required_argument, NULL, OPT_MEM},
    {"shared", required_argument, NULL, OPT_SHARED},
    {"listen", required_argument, NULL, OPT_LISTEN},
    {"warm", required_argument, NULL, OPT_WARM},
    {"no-passthrough", no_argument, NULL, OPT_NO_PASSTHROUGH},
    {"no-erofs", no_argument, NULL, OPT_NO_EROFS},
    {"gpu-timeout", required_argument, NULL, OPT_GPU_TIMEOUT},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static int bad(struct vg_err *err, const char *option, const char *value, const char *want) {
    return vg_err_set(err, VG_INVALID, "--%s %s is not %s", option, value, want);
}

static int add(char ***list, size_t *n, char *value, const char *option, struct vg_err *err) {
    if (*n == LABELS_MAX)
        return vg_err_set(err, VG_TOO_BIG, "--%s is given more than %d times", option, LABELS_MAX);
    char **more = vg_realloc(*list, (*n + 1) * sizeof(**list));
    if (!more)
        return vg_err_sys(err, -ENOMEM, "cannot start the agent");
    *list = more;
    more[(*n)++] = value;
    return 0;
}

/* TOKEN@HOST:PORT; the token has no '@'. */
static void set_join(struct vg_agent_conf *c, char *value) {
    char *at = strchr(value, '@');
    c->join = value;
    if (at) {
        *at = 0;
        c->token = value;
        c->join = at + 1;
    }
}

static int number_option(struct vg_agent_conf *c, int opt, const char *value, struct vg_err *err) {
    uint64_t n;
    if (opt == OPT_MEM) {
        if (vg_parse_size(value, &c->mem_bytes) < 0 || c->mem_bytes == 0)
            return bad(err, "mem", value, "a size such as 64G");
        return 0;
    }
    c->fake_gpus |= opt == OPT_GPUS && strncmp(value, FAKE, strlen(FAKE)) == 0;
    const char *digits = value + (opt == OPT_GPUS && c->fake_gpus ? strlen(FAKE) : 0);
    if (vg_parse_u64(digits, &n) < 0)
        n = UINT64_MAX;
    if (opt == OPT_GPUS) {
        if (n > VG_GPUS_MAX)
            return bad(err, "gpus", value, "a number from 0 to 64, or fake:N");
        c->gpus = (int64_t)n;
    } else if (opt == OPT_CPUS) {
        if (n == 0 || n > 65536)
            return bad(err, "cpus", value, "a number of CPUs");
        c->cpus = n;
    } else {
        if (n > VG_WARM_MAX)
            return bad(err, "warm", value, "a number from 0 to 16");
        c->warm = (uint32_t)n;
    }
    return 0;
}

static int one_option(struct vg_agent_conf *c, int opt, char *value, struct vg_err *err) {
    switch (opt) {
    case OPT_HOME:
        c->home = value;
        return 0;
    case OPT_CONTROL:
        c->control = value;
        return 0;
    case OPT_JOIN:
        set_join(c, value);
        return 0;
    case OPT_TOKEN:
        c->token = value;
        return 0;
    case OPT_NAME:
        c->name = value;
        return 0;
    case OPT_GPU_MODEL:
        c->gpu_model = value;
        return 0;
    case OPT_LISTEN:
        c->listen = value;
        return 0;
    case OPT_LABEL:
        if (value[0] == '=' || !strchr(value, '='))
            return bad(err, "label", value, "of the form key=value");
        return add(&c->labels, &c->n_labels, value, "label", err);
    case OPT_SHARED:
        if (value[0] != '/')
            return bad(err, "shared", value, "an absolute path");
        return add(&c->shared, &c->n_shared, value, "shared", err);
    case OPT_NO_PASSTHROUGH:
        c->no_passthrough = true;
        return 0;
    case OPT_NO_EROFS:
        c->no_erofs = true;
        return 0;
    case OPT_GPU_TIMEOUT:
        if (vg_parse_duration(value, &c->gpu_silence_usec) < 0 || !c->gpu_silence_usec)
            return bad(err, "gpu-timeout", value, "a duration such as 30s");
        return 0;
    case OPT_GPUS:
    case OPT_CPUS:
    case OPT_MEM:
    case OPT_WARM:
        return number_option(c, opt, value, err);
    default:
        return vg_err_set(err, VG_INVALID,
                          "an option is unknown or lacks its value: see `virga "
                          "agent --help`");
    }
}

int vg_agent_options(int argc, char **argv, struct vg_agent_conf *c, struct vg_err *err) {
    int opt, r = 0;
    optind = 1;
    opterr = 0;
    while (r == 0 && (opt = getopt_long(argc, argv, "+h", options, NULL)) != -1) {
        if (opt == 'h')
            return 1;
        r = one_option(c, opt, optarg, err);
    }
    if (r == 0 && optind < argc)
        return vg_err_set(err, VG_INVALID, "'%s' is not an option of `virga agent`", argv[optind]);
    if (r == 0 && c->join && !strchr(c->join, ':'))
        return vg_err_set(err, VG_INVALID, "--join %s has no port: give TOKEN@HOST:PORT", c->join);
    return r;
}

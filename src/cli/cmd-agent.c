/* `virga agent` and `virga join`: offer this machine to a cloud. */
#include "agent/agent.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cmd.h"

#include <string.h>
#include <unistd.h>

#define ARGS_MAX 64

static int fail(enum vg_reason reason, const char *text) {
    struct vg_err err = VG_ERR_INIT;
    vg_err_set(&err, reason, "%s", text);
    return vg_cmd_fail(&err);
}

static const struct vg_opt opts[] = {
    {"token", 't', "TOKEN", "the one-time token ('virga node invite' prints one)", 't'},
    {"name", 'n', "NAME", "the node's name (default: the host's)", 'n'},
    {"label", 'l', "K=V", "a label of the node (again for more)", 'l'},
    {"gpus", 0, "N", "offer N GPUs instead of what is found", 'g'},
    {"cpus", 0, "N", "offer so many CPUs (default: all)", 'c'},
    {"mem", 0, "SIZE", "offer so much memory (default: all)", 'm'},
    {"shared", 0, "PATH", "a path that is the same on all machines (again for more)", 's'},
};

static const char *agent_name(int id) {
    for (unsigned i = 0; i < VG_COUNT(opts); i++)
        if (opts[i].id == id)
            return opts[i].long_name;
    return NULL;
}

/* Joining is the agent's first start with an address and a token. */
static int join_run(struct vg_cmd_line *l) {
    static char names[ARGS_MAX][24];
    char *argv[ARGS_MAX + 4];
    int argc = 3; /* agent --join HOST:PORT */
    const char *arg;
    bool token = false;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (argc + 2 > ARGS_MAX)
            return fail(VG_TOO_BIG,
                        "virga join was given too many options: at most 30 are allowed");
        snprintf(names[argc], sizeof(names[argc]), "--%s", agent_name(id));
        argv[argc] = names[argc];
        argv[argc + 1] = (char *)arg;
        argc += 2;
        token |= id == 't';
    }
    if (!vg_cmd_args(l, 1, 1))
        return l->exit;
    if (!token)
        return fail(VG_INVALID, "virga join needs a token: virga join HOST:PORT --token TOKEN "
                                "('virga node invite' on the cloud prints one)");
    if (geteuid() != 0)
        return fail(VG_NEEDS_ROOT, "virga join needs root to build sandboxes: run it with sudo");
    argv[0] = (char *)"agent";
    argv[1] = (char *)"--join";
    argv[2] = l->args[0];
    argv[argc] = NULL;
    return vg_agent_main(argc, argv);
}

const struct vg_cmd vg_cmd_join = {.name = "join",
                                   .args = "HOST:PORT",
                                   .summary = "offer this machine to a cloud that invited it",
                                   .opts = opts,
                                   .n_opts = VG_COUNT(opts),
                                   .run = join_run};
const struct vg_cmd vg_cmd_agent = {.name = "agent",
                                    .args = "[options]",
                                    .summary = "run the agent of a node in the foreground",
                                    .raw = vg_agent_main};

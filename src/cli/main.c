/* The program `virga`, which is also vrun and vbatch by name. vrun goes its own way before anything
   else happens: no loop, no TLS, no configuration stands between it and its first message. */
#include "agent/agent-bare.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "cli/cmd.h"
#include "cli/run.h"
#include "fs/fsd.h"
#include "gpu/watch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int run_raw(int argc, char **argv) {
    return vg_run_main(argc, argv, false);
}

static int batch_raw(int argc, char **argv) {
    return vg_run_main(argc, argv, true);
}

static int version_run(struct vg_cmd_line *l) {
    if (!vg_cmd_plain(l, 0, 0))
        return l->exit;
    printf("virga " VG_VERSION "\n");
    return 0;
}

const struct vg_cmd *vg_commands(size_t *ret_n) {
    static const struct vg_cmd run = {.name = "run",
                                      .args = "[options] COMMAND...",
                                      .summary = "run a command on the cloud (also: vrun)",
                                      .raw = run_raw};
    static const struct vg_cmd batch = {.name = "batch",
                                        .args = "[options] COMMAND...",
                                        .summary = "queue a command and leave (also: vbatch)",
                                        .raw = batch_raw};
    static const struct vg_cmd attach = {
        .name = "attach", .args = "TASK", .summary = "come back to a task", .raw = vg_attach_main};
    static const struct vg_cmd fsd = {.name = "fsd", .args = "", .raw = vg_fsd_main};
    static const struct vg_cmd gpu_watch = {.name = "gpu-watch", .args = "", .raw = vg_watch_main};
    static const struct vg_cmd node_wipe = {
        .name = "node-wipe", .args = "", .raw = vg_node_wipe_main};
    static const struct vg_cmd version = {
        .name = "version", .args = "", .summary = "print the version", .run = version_run};
    static const struct vg_cmd *const all[] = {
        &vg_cmd_up,      &vg_cmd_down,   &vg_cmd_status,     &vg_cmd_dashboard, &run,
        &batch,          &attach,        &vg_cmd_task,       &vg_cmd_queue,     &vg_cmd_schedule,
        &vg_cmd_secret,  &vg_cmd_ssh,    &vg_cmd_ssh_config, &vg_cmd_ssh_proxy, &vg_cmd_notebook,
        &vg_cmd_session, &vg_cmd_env,    &vg_cmd_pool,       &vg_cmd_node,      &vg_cmd_gpu,
        &vg_cmd_mirror,  &vg_cmd_price,  &vg_cmd_cost,       &vg_cmd_usage,     &vg_cmd_budget,
        &vg_cmd_login,   &vg_cmd_logout, &vg_cmd_join,       &vg_cmd_agent,     &fsd,
        &vg_cmd_user,    &vg_cmd_team,   &vg_cmd_org,        &vg_cmd_audit,     &vg_cmd_token,
        &vg_cmd_hook,    &vg_cmd_config, &vg_cmd_completion, &vg_cmd_envd,      &gpu_watch,
        &node_wipe,      &version};
    static struct vg_cmd table[VG_COUNT(all)];
    for (size_t i = 0; i < VG_COUNT(all); i++)
        table[i] = *all[i];
    *ret_n = VG_COUNT(all);
    return table;
}

/* `virga help task list` is `virga task list --help`. */
static int help(size_t n_words, char **words, const struct vg_cmd *commands, size_t n) {
    char *argv[8] = {(char *)"virga"};
    int argc = 1;
    for (size_t i = 0; i < n_words && argc < 6; i++)
        argv[argc++] = words[i];
    argv[argc++] = (char *)"--help";
    return vg_cmd_dispatch("virga", commands, n, argc, argv);
}

static int finish(int exit) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit;
    if (errno == EPIPE)
        return 141; /* the reader left, as SIGPIPE would have said */
    vg_cmd_say("cannot write the output: %s", strerror(errno));
    return exit ? exit : 125;
}

int main(int argc, char **argv) {
    const char *slash = argc ? strrchr(argv[0], '/') : NULL;
    const char *name = slash ? slash + 1 : argc ? argv[0] : "virga";
    if (strcmp(name, "vrun") == 0)
        return vg_run_main(argc, argv, false);
    if (strcmp(name, "vbatch") == 0)
        return vg_run_main(argc, argv, true);
    size_t n;
    const struct vg_cmd *commands = vg_commands(&n);
    vg_log_init("virga");
    if (argc > 1 && strcmp(argv[1], "--version") == 0)
        argv[1] = (char *)"version";
    if (argc > 1 && strcmp(argv[1], "help") == 0)
        return finish(help((size_t)argc - 2, argv + 2, commands, n));
    return finish(vg_cmd_dispatch("virga", commands, n, argc, argv));
}

/* `virga down`: ends the cloud of this machine; what it knew stays on disk. */
#include "base/cleanup.h"
#include "cli/cloud.h"
#include "cli/cmd.h"
#include "cli/endpoint.h"

#include <signal.h>
#include <unistd.h>

#define SUPERVISOR_LIMIT_MS 45000

static bool runs(const char *home, bool keep_tasks) {
    return vg_part_runs(home, VG_PART_UP) || vg_part_runs(home, VG_PART_VIRGAD) ||
           vg_part_runs(home, VG_PART_AGENT) || (!keep_tasks && vg_cloud_left_behind(home));
}

/* The supervisor, where there is one, ends the others and reaps them; what is left after it (or
   never had one) is ended from here. */
static int stop(const char *home, bool keep_tasks, struct vg_err *err) {
    int r = vg_part_stop(home, VG_PART_UP, keep_tasks ? SIGTERM : SIGUSR2, SUPERVISOR_LIMIT_MS);
    if (r < 0)
        return vg_err_sys(err, r, "cannot end the supervisor of %s", home);
    return vg_cloud_stop(home, keep_tasks, err);
}

static const struct vg_opt opts[] = {
    {"keep-tasks", 0, NULL, "leave running tasks alive; 'virga up' finds them again", 'k'},
};

static int run(struct vg_cmd_line *l) {
    char home[VG_HOME_MAX], where[VG_HOME_MAX];
    struct vg_err err = VG_ERR_INIT;
    bool keep = false;
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        keep = true;
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    if (vg_home_dir(home, sizeof(home), &err) < 0)
        return vg_cmd_fail(&err);
    vg_home_short(home, where, sizeof(where));
    if (!runs(home, keep)) {
        vg_cloud_stop(home, true, &err); /* only a crashed one's socket can be left */
        printf("Virga is not running at %s\n", where);
        return 0;
    }
    if (geteuid() != 0) {
        vg_err_set(&err, VG_NEEDS_ROOT,
                   "virga down needs root, as 'virga up' did: run it with sudo");
        return vg_cmd_fail(&err);
    }
    if (stop(home, keep, &err) < 0)
        return vg_cmd_fail(&err);
    printf("Virga at %s is down%s\n", where, keep ? ", its tasks run on" : "");
    return 0;
}

const struct vg_cmd vg_cmd_down = {.name = "down",
                                   .args = "",
                                   .summary = "end the cloud of this machine",
                                   .opts = opts,
                                   .n_opts = VG_COUNT(opts),
                                   .run = run};

/* `virga task share`: another share of its GPU for a task that runs. */
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd-task.h"
#include "cli/spec-values.h"
#include "cli/task-show.h"
#include "view/views.h"

const struct vg_opt vg_task_share_opts[5] = {
    {"gpus", 0, "N", "its part of the GPU: 0.001 to 0.999", 'g'},
    {"gpu-mem", 0, "SIZE", "its memory on the GPU: 8G", 'm'},
    {"hard", 0, NULL, "of class mps: never more than its part, even when the GPU is idle", 'h'},
    {"soft", 0, NULL, "more than its part when others leave it", 's'},
    VG_CMD_OUTPUT,
};

static int on_task(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    char text[256];
    if (env->body_case != VG__PB__ENVELOPE__BODY_TASK)
        return vg_unexpected(env, err);
    if (l->json)
        vg_json_print(vg_view_json(&vg_view_task, env->task));
    else
        printf("%016llx has %s%s\n", (unsigned long long)env->task->id,
               vg_resources_text(env->task->want, text, sizeof(text)),
               env->task->gpu_hard ? " (hard)" : "");
    return 0;
}

static int take_option(struct vg_cmd_line *l, int id, const char *arg, Vg__Pb__TaskShare *m) {
    Vg__Pb__Resources want = VG__PB__RESOURCES__INIT;
    if (id == 'm') {
        m->has_gpu_mem_bytes = true;
        return vg_opt_size(&l->st, arg, &m->gpu_mem_bytes);
    }
    if (id == 'h' || id == 's') {
        if (m->has_gpu_hard && m->gpu_hard != (id == 'h'))
            return vg_opt_bad(&l->st, "a share is hard or soft: give one");
        m->has_gpu_hard = true;
        m->gpu_hard = id == 'h';
        return 0;
    }
    int r = id == 'g' ? vg_spec_gpus(&l->st, arg, &want) : 0;
    if (r >= 0 && id == 'g' && !want.gpu_milli)
        return vg_opt_bad(&l->st, "a share is a part of one GPU: give 0.001 to 0.999");
    m->has_gpu_milli |= id == 'g';
    m->gpu_milli = id == 'g' ? want.gpu_milli : m->gpu_milli;
    return r;
}

int vg_task_share_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__TaskShare m = VG__PB__TASK_SHARE__INIT;
    Vg__Pb__Envelope req = vg_request(SHARE_SET, share_set, &m);
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (take_option(l, id, arg, &m) < 0)
            return vg_cmd_fail_opt(l);
    }
    if (!vg_cmd_args(l, 1, 1))
        return l->exit;
    m.task = l->args[0];
    return vg_call_once(&req, on_task, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

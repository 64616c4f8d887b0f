/* `virga status`: what the cloud is and how it does. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd.h"
#include "view/views.h"

#include <string.h>

static void print_table(const Vg__Pb__StatusInfo *s) {
    char rss[32], up[32];
    printf("cloud     %s\n", s->cloud ? s->cloud : "-");
    printf("version   %s\n", s->version ? s->version : "-");
    printf("address   %s\n", s->address && *s->address ? s->address : "-");
    if (s->url && *s->url)
        printf("url       %s\n", s->url);
    printf("nodes     %u (%u ready)\n", s->nodes, s->nodes_ready);
    printf("running   %u\n", s->running);
    printf("queued    %u\n", s->queued);
    printf("home      %s\n", s->home ? s->home : "-");
    printf("pid       %u\n", s->pid);
    printf("memory    %s\n", vg_format_size(s->rss_bytes, rss, sizeof(rss)));
    printf("up        %s\n", vg_format_duration(s->up_usec, up, sizeof(up)));
}

static int on_status(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    const struct vg_cmd_line *l = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_STATUS_INFO)
        return vg_unexpected(env, err);
    if (l->json)
        vg_json_print(vg_view_json(&vg_view_status, env->status_info));
    else
        print_table(env->status_info);
    return 0;
}

static const struct vg_opt opts[] = {VG_CMD_OUTPUT};

static int run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(STATUS, status, &body);
    if (!vg_cmd_plain(l, 0, 0))
        return l->exit;
    return vg_call_once(&req, on_status, l, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

const struct vg_cmd vg_cmd_status = {.name = "status",
                                     .args = "",
                                     .summary = "what the cloud is and how it does",
                                     .opts = opts,
                                     .n_opts = VG_COUNT(opts),
                                     .run = run};

/* Commands that look again and again; see the header. */
#include "cli/top.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <poll.h>
#include <unistd.h>

void vg_top_init(struct vg_top *top) {
    bool screen = isatty(STDOUT_FILENO);
    *top = (struct vg_top){.screen = screen, .count = screen ? 0 : 1, .every_usec = VG_USEC};
}

int vg_top_opt(struct vg_cmd_line *l, struct vg_top *top, int id, const char *arg) {
    int r = 1;
    if (id == 'n' && (vg_parse_u64(arg, &top->count) < 0 || !top->count))
        r = vg_opt_bad(&l->st, "'%.32s' is not a number of looks", arg);
    else if (id == 'i')
        r = vg_opt_duration(&l->st, arg, &top->every_usec) < 0 ? -1 : 1;
    else if (id != 'n')
        return 0;
    if (r < 0)
        l->exit = vg_cmd_fail_opt(l);
    return r;
}

int vg_top_run(struct vg_cmd_line *l, struct vg_top *top) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_client *c;
    uint64_t every = VG_MIN(VG_MAX(top->every_usec, VG_USEC / 10), 3600 * VG_USEC);
    top->json = l->json;
    top->screen &= !l->json;
    int r = vg_client_open(&c, &err);
    if (r < 0)
        return vg_cmd_fail(&err);
    for (uint64_t i = 0; r >= 0 && (!top->count || i < top->count); i++) {
        r = top->look(top, c, &err);
        if (r >= 0 && (!top->count || i + 1 < top->count))
            poll(NULL, 0, (int)(every / 1000));
    }
    vg_client_close(c);
    return r < 0 ? vg_cmd_fail(&err) : 0;
}

void vg_top_clear(const struct vg_top *top) {
    if (top->screen)
        fputs("\033[H\033[2J", stdout);
}

int vg_top_shown(const struct vg_top *top, struct vg_err *err) {
    if (!top->screen && !top->json)
        putchar('\n');
    fflush(stdout);
    if (!ferror(stdout))
        return 0;
    vg_err_sys(err, EPIPE, "cannot write the output");
    err->reason = VG_INTERNAL; /* not LOST: it is our reader who left, not the control plane */
    return err->code;
}

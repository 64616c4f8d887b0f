/* `virga dashboard`: an address that signs a browser in. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd.h"
#include "view/json.h"

#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

#define URL_MAX 512

static int on_status(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    char *url = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_STATUS_INFO)
        return vg_unexpected(env, err);
    const char *text = env->status_info->url;
    if (!text || !*text)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "this cloud serves no dashboard: its administrator can set 'web' in the "
                          "configuration (virga-config(5)) and restart it");
    snprintf(url, URL_MAX, "%s", text);
    return 0;
}

/* The code stands behind '#', which a browser keeps for itself: no server or proxy logs it. */
static int on_code(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    char *url = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_TOKEN_NEW || !env->token_new->token)
        return vg_unexpected(env, err);
    size_t n = strlen(url);
    snprintf(url + n, URL_MAX - n, "/#code=%s", env->token_new->token);
    return 0;
}

/* Where there is a screen, the person's browser shows it; that it cannot is no error. */
static void open_browser(const char *url) {
    char *argv[] = {(char *)"xdg-open", (char *)url, NULL};
    posix_spawn_file_actions_t quiet;
    pid_t pid;
    if ((!getenv("DISPLAY") && !getenv("WAYLAND_DISPLAY")) || !isatty(STDOUT_FILENO))
        return;
    posix_spawn_file_actions_init(&quiet);
    for (int fd = 0; fd < 3; fd++)
        posix_spawn_file_actions_addopen(&quiet, fd, "/dev/null", O_RDWR, 0);
    (void)posix_spawnp(&pid, argv[0], &quiet, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&quiet);
}

static const struct vg_opt opts[] = {
    {"print", 0, NULL, "print the address and open nothing", 'p'},
    VG_CMD_OUTPUT,
};

static int run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__Empty none = VG__PB__EMPTY__INIT;
    Vg__Pb__TokenReq code = VG__PB__TOKEN_REQ__INIT;
    Vg__Pb__Envelope status = vg_request(STATUS, status, &none);
    Vg__Pb__Envelope token = vg_request(TOKEN_CREATE, token_create, &code);
    char url[URL_MAX] = "";
    bool print = false;
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        print |= id == 'p';
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    code.has_once = code.once = 1;
    if (vg_call_once(&status, on_status, url, &err) < 0 ||
        vg_call_once(&token, on_code, url, &err) < 0)
        return vg_cmd_fail(&err);
    if (l->json)
        return vg_json_print(json_pack("{s:s}", "url", url));
    printf("%s\n", url);
    if (!print)
        open_browser(url);
    return 0;
}

const struct vg_cmd vg_cmd_dashboard = {.name = "dashboard",
                                        .args = "",
                                        .summary = "open the dashboard, signed in",
                                        .opts = opts,
                                        .n_opts = VG_COUNT(opts),
                                        .run = run};

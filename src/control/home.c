/* The layout of $VIRGA_HOME, and the lock that keeps a second control plane out. */
#include "control/home.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char *default_dir(void) {
    const char *env = getenv("VIRGA_HOME");
    if (env && *env)
        return vg_strdup(env);
    const char *home = getenv("HOME");
    if (!home || !*home) {
        struct passwd *pw = getpwuid(getuid());
        home = pw ? pw->pw_dir : "/root";
    }
    return vg_fmt("%s/.virga", home);
}

static char *absolute(const char *path) {
    if (path[0] == '/')
        return vg_strdup(path);
    vg_auto_free char *cwd = getcwd(NULL, 0);
    return cwd ? vg_fmt("%s/%s", cwd, path) : NULL;
}

static int name_files(struct vg_home *h, const char *config) {
    h->sock = vg_fmt("%s/sock", h->dir);
    h->config = config ? absolute(config) : vg_fmt("%s/config.yaml", h->dir);
    h->control = vg_fmt("%s/control", h->dir);
    h->logs = vg_fmt("%s/control/logs", h->dir);
    h->db = vg_fmt("%s/control/state.db", h->dir);
    h->address = vg_fmt("%s/control/address", h->dir);
    h->pid = vg_fmt("%s/control/pid", h->dir);
    bool ok = h->sock && h->config && h->control && h->logs && h->db && h->address && h->pid;
    return ok ? 0 : -ENOMEM;
}

static int take_lock(struct vg_home *h, struct vg_err *err) {
    vg_auto_free char *path = vg_home_file(h, "lock");
    if (!path)
        return vg_err_sys(err, ENOMEM, "cannot lock %s", h->control);
    vg_auto_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return vg_err_sys(err, errno, "cannot open %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        vg_auto_free char *pid = NULL;
        size_t len = 0;
        if (vg_read_file(h->pid, 32, &pid, &len) == 0)
            pid[strcspn(pid, "\n")] = '\0';
        return vg_err_set(
            err, VG_CONFLICT,
            "this cloud's control plane is running already as process %s: stop it with "
            "'virga down', or choose another folder with VIRGA_HOME (now %s)",
            pid && *pid ? pid : "(unknown)", h->dir);
    }
    h->lock_fd = vg_take_fd(fd);
    return 0;
}

static int make_dirs(struct vg_home *h, struct vg_err *err) {
    int r = vg_mkdir_p(h->dir, 0711);
    if (r < 0)
        return vg_err_sys(err, r, "cannot create %s", h->dir);
    r = vg_mkdir_p(h->control, 0700);
    if (r >= 0)
        r = vg_mkdir_p(h->logs, 0700);
    if (r < 0)
        return vg_err_sys(err, r, "cannot create %s", h->control);
    return 0;
}

int vg_home_open(const char *dir, const char *config, struct vg_home *ret, struct vg_err *err) {
    struct vg_home h = {.lock_fd = -1};
    vg_auto_free char *given = dir ? vg_strdup(dir) : default_dir();
    h.dir = given ? absolute(given) : NULL;
    int r = h.dir ? name_files(&h, config) : -ENOMEM;
    if (r < 0)
        vg_err_sys(err, r, "cannot start");
    if (r >= 0)
        r = make_dirs(&h, err);
    if (r >= 0)
        r = take_lock(&h, err);
    if (r >= 0) {
        char pid[24];
        int n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
        r = vg_write_file(h.pid, pid, (size_t)n, 0644);
        if (r < 0)
            vg_err_sys(err, r, "cannot write %s", h.pid);
    }
    if (r < 0) {
        vg_close(&h.lock_fd);
        vg_home_close(&h);
        return r;
    }
    *ret = h;
    return 0;
}

void vg_home_close(struct vg_home *h) {
    if (h->lock_fd > 0) {
        unlink(h->sock);
        unlink(h->pid);
        vg_close(&h->lock_fd);
    }
    free(h->dir);
    free(h->sock);
    free(h->config);
    free(h->control);
    free(h->logs);
    free(h->db);
    free(h->address);
    free(h->pid);
    *h = (struct vg_home){.lock_fd = -1};
}

char *vg_home_file(const struct vg_home *h, const char *name) {
    return vg_fmt("%s/%s", h->control, name);
}

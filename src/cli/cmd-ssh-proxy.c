/* `virga ssh-proxy HOST [USER]`: what OpenSSH runs to reach a session (ProxyCommand). It runs a
   task in that session that is an SSH server on its input and output, notes the host key that the
   task says first, and passes the rest on. The way to the task is the cloud's own, so the key can
   be believed. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/around.h"
#include "cli/cmd.h"
#include "cli/ssh.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define KNOWN_MAX (4u << 20)

static const char serve[] =
#include "ssh-serve.h"
    ;

/* ------------------------------------------------------------------ known hosts */

/* Replaces the line of `host`. Several connections may do so at once. */
static int note_key(const char *path, const char *host, const char *key) {
    vg_auto_free char *lock_path = vg_fmt("%s.lock", path), *old = NULL;
    size_t len = 0;
    struct vg_buf out = {0};
    vg_auto_fd int lock = lock_path ? open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (lock < 0 || flock(lock, LOCK_EX) < 0)
        return lock_path ? -errno : -ENOMEM;
    int r = vg_read_file(path, KNOWN_MAX, &old, &len);
    if (r < 0 && r != -ENOENT)
        return r;
    size_t n = strlen(host);
    r = 0;
    for (char *save = NULL, *l = old ? strtok_r(old, "\n", &save) : NULL; l && r >= 0;
         l = strtok_r(NULL, "\n", &save))
        if (strncmp(l, host, n) != 0 || l[n] != ' ')
            r = vg_buf_printf(&out, "%s\n", l);
    if (r >= 0)
        r = vg_buf_printf(&out, "%s %s\n", host, key);
    if (r >= 0)
        r = vg_write_file(path, vg_buf_data(&out), vg_buf_len(&out), 0600);
    vg_buf_done(&out);
    return r;
}

/* ------------------------------------------------------------------ the task */

static int serve_one(const struct vg_ssh_files *f, const char *host, char **words,
                     struct vg_err *err) {
    static const char hello[] = "virga-ssh 1 ";
    char line[VG_AROUND_LINE];
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        return vg_err_sys(err, errno, "cannot make a pipe");
    pid_t pid = vg_around_start(words, -1, p[1], err);
    close(p[1]);
    vg_auto_fd int out = p[0];
    if (pid < 0)
        return pid;
    ssize_t n = vg_around_line(out, line);
    bool greeted = n > 0 && strncmp(line, hello, sizeof(hello) - 1) == 0;
    if (greeted && note_key(f->known, host, line + sizeof(hello) - 1) < 0)
        vg_cmd_say("cannot write %s: ssh will not know the session's key", f->known);
    if (greeted)
        vg_around_relay(out);
    vg_close(&out); /* whoever still writes there ends */
    return vg_around_wait(pid);
}

/* Our options come before what the caller gave for the session, which may so say otherwise. */
int vg_ssh_proxy_main(int argc, char **argv) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_ssh_files f;
    static const char *const own[] = {"-q", "--tty", "no", "-n", "ssh"};
    if (argc == 2 && strcmp(argv[1], "--script") == 0) { /* what runs there, for whoever asks */
        fputs(serve, stdout);
        return 0;
    }
    if (argc < 3) {
        vg_cmd_say("'virga ssh-proxy' is for OpenSSH: 'virga ssh-config' writes what it needs");
        return vg_reason_exit(VG_INVALID);
    }
    const char *host = argv[1], *user = argv[2];
    const char *name = vg_ssh_session(host);
    if (vg_ssh_files(&f, &err) < 0)
        return vg_cmd_fail(&err);
    vg_auto_free char *text = NULL;
    vg_auto_free char **asked = NULL;
    char **options = argv + 3;
    size_t n_options = (size_t)argc - 3, n = 0;
    if (!n_options && vg_ssh_recall(&f, name, &text, &asked, &n_options) >= 0 && asked)
        options = asked;
    vg_auto_free char **run = vg_alloc((n_options + 24) * sizeof(*run));
    if (!run)
        return 1;
    for (; n < VG_COUNT(own); n++)
        run[n] = (char *)own[n];
    run[n++] = (char *)"-s";
    run[n++] = (char *)name;
    for (size_t i = 0; i < n_options; i++)
        run[n++] = options[i];
    char *const command[] = {(char *)"--",        (char *)"/bin/sh", (char *)"-c", (char *)serve,
                             (char *)"virga-ssh", f.public_key,      (char *)user, NULL};
    memcpy(run + n, command, sizeof(command));
    int r = serve_one(&f, host, run, &err);
    vg_ssh_files_done(&f);
    return r < 0 ? vg_cmd_fail(&err) : r;
}

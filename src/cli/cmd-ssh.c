/* `virga ssh` and `virga ssh-config`: OpenSSH into a session, so that editors, scp, rsync and sftp
   work. The server is a task in the session (cmd-ssh-proxy.c); nothing listens anywhere. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/around.h"
#include "cli/cmd.h"
#include "cli/endpoint.h"
#include "cli/ssh.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONFIG_MAX (4u << 20)

/* ------------------------------------------------------------------ the files */

const char *vg_ssh_session(const char *host) {
    size_t n = strlen(VG_SSH_PREFIX);
    return strncmp(host, VG_SSH_PREFIX, n) == 0 ? host + n : host;
}

void vg_ssh_files_done(struct vg_ssh_files *f) {
    free(f->dir);
    free(f->key);
    free(f->known);
    free(f->config);
    free(f->public_key);
    *f = (struct vg_ssh_files){0};
}

static int make_key(const char *path, struct vg_err *err) {
    char *argv[] = {"ssh-keygen", "-q",    "-t", "ed25519",    "-N", "",
                    "-C",         "virga", "-f", (char *)path, NULL};
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        execvp(argv[0], argv);
        _exit(errno == ENOENT ? 127 : 126);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (pid < 0)
        return vg_err_sys(err, errno, "cannot start ssh-keygen");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return vg_err_set(err, VG_NO_COMMAND,
                          "ssh-keygen is not installed here: install OpenSSH's client (Debian and "
                          "Ubuntu: openssh-client)");
    return status ? vg_err_set(err, VG_INTERNAL, "ssh-keygen could not make the key %s", path) : 0;
}

/* The cloud's folder when it is ours, else the user's own: many may use one cloud. */
static int find_dir(char **ret, struct vg_err *err) {
    char home[VG_ENDPOINT_PATH_MAX];
    const char *own = getenv("HOME");
    struct stat st;
    int r = vg_home_dir(home, sizeof(home), err);
    if (r < 0)
        return r;
    bool ours = stat(home, &st) < 0 ? errno == ENOENT : st.st_uid == geteuid();
    *ret = ours || !own ? vg_fmt("%s/ssh", home) : vg_fmt("%s/.virga/ssh", own);
    if (!*ret)
        return vg_err_sys(err, ENOMEM, "cannot use ssh");
    r = vg_mkdir_p(*ret, 0700);
    return r < 0 ? vg_err_sys(err, r, "cannot make %s", *ret) : 0;
}

int vg_ssh_files(struct vg_ssh_files *ret, struct vg_err *err) {
    struct vg_ssh_files f = {0};
    size_t len = 0;
    int r = find_dir(&f.dir, err);
    if (r >= 0) {
        f.key = vg_fmt("%s/id_ed25519", f.dir);
        f.known = vg_fmt("%s/known_hosts", f.dir);
        f.config = vg_fmt("%s/config", f.dir);
    }
    vg_auto_free char *public = f.key ? vg_fmt("%s.pub", f.key) : NULL;
    if (r >= 0 && (!public || !f.known || !f.config))
        r = vg_err_sys(err, ENOMEM, "cannot use ssh");
    if (r >= 0 && access(f.key, F_OK) < 0)
        r = make_key(f.key, err);
    if (r >= 0 && (r = vg_read_file(public, 4096, &f.public_key, &len)) < 0)
        vg_err_sys(err, r, "cannot read %s: remove it and %s, and try again", public, f.key);
    if (r < 0) {
        vg_ssh_files_done(&f);
        return r;
    }
    f.public_key[strcspn(f.public_key, "\n")] = 0;
    *ret = f;
    return 0;
}

/* ------------------------------------------------------------------ what sessions are asked for
 * with */

#define ASKED_MAX 65536

static char *asked_path(const struct vg_ssh_files *f, const char *session) {
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    bool plain = *session && *session != '.' && !session[strspn(session, good)];
    return plain ? vg_fmt("%s/session.%s", f->dir, session) : NULL; /* the cloud will refuse it */
}

int vg_ssh_remember(const struct vg_ssh_files *f, const char *session, char **words, size_t n,
                    struct vg_err *err) {
    vg_auto_free char *path = asked_path(f, session);
    struct vg_buf b = {0};
    int r = 0;
    for (size_t i = 0; path && r >= 0 && i < n; i++)
        r = vg_buf_append(&b, words[i], strlen(words[i]) + 1);
    if (path && r >= 0)
        r = vg_write_file(path, vg_buf_data(&b), vg_buf_len(&b), 0600);
    vg_buf_done(&b);
    return r < 0 ? vg_err_sys(err, r, "cannot write %s", path) : 0;
}

int vg_ssh_recall(const struct vg_ssh_files *f, const char *session, char **ret_text,
                  char ***ret_words, size_t *ret_n) {
    vg_auto_free char *path = asked_path(f, session), *text = NULL;
    size_t len = 0, n = 0;
    if (!path || vg_read_file(path, ASKED_MAX, &text, &len) < 0 || !len)
        return 0;
    char **words = vg_alloc((len + 1) * sizeof(*words));
    if (!words)
        return -ENOMEM;
    for (size_t at = 0; at < len; at += strlen(text + at) + 1) /* the file's end is a NUL, too */
        words[n++] = text + at;
    *ret_text = vg_take_ptr(text);
    *ret_words = words;
    *ret_n = n;
    return 0;
}

/* ------------------------------------------------------------------ what ssh is told */

/* For a shell: ssh hands ProxyCommand to one. */
static int add_quoted(struct vg_buf *b, const char *word) {
    int r = vg_buf_append(b, " '", 2);
    for (; *word && r >= 0; word++)
        r = *word == '\''  ? vg_buf_append(b, "'\\''", 4)
            : *word == '%' ? vg_buf_append(b, "%%", 2)
                           : vg_buf_append(b, word, 1);
    return r < 0 ? r : vg_buf_append(b, "'", 1);
}

/* Of `options`, n of vrun's. */
static char *proxy_command(char **options, size_t n) {
    char self[4096];
    struct vg_buf b = {0};
    const char *home = getenv("VIRGA_HOME");
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[len < 0 ? 0 : len] = 0;
    int r = vg_buf_append(&b, "env", 3);
    if (home && *home) {
        vg_auto_free char *set = vg_fmt("VIRGA_HOME=%s", home);
        r = set && r >= 0 ? add_quoted(&b, set) : -ENOMEM;
    }
    if (r >= 0)
        r = add_quoted(&b, len > 0 ? self : "virga");
    if (r >= 0)
        r = vg_buf_printf(&b, " ssh-proxy %%n %%r");
    for (size_t i = 0; i < n && r >= 0; i++)
        r = add_quoted(&b, options[i]);
    char *out = r < 0 ? NULL : vg_strndup((char *)vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
    return out;
}

/* The block for ssh_config(5). */
static char *block(const struct vg_ssh_files *f) {
    vg_auto_free char *proxy = proxy_command(NULL, 0);
    return proxy ? vg_fmt("Host " VG_SSH_PREFIX "*\n"
                          "    ProxyCommand %s\n"
                          "    IdentityFile \"%s\"\n"
                          "    IdentitiesOnly yes\n"
                          "    UserKnownHostsFile \"%s\"\n"
                          "    StrictHostKeyChecking yes\n"
                          "    UpdateHostKeys no\n",
                          proxy, f->key, f->known)
                 : NULL;
}

/* ------------------------------------------------------------------ virga ssh-config */

/* The line goes first: an Include below a Host would be that host's alone. */
static int install(const struct vg_ssh_files *f, const char *text, struct vg_err *err) {
    const char *home = getenv("HOME");
    vg_auto_free char *dir = home ? vg_fmt("%s/.ssh", home) : NULL;
    vg_auto_free char *path = dir ? vg_fmt("%s/config", dir) : NULL;
    vg_auto_free char *line = vg_fmt("Include \"%s\"\n", f->config), *old = NULL;
    size_t len = 0;
    struct stat st = {.st_mode = 0600};
    if (!path || !line)
        return vg_err_set(err, VG_INVALID, "HOME is not set: there is no ~/.ssh to write to");
    int r = vg_write_file(f->config, text, strlen(text), 0600);
    if (r < 0)
        return vg_err_sys(err, r, "cannot write %s", f->config);
    if ((r = vg_mkdir_p(dir, 0700)) < 0)
        return vg_err_sys(err, r, "cannot make %s", dir);
    r = vg_read_file(path, CONFIG_MAX, &old, &len);
    if (r < 0 && r != -ENOENT)
        return vg_err_sys(err, r, "cannot read %s", path);
    if (old && strstr(old, line)) {
        vg_cmd_say("%s reads %s already: try 'ssh " VG_SSH_PREFIX "NAME'", path, f->config);
        return 0;
    }
    /* A link (to a repository of one's own files) stays one. */
    vg_auto_free char *real = realpath(path, NULL), *all = vg_fmt("%s\n%s", line, old ? old : "");
    stat(path, &st);
    r = all ? vg_write_file(real ? real : path, all, strlen(all), st.st_mode & 0777) : -ENOMEM;
    if (r < 0)
        return vg_err_sys(err, r, "cannot write %s", path);
    vg_cmd_say("%s reads %s now: try 'ssh " VG_SSH_PREFIX "NAME'", path, f->config);
    return 0;
}

static const struct vg_opt config_opts[] = {
    {"install", 0, NULL, "put it where ~/.ssh/config reads it", 'i'},
};

static int config_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_ssh_files f;
    bool write = false;
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        write |= id == 'i';
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    if (vg_ssh_files(&f, &err) < 0)
        return vg_cmd_fail(&err);
    vg_auto_free char *text = block(&f);
    int r = text ? 0 : vg_err_sys(&err, ENOMEM, "cannot write the configuration");
    if (r >= 0 && write)
        r = install(&f, text, &err);
    else if (r >= 0)
        fputs(text, stdout);
    vg_ssh_files_done(&f);
    return r < 0 ? vg_cmd_fail(&err) : 0;
}

const struct vg_cmd vg_cmd_ssh_config = {.name = "ssh-config",
                                         .args = "",
                                         .summary = "what OpenSSH and editors need for sessions",
                                         .opts = config_opts,
                                         .n_opts = VG_COUNT(config_opts),
                                         .run = config_run};

/* ------------------------------------------------------------------ virga ssh */

static const char usage[] =
    "Usage: virga ssh [options] SESSION [options] [--] [COMMAND...]\n\n"
    "A shell, or a command, in a session by OpenSSH; the session is made when there is none.\n"
    "Options are vrun's, for the session.\n";

static int exec_ssh(const struct vg_ssh_files *f, const struct vg_around *l, int argc, char **argv,
                    struct vg_err *err) {
    vg_auto_free char *proxy = proxy_command(l->options, l->n_options);
    vg_auto_free char *o_proxy = proxy ? vg_fmt("ProxyCommand=%s", proxy) : NULL;
    vg_auto_free char *known = vg_fmt("UserKnownHostsFile=\"%s\"", f->known);
    vg_auto_free char *key = vg_fmt("IdentityFile=\"%s\"", f->key);
    vg_auto_free char *host = vg_fmt(VG_SSH_PREFIX "%s", vg_ssh_session(l->word));
    vg_auto_free char **run = vg_alloc(((size_t)argc + 24) * sizeof(*run));
    size_t n = 0;
    if (!o_proxy || !known || !key || !host || !run)
        return vg_err_sys(err, ENOMEM, "cannot start ssh");
    const char *const own[] = {"ssh",
                               "-o",
                               o_proxy,
                               "-o",
                               key,
                               "-o",
                               "IdentitiesOnly=yes",
                               "-o",
                               known,
                               "-o",
                               "StrictHostKeyChecking=yes",
                               "-o",
                               "UpdateHostKeys=no"};
    for (; n < VG_COUNT(own); n++)
        run[n] = (char *)own[n];
    if (l->rest < argc && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
        run[n++] = (char *)"-t"; /* as vrun would */
    run[n++] = host;
    if (l->rest < argc)
        run[n++] = (char *)"--";
    for (int i = l->rest; i < argc; i++)
        run[n++] = argv[i];
    run[n] = NULL;
    execvp("ssh", run);
    if (errno == ENOENT)
        return vg_err_set(err, VG_NO_COMMAND,
                          "ssh is not installed here: install OpenSSH's client (Debian and Ubuntu: "
                          "openssh-client)");
    return vg_err_sys(err, errno, "cannot start ssh");
}

static int ssh_main(int argc, char **argv) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_ssh_files f;
    vg_auto_free char **options = vg_alloc(((size_t)argc + 1) * sizeof(*options));
    struct vg_around a = {.program = "virga ssh", .usage = usage, .options = options};
    int r = options ? vg_around_read(&a, argc, argv, &err)
                    : vg_err_sys(&err, ENOMEM, "cannot start ssh");
    if (r > 0)
        return 0;
    if (r == 0 && !a.word)
        r = vg_err_set(&err, VG_INVALID,
                       "which session? Write 'virga ssh NAME'; it is made when there is none");
    if (r == 0)
        r = vg_ssh_files(&f, &err);
    if (r == 0) {
        if (a.n_options) /* without any it is as it was asked for before */
            r = vg_ssh_remember(&f, vg_ssh_session(a.word), a.options, a.n_options, &err);
        if (r == 0)
            r = exec_ssh(&f, &a, argc, argv, &err);
        vg_ssh_files_done(&f);
    }
    return vg_cmd_fail(&err);
}

const struct vg_cmd vg_cmd_ssh = {.name = "ssh",
                                  .args = "SESSION",
                                  .summary = "OpenSSH into a session, made when there is none",
                                  .raw = ssh_main};
const struct vg_cmd vg_cmd_ssh_proxy = {
    .name = "ssh-proxy", .args = "HOST USER", .raw = vg_ssh_proxy_main};

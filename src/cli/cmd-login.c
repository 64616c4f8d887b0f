/* `virga login` and `virga logout`: which remote cloud the commands of this user go to. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd.h"
#include "cli/login-device.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int login_path(char *ret, size_t n, struct vg_err *err) {
    int r = vg_home_dir(ret, n - 16, err);
    if (r < 0)
        return r;
    r = vg_mkdir_p(ret, 0711);
    if (r < 0)
        return vg_err_sys(err, r, "cannot create %s", ret);
    memcpy(ret + strlen(ret), "/client", sizeof("/client"));
    return 0;
}

static int check_address(const char *a, struct vg_err *err) {
    const char *colon = strrchr(a, ':');
    uint64_t port;
    if (colon && colon > a && vg_parse_u64(colon + 1, &port) == 0 && port > 0 && port < 65536)
        return 0;
    return vg_err_set(
        err, VG_INVALID,
        "'%.200s' is not an address such as cloud.example.org:7443: 'virga status' on "
        "the cloud's machine shows it",
        a);
}

/* Tries the login before it is stored, so that a typing error is found here and not at the first
   vrun. */
static int try_it(const struct vg_endpoint *e, struct vg_err *err) {
    struct vg_client *c;
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(STATUS, status, &body);
    int r = vg_client_open_at(e, &c, err);
    if (r < 0)
        return r;
    r = vg_call(c, &req, VG_CALL_TIMEOUT_USEC, NULL, NULL, err);
    vg_client_close(c);
    return r;
}

static int login(const char *address, const char *token, struct vg_err *err) {
    struct vg_endpoint e = {.kind = VG_ENDPOINT_TLS};
    char path[VG_ENDPOINT_PATH_MAX], where[VG_ENDPOINT_PATH_MAX];
    int r = check_address(address, err);
    if (r < 0)
        return r;
    if (strlen(token) >= sizeof(e.token) || strlen(address) >= sizeof(e.address) ||
        vg_token_ca(token, e.ca) < 0 || strncmp(token, "vgt_", 4) != 0)
        return vg_err_set(err, VG_INVALID,
                          "that is not an API token: it starts with vgt_, and 'virga token create' "
                          "on the cloud prints one");
    snprintf(e.address, sizeof(e.address), "%s", address);
    snprintf(e.token, sizeof(e.token), "%s", token);
    r = login_path(path, sizeof(path), err);
    if (r >= 0)
        r = try_it(&e, err);
    if (r >= 0)
        r = vg_login_write(path, &e, err);
    if (r < 0)
        return r;
    printf("logged in to %s (%s)\n", address, vg_home_short(path, where, sizeof(where)));
    return 0;
}

/* A token on the command line is seen by `ps`: a file or standard input are offered too. */
static int read_token(const char *from, char **ret, struct vg_err *err) {
    const char *path = strcmp(from, "-") == 0 ? "/dev/stdin" : from;
    int r = vg_read_file(path, 4096, ret, NULL);
    if (r < 0)
        return vg_err_sys(err, r, "cannot read the token from %s", path);
    (*ret)[strcspn(*ret, "\r\n")] = 0;
    return 0;
}

static const struct vg_opt login_opts[] = {
    {"token", 't', "TOKEN", "the API token ('virga token create' prints one)", 't'},
    {"token-file", 0, "FILE", "read it from a file, or from standard input with -", 'f'},
    {"ca", 0, "FILE", "of https://...: a certificate to trust, besides the system's", 'c'},
};

static int by_provider(const char *url, const char *ca) {
    struct vg_err err = VG_ERR_INIT;
    char token[VG_ENDPOINT_TOKEN_MAX], address[VG_ENDPOINT_ADDRESS_MAX];
    int r = vg_login_device(url, ca, token, sizeof(token), address, sizeof(address), &err);
    if (r >= 0)
        r = login(address, token, &err);
    return r < 0 ? vg_cmd_fail(&err) : 0;
}

static int login_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    const char *arg, *token = NULL, *ca = NULL;
    vg_auto_free char *read = NULL;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 't')
            token = arg;
        if (id == 'c')
            ca = arg;
        if (id == 'f' && !read && read_token(arg, &read, &err) < 0)
            return vg_cmd_fail(&err);
        if (id == 'f')
            token = read;
    }
    if (!vg_cmd_args(l, 1, 1))
        return l->exit;
    if (!token && strncmp(l->args[0], "https://", 8) == 0)
        return by_provider(l->args[0], ca);
    if (!token) {
        vg_err_set(&err, VG_INVALID,
                   "virga login needs a token (virga login HOST:PORT --token TOKEN) or, where the "
                   "cloud has an identity provider, the address of its dashboard (virga login "
                   "https://HOST:PORT)");
        return vg_cmd_fail(&err);
    }
    return login(l->args[0], token, &err) < 0 ? vg_cmd_fail(&err) : 0;
}

static int logout_run(struct vg_cmd_line *l) {
    struct vg_err err = VG_ERR_INIT;
    char path[VG_ENDPOINT_PATH_MAX], tickets[VG_ENDPOINT_PATH_MAX + 16];
    if (!vg_cmd_plain(l, 0, 0))
        return l->exit;
    if (vg_home_dir(path, sizeof(path) - 16, &err) < 0)
        return vg_cmd_fail(&err);
    memcpy(path + strlen(path), "/client", sizeof("/client"));
    snprintf(tickets, sizeof(tickets), "%s.tickets", path);
    unlink(tickets);
    if (unlink(path) < 0 && errno != ENOENT) {
        vg_err_sys(&err, errno, "cannot remove %s", path);
        return vg_cmd_fail(&err);
    }
    return 0;
}

const struct vg_cmd vg_cmd_login = {.name = "login",
                                    .args = "HOST:PORT|https://HOST:PORT",
                                    .summary = "use a cloud that runs elsewhere",
                                    .opts = login_opts,
                                    .n_opts = VG_COUNT(login_opts),
                                    .run = login_run};
const struct vg_cmd vg_cmd_logout = {
    .name = "logout", .args = "", .summary = "forget that cloud", .run = logout_run};

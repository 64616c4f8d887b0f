/* The device flow, by the cloud's REST interface: its certificate is one that this machine trusts,
   so that nobody else is handed the token. */
#include "cli/login-device.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/cmd.h"
#include "cli/table.h"
#include "fs/store/http.h"

#include <jansson.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MAX (256u << 10)
#define API "/api/v1"

struct cloud {
    struct vg_http *http;
    char *auth; /* owned: a header line, or NULL */
};

/* The server's sentence, or its status. */
static int say_why(const json_t *j, int status, struct vg_err *err) {
    const char *detail = json_string_value(json_object_get(j, "detail"));
    char clean[400];
    if (!detail)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "the cloud answered with status %d: is that the address of its dashboard "
                          "('virga status' on the cloud's machine shows it)?",
                          status);
    return vg_err_set(err, status == 401 ? VG_UNAUTHENTICATED : VG_UNAVAILABLE, "%s",
                      vg_clean(clean, sizeof clean, detail, strlen(detail)));
}

static int ask(struct cloud *c, const char *path, const json_t *body, json_t **ret,
               struct vg_err *err) {
    struct vg_http_req q = VG_HTTP_REQ_INIT;
    struct vg_http_answer a = {0};
    struct vg_buf out = {0};
    vg_auto_free char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    vg_auto_free char *headers =
        vg_fmt("%s%s", c->auth ? c->auth : "", body ? "Content-Type: application/json\r\n" : "");
    if (!headers || (body && !text))
        return vg_err_sys(err, -ENOMEM, "cannot log in");
    q.method = body ? "POST" : "GET";
    q.target = path;
    q.headers = headers;
    q.body = text;
    q.body_len = text ? strlen(text) : 0;
    q.out = &out;
    q.max = ANSWER_MAX;
    int r = vg_http_do(c->http, &q, &a, err);
    json_t *j = r < 0 ? NULL : json_loadb((char *)vg_buf_data(&out), vg_buf_len(&out), 0, NULL);
    vg_buf_done(&out);
    if (r >= 0 && (a.status != 200 || !json_is_object(j)))
        r = say_why(j, a.status, err);
    if (r < 0)
        json_decref(j);
    else
        *ret = j;
    return r;
}

static const char *text_of(const json_t *j, const char *name) {
    const char *s = json_string_value(json_object_get(j, name));
    return s ? s : "";
}

static uint64_t number_of(const json_t *j, const char *name) {
    json_int_t v = json_integer_value(json_object_get(j, name));
    return v > 0 ? (uint64_t)v : 0;
}

static void tell(const json_t *j) {
    char url[600], code[100];
    vg_clean(url, sizeof url, text_of(j, "url"), strlen(text_of(j, "url")));
    vg_clean(code, sizeof code, text_of(j, "user_code"), strlen(text_of(j, "user_code")));
    fprintf(stderr, "open %s\nin a browser and confirm the code %s\n", url, code);
    fflush(stderr);
}

/* Until the person has confirmed, or the provider has lost its patience. */
static int wait_for_person(struct cloud *c, const json_t *begun, char *ret, size_t n,
                           struct vg_err *err) {
    uint64_t interval = number_of(begun, "interval_usec"), pause = VG_USEC; /* some are quick */
    uint64_t until = number_of(begun, "expires_usec");
    json_t *body = json_pack("{ss}", "id", text_of(begun, "id"));
    int r = body ? 0 : vg_err_sys(err, -ENOMEM, "cannot log in");
    for (bool done = false; r >= 0 && !done;) {
        json_t *j = NULL;
        nanosleep(&(struct timespec){.tv_sec = (time_t)(pause / VG_USEC),
                                     .tv_nsec = (long)(pause % VG_USEC) * 1000},
                  NULL);
        r = ask(c, API "/login/device/poll", body, &j, err);
        if (r < 0)
            break;
        done = *text_of(j, "token") != 0;
        if (done && strlen(text_of(j, "token")) >= n)
            r = vg_err_set(err, VG_PROTOCOL, "the cloud gave a token that is none");
        else if (done)
            snprintf(ret, n, "%s", text_of(j, "token"));
        else if (until && vg_wall_usec() > until)
            r = vg_err_set(err, VG_TIMEOUT, "nobody confirmed the code in time: log in again");
        if (number_of(j, "interval_usec"))
            interval = number_of(j, "interval_usec");
        pause = VG_MAX(VG_MIN(interval, 60 * VG_USEC), VG_USEC);
        json_decref(j);
    }
    json_decref(body);
    return r;
}

/* A cloud that does not know how it is reached says where it listens. */
static bool is_vague(const char *host, size_t n) {
    static const char *const vague[] = {"127.0.0.1", "0.0.0.0", "[::]", "[::1]", "localhost"};
    for (size_t i = 0; i < VG_COUNT(vague); i++)
        if (strlen(vague[i]) == n && strncmp(host, vague[i], n) == 0)
            return true;
    return n == 0;
}

static int find_address(struct cloud *c, char *ret, size_t n, struct vg_err *err) {
    json_t *j = NULL;
    int r = ask(c, API "/status", NULL, &j, err);
    if (r < 0)
        return r;
    const char *said = text_of(j, "address"), *colon = strrchr(said, ':');
    const char *host = vg_http_host(c->http), *end = strrchr(host, ':');
    if (end && strchr(end, ']')) /* [::1] without a port */
        end = NULL;
    size_t n_host = end ? (size_t)(end - host) : strlen(host);
    if (!colon)
        r = vg_err_set(err, VG_UNAVAILABLE, "the cloud does not say where it is reached");
    else if (is_vague(said, (size_t)(colon - said)))
        snprintf(ret, n, "%.*s%s", (int)n_host, host, colon);
    else
        snprintf(ret, n, "%s", said);
    json_decref(j);
    return r;
}

static int log_in(struct cloud *c, char *ret_token, size_t n_token, struct vg_err *err) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    json_t *begun = NULL,
           *body = json_pack("{ss%}", "name", host, VG_MIN(strlen(host), (size_t)60));
    int r = body ? ask(c, API "/login/device", body, &begun, err)
                 : vg_err_sys(err, -ENOMEM, "cannot log in");
    json_decref(body);
    if (r >= 0) {
        tell(begun);
        r = wait_for_person(c, begun, ret_token, n_token, err);
    }
    json_decref(begun);
    return r;
}

int vg_login_device(const char *url, const char *ca, char *ret_token, size_t n_token,
                    char *ret_address, size_t n_address, struct vg_err *err) {
    struct cloud c = {0};
    int r = vg_http_open(url, &(struct vg_http_conf){.ca = ca}, &c.http, err);
    if (r < 0)
        return r;
    r = log_in(&c, ret_token, n_token, err);
    if (r >= 0 && !(c.auth = vg_fmt("Authorization: Bearer %s\r\n", ret_token)))
        r = vg_err_sys(err, -ENOMEM, "cannot log in");
    if (r >= 0)
        r = find_address(&c, ret_address, n_address, err);
    vg_http_close(c.http);
    free(c.auth);
    return r;
}

/* Files of the dashboard: what browsers need to keep them, and which path is which. */
#include "fixture.h"

#include "base/cleanup.h"
#include "http/files.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct vg_web_file list[] = {
    {"/assets/app-0a1b2c3d.js", "text/javascript", "\"js\"", (const uint8_t *)"script",
     (const uint8_t *)"packed", 6, 6, true},
    {"/favicon.svg", "image/svg+xml", "\"svg\"", (const uint8_t *)"icon", NULL, 4, 0, false},
    {"/index.html", "text/html", "\"html\"", (const uint8_t *)"page", NULL, 4, 0, false},
};
static const struct vg_web_files some = {list, VG_COUNT(list)}, none = {NULL, 0};

static void on_request(struct vg_web_req *req, void *user) {
    vg_web_files_answer(user, req);
}

static void expect(const struct vg_web_files *files, const char *line, const char *headers,
                   int status, const char *const *have, const char *body) {
    struct vg_buf b = {0};
    char text[512];
    begin(NULL, on_request, (void *)files);
    int fd = dial();
    snprintf(text, sizeof text, "%s HTTP/1.1\r\nHost: h\r\n%s\r\n", line, headers);
    say_text(fd, text);
    cr_expect_eq(hear_answer(fd, &b), status, "%s", line);
    const char *got = (char *)vg_buf_data(&b);
    for (; have && *have; have++)
        cr_expect(strstr(got, *have), "%s: no '%s' in\n%s", line, *have, got);
    if (body)
        cr_expect_str_eq(strstr(got, "\r\n\r\n") + 4, body, "%s", line);
    close(fd);
    vg_buf_done(&b);
    end();
}

#define HAVE(...)           \
    (const char *const[]) { \
        __VA_ARGS__, NULL   \
    }

Test(files, a_hashed_name_is_kept_for_ever_and_a_page_is_asked_for_again) {
    expect(&some, "GET /assets/app-0a1b2c3d.js", "Accept-Encoding: br, gzip\r\n", 200,
           HAVE("immutable", "Content-Encoding: gzip\r\n", "ETag: \"js\"", "Vary: Accept-Encoding"),
           "packed");
    expect(&some, "GET /assets/app-0a1b2c3d.js", "", 200, HAVE("text/javascript"), "script");
    static const char *const plain[] = {"gzip;q=0", "gzip; q=0.000", "gzip ;Q=0", "x-gzip", "br"};
    static const char *const packed[] = {"gzip;q=0.5", "br,GZIP;q=1", "deflate, gzip; q=0.001",
                                         "gzip;q=0.10, br;q=0"};
    char header[64];
    for (size_t i = 0; i < VG_COUNT(plain); i++) {
        snprintf(header, sizeof header, "Accept-Encoding: %s\r\n", plain[i]);
        expect(&some, "GET /assets/app-0a1b2c3d.js", header, 200, NULL, "script");
    }
    for (size_t i = 0; i < VG_COUNT(packed); i++) {
        snprintf(header, sizeof header, "Accept-Encoding: %s\r\n", packed[i]);
        expect(&some, "GET /assets/app-0a1b2c3d.js", header, 200, NULL, "packed");
    }
    expect(&some, "GET /assets/app-0a1b2c3d.js", "Range: bytes=0-1\r\n", 200, NULL, "script");
    expect(&some, "GET /", "", 200,
           HAVE("no-cache", "script-src 'self'", "frame-ancestors 'none'", "text/html"), "page");
    expect(&some, "GET /favicon.svg", "Accept-Encoding: gzip\r\n", 200, NULL, "icon");
}

Test(files, what_a_browser_has_is_not_sent_again) {
    expect(&some, "GET /index.html", "If-None-Match: \"other\", \"html\"\r\n", 304, HAVE("ETag"),
           "");
    expect(&some, "GET /index.html", "If-None-Match: \"other\"\r\n", 200, NULL, "page");
}

Test(files, paths_of_the_dashboard_itself_are_its_page_and_files_that_are_none_are_not) {
    expect(&some, "GET /tasks/0123456789abcdef?x=1", "", 200, NULL, "page");
    expect(&some, "GET /assets/none", "", 404, NULL, NULL);
    expect(&some, "GET /none.png", "", 404, NULL, NULL);
    expect(&some, "DELETE /", "", 405, HAVE("Allow: GET, HEAD"), NULL);
    expect(&none, "GET /", "", 404, HAVE("npm run build"), NULL);
}

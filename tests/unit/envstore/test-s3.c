/* A bucket's client: signatures against those that Amazon publishes, XML, credentials. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/http.h"
#include "fs/store/s3-xml.h"
#include "fs/store/s3.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static char *sign(const char *path, const char *query) {
    static const struct vg_s3_auth a = {.id = "AKIAIOSFODNN7EXAMPLE",
                                        .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                        .region = "us-east-1"};
    struct vg_s3_signing q = {.method = "GET",
                              .host = "examplebucket.s3.amazonaws.com",
                              .path = path,
                              .query = query,
                              .payload = EMPTY,
                              .when = 1369353600}; /* 2013-05-24 00:00 */
    struct vg_buf b = {0};
    cr_assert_eq(vg_s3_sign(&a, &q, &b), 0);
    char *text = vg_strdup((char *)vg_buf_data(&b));
    vg_buf_done(&b);
    return text;
}

Test(s3, signatures_are_those_of_the_published_examples) {
    vg_auto_free char *one = sign("/", "lifecycle=");
    cr_assert(
        strstr(one, "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        "%s", one);
    cr_assert(strstr(one, "x-amz-date: 20130524T000000Z\r\n"));
    vg_auto_free char *two = sign("/", "max-keys=2&prefix=J");
    cr_assert(
        strstr(two, "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        "%s", two);
}

static int note(void *user, const char *path, const char *value) {
    struct vg_buf *b = user;
    return vg_buf_printf(b, "%s=%s;", path, value ? value : "-");
}

static void reads(const char *xml, const char *want) {
    struct vg_buf b = {0};
    int r = vg_xml_each(xml, strlen(xml), note, &b);
    cr_assert_eq(vg_buf_append(&b, "", 1), 0);
    if (want)
        cr_assert(r == 0 && strcmp((char *)vg_buf_data(&b), want) == 0, "%s: %d %s", xml, r,
                  vg_buf_data(&b));
    else
        cr_assert_eq(r, -EBADMSG, "%s: %d", xml, r);
    vg_buf_done(&b);
}

Test(s3, xml_is_read_and_what_is_none_refused) {
    reads("<?xml version='1.0'?>\n<a x=\"1>2\"><n:b>t&amp;&lt;&#65;&#xe9;</n:b><c/><!-- <z> "
          "--></a>\n",
          "a/b=t&<A\xc3\xa9;a/c=;a=-;");
    reads("<a>text</a>", "a=text;");
    reads("<a><b>1</b><b>2</b></a>", "a/b=1;a/b=2;a=-;");
    static const char *const bad[] = {"",
                                      "text",
                                      "<a>",
                                      "<a></b>",
                                      "<a></a><b></b>",
                                      "</a>",
                                      "<a>&nope;</a>",
                                      "<a>&amp</a>",
                                      "<a>&#0;</a>",
                                      "<a>&#xd800;</a>",
                                      "<a>&#x110000;</a>",
                                      "<!DOCTYPE a><a/>",
                                      "<a><![CDATA[x]]></a>",
                                      "<a b='>",
                                      "< a/>",
                                      "<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>"};
    for (size_t i = 0; i < VG_COUNT(bad); i++)
        reads(bad[i], NULL);
}

Test(s3, every_truncation_of_xml_is_refused) {
    static const char xml[] = "<a><b>t&amp;</b><c x='y'/></a>";
    struct vg_buf b = {0};
    for (size_t n = 0; n + 1 < sizeof(xml); n++) {
        vg_auto_free char *part = vg_memdup(xml, n + 1);
        cr_assert_eq(vg_xml_each(part, n, note, &b), n == sizeof(xml) - 1 ? 0 : -EBADMSG, "%zu", n);
    }
    vg_buf_done(&b);
}

Test(s3, a_buckets_name_is_checked) {
    struct vg_s3_conf c = {0};
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_s3_conf_url(&c, "s3://my-bucket/some/where", &err), 0);
    cr_assert_str_eq(c.bucket, "my-bucket");
    cr_assert_str_eq(c.prefix, "some/where/");
    cr_assert_eq(vg_s3_conf_url(&c, "s3://my-bucket", &err), 0);
    cr_assert_str_eq(c.prefix, "");
    static const char *const bad[] = {
        "",        "my-bucket",       "http://x/y", "s3://",          "s3:///x",         "s3://B/x",
        "s3://bu", "s3://bucket/a b", "s3://b c/",  "s3://bucket//x", "s3://bucket/../x"};
    for (size_t i = 0; i < VG_COUNT(bad); i++)
        cr_assert_lt(vg_s3_conf_url(&c, bad[i], &err), 0, "%s", bad[i]);
}

static int credentials(const char *text, mode_t mode, struct vg_s3_conf *c, struct vg_err *err) {
    char path[] = "/tmp/virga-creds-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(vg_write_full(fd, text, strlen(text)), 0);
    fchmod(fd, mode);
    close(fd);
    int r = vg_s3_conf_credentials(c, path, err);
    unlink(path);
    return r;
}

Test(s3, credentials_are_read_and_must_be_private) {
    static const char text[] = "# mine\n[other]\naws_access_key_id = no\n[default]\n"
                               "aws_access_key_id = AKID \naws_secret_access_key=s/+=x\n";
    struct vg_s3_conf c = {0};
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(credentials(text, 0600, &c, &err), 0, "%s", err.msg);
    cr_assert_str_eq(c.auth.id, "AKID");
    cr_assert_str_eq(c.auth.secret, "s/+=x");
    cr_assert_eq(credentials(text, 0640, &c, &err), -EPERM);
    cr_assert(strstr(err.msg, "chmod 600"), "%s", err.msg);
    cr_assert_lt(credentials("[default]\naws_access_key_id = x\n", 0600, &c, &err), 0);
    cr_assert(strstr(err.msg, "aws_secret_access_key"), "%s", err.msg);
    cr_assert_lt(credentials("aws_access_key_id=a b\naws_secret_access_key=x\n", 0600, &c, &err),
                 0);
}

/* What a server that says `interim` times 100 before its answer is taken for: a status, or -1. */
static int asked(unsigned interim) {
    static const char more[] = "HTTP/1.1 100 Continue\r\n\r\n";
    static const char last[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    int pair[2];
    struct vg_http *h = NULL;
    struct vg_http_req q = VG_HTTP_REQ_INIT;
    struct vg_http_answer a;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    for (unsigned i = 0; i < interim; i++)
        cr_assert_eq(vg_write_full(pair[1], more, strlen(more)), 0);
    cr_assert_eq(vg_write_full(pair[1], last, strlen(last)), 0);
    cr_assert_eq(vg_http_open_fd(pair[0], &h), 0);
    q.max = 10;
    int r = vg_http_do(h, &q, &a, &err);
    vg_http_close(h);
    close(pair[1]);
    return r < 0 ? -1 : a.status;
}

Test(http, an_answer_that_never_comes_is_given_up) {
    cr_assert_eq(asked(0), 200);
    cr_assert_eq(asked(3), 200);
    cr_assert_eq(asked(100), -1);
}

/* "Fail the Nth": a conversation in which one allocation, send or receive fails. Whatever fails,
   the program hears of each end exactly once, and nothing is left on the loop; with the address
   sanitizer also: no memory is lost, none is used after its end. */
#include "fixture.h"

#include "base/fault.h"
#include "http/ws.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int accepted, closed, begun, gone;

static void on_message(struct vg_ws *ws, void *user, bool text, const uint8_t *data, size_t n) {
    (void)user;
    (void)vg_ws_send(ws, text, data, n);
}

static void on_close(struct vg_ws *ws, void *user, unsigned code) {
    (void)ws;
    (void)user;
    (void)code;
    closed++;
}

static void on_gone(struct vg_web_req *req, void *user) {
    (void)user;
    gone++;
    vg_web_end(req, true);
}

static const struct vg_ws_ops ws_ops = {on_message, NULL, on_close};
static const struct vg_web_stream_ops stream_ops = {NULL, on_gone};

static void on_request(struct vg_web_req *req, void *user) {
    struct vg_ws *ws;
    (void)user;
    if (strcmp(req->path, "/ws") == 0) {
        accepted += vg_ws_accept(req, 1000, &ws_ops, NULL, &ws) == 0;
    } else if (strcmp(req->path, "/left") == 0) {
        begun++; /* a stream that its client leaves */
        (void)vg_web_begin(req, 200, "text/plain", &stream_ops, NULL);
        (void)vg_web_write(req, "x", 1);
    } else if (strcmp(req->path, "/parts") == 0) {
        (void)vg_web_begin(req, 200, "text/plain", NULL, NULL);
        (void)vg_web_write(req, "one", 3);
        vg_web_end(req, false);
    } else {
        (void)vg_web_set(req, "X-Thing", "value");
        vg_web_text(req, 200, (const char *)req->body);
    }
}

static const char before[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
                             "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                             "5\r\nhello\r\n0\r\n\r\n"
                             "GET /parts HTTP/1.1\r\nHost: h\r\n\r\n";
static const char left[] = "GET /left HTTP/1.1\r\nHost: h\r\n\r\n";
static const char socket_hello[] =
    "GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    "\x01\x82\0\0\0\0he\x80\x83\0\0\0\0llo\x88\x80\0\0\0\0"; /* fragments, and a close */

/* Says it and reads on for a while; true when the fault fired. */
static bool conversation(uint64_t nth, int error, const char *point, const char *text, size_t n) {
    char drop[4096];
    accepted = closed = begun = gone = 0;
    begin(NULL, on_request, NULL);
    int fd = dial();
    vg_fault_arm(nth, error, point);
    (void)send(fd, before, sizeof before - 1, MSG_NOSIGNAL);
    (void)send(fd, text, n, MSG_NOSIGNAL);
    for (int i = 0; i < 40; i++) {
        turn();
        if (recv(fd, drop, sizeof drop, 0) == 0)
            break;
    }
    close(fd);
    for (int i = 0; i < 10; i++)
        turn();
    bool fired = vg_fault_disarm();
    end();
    cr_assert_eq(closed, accepted, "each WebSocket ends once");
    cr_assert_eq(gone, begun, "each stream that was left is told so once");
    return fired;
}

Test(fault, whatever_fails_ends_cleanly) {
    static const struct {
        int error;
        const char *point;
    } table[] = {{ENOMEM, NULL}, {ECONNRESET, "http."}, {EAGAIN, "http."}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        uint64_t n = 1, m = 1;
        while (conversation(n, table[i].error, table[i].point, left, sizeof left - 1))
            n++;
        while (
            conversation(m, table[i].error, table[i].point, socket_hello, sizeof socket_hello - 1))
            m++;
        cr_expect(n > 2 && m > 2, "there is something to fail");
    }
}

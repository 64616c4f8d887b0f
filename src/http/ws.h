#pragma once
/* WebSockets (RFC 6455) on connections of web.h. Loop thread only.

   The server answers pings, puts fragments together, checks UTF-8 of texts, and sends a ping when
   nothing was heard for a while; a peer that does not answer is closed. */
#include "http/web.h"

struct vg_ws;
struct vg_ws_ops {
    void (*on_message)(struct vg_ws *ws, void *user, bool text, const uint8_t *data, size_t n);
    void (*on_room)(struct vg_ws *ws, void *user); /* vg_ws_room() was 0 and is not any more */
    /* Exactly once, from the loop; ws is freed after it. */
    void (*on_close)(struct vg_ws *ws, void *user, unsigned code);
};
#define VG_WS_NORMAL 1000
#define VG_WS_LEAVING 1001 /* the server stops */
#define VG_WS_PROTOCOL 1002
#define VG_WS_BAD_DATA 1007
#define VG_WS_POLICY 1008
#define VG_WS_TOO_BIG 1009
#define VG_WS_INTERNAL 1011

/* Whether the request asks for a WebSocket at all. */
bool vg_ws_wanted(const struct vg_web_req *req);
/* 0, or the status with which it must be refused (400, 403, 426), and why. */
int vg_ws_refusal(struct vg_web_req *req, const char **ret_why);
/* Answers 101 and frees req. What is no proper request of one, or comes from another site's page
   (Origin), is answered (400, 403, 426) and freed, too: then -EBADMSG or -EACCES. */
int vg_ws_accept(struct vg_web_req *req, size_t message_max, const struct vg_ws_ops *ops,
                 void *user, struct vg_ws **ret);
/* Bytes that should be sent now; 0: wait for on_room. */
size_t vg_ws_room(const struct vg_ws *ws);
int vg_ws_send(struct vg_ws *ws, bool text, const void *data, size_t n); /* -EPIPE, -ENOMEM */
/* No bytes are read until it is called again with false: back-pressure against the client. */
void vg_ws_pause(struct vg_ws *ws, bool pause);
/* Sends what waits and the reason; on_close follows. */
void vg_ws_close(struct vg_ws *ws, unsigned code, const char *why);

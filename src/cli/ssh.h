#pragma once
/* What the commands around OpenSSH share: the files of a cloud's client, made when they are
 * missing. */
#include "base/err.h"

struct vg_ssh_files {
    char *dir;        /* owned: of all of them, 0700 */
    char *key;        /* owned: the client's private key */
    char *known;      /* owned: host keys of sessions, kept by virga ssh-proxy */
    char *config;     /* owned: for Include */
    char *public_key; /* owned: one line */
};

#define VG_SSH_PREFIX "virga."

int vg_ssh_files(struct vg_ssh_files *ret, struct vg_err *err);
void vg_ssh_files_done(struct vg_ssh_files *f);
/* The session of a host: "virga.NAME" and NAME are NAME. */
const char *vg_ssh_session(const char *host);

/* What a session was asked for with, so that whoever comes by ssh alone finds it, or makes it
   again, the same: n words of vrun's options. n 0 and no words where nothing is known. The words
   point into *ret_text; both are the caller's. */
int vg_ssh_remember(const struct vg_ssh_files *f, const char *session, char **words, size_t n,
                    struct vg_err *err);
int vg_ssh_recall(const struct vg_ssh_files *f, const char *session, char **ret_text,
                  char ***ret_words, size_t *ret_n);

int vg_ssh_proxy_main(int argc, char **argv); /* virga ssh-proxy HOST USER [vrun's options] */

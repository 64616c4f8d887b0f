/* What worker threads do: folders, content, extended attributes, read and packed. */
#include "fs/client/job-int.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

static void read_xattrs(struct vg_job *j) {
    char link[40], names[4096];
    Vg__Mr__Xattr xattr[64], *each[64];
    uint8_t *value = NULL;
    vg_auto_fd int fd = vg_open_beneath(j->read.root_fd, j->read.path, O_PATH);
    struct stat st;
    j->err = fd < 0 ? fd : fstat(fd, &st) < 0 ? -errno : 0;
    if (j->err == 0 && j->read.want.ino && j->read.want.ino != st.st_ino)
        j->err = -ESTALE; /* another thing has its name */
    if (j->err < 0)
        return;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = listxattr(link, names, sizeof(names));
    Vg__Mr__Fail fail = VG__MR__FAIL__INIT;
    size_t count = 0, room = 256u << 10;
    value = vg_alloc(room);
    if (!value)
        n = 0;
    uint8_t *at = value;
    for (ssize_t i = 0; i < n && count < VG_COUNT(xattr); i += (ssize_t)strlen(names + i) + 1) {
        const char *name = names + i;
        if (strncmp(name, "user.", 5) != 0 && strcmp(name, "security.capability") != 0)
            continue; /* of the machine's own making */
        ssize_t len = getxattr(link, name, at, room);
        if (len < 0)
            continue;
        vg__mr__xattr__init(&xattr[count]);
        xattr[count].has_name = xattr[count].has_value = true;
        xattr[count].name = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
        xattr[count].value = (ProtobufCBinaryData){(size_t)len, at};
        each[count] = &xattr[count];
        count++;
        at += len;
        room -= (size_t)len;
    }
    fail.has_req = fail.has_object = fail.has_errno_ = true;
    fail.req = j->req;
    fail.object = j->object;
    fail.n_xattr = count;
    fail.xattr = each;
    Vg__Mr__Msg msg = VG__MR__MSG__INIT;
    msg.body_case = VG__MR__MSG__BODY_FAIL;
    msg.fail = &fail;
    j->err = vg_mw_msg(&j->frame, &msg);
    free(value);
}

static void read_data(struct vg_job *j) {
    uint8_t *leaf = malloc(VG_LEAF);
    if (!leaf) {
        j->err = -ENOMEM;
        return;
    }
    j->err = vg_leaf_read(&j->read, leaf);
    if (j->err == 0) {
        int level = j->level && vg_leaf_shrinks(leaf, j->read.len) ? j->level : 0;
        /* Torn reads belong to no state. */
        j->err = j->read.torn_is_fine ? vg_mw_data(&j->frame, j->req, j->object, j->read.offset,
                                                   j->read.want.size, leaf, j->read.len, level)
                                      : vg_mw_data_of(&j->frame, j->req, j->object, j->read.offset,
                                                      &j->read.want, leaf, j->read.len, level);
    }
    free(leaf);
}

void vg_job_work(uv_work_t *w) {
    struct vg_job *j = w->data;
    if (j->kind == VG_MI_DIR) {
        int fd = vg_open_beneath(j->read.root_fd, j->path, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
        j->err = fd < 0 ? fd : vg_scan_folder(fd, j->xattrs, &j->scan);
    } else if (j->kind == VG_MI_XATTR) {
        read_xattrs(j);
    } else {
        read_data(j);
    }
}

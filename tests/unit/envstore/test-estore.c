/* The store of environments: objects, names, quotas, faults. */
#include "base/fault.h"
#include "help.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

Test(estore, a_file_comes_back_byte_for_byte_whatever_the_order_of_its_leaves) {
    struct box b = box_new(0);
    const uint64_t size = 3 * VG_LEAF + 17;
    vg_auto_free uint8_t *data = vg_alloc(size), *back = vg_alloc(size);
    for (uint64_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 131 + (i >> 9));
    struct vg_einto *w;
    cr_assert_eq(vg_einto_new(b.s, size, &w), 0);
    uint8_t id[VG_HASH], want[VG_HASH], hash[4][VG_HASH];
    cr_assert_eq(vg_einto_keep(w, id), -EINVAL, "nothing is there yet");
    cr_assert_eq(vg_einto_write(w, 3 * VG_LEAF, data + 3 * VG_LEAF, 17), 0);
    cr_assert_eq(vg_einto_write(w, VG_LEAF, data + VG_LEAF, 2 * VG_LEAF), 0);
    cr_assert_eq(vg_einto_write(w, VG_LEAF, data, VG_LEAF), 0, "a leaf that is there stays");
    cr_assert_eq(vg_einto_write(w, 5, data, VG_LEAF), -EINVAL);
    cr_assert_eq(vg_einto_write(w, 0, data, 100), -EINVAL);
    cr_assert_eq(vg_einto_write(w, 4 * VG_LEAF, data, VG_LEAF), -EINVAL);
    cr_assert_eq(vg_einto_write(w, 0, data, VG_LEAF), 1);
    cr_assert_eq(vg_einto_keep(w, id), 0);
    vg_einto_free(w);
    for (size_t i = 0; i < 4; i++)
        vg_leaf_hash(data + i * VG_LEAF, i == 3 ? 17 : VG_LEAF, hash[i]);
    vg_file_id(size, hash[0], 4, want);
    cr_assert_arr_eq(id, want, VG_HASH);
    vg_auto_fd int fd = vg_estore_open_data(b.s, id);
    cr_assert_eq(vg_read_full(fd, back, size), (ssize_t)size);
    cr_assert_arr_eq(back, data, size);
    box_done(&b);
}

Test(estore, the_same_bytes_are_kept_once_and_names_tell_nothing) {
    struct box b = box_new(0), c = box_new(0);
    uint8_t id[VG_HASH], again[VG_HASH];
    struct vg_estore_stat st;
    cr_assert_eq(put_file(b.s, 5000, 1, id), 0);
    cr_assert_eq(put_file(b.s, 5000, 1, again), 0);
    vg_estore_stats(b.s, &st);
    cr_assert_eq(st.objects, 1);
    cr_assert_eq(st.bytes, 5000);
    cr_assert(vg_estore_has(b.s, VG_E_DATA, id));
    cr_assert_not(vg_estore_has(c.s, VG_E_DATA, id), "another user's store does not have it");
    cr_assert_eq(put_file(c.s, 5000, 1, id), 0);
    /* one content, two users: no name in common */
    for (unsigned k = 0; k < 256; k++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/dat/%02x", b.dir, k);
        DIR *d = opendir(path);
        for (struct dirent *e; (e = readdir(d));) {
            char other[512];
            snprintf(other, sizeof(other), "%s/dat/%02x/%s", c.dir, k, e->d_name);
            cr_assert(e->d_name[0] == '.' || access(other, F_OK) < 0);
        }
        closedir(d);
    }
    box_done(&b);
    box_done(&c);
}

Test(estore, a_record_that_was_changed_on_disk_is_refused) {
    struct box b = box_new(0);
    uint8_t root[VG_HASH];
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(put_tree(b.s, 1, root), 0);
    cr_assert_eq(vg_estore_check(b.s, root, &err), 0, "%s", err.msg);
    for (unsigned k = 0; k < 256; k++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/rec/%02x", b.dir, k);
        DIR *d = opendir(path);
        for (struct dirent *e; (e = readdir(d));) {
            if (e->d_name[0] == '.')
                continue;
            snprintf(path, sizeof(path), "%s/rec/%02x/%s", b.dir, k, e->d_name);
            chmod(path, 0600);
            vg_auto_fd int fd = open(path, O_WRONLY);
            cr_assert_eq(pwrite(fd, "X", 1, 60), 1);
        }
        closedir(d);
    }
    struct vg_buf out = {0};
    cr_assert_eq(vg_estore_get_rec(b.s, root, &out), -EBADMSG);
    cr_assert_lt(vg_estore_check(b.s, root, &err), 0);
    vg_buf_done(&out);
    box_done(&b);
}

Test(estore, versions_count_up_and_go_away) {
    struct box b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    struct vg_eversion v = {.files = 2, .bytes = 3, .source = "a test", .config = "{\"x\":\n1}"},
                       got;
    cr_assert_eq(put_tree(b.s, 1, v.root), 0);
    cr_assert_eq(vg_eref_add(b.s, "docker.io/library/debian:12", &v, &err), 0, "%s", err.msg);
    cr_assert_eq(v.version, 1);
    cr_assert_eq(vg_eref_add(b.s, "docker.io/library/debian:12", &v, &err), 0);
    cr_assert_eq(v.version, 2);
    cr_assert_eq(vg_eref_get(b.s, "docker.io/library/debian:12", 0, &got, &err), 0);
    cr_assert_eq(got.version, 2);
    cr_assert_str_eq(got.config, v.config);
    cr_assert_str_eq(got.source, "a test");
    cr_assert_arr_eq(got.root, v.root, VG_HASH);
    cr_assert_eq(got.files, 2);
    vg_eversion_done(&got);
    cr_assert_eq(vg_eref_remove(b.s, "docker.io/library/debian:12", 2, &err), 0);
    cr_assert_eq(vg_eref_get(b.s, "docker.io/library/debian:12", 2, &got, &err), -ENOENT);
    cr_assert_str_eq(err.msg, "environment 'docker.io/library/debian:12' has no version 2");
    cr_assert_eq(vg_eref_remove(b.s, "docker.io/library/debian:12", 0, &err), 0);
    cr_assert_eq(vg_eref_get(b.s, "docker.io/library/debian:12", 0, &got, &err), -ENOENT);
    cr_assert_eq(vg_eref_remove(b.s, "nothing", 0, &err), -ENOENT);
    box_done(&b);
}

Test(estore, names_cannot_leave_the_folder) {
    static const char *const bad[] = {"",        ".",   "..",   "a/../b", "/a",  "a/",
                                      ".hidden", "a b", "a\nb", "a%2fb",  "a//b"};
    struct vg_err err;
    for (size_t i = 0; i < VG_COUNT(bad); i++)
        cr_assert_eq(vg_env_name_check(bad[i], &err), -EINVAL, "%s", bad[i]);
    char owner[VG_ENV_NAME_MAX + 1], name[VG_ENV_NAME_MAX + 1];
    uint32_t version;
    cr_assert_eq(vg_env_ref_parse("ann//train@3", owner, name, &version, &err), 0);
    cr_assert_str_eq(owner, "ann");
    cr_assert_str_eq(name, "train");
    cr_assert_eq(version, 3);
    cr_assert_eq(vg_env_ref_parse("img@sha256:00ff", owner, name, &version, &err), 0);
    cr_assert_str_eq(name, "img@sha256:00ff");
    cr_assert_eq(version, 0);
    cr_assert_eq(vg_env_ref_parse("a@0", owner, name, &version, &err), -EINVAL);
    char longer[VG_ENV_NAME_MAX + 3];
    memset(longer, 'a', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    cr_assert_eq(vg_env_ref_parse(longer, owner, name, &version, &err), -EINVAL);
}

Test(estore, only_named_teams_may_read) {
    struct box b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    struct vg_eversion v = {0};
    cr_assert_eq(put_tree(b.s, 1, v.root), 0);
    cr_assert_eq(vg_eref_share(b.s, "e", "vision", true, &err), -ENOENT);
    cr_assert_eq(vg_eref_add(b.s, "e", &v, &err), 0);
    cr_assert_not(vg_eref_shared(b.s, "e", "vision"));
    cr_assert_eq(vg_eref_share(b.s, "e", "vision", true, &err), 0);
    cr_assert_eq(vg_eref_share(b.s, "e", "vision", true, &err), 0);
    cr_assert_eq(vg_eref_share(b.s, "e", "speech", true, &err), 0);
    cr_assert(vg_eref_shared(b.s, "e", "vision"));
    cr_assert_not(vg_eref_shared(b.s, "e", "visio"));
    cr_assert_not(vg_eref_shared(b.s, "e", ""));
    cr_assert_eq(vg_eref_share(b.s, "e", "vision", false, &err), 0);
    cr_assert_not(vg_eref_shared(b.s, "e", "vision"));
    cr_assert(vg_eref_shared(b.s, "e", "speech"));
    cr_assert_eq(vg_eref_share(b.s, "e", "a\nb", true, &err), -EINVAL);
    box_done(&b);
}

Test(estore, a_quota_holds_for_what_is_there_and_what_is_coming) {
    struct box b = box_new(10000);
    uint8_t id[VG_HASH];
    struct vg_einto *w, *x;
    cr_assert_eq(put_file(b.s, 6000, 1, id), 0);
    cr_assert_eq(vg_einto_new(b.s, 3000, &w), 0);
    cr_assert_eq(vg_einto_new(b.s, 3000, &x), -EDQUOT, "two that come at once count both");
    vg_einto_free(w);
    cr_assert_eq(put_file(b.s, 3000, 2, id), 0);
    cr_assert_eq(put_file(b.s, 2000, 3, id), -EDQUOT);
    box_done(&b);
}

Test(estore, every_failure_leaves_the_store_whole) {
    for (uint64_t nth = 1;; nth++) {
        struct box b = box_new(0);
        struct vg_eversion v = {0}, got;
        struct vg_err err = VG_ERR_INIT;
        vg_fault_arm(nth, ENOSPC, NULL);
        int r = put_tree(b.s, 1, v.root);
        if (r == 0)
            r = vg_eref_add(b.s, "e", &v, &err);
        bool fired = vg_fault_disarm();
        cr_assert(fired || r == 0);
        if (vg_eref_get(b.s, "e", 0, &got, &err) == 0) {
            cr_assert_eq(vg_estore_check(b.s, got.root, &err), 0, "%s", err.msg);
            vg_eversion_done(&got);
        }
        vg_estore_close(b.s);
        char tmp[128];
        snprintf(tmp, sizeof(tmp), "%s/tmp", b.dir);
        DIR *d = opendir(tmp);
        for (struct dirent *e; (e = readdir(d));)
            cr_assert(e->d_name[0] == '.', "fault %lu left %s", (unsigned long)nth, e->d_name);
        closedir(d);
        b.s = NULL;
        box_done(&b);
        if (!fired)
            break;
    }
}

Test(estore, broken_records_are_refused) {
    uint8_t id[VG_HASH] = {1}, child[VG_HASH] = {2};
    struct vg_snapbuild b;
    struct vg_buf out = {0};
    struct vg_mstat st = {.mode = S_IFDIR | 0755};
    struct vg_dirent f = {.name = "a", .name_len = 1, .id = id, .st = {.mode = S_IFREG}};
    struct vg_dirent d = {.name = "b", .name_len = 1, .st = {.mode = S_IFDIR}};
    cr_assert_eq(vg_snapbuild_begin(&b, &st), 0);
    cr_assert_eq(vg_snapbuild_xattr(&b, "user.self", 9, "x", 1), 0);
    cr_assert_eq(vg_snapbuild_add(&b, &f, NULL), 0);
    cr_assert_eq(vg_snapbuild_xattr(&b, "user.x", 6, "y", 1), 0);
    cr_assert_eq(vg_snapbuild_add(&b, &d, child), 0);
    cr_assert_eq(vg_snapbuild_end(&b, &out), 0);
    struct vg_snaprec r;
    size_t n = vg_buf_len(&out);
    cr_assert_eq(vg_snaprec_open(&r, vg_buf_data(&out), n), 0);
    cr_assert_arr_eq(vg_snaprec_child(&r, 1), child, VG_HASH);
    cr_assert_null(vg_snaprec_child(&r, 0));
    for (size_t k = 0; k < n; k++) { /* every truncation but those between two ext fails */
        vg_auto_free uint8_t *cut = vg_memdup(vg_buf_data(&out), k ? k : 1);
        int got = vg_snaprec_open(&r, cut, k);
        cr_assert(got == -EBADMSG || (size_t)(r.ext - cut) + r.ext_len == k);
    }
    for (size_t i = 0; i < n; i++) /* no flipped bit is read beyond the end (sanitizers look) */
        for (int bit = 0; bit < 8; bit++) {
            vg_auto_free uint8_t *bad = vg_memdup(vg_buf_data(&out), n);
            bad[i] ^= (uint8_t)(1 << bit);
            vg_snaprec_open(&r, bad, n);
        }
    vg_snapbuild_done(&b);
    vg_buf_done(&out);
}

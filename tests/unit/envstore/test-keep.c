/* What a node tells of a task's changes: kept with what was there before, never outside of the
   task's folders, never more than the quota; told anew it replaces what was told, and it expires.
 */
#include "fs/store/fbuild.h"
#include "fs/store/keep.h"
#include "help.h"
#include "mirror/mwire.h"

#define TASK 0x1234567800000001ULL
static const char name[] = VG_KEEP_PREFIX "1234567800000001";

static struct box b;
static struct vg_ftree *base;
static struct vg_keepin *k;
static uint8_t old[VG_HASH];

/* /p/{file,link,d/{x,y}} and /other; the task may change /p. */
static void setup(uint64_t quota) {
    static ProtobufCBinaryData path = {2, (uint8_t *)"/p"};
    struct vg_err err = VG_ERR_INIT;
    struct vg_mstat file = {.mode = S_IFREG | 0644, .size = 10}, dir = {.mode = S_IFDIR | 0755};
    struct vg_mstat link = {.mode = S_IFLNK | 0777, .size = 4};
    b = box_new(quota);
    cr_assert_eq(put_file(b.s, 10, 1, old), 0);
    cr_assert_eq(vg_ftree_new(b.s, NULL, &base, &err), 0);
    static const char *const files[] = {"/p/file", "/p/d/x", "/p/d/y", "/other"};
    cr_assert_eq(vg_fbuild_put(base, "/p", &dir, NULL, NULL), 0);
    for (size_t i = 0; i < VG_COUNT(files); i++)
        cr_assert_eq(vg_fbuild_put(base, files[i], &file, NULL, old), 0);
    cr_assert_eq(vg_fbuild_put(base, "/p/link", &link, "file", NULL), 0);
    k = vg_keepin_new(&(struct vg_keep_conf){.store = b.s, .path = &path, .n_path = 1}, base);
    cr_assert(k);
}

static void done(void) {
    vg_keepin_free(k);
    vg_ftree_unref(base);
    box_done(&b);
}

static struct vg_keepin_answer said;

static int tell(uint64_t round, Vg__Mr__Keep__Kind kind, const char *path, uint32_t mode,
                uint64_t size, const char *target, bool fresh) {
    Vg__Mr__Keep m = VG__MR__KEEP__INIT;
    struct vg_mstat is = {.mode = mode, .size = size, .mtime = 5};
    Vg__Mr__Stat st;
    vg_mw_stat_to(&st, &is);
    m.task = TASK;
    m.round = round;
    m.kind = kind;
    m.number = 1;
    m.path = (ProtobufCBinaryData){path ? strlen(path) : 0, (uint8_t *)path};
    m.stat = mode ? &st : NULL;
    m.target = (ProtobufCBinaryData){target ? strlen(target) : 0, (uint8_t *)target};
    m.fresh = fresh;
    return vg_keepin_msg(k, &m, &said);
}
#define BEGIN(r) cr_assert_eq(tell(r, VG__MR__KEEP__KIND__BEGIN, NULL, 0, 0, NULL, false), 0)
#define END(r) tell(r, VG__MR__KEEP__KIND__END, NULL, 0, 0, NULL, false)
#define GONE(path) tell(1, VG__MR__KEEP__KIND__GONE, path, 0, 0, NULL, false)
#define THING(path, mode, size, target) \
    tell(1, VG__MR__KEEP__KIND__THING, path, mode, size, target, false)

static char *list; /* a line each: change, was, path */

static int line(void *user, const struct vg_fitem *i) {
    struct vg_change c;
    char *more;
    (void)user;
    vg_change_of(i, &c);
    if (!vg_change_counts(i, &c))
        return 0;
    more = vg_fmt("%s%c%c %s\n", list ? list : "", c.gone ? '-' : '+', c.was, i->path);
    free(list);
    list = more;
    return list ? 0 : -ENOMEM;
}

static const char *kept(void) {
    struct vg_eversion v;
    struct vg_err err = VG_ERR_INIT;
    struct vg_ftree *t;
    free(list);
    list = NULL;
    if (vg_eref_get(b.s, name, 0, &v, &err) < 0)
        return "nothing";
    cr_assert_eq(vg_ftree_new(b.s, v.root, &t, &err), 0);
    cr_assert_eq(vg_ftree_each(t, line, NULL, &err), 0, "%s", err.msg);
    vg_ftree_unref(t);
    vg_eversion_done(&v);
    return list ? list : "";
}

Test(keep, says_what_was_there_before) {
    setup(0);
    BEGIN(1);
    cr_assert_eq(THING("/p", S_IFDIR | 0755, 0, NULL), 0);
    cr_assert_eq(THING("/p/file", S_IFREG | 0600, 4, NULL), 0);
    cr_assert_eq(vg_keepin_bytes(k, 1, 0, "node", 4, &said), 0);
    cr_assert_eq(THING("/p/new", S_IFREG | 0600, 0, NULL), 0);
    cr_assert_eq(THING("/p/l2", S_IFLNK | 0777, 3, "new"), 0);
    cr_assert_eq(GONE("/p/link"), 0);
    cr_assert_eq(GONE("/p/never"), 0);
    cr_assert_eq(GONE("/p/d"), 0);
    cr_assert_eq(END(1), 1);
    cr_assert_eq(said.error, 0, "%s", said.text);
    cr_assert_eq(said.changes, 7);
    cr_assert_str_eq(kept(), "-d /p/d\n-f /p/d/x\n-f /p/d/y\n+f /p/file\n+- /p/l2\n-l /p/link\n"
                             "+- /p/new\n");
    done();
}

Test(keep, a_folder_that_is_the_tasks_own_hides_what_was_in_it) {
    setup(0);
    BEGIN(1);
    cr_assert_eq(tell(1, VG__MR__KEEP__KIND__THING, "/p/d", S_IFDIR | 0755, 0, NULL, true), 0);
    cr_assert_eq(THING("/p/d/y", S_IFREG | 0600, 0, NULL), 0);
    cr_assert_eq(END(1), 1);
    cr_assert_str_eq(kept(), "-f /p/d/x\n+f /p/d/y\n");
    done();
}

Test(keep, nothing_outside_of_the_tasks_folders_is_taken) {
    static const char *const bad[] = {"/other", "/p2", "/p/../other", "/p//x", "/p/.", "p/x", "/"};
    for (size_t i = 0; i < VG_COUNT(bad); i++) {
        setup(0);
        BEGIN(1);
        cr_assert_eq(THING(bad[i], S_IFREG | 0600, 0, NULL), -EPROTO, "%s", bad[i]);
        cr_assert_eq(GONE(bad[i]), -EPROTO, "%s", bad[i]);
        done();
    }
}

Test(keep, bytes_come_in_order_and_are_all_there) {
    setup(0);
    BEGIN(1);
    cr_assert_eq(THING("/p/dev", S_IFBLK | 0600, 0, NULL), -EPROTO);
    cr_assert_eq(THING("/p/file", S_IFREG | 0600, 4, NULL), 0);
    cr_assert_eq(vg_keepin_bytes(k, 1, 2, "de", 2, &said), -EPROTO);
    cr_assert_eq(END(1), -EPROTO, "its bytes are missing");
    done();
}

Test(keep, another_telling_replaces_the_last) {
    setup(0);
    BEGIN(1);
    cr_assert_eq(GONE("/p/file"), 0);
    BEGIN(2);
    cr_assert_eq(GONE("/p/link"), 0, "of the first: passed over");
    cr_assert_eq(END(1), 1);
    cr_assert_eq(said.error, ESTALE);
    cr_assert_eq(END(2), 1);
    cr_assert_eq(said.changes, 0);
    cr_assert_str_eq(kept(), "nothing");
    BEGIN(1);
    cr_assert_eq(GONE("/p/link"), 0);
    cr_assert_eq(END(1), 1);
    cr_assert_str_eq(kept(), "-l /p/link\n");
    BEGIN(3);
    cr_assert_eq(END(3), 1);
    cr_assert_str_eq(kept(), "nothing", "the next attempt changed nothing");
    done();
}

Test(keep, more_than_the_quota_is_refused_at_once) {
    setup(100000);
    BEGIN(1);
    cr_assert_eq(THING("/p/big", S_IFREG | 0600, 1u << 20, NULL), 1);
    cr_assert_eq(said.error, EDQUOT);
    cr_assert_eq(vg_keepin_bytes(k, 1, 0, "node", 4, &said), 0, "passed over");
    cr_assert_eq(END(1), 1);
    cr_assert_eq(said.error, ESTALE);
    cr_assert_str_eq(kept(), "nothing");
    done();
}

Test(keep, old_ones_expire_and_environments_do_not) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_eversion v = {.created_usec = 1};
    setup(0);
    cr_assert_eq(put_tree(b.s, 3, v.root), 0);
    cr_assert_eq(vg_eref_add(b.s, "old", &v, &err), 0);
    BEGIN(1);
    cr_assert_eq(GONE("/p/link"), 0);
    cr_assert_eq(END(1), 1);
    cr_assert_eq(vg_keep_expire(b.s, 3600 * VG_USEC), 0);
    cr_assert_str_eq(kept(), "-l /p/link\n");
    v.version = 0;
    cr_assert_eq(vg_eref_add(b.s, "task/0000000000000009", &v, &err), 0);
    cr_assert_eq(vg_keep_expire(b.s, 3600 * VG_USEC), 1);
    cr_assert_eq(vg_eref_get(b.s, "old", 0, &v, &err), 0);
    vg_eversion_done(&v);
    done();
}

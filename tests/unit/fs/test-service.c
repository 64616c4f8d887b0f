/* The file service as a node sees it. */
#include "service-node.h"

static char *const ls[] = {"ls", NULL};
#define PROJECT "/home/me/project"

static struct world w;
static struct node n;

static void setup(void) {
    world_new(&w);
}
static void teardown(void) {
    node_done(&n);
    world_done(&w);
}
TestSuite(service, .init = setup, .fini = teardown, .timeout = 60);

static uint64_t object_in(uint64_t folder, const char *name) {
    struct vg_dirent e;
    if (!vg_map_get_u64(&n.dirs, folder)) {
        node_get(&n, folder, 0, 0);
        turn(&w, &n, vg_map_get_u64(&n.dirs, folder));
    }
    cr_assert(node_entry(&n, folder, name, &e), "no %s in %lu", name, (unsigned long)folder);
    return e.object;
}
static const char *content(uint64_t object) {
    struct bytes *b = vg_map_get_u64(&n.data, object);
    return b ? (const char *)b->p : NULL;
}

Test(service, says_hello_folders_run_and_serves_what_is_asked) {
    put(&w, PROJECT "/a.txt", "first");
    put(&w, PROJECT "/src/b.txt", "second");
    service_start(&w);
    begin(&w, &n, 7, ls, PROJECT "/src", NULL);
    turn(&w, &n, n.n_runs == 1);
    cr_assert(n.n_hellos == 1 && n.run_task == 7 && n.n_views == 2);
    cr_assert(n.view_root[0] == VG_OBJ_ROOT && n.view_id[0] == 0 && n.view_id[1] == 1);
    cr_assert(n.dirs_before_run >= 2, "the root and the project come before Run");
    node_hello(&n, 1, true);
    uint64_t b = object_in(n.view_root[1], "b.txt");
    node_get(&n, b, 0, 6);
    turn(&w, &n, content(b));
    cr_assert_str_eq(content(b), "second");
    /* The working folder is no work tree: it is the project itself. */
    cr_assert_not(node_entry(&n, n.view_root[1], "a.txt", &(struct vg_dirent){0}));
}

Test(service, takes_the_top_of_a_work_tree_as_the_project) {
    put_dir(&w, PROJECT "/.git");
    put(&w, PROJECT "/a.txt", "first");
    service_start(&w);
    begin(&w, &n, 7, ls, PROJECT "/src", NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t a = object_in(n.view_root[1], "a.txt");
    uint64_t req = node_get(&n, a, 0, 5);
    turn(&w, &n, content(a));
    cr_assert_str_eq(content(a), "first");
    cr_assert(req == 1 || req == 2);
    /* The same file has another number in the environment. */
    uint64_t home = object_in(VG_OBJ_ROOT, "home"), me = object_in(home, "me");
    uint64_t other = object_in(object_in(me, "project"), "a.txt");
    cr_assert_neq(other, a);
    node_get(&n, other, 0, 5);
    turn(&w, &n, content(other));
    cr_assert_str_eq(content(other), "first");
}

Test(service, an_edit_before_a_run_is_always_seen) {
    service_start(&w);
    put(&w, PROJECT "/f", "0000");
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t root = n.view_root[1], f = object_in(root, "f");
    for (int i = 1; i <= 300; i++) {
        char text[8];
        snprintf(text, sizeof(text), "%04d", i);
        put(&w, PROJECT "/f", text); /* same size; often within one tick of the clock */
        struct node fresh_link;
        int runs = 0;
        struct vg_mirror_task *t = begin(&w, &fresh_link, (uint64_t)i + 1, ls, PROJECT, NULL);
        turn(&w, &fresh_link, fresh_link.n_runs > runs);
        bool named = false;
        for (int k = 0; k < fresh_link.n_invals && k < 64; k++)
            named = named || fresh_link.inval[k] == root;
        cr_assert(named, "edit %d: Run came without Inval of the folder", i);
        vg_mirror_settled(t);
        vg_mirror_end(t);
        node_done(&fresh_link);
        /* The node asks again, on any link. */
        int dirs = n.n_dirs, data = n.n_data;
        node_get(&n, root, 0, 0);
        turn(&w, &n, n.n_dirs > dirs);
        node_get(&n, f, 0, 4);
        turn(&w, &n, n.n_data > data);
        cr_assert_str_eq(content(f), text);
    }
}

Test(service, tells_of_changes_while_a_task_runs) {
    put(&w, PROJECT "/f", "x");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    put(&w, PROJECT "/new", "x");
    turn(&w, &n, n.n_invals >= 1);
    cr_assert_eq(n.inval[0], n.view_root[1]);
    int dirs = n.n_dirs;
    node_get(&n, n.view_root[1], 0, 0);
    turn(&w, &n, n.n_dirs > dirs);
    cr_assert(node_entry(&n, n.view_root[1], "new", &(struct vg_dirent){0}));
}

/* A link is nobody's until the node has said hello: what changes between its first flight and that
   is told then, though no other event comes. */
Test(service, tells_of_a_change_that_came_while_a_link_had_no_name_yet) {
    struct node again;
    put(&w, PROJECT "/f", "x");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t root = n.view_root[1];
    node_get(&n, root, 0, 0);
    int dirs = n.n_dirs;
    turn(&w, &n, n.n_dirs > dirs);
    begin(&w, &again, 2, ls, PROJECT, NULL);
    turn(&w, &again, again.n_runs == 1);
    node_done(&n); /* the link that had a name breaks */
    for (int i = 0; i < 20; i++)
        uv_run(&w.loop, UV_RUN_NOWAIT);
    int before = again.n_invals;
    put(&w, PROJECT "/go", "x");
    for (int i = 0; i < 20; i++) /* the kernel has told it: it is there to be read */
        uv_run(&w.loop, UV_RUN_NOWAIT);
    node_hello(&again, 1, false);
    turn(&w, &again, again.n_invals > before);
    bool named = false; /* what the broken link told last is named as well */
    for (int k = before; k < again.n_invals; k++)
        named = named || again.inval[k % 64] == root;
    cr_assert(named);
    node_done(&again);
}

/* What is said in answer to a hello may find that the node does not listen any more. */
Test(service, outlives_a_node_that_stops_listening_behind_its_hello) {
    struct node again;
    put(&w, PROJECT "/f", "x");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    node_get(&n, n.view_root[1], 0, 0);
    int dirs = n.n_dirs;
    turn(&w, &n, n.n_dirs > dirs);
    begin(&w, &again, 2, ls, PROJECT, NULL);
    turn(&w, &again, again.n_runs == 1);
    node_done(&n); /* what it told last must be said again */
    for (int i = 0; i < 20; i++)
        uv_run(&w.loop, UV_RUN_NOWAIT);
    node_hello(&again, 1, false);
    cr_assert(shutdown(again.fd, SHUT_RD) == 0);
    for (int i = 0; i < 20; i++)
        uv_run(&w.loop, UV_RUN_NOWAIT);
    node_done(&again);
    begin(&w, &n, 3, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
}

Test(service, keeps_a_number_through_a_rename_and_gives_a_new_one_to_a_new_file) {
    put(&w, PROJECT "/f", "x");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t f = object_in(n.view_root[1], "f");
    char from[200], to[200];
    snprintf(from, sizeof(from), "%s/root" PROJECT "/f", w.dir);
    snprintf(to, sizeof(to), "%s/root" PROJECT "/g", w.dir);
    cr_assert(rename(from, to) == 0);
    put(&w, PROJECT "/f", "y");
    turn(&w, &n, n.n_invals >= 1);
    int dirs = n.n_dirs;
    node_get(&n, n.view_root[1], 0, 0);
    turn(&w, &n, n.n_dirs > dirs);
    cr_assert_eq(object_in(n.view_root[1], "g"), f);
    cr_assert_neq(object_in(n.view_root[1], "f"), f);
}

Test(service, refuses_secrets_with_the_flag_that_allows_them) {
    put_dir(&w, "/home/me/.ssh");
    put(&w, "/home/me/.ssh/id_ed25519", "secret");
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t me = object_in(object_in(VG_OBJ_ROOT, "home"), "me");
    uint64_t ssh = object_in(me, ".ssh"), key = object_in(ssh, "id_ed25519");
    struct vg_dirent e;
    cr_assert(node_entry(&n, ssh, "id_ed25519", &e) && (e.flags & VG_DE_DENIED) && e.st.size == 6);
    uint64_t req = node_get(&n, key, 0, 6);
    turn(&w, &n, n.fail_req == req);
    cr_assert_eq(n.last_errno, EACCES);
    cr_assert(strstr(n.fail_text, "--allow /home/me/.ssh/id_ed25519"), "%s", n.fail_text);
    cr_assert_null(content(key));
    vg_mirror_end(t);
    node_done(&n);
    begin(&w, &n, 2, ls, PROJECT, "/home/me/.ssh/id_ed25519");
    turn(&w, &n, n.n_runs == 1);
    cr_assert(n.n_invals >= 1, "the folder's record is another one now");
    node_hello(&n, 1, false);
    node_get(&n, ssh, 0, 0);
    turn(&w, &n, node_entry(&n, ssh, "id_ed25519", &e));
    cr_assert((e.flags & VG_DE_SECRET) && !(e.flags & VG_DE_DENIED));
    node_get(&n, key, 0, 6);
    turn(&w, &n, content(key));
    cr_assert_str_eq(content(key), "secret");
}

Test(service, hides_what_virgaignore_names_also_when_it_comes_later) {
    put(&w, PROJECT "/keep", "x");
    put(&w, PROJECT "/big.bin", "x");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t root = n.view_root[1], big = object_in(root, "big.bin");
    put(&w, PROJECT "/.virgaignore", "*.bin\n");
    turn(&w, &n, n.n_invals >= 1);
    int dirs = n.n_dirs;
    node_get(&n, root, 0, 0);
    turn(&w, &n, n.n_dirs > dirs);
    cr_assert_not(node_entry(&n, root, "big.bin", &(struct vg_dirent){0}));
    cr_assert(node_entry(&n, root, "keep", &(struct vg_dirent){0}));
    uint64_t req = node_get(&n, big, 0, 1);
    turn(&w, &n, n.fail_req == req);
    cr_assert_eq(n.last_errno, ENOENT);
}

Test(service, sends_big_files_in_leaves_and_knows_their_id_afterwards) {
    size_t size = 5 * VG_LEAF + 77;
    uint8_t *data = vg_alloc(size);
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 31 + (i >> 10));
    put_file(&w, PROJECT "/big", data, size);
    char full[200];
    snprintf(full, sizeof(full), "%s/root" PROJECT "/big", w.dir);
    struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    cr_assert(utimensat(AT_FDCWD, full, old, 0) == 0);
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t root = n.view_root[1], big = object_in(root, "big");
    node_get(&n, big, VG_LEAF + 5, 10);
    turn(&w, &n, n.n_data == 1);
    node_get(&n, big, 0, size);
    struct bytes *b = NULL;
    turn(&w, &n, (b = vg_map_get_u64(&n.data, big)) && b->got == size + VG_LEAF);
    cr_assert(memcmp(b->p, data, size) == 0);
    /* Beyond the end there is an answer, too. */
    int before = n.n_data;
    node_get(&n, big, 50 * (uint64_t)VG_LEAF, 10);
    uint64_t req = node_get(&n, 123456, 0, 10);
    turn(&w, &n, n.fail_req == req);
    cr_assert_eq(n.last_errno, ESTALE);
    turn(&w, &n, n.n_data > before || n.fail_req != req);
    free(data);
}

Test(service, answers_what_vanished_and_what_is_no_file) {
    put(&w, PROJECT "/f", "x");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t root = n.view_root[1], f = object_in(root, "f"), src = object_in(root, "src");
    uint64_t req = node_get(&n, src, 0, 10);
    turn(&w, &n, n.fail_req == req);
    cr_assert_eq(n.last_errno, EISDIR);
    char full[200];
    snprintf(full, sizeof(full), "%s/root" PROJECT "/f", w.dir);
    cr_assert(unlink(full) == 0);
    req = node_get(&n, f, 0, 1);
    turn(&w, &n, n.fail_req == req);
    cr_assert_eq(n.last_errno, ENOENT);
}

/* The reader goes by a path, which may lead elsewhere when it gets there: then the content comes,
   or the node hears that it must look again. */
Test(service, a_path_that_leads_elsewhere_by_now_is_no_failure) {
    char one[200], two[200];
    put_dir(&w, PROJECT "/d");
    put(&w, PROJECT "/d/f", "text");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t f = object_in(object_in(n.view_root[1], "d"), "f");
    snprintf(one, sizeof(one), "%s/root" PROJECT "/d", w.dir);
    snprintf(two, sizeof(two), "%s/root" PROJECT "/e", w.dir);
    int came = 0;
    for (int i = 0; i < 40; i++) {
        int data = n.n_data;
        n.last_errno = 0;
        node_get(&n, f, 0, 4);
        cr_assert(i % 2 ? rename(two, one) == 0 : rename(one, two) == 0);
        if (i % 4 < 2) /* and something else is called so now */
            put(&w, i % 2 ? PROJECT "/e" : PROJECT "/d", "x");
        turn(&w, &n, n.n_data > data || n.last_errno);
        cr_assert(!n.last_errno || n.last_errno == ENOENT, "round %d: %s", i, n.fail_text);
        came += !n.last_errno;
        if (i % 4 < 2)
            cr_assert(unlink(i % 2 ? two : one) == 0);
    }
    cr_assert_gt(came, 0);
}

Test(service, pushes_what_was_used_the_last_time) {
    put_dir(&w, "/usr/bin");
    put(&w, "/usr/bin/ls", "not really");
    put(&w, PROJECT "/src/used", "content");
    put(&w, PROJECT "/src/other", "content");
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    cr_assert_not(n.traced);
    node_hello(&n, 1, true);
    uint64_t src = object_in(n.view_root[1], "src"), used = object_in(src, "used");
    Vg__Mr__Trace trace = VG__MR__TRACE__INIT;
    Vg__Mr__Used u[2] = {VG__MR__USED__INIT, VG__MR__USED__INIT}, *each[2] = {&u[0], &u[1]};
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    uint32_t leaf = 0;
    u[0].has_object = u[1].has_object = true;
    u[0].object = src;
    u[1].object = used;
    u[1].n_leaf = 1;
    u[1].leaf = &leaf;
    trace.has_task = trace.has_whole = trace.whole = true;
    trace.task = 1;
    trace.n_used = 2;
    trace.used = each;
    m.body_case = VG__MR__MSG__BODY_TRACE;
    m.trace = &trace;
    node_send(&n, &m);
    node_get(&n, src, 0, 0); /* answered after the trace was taken */
    int dirs = n.n_dirs;
    turn(&w, &n, n.n_dirs > dirs);
    vg_mirror_end(t);
    node_done(&n);

    /* The same node: it knows all of it, only the file's content was never sent. */
    t = begin(&w, &n, 2, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    cr_assert(n.traced && n.n_dirs == 0);
    node_hello(&n, 1, false);
    turn(&w, &n, content(used));
    cr_assert_eq(n.n_dirs, 0);
    vg_mirror_end(t);
    node_done(&n);

    /* Another node, and another life of the service: everything at once, without being asked. */
    vg_mirror_free(w.m);
    service_start(&w);
    t = begin(&w, &n, 3, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1 && n.n_data == 1);
    cr_assert(n.traced);
    struct vg_dirent e;
    cr_assert(node_entry(&n, n.view_root[1], "src", &e));
    cr_assert(node_entry(&n, e.object, "used", &e));
    cr_assert_str_eq(content(e.object), "content");
    cr_assert_eq(n.n_data, 1, "what was not used is not pushed");
}

/* The service knows one node; the command goes to another, which must not have to ask. */
Test(service, tells_a_new_node_everything_before_the_run_that_counts) {
    put_dir(&w, "/usr/bin");
    put(&w, "/usr/bin/ls", "not really");
    put(&w, PROJECT "/src/used", "content");
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    cr_assert_not(n.early, "nobody is known: all of it went out at once");
    node_hello(&n, 1, true);
    uint64_t src = object_in(n.view_root[1], "src");
    Vg__Mr__Trace trace = VG__MR__TRACE__INIT;
    Vg__Mr__Used u = VG__MR__USED__INIT, *each = &u;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    u.has_object = true;
    u.object = object_in(src, "used");
    trace.has_task = trace.has_whole = trace.whole = true;
    trace.task = 1;
    trace.n_used = 1;
    trace.used = &each;
    m.body_case = VG__MR__MSG__BODY_TRACE;
    m.trace = &trace;
    node_send(&n, &m);
    node_get(&n, src, 0, 0);
    int dirs = n.n_dirs;
    turn(&w, &n, n.n_dirs > dirs);
    vg_mirror_end(t);
    node_done(&n);

    put(&w, PROJECT "/src/more", "x"); /* so that its folder is told again before the hello */
    t = begin(&w, &n, 2, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    cr_assert(n.early && n.n_dirs == 1);
    node_hello(&n, 2, true);
    turn(&w, &n, n.n_runs == 2 && content(u.object));
    struct vg_dirent e;
    cr_assert(!n.early && n.traced);
    cr_assert(node_entry(&n, VG_OBJ_ROOT, "home", &e));
    cr_assert(node_entry(&n, n.view_root[1], "src", &e));
    cr_assert(e.object == src && node_entry(&n, src, "used", &e));
    cr_assert_eq(n.n_invals, 2, "before, and because it came without its way there");
    cr_assert_geq(n.dirs_before_run, 4, "and comes again behind it");
    vg_mirror_end(t);
}

Test(service, leaves_out_what_the_node_says_it_has) {
    put_dir(&w, "/usr/bin");
    put(&w, "/usr/bin/ls", "not really");
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t bin = object_in(object_in(VG_OBJ_ROOT, "usr"), "bin"), prog = object_in(bin, "ls");
    turn(&w, &n, content(prog)); /* guessed */
    int pushed = n.n_data, dirs = n.n_dirs;
    node_get(&n, bin, 0, 0); /* its answer shows that the hello was heard */
    turn(&w, &n, n.n_dirs > dirs);
    vg_mirror_end(t);
    node_done(&n);
    t = begin(&w, &n, 2, ls, PROJECT, NULL);
    node_hello(&n, 1, false);
    turn(&w, &n, n.n_runs == 2); /* an early one, and another behind what it lacks */
    node_get(&n, bin, 0, 0);
    turn(&w, &n, n.n_dirs == 1);
    cr_assert(pushed >= 1 && n.n_data == 0, "it was sent before to this node");
}

Test(service, drops_a_node_that_talks_nonsense) {
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    cr_assert(write(n.fd, "\xff\xff\xff\xff\xff\xff\xff\xff", 8) == 8);
    turn(&w, &n, n.closed);
    /* The service lives on. */
    struct node again;
    begin(&w, &again, 2, ls, PROJECT, NULL);
    turn(&w, &again, again.n_runs == 1);
    node_hello(&again, 1, true);
    Vg__Mr__Get g = VG__MR__GET__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    m.body_case = VG__MR__MSG__BODY_GET;
    m.get = &g; /* names nothing */
    node_send(&again, &m);
    turn(&w, &again, again.closed);
    node_done(&again);
}

Test(service, says_that_nothing_is_sure_when_events_were_lost) {
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    char full[200];
    FILE *f = fopen("/proc/sys/fs/inotify/max_queued_events", "r");
    int max = 16384;
    cr_assert(f && fscanf(f, "%d", &max) == 1);
    fclose(f);
    if (max > 100000)
        cr_skip_test("the kernel's queue is too long to overflow in a test");
    for (int i = 0; i < max / 2 + 100; i++) {
        snprintf(full, sizeof(full), "%s/root" PROJECT "/f%d", w.dir, i);
        int fd = open(full, O_WRONLY | O_CREAT, 0600);
        cr_assert(fd >= 0);
        close(fd);
    }
    turn(&w, &n, n.n_all == 1);
}

Test(service, never_writes_back_the_whole_machine) {
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, "/", NULL);
    turn(&w, &n, n.n_runs == 1);
    cr_assert_eq(n.n_views, 1);
    cr_assert(vg_mirror_note(t) && strstr(vg_mirror_note(t), "--writable"));
    const char *all = "/";
    struct vg_mirror_run run = {
        .task = 2, .argv = ls, .cwd = PROJECT, .writable = &all, .n_writable = 1};
    struct vg_err err = VG_ERR_INIT;
    cr_assert(vg_mirror_begin(w.m, &run, &t, &err) < 0);
    cr_assert(strstr(err.msg, "folder below"), "%s", err.msg);
}

Test(service, explains_itself) {
    put(&w, PROJECT "/.virgaignore", "*.bin\n");
    char root[80], state[80];
    snprintf(root, sizeof(root), "%s/root", w.dir);
    snprintf(state, sizeof(state), "%s/state", w.dir);
    struct vg_mirror_conf conf = {
        .root = root, .home = "/home/me", .state = state, .own = "/home/me/cloud"};
    struct vg_err err = VG_ERR_INIT;
    char *text;
    cr_assert(vg_mirror_explain(&conf, "/home/me/.ssh/id_rsa", &text, &err) == 0);
    cr_assert(strstr(text, "never its content") && strstr(text, "--allow"), "%s", text);
    free(text);
    cr_assert(vg_mirror_explain(&conf, PROJECT "/x.bin", &text, &err) == 0);
    cr_assert(strstr(text, "does not see it"), "%s", text);
    free(text);
    cr_assert(vg_mirror_explain(&conf, PROJECT "/src", &text, &err) == 0);
    cr_assert(strstr(text, "may read it"), "%s", text);
    free(text);
    cr_assert(vg_mirror_explain(&conf, "/home/me/cloud/client", &text, &err) == 0);
    cr_assert(strstr(text, "never its content"), "%s", text);
    free(text);
    cr_assert(vg_mirror_explain(&conf, "relative", &text, &err) < 0);
}

/* A trace of the project's file, made by hand: what a node would say at a run's end. */
static void learn(uint64_t task, uint64_t object, uint32_t leaves) {
    Vg__Mr__Trace trace = VG__MR__TRACE__INIT;
    Vg__Mr__Used u = VG__MR__USED__INIT, *each = &u;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    uint32_t leaf[64];
    for (uint32_t i = 0; i < leaves; i++)
        leaf[i] = i;
    u.has_object = true;
    u.object = object;
    u.n_leaf = leaves;
    u.leaf = leaf;
    trace.has_task = true;
    trace.task = task;
    trace.n_used = 1;
    trace.used = &each;
    m.body_case = VG__MR__MSG__BODY_TRACE;
    m.trace = &trace;
    node_send(&n, &m);
    int dirs = n.n_dirs;
    node_get(&n, n.view_root[1], 0, 0); /* answered after the trace was taken */
    turn(&w, &n, n.n_dirs > dirs);
}

Test(service, sends_once_what_is_pushed_and_asked_for) {
    size_t size = 40 * VG_LEAF;
    uint8_t *data = vg_alloc(size);
    vg_random(data, size); /* does not shrink: more than a socket takes at once */
    put_file(&w, PROJECT "/big", data, size);
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    learn(1, object_in(n.view_root[1], "big"), 40);
    vg_mirror_end(t);
    node_done(&n);
    vg_mirror_free(w.m);
    service_start(&w);
    begin(&w, &n, 2, ls, PROJECT, NULL);
    turn(&w, &n, n.n_data >= 1);
    uint64_t big = object_in(n.view_root[1], "big");
    node_hello(&n, 1, true);
    node_get(&n, big, 0, 8 * VG_LEAF); /* some is here, some on its way, some not read yet */
    node_get(&n, big, 30 * VG_LEAF, 2 * VG_LEAF);
    struct bytes *b = NULL;
    turn(&w, &n, (b = vg_map_get_u64(&n.data, big)) && b->got >= size);
    cr_assert(memcmp(b->p, data, size) == 0);
    turn(&w, &n, n.n_coming == 2 && n.coming_length == 0);
    cr_assert_eq(n.n_data, 40);
    cr_assert(n.n_sent > 0, "every demand is answered, if only by saying that it was sent");
    int sent = n.n_sent;
    node_get(&n, big, 39 * VG_LEAF, VG_LEAF);
    turn(&w, &n, n.n_sent == sent + 1);
    cr_assert_eq(n.n_data, 40);
    node_ask(&n, big, 39 * VG_LEAF, VG_LEAF, true); /* it was of no use there */
    turn(&w, &n, n.n_data == 41);
    free(data);
}

Test(service, tells_again_what_a_broken_link_may_have_lost) {
    put(&w, PROJECT "/f", "x");
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t root = n.view_root[1];
    put(&w, PROJECT "/g", "x");
    turn(&w, &n, n.n_invals >= 1);
    int dirs = n.n_dirs;
    node_get(&n, root, 0, 0);
    turn(&w, &n, n.n_dirs > dirs);
    /* As if that record had been on its way when the link broke. */
    vg_mirror_unlink(t);
    turn(&w, &n, n.closed);
    node_done(&n);
    int fds[2];
    cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    n = (struct node){.fd = fds[0]};
    cr_assert(vg_mirror_link(t, fds[1]) == 0);
    turn(&w, &n, n.n_runs == 1);
    bool named = false;
    for (int k = 0; k < n.n_invals && k < 64; k++)
        named = named || n.inval[k] == root;
    cr_assert(named);
}

Test(service, tells_of_a_change_that_came_before_the_nodes_hello) {
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    node_get(&n, n.view_root[1], 0, 0);
    int dirs = n.n_dirs;
    turn(&w, &n, n.n_dirs > dirs);
    vg_mirror_end(t);
    node_done(&n);
    begin(&w, &n, 2, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    int before = n.n_invals;
    put(&w, PROJECT "/late", "x");
    uv_run(&w.loop, UV_RUN_ONCE);
    node_hello(&n, 1, false);
    turn(&w, &n, n.n_invals > before);
    cr_assert_eq(n.inval[(n.n_invals - 1) % 64], n.view_root[1]);
}

/* ---- several links to one node: what one tells may arrive after what another does ---- */

static bool named(const struct node *a, uint64_t folder) {
    for (int k = 0; k < a->n_invals && k < 64; k++)
        if (a->inval[k] == folder)
            return true;
    return false;
}

Test(service, a_run_names_what_another_link_tells_until_that_has_arrived) {
    struct node second, third;
    service_start(&w);
    put(&w, PROJECT "/f", "x");
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    uint64_t root = n.view_root[1];
    node_hello(&n, 1, true);
    int dirs = n.n_dirs;
    node_get(&n, root, 0, 0); /* when it is answered, the hello was heard */
    turn(&w, &n, n.n_dirs > dirs && n.mark);
    begin(&w, &second, 2, ls, PROJECT, NULL);
    turn(&w, &second, second.n_runs == 1);
    cr_assert(named(&second, root), "the record may still be on its way");
    cr_assert_eq(second.n_all, 0);
    node_marked(&n); /* of before that answer, so it is asked once more */
    turn(&w, &n, n.mark);
    node_marked(&n);
    node_get(&n, object_in(root, "f"), 0, 1); /* when it is answered, that was heard */
    turn(&w, &n, n.n_data > 0);
    begin(&w, &third, 3, ls, PROJECT, NULL);
    turn(&w, &third, third.n_runs == 1);
    cr_assert_not(named(&third, root), "it has arrived");
    node_done(&second);
    node_done(&third);
}

Test(service, names_the_folder_that_lost_a_tree_not_the_tree) {
    struct node second;
    char full[200];
    put_dir(&w, PROJECT "/out/a");
    put(&w, PROJECT "/out/a/f", "x");
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t out = object_in(n.view_root[1], "out"), a = object_in(out, "a");
    object_in(a, "f");
    vg_mirror_end(t);
    node_done(&n);
    snprintf(full, sizeof(full), "%s/root" PROJECT "/out/a", w.dir);
    cr_assert_eq(nftw(full, rm_one, 4, FTW_DEPTH | FTW_PHYS), 0);
    begin(&w, &second, 2, ls, PROJECT, NULL);
    turn(&w, &second, second.n_runs == 1);
    cr_assert(named(&second, out));
    cr_assert_not(named(&second, a), "its number means nothing any more");
    node_done(&second);
    n = (struct node){.fd = -1};
}

Test(service, a_node_that_had_no_link_when_events_were_lost_hears_of_it) {
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    node_get(&n, n.view_root[1], 0, 0);
    int dirs = n.n_dirs;
    turn(&w, &n, n.n_dirs > dirs);
    vg_mirror_end(t);
    node_done(&n);
    char full[200];
    FILE *f = fopen("/proc/sys/fs/inotify/max_queued_events", "r");
    int max = 16384;
    cr_assert(f && fscanf(f, "%d", &max) == 1);
    fclose(f);
    if (max > 100000)
        cr_skip_test("the kernel's queue is too long to overflow in a test");
    for (int i = 0; i < max / 2 + 100; i++) {
        snprintf(full, sizeof(full), "%s/root" PROJECT "/f%d", w.dir, i);
        int fd = open(full, O_WRONLY | O_CREAT, 0600);
        cr_assert(fd >= 0);
        close(fd);
    }
    for (uint64_t task = 2; task <= 3; task++) { /* until it has confirmed that */
        t = begin(&w, &n, task, ls, PROJECT, NULL);
        turn(&w, &n, n.n_runs >= 1);
        cr_assert(n.n_all == 1 && n.n_all_of == task - 2, "task %d", (int)task);
        node_hello(&n, 1, false);
        if (task == 3) {
            turn(&w, &n, n.mark);
            node_marked(&n);
        }
        node_get(&n, n.view_root[1], 0, 0);
        dirs = n.n_dirs;
        turn(&w, &n, n.n_dirs > dirs);
        vg_mirror_end(t);
        node_done(&n);
    }
    begin(&w, &n, 4, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    cr_assert_eq(n.n_all, 0);
}

Test(service, what_a_link_told_that_broke_before_its_node_was_known_is_named_when_it_changes) {
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    uint64_t root = n.view_root[1];
    cr_assert(vg_map_get_u64(&n.dirs, root));
    vg_mirror_unlink(t);
    turn(&w, &n, n.closed);
    node_done(&n);
    put(&w, PROJECT "/new", "x");
    int fds[2];
    cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    n = (struct node){.fd = fds[0]};
    cr_assert(vg_mirror_link(t, fds[1]) == 0);
    turn(&w, &n, n.n_runs == 1);
    cr_assert(named(&n, root));
}

static int counted(const char *what) {
    char *text = vg_mirror_status(w.m), key[32];
    snprintf(key, sizeof(key), "\"%s\":", what);
    const char *at = strstr(text, key);
    cr_assert(at, "no %s in %s", what, text);
    int v = (int)strtol(at + strlen(key), NULL, 10);
    free(text);
    return v;
}

#define LIB "/usr/lib/x"

static uint64_t in_lib(const char *name) {
    return object_in(object_in(object_in(object_in(VG_OBJ_ROOT, "usr"), "lib"), "x"), name);
}

/* A run of a command on a node that knows nothing, until it has what the last run of it used. */
static void run_on(uint8_t who, uint64_t task, const char *expected) {
    struct vg_mirror_task *t = begin(&w, &n, task, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs >= 1);
    node_hello(&n, who, true);
    turn(&w, &n, n.n_runs >= 1 && !n.early && n.traced);
    uint64_t f = in_lib("f");
    turn(&w, &n, content(f));
    cr_assert_str_eq(content(f), expected);
    vg_mirror_settled(t);
    vg_mirror_end(t);
    node_done(&n);
}

Test(service, another_node_is_told_and_sent_the_same_without_the_disk_being_read) {
    put_dir(&w, LIB "/below");
    put(&w, LIB "/f", "one");
    service_start(&w);
    struct vg_mirror_task *t = begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    learn(1, in_lib("f"), 1);
    vg_mirror_end(t);
    node_done(&n);
    run_on(2, 2, "one");
    int folders = counted("folders_read"), leaves = counted("leaves_read");
    int sent = counted("folders_sent");
    run_on(3, 3, "one");
    cr_assert_eq(counted("folders_read"), ++folders, "the project's alone");
    cr_assert_eq(counted("leaves_read"), leaves);
    cr_assert_gt(counted("folders_sent"), sent + 3);
    put(&w, LIB "/f", "two"); /* as long as it was */
    run_on(4, 4, "two");
    cr_assert_eq(counted("folders_read"), folders += 2);
    cr_assert_eq(counted("leaves_read"), ++leaves);
    cr_assert_gt(counted("packed_bytes"), 0);
    put(&w, LIB "/below/new", "x"); /* nobody watches there, but its folder is another now */
    run_on(5, 5, "two");
    cr_assert_eq(counted("folders_read"), folders + 2);
    cr_assert_eq(counted("leaves_read"), leaves);
}

Test(service, folders_are_read_again_when_one_above_has_another_name) {
    put_dir(&w, LIB "/deep");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t deep = in_lib("deep");
    for (int i = 0, folders = 0; i < 2; i++) {
        int dirs = n.n_dirs;
        node_get(&n, deep, 0, 0);
        turn(&w, &n, n.n_dirs > dirs);
        cr_assert(i == 0 || counted("folders_read") == folders, "nothing has changed");
        folders = counted("folders_read");
    }
    int folders = counted("folders_read"), dirs = n.n_dirs;
    char from[200], to[200];
    snprintf(from, sizeof(from), "%s/root" LIB, w.dir);
    snprintf(to, sizeof(to), "%s/root/usr/lib/y", w.dir);
    cr_assert_eq(rename(from, to), 0);
    turn(&w, &n, n.n_invals >= 1);
    node_get(&n, deep, 0, 0);
    turn(&w, &n, n.n_dirs > dirs);
    cr_assert_gt(counted("folders_read"), folders, "its path is another one");
}

static uint64_t look_in(uint64_t folder, const char *name) {
    int dirs = n.n_dirs;
    node_get(&n, folder, 0, 0);
    turn(&w, &n, n.n_dirs > dirs);
    return object_in(folder, name);
}

/* Events are read when all is over: what they say of a folder must not be looked for in another one
   that has its name by then. */
Test(service, folders_that_changed_places_are_still_watched) {
    char one[200], two[200];
    snprintf(one, sizeof(one), "%s/root" PROJECT "/d", w.dir);
    snprintf(two, sizeof(two), "%s/root" PROJECT "/e", w.dir);
    put_dir(&w, PROJECT "/d/x");
    put_dir(&w, PROJECT "/e/x");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    uint64_t root = n.view_root[1];
    look_in(look_in(root, "d"), "x");
    look_in(object_in(root, "e"), "x");
    cr_assert(chmod(one, 0700) == 0 && chmod(two, 0700) == 0);
    cr_assert(renameat2(AT_FDCWD, one, AT_FDCWD, two, RENAME_EXCHANGE) == 0);
    int before = n.n_invals;
    turn(&w, &n, n.n_invals > before);
    uint64_t d = look_in(root, "d");
    look_in(d, "x");
    before = n.n_invals;
    put(&w, PROJECT "/d/new", "x");
    turn(&w, &n, n.n_invals > before);
    bool named_d = false;
    for (int i = before; i < n.n_invals; i++)
        named_d = named_d || n.inval[i % 64] == d;
    cr_assert(named_d, "another folder was named");
    look_in(d, "new");
}

static void node_op(uint64_t op, Vg__Mr__Op__Kind kind, const char *name) {
    Vg__Mr__Op o = VG__MR__OP__INIT;
    Vg__Mr__Stat st = VG__MR__STAT__INIT;
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    o.has_op = o.has_kind = o.has_object = o.has_view = o.has_name = true;
    o.op = op;
    o.kind = kind;
    o.object = VG_OBJ_NEW | 1;
    o.view = n.view_id[1];
    o.name = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
    st.has_mode = true;
    st.mode = S_IFREG | 0644;
    o.stat = &st;
    m.body_case = VG__MR__MSG__BODY_OP;
    m.op = &o;
    node_send(&n, &m);
}

/* A node whose link goes sends again what was not acknowledged, until the acknowledgement comes: it
   may end between the two ends of a group. */
Test(service, an_edit_is_seen_after_the_beginning_of_a_group_was_sent_again) {
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    node_op(1, VG__MR__OP__KIND__CREATE, "made");
    node_op(2, VG__MR__OP__KIND__BEGIN, "made");
    node_op(3, VG__MR__OP__KIND__END, "made");
    node_op(2, VG__MR__OP__KIND__BEGIN, "made");
    object_in(VG_OBJ_ROOT, "home"); /* when it is answered, those were heard */
    int dirs = n.n_dirs;
    node_get(&n, n.view_root[1], 0, 0);
    turn(&w, &n, n.n_dirs > dirs && node_entry(&n, n.view_root[1], "made", &(struct vg_dirent){0}));
    int invals = n.n_invals;
    put(&w, PROJECT "/made", "edited");
    turn(&w, &n, n.n_invals > invals);
    cr_assert_eq(n.inval[(n.n_invals - 1) % 64], n.view_root[1]);
}

/* Stores that are kept in a bucket: nothing counts before the bucket has it, everything comes back
   from it, what nothing holds goes there, too; with a bucket that fails, lies and is killed at. The
   bucket is tests/e2e/s3.py. */
#include "fs/store/http.h"
#include "fs/store/s3.h"
#include "help.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct world {
    pid_t server;
    int in; /* its standard input: it ends when this closes */
    char url[64];
    struct vg_s3 *s3;
};

static struct vg_s3 *client(const char *url, uint64_t part) {
    struct vg_s3_conf c = {.patience_sec = 2, .tries = 4, .first_msec = 1, .part_bytes = part};
    struct vg_err err = VG_ERR_INIT;
    struct vg_s3 *s = NULL;
    snprintf(c.endpoint, sizeof(c.endpoint), "%s", url);
    snprintf(c.auth.id, sizeof(c.auth.id), "AKIDTEST");
    snprintf(c.auth.secret, sizeof(c.auth.secret), "a-secret/of+tests");
    snprintf(c.auth.region, sizeof(c.auth.region), "eu-test-1");
    cr_assert_eq(vg_s3_conf_url(&c, "s3://envs/some/where", &err), 0);
    cr_assert_eq(vg_s3_open(&c, &s, &err), 0, "%s", err.msg);
    return s;
}

static struct world begin(uint64_t part) {
    struct world w;
    int in[2], out[2];
    cr_assert(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    w.server = fork();
    if (w.server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        execlp("python3", "python3", S3_SERVER, "3", NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    w.in = in[1];
    FILE *said = fdopen(out[0], "r");
    cr_assert(said && fgets(w.url, sizeof(w.url), said), "the bucket does not start");
    w.url[strcspn(w.url, "\n")] = '\0';
    fclose(said);
    w.s3 = client(w.url, part);
    return w;
}

static void end(struct world *w) {
    vg_s3_close(w->s3);
    close(w->in);
    kill(w->server, SIGKILL);
    waitpid(w->server, NULL, 0);
}

/* What the bucket says of itself after `what` was done to it. */
static char *tell(struct world *w, const char *what, const char *text) {
    static char out[1 << 20];
    struct vg_err err = VG_ERR_INIT;
    struct vg_http *h;
    struct vg_http_answer a;
    struct vg_buf b = {0};
    char target[64];
    snprintf(target, sizeof(target), "/_/%s", what);
    cr_assert_eq(vg_http_open(w->url, NULL, &h, &err), 0, "%s", err.msg);
    struct vg_http_req q = VG_HTTP_REQ_INIT;
    q.method = "POST";
    q.target = target;
    q.body = text;
    q.body_len = strlen(text);
    q.out = &b;
    q.max = sizeof(out) - 1;
    cr_assert_eq(vg_http_do(h, &q, &a, &err), 0, "%s", err.msg);
    cr_assert_eq(a.status, 200);
    memcpy(out, vg_buf_data(&b), vg_buf_len(&b));
    out[vg_buf_len(&b)] = '\0';
    vg_buf_done(&b);
    vg_http_close(h);
    return out;
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

static struct box joined(struct world *w, uint64_t cache) {
    struct box b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_estore_join(b.s, w->s3, "ann", cache, &err), 0, "%s", err.msg);
    return b;
}

static struct vg_estore_stat stat_of(struct vg_estore *s) {
    struct vg_estore_stat st;
    vg_estore_stats(s, &st);
    return st;
}

static int files;

static int count_file(const char *p, const struct stat *st, int flag, struct FTW *f) {
    (void)p, (void)flag, (void)f;
    files += S_ISREG(st->st_mode);
    return 0;
}

static int here(const struct box *b, const char *top) {
    vg_auto_free char *path = vg_fmt("%s/%s", b->dir, top);
    files = 0;
    cr_assert_eq(nftw(path, count_file, 16, FTW_PHYS), 0);
    return files;
}

/* What does not fit goes after it was stored, by the thread that stored it. */
static bool goes(const struct box *b, const char *top) {
    for (int i = 0; i < 20000 && here(b, top); i++)
        usleep(1000);
    return here(b, top) == 0;
}

static void copy_folder(const char *from, const char *to) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        execlp("cp", "cp", "-a", from, to, NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0);
}

static void add(struct vg_estore *s, unsigned seed, struct vg_eversion *v) {
    struct vg_err err = VG_ERR_INIT;
    *v = (struct vg_eversion){.files = 2};
    struct vg_esession *e = vg_esession_begin(s);
    cr_assert_eq(put_tree(s, seed, v->root), 0);
    cr_assert_eq(vg_eref_add(s, "e", v, &err), 0, "%s", err.msg);
    vg_esession_end(e);
}

Test(bucket, a_store_that_was_lost_comes_back_whole, .timeout = 60) {
    struct world w = begin(0);
    struct box b = joined(&w, 1);
    struct vg_eversion v, got;
    struct vg_err err = VG_ERR_INIT;
    for (unsigned i = 0; i < 4; i++)
        add(b.s, i * 10, &v);
    cr_assert_eq(vg_eref_share(b.s, "e", "vision", true, &err), 0, "%s", err.msg);
    cr_assert_eq(stat_of(b.s).waiting, 0);
    cr_assert(goes(&b, "dat"), "the cache has room for nothing");
    cr_assert_eq(vg_estore_check(b.s, v.root, &err), 0, "%s", err.msg);
    struct vg_estore_stat before = stat_of(b.s);
    box_done(&b);
    struct box c = joined(&w, 0);
    cr_assert_eq(stat_of(c.s).bytes, before.bytes);
    cr_assert_eq(stat_of(c.s).objects, before.objects);
    for (uint32_t i = 1; i <= 4; i++) {
        cr_assert_eq(vg_eref_get(c.s, "e", i, &got, &err), 0, "%s", err.msg);
        cr_assert_eq(vg_estore_check(c.s, got.root, &err), 0, "%s", err.msg);
        vg_eversion_done(&got);
    }
    cr_assert(vg_eref_shared(c.s, "e", "vision"));
    struct vg_egc_stat st;
    cr_assert_eq(vg_estore_gc(c.s, &st, &err), 0, "%s", err.msg);
    cr_assert_eq(st.removed, 0);
    cr_assert_eq(here(&c, "dat"), 8, "all of it was read");
    char *state = tell(&w, "state", "");
    cr_assert(strstr(state, "\"refused\": []"), "%s", state);
    box_done(&c);
    end(&w);
}

Test(bucket, a_large_file_goes_up_in_parts, .timeout = 60) {
    struct world w = begin(300000);
    struct box b = joined(&w, 1);
    struct vg_err err = VG_ERR_INIT;
    uint8_t id[VG_HASH], same[VG_HASH];
    tell(&w, "faults",
         "[{\"method\":\"PUT\",\"match\":\"partNumber=2\",\"kind\":503,\"times\":2},"
         "{\"method\":\"POST\",\"match\":\"uploadId\",\"kind\":\"lie\",\"times\":1},"
         "{\"method\":\"POST\",\"match\":\"uploadId\",\"kind\":\"late\",\"times\":1}]");
    struct vg_esession *e = vg_esession_begin(b.s);
    cr_assert_eq(put_file(b.s, 1000001, 5, id), 0);
    cr_assert_eq(vg_estore_settle(b.s, &err), 0, "%s", err.msg);
    char *state = tell(&w, "state", "");
    cr_assert(strstr(state, ": 1000001") && strstr(state, "\"uploads\": 0"), "%s", state);
    vg_auto_fd int fd = vg_estore_open_data(b.s, id);
    cr_assert_geq(fd, 0);
    cr_assert_eq(put_file(b.s, 1000001, 5, same), 0);
    cr_assert_eq(memcmp(id, same, VG_HASH), 0);
    vg_esession_end(e);
    box_done(&b);
    end(&w);
}

Test(bucket, what_the_bucket_does_not_take_is_not_stored, .timeout = 60) {
    struct world w = begin(0);
    struct box b = joined(&w, 1);
    struct vg_err err = VG_ERR_INIT;
    struct vg_eversion v = {0}, got;
    cr_assert_eq(put_tree(b.s, 1, v.root), 0);
    cr_assert_eq(vg_estore_settle(b.s, &err), 0);
    cr_assert_eq(put_tree(b.s, 2, v.root), 0);
    tell(&w, "faults", "[{\"method\":\"PUT\",\"match\":\"/dat/\",\"kind\":500,\"times\":1000}]");
    struct vg_esession *e = vg_esession_begin(b.s);
    cr_assert_eq(put_tree(b.s, 3, v.root), 0, "it is here");
    cr_assert_lt(vg_eref_add(b.s, "e", &v, &err), 0);
    cr_assert(strstr(err.msg, "cannot save environment 'e': s3://envs/some/where answers PUT with "
                              "status 500: InternalError: told to fail"),
              "%s", err.msg);
    err = VG_ERR_INIT;
    cr_assert_lt(vg_eref_get(b.s, "e", 0, &got, &err), 0, "there is no version");
    cr_assert_eq(count(tell(&w, "state", ""), "/env/"), 0);
    cr_assert_gt(stat_of(b.s).waiting, 0);
    cr_assert_gt(here(&b, "dat"), 0, "what has not gone up is not evicted");
    /* it gets over it */
    tell(&w, "faults", "[{\"kind\":503,\"times\":2},{\"kind\":\"drop\",\"times\":1}]");
    err = VG_ERR_INIT;
    cr_assert_eq(vg_eref_add(b.s, "e", &v, &err), 0, "%s", err.msg);
    vg_esession_end(e);
    cr_assert_eq(stat_of(b.s).waiting, 0);
    cr_assert_eq(count(tell(&w, "state", ""), "/env/"), 1);
    /* versions: the bucket's refusal is the answer */
    tell(&w, "faults", "[{\"match\":\"/env/\",\"kind\":500,\"times\":1000}]");
    cr_assert_lt(vg_eref_add(b.s, "e", &v, &err), 0);
    cr_assert_lt(vg_eref_remove(b.s, "e", 0, &err), 0);
    cr_assert_lt(vg_eref_share(b.s, "e", "t", true, &err), 0);
    cr_assert_not(vg_eref_shared(b.s, "e", "t"));
    cr_assert_eq(vg_eref_get(b.s, "e", 0, &got, &err), 0);
    cr_assert_eq(got.version, 1);
    vg_eversion_done(&got);
    box_done(&b);
    end(&w);
}

Test(bucket, a_bucket_is_not_believed, .timeout = 60) {
    struct world w = begin(0);
    struct box b = joined(&w, 1);
    struct vg_err err = VG_ERR_INIT;
    uint8_t id[VG_HASH];
    struct vg_esession *e = vg_esession_begin(b.s);
    cr_assert_eq(put_file(b.s, 300000, 7, id), 0);
    cr_assert_eq(vg_estore_settle(b.s, &err), 0);
    cr_assert(goes(&b, "dat"));
    tell(&w, "faults", "[{\"method\":\"GET\",\"match\":\"/dat/\",\"kind\":\"wrong\",\"times\":1}]");
    cr_assert_eq(vg_estore_open_data(b.s, id), -EBADMSG);
    cr_assert_eq(here(&b, "dat"), 0);
    cr_assert_eq(here(&b, "tmp"), 0);
    /* half an answer, none, a slow one: asked for again */
    tell(&w, "faults",
         "[{\"method\":\"GET\",\"match\":\"/dat/\",\"kind\":\"cut\",\"times\":1},"
         "{\"method\":\"GET\",\"match\":\"/dat/\",\"kind\":\"drop\",\"times\":1},"
         "{\"method\":\"GET\",\"match\":\"/dat/\",\"kind\":\"slow\",\"times\":1}]");
    int fd = vg_estore_open_data(b.s, id);
    cr_assert_geq(fd, 0);
    close(fd);
    /* lists that lie end a collection before anything is removed */
    tell(&w, "faults",
         "[{\"method\":\"GET\",\"match\":\"list-type\",\"kind\":\"cut\",\"times\":1000}]");
    struct vg_egc_stat st;
    vg_esession_end(e);
    cr_assert_lt(vg_estore_gc(b.s, &st, &err), 0);
    tell(&w, "faults", "[]");
    cr_assert(vg_estore_has(b.s, VG_E_DATA, id));
    box_done(&b);
    end(&w);
}

Test(bucket, what_nothing_holds_goes_there_too, .timeout = 60) {
    struct world w = begin(0);
    struct box b = joined(&w, 0);
    struct vg_err err = VG_ERR_INIT;
    struct vg_egc_stat st;
    struct vg_eversion keep, drop;
    add(b.s, 1, &keep);
    add(b.s, 2, &drop);
    uint8_t served[VG_HASH], young[VG_HASH];
    cr_assert_eq(put_tree(b.s, 3, served), 0);
    cr_assert_eq(vg_estore_hold_root(b.s, served), 0);
    cr_assert_eq(vg_estore_settle(b.s, &err), 0);
    cr_assert_eq(vg_estore_gc(b.s, &st, &err), 0, "%s", err.msg); /* its number grows */
    cr_assert_eq(st.removed, 0);
    cr_assert_eq(vg_eref_remove(b.s, "e", 2, &err), 0, "%s", err.msg);
    struct vg_esession *e = vg_esession_begin(b.s);
    cr_assert_eq(put_tree(b.s, 4, young), 0);
    cr_assert_eq(vg_estore_settle(b.s, &err), 0);
    /* deletions that fail are made up for; what an upload left is found; others' things stay */
    tell(&w, "put",
         "some/where/u/ann/dat/00/"
         "0000000000000000000000000000000000000000000000000000000000000000-0123456789abcdef\nx");
    tell(&w, "put", "some/where/u/ann/dat/notes.txt\nmine");
    tell(&w, "put", "some/where/u/bob/dat/keep\nhis");
    tell(&w, "faults", "[{\"method\":\"DELETE\",\"kind\":500,\"times\":4}]");
    cr_assert_eq(vg_estore_gc(b.s, &st, &err), 0, "%s", err.msg);
    cr_assert_eq(st.removed, 5, "%llu", (unsigned long long)st.removed);
    cr_assert_eq(vg_estore_gc(b.s, &st, &err), 0, "%s", err.msg);
    char *state = tell(&w, "state", "");
    cr_assert_eq(count(state, "u/ann/dat/") + count(state, "u/ann/rec/"), 12 + 1, "%s", state);
    cr_assert(strstr(state, "notes.txt") && strstr(state, "u/bob/dat/keep"));
    cr_assert_eq(vg_estore_check(b.s, keep.root, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_estore_check(b.s, served, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_estore_check(b.s, young, &err), 0, "%s", err.msg);
    vg_esession_end(e);
    vg_estore_drop_root(b.s, served);
    cr_assert_eq(vg_eref_remove(b.s, "e", 0, &err), 0);
    cr_assert_eq(vg_estore_gc(b.s, &st, &err), 0, "%s", err.msg);
    cr_assert_eq(stat_of(b.s).objects, 0);
    cr_assert_eq(stat_of(b.s).bytes, 0);
    cr_assert_eq(stat_of(b.s).cached_bytes, 0);
    state = tell(&w, "state", "");
    cr_assert_eq(count(state, "u/ann/dat/") + count(state, "u/ann/rec/"), 1, "%s", state);
    box_done(&b);
    end(&w);
}

Test(bucket, an_older_folder_takes_over_what_it_has_forgotten, .timeout = 60) {
    struct world w = begin(0);
    struct box b = joined(&w, 0);
    struct vg_err err = VG_ERR_INIT;
    struct vg_egc_stat st;
    struct vg_eversion v, got;
    add(b.s, 1, &v);
    struct box old;
    snprintf(old.dir, sizeof(old.dir), "%.50s.old", b.dir);
    vg_estore_close(vg_take_ptr(b.s));
    copy_folder(b.dir, old.dir);
    cr_assert_eq(vg_estore_open(b.dir, 0, &b.s, &err), 0);
    cr_assert_eq(vg_estore_join(b.s, w.s3, "ann", 0, &err), 0);
    add(b.s, 2, &v);
    box_done(&b);
    cr_assert_eq(vg_estore_open(old.dir, 0, &old.s, &err), 0);
    cr_assert_eq(vg_estore_join(old.s, w.s3, "ann", 0, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_estore_gc(old.s, &st, &err), 0, "%s", err.msg);
    cr_assert_eq(st.removed, 0);
    cr_assert_eq(vg_eref_get(old.s, "e", 2, &got, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_estore_check(old.s, got.root, &err), 0, "%s", err.msg);
    vg_eversion_done(&got);
    box_done(&old);
    end(&w);
}

Test(bucket, a_store_without_a_bucket_moves_into_one, .timeout = 60) {
    struct world w = begin(0);
    struct box b = box_new(0);
    struct vg_err err = VG_ERR_INIT;
    struct vg_eversion v;
    add(b.s, 1, &v);
    add(b.s, 2, &v);
    vg_estore_close(b.s);
    cr_assert_eq(vg_estore_open(b.dir, 0, &b.s, &err), 0);
    cr_assert_eq(vg_estore_join(b.s, w.s3, "ann", 1, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_estore_settle(b.s, &err), 0, "%s", err.msg);
    char *state = tell(&w, "state", "");
    cr_assert_eq(count(state, "u/ann/env/e/"), 2, "%s", state);
    cr_assert_eq(count(state, "u/ann/dat/") + count(state, "u/ann/rec/"), 8);
    cr_assert_eq(vg_estore_check(b.s, v.root, &err), 0, "%s", err.msg);
    /* another store of the same user's is not mixed with it */
    struct box other = box_new(0);
    add(other.s, 9, &v);
    cr_assert_eq(vg_estore_join(other.s, w.s3, "ann", 0, &err), -EBUSY);
    cr_assert(strstr(err.msg, "a prefix of its own"), "%s", err.msg);
    box_done(&other);
    box_done(&b);
    end(&w);
}

Test(bucket, one_cloud_has_it_for_itself, .timeout = 60) {
    struct world w = begin(0);
    struct vg_err err = VG_ERR_INIT;
    char one[] = "/tmp/virga-cloud-XXXXXX", two[] = "/tmp/virga-cloud-XXXXXX";
    cr_assert(mkdtemp(one) && mkdtemp(two));
    cr_assert_eq(vg_estore_claim(w.s3, one, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_estore_claim(w.s3, one, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_estore_claim(w.s3, two, &err), -EBUSY);
    cr_assert(strstr(err.msg, "belongs to another cloud"), "%s", err.msg);
    nftw(one, rm_one, 16, FTW_DEPTH | FTW_PHYS);
    nftw(two, rm_one, 16, FTW_DEPTH | FTW_PHYS);
    end(&w);
}

/* Adds versions and collects until it is killed; says which versions were promised. */
static void child(const char *dir, const char *url, int out) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_estore *s;
    struct vg_egc_stat st;
    struct vg_s3 *s3 = client(url, 500);
    if (vg_estore_open(dir, 0, &s, &err) < 0 || vg_estore_join(s, s3, "ann", 2000, &err) < 0)
        _exit(1);
    for (unsigned i = 0;; i++) {
        struct vg_eversion v = {0};
        struct vg_esession *e = vg_esession_begin(s);
        if (put_tree(s, i % 7, v.root) < 0 || vg_eref_add(s, "e", &v, &err) < 0)
            _exit(2);
        vg_esession_end(e);
        if (write(out, &v.version, sizeof(v.version)) != sizeof(v.version))
            _exit(3);
        if (i % 3 == 2 && vg_eref_remove(s, "e", v.version, &err) < 0)
            _exit(4);
        if (i % 3 == 2 && vg_estore_gc(s, &st, &err) < 0)
            _exit(5);
    }
}

static int check_version(void *user, const char *name, const struct vg_eversion *v) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_estore *s = user;
    (void)name;
    cr_assert_eq(vg_estore_check(s, v->root, &err), 0, "version %u: %s", v->version, err.msg);
    return 0;
}

Test(bucket, kill_at_any_moment_loses_no_version, .timeout = 110) {
    struct world w = begin(0);
    struct box b = {.dir = "/tmp/virga-estore-XXXXXX"};
    struct vg_err err = VG_ERR_INIT;
    cr_assert(mkdtemp(b.dir));
    unsigned rounds = getenv("VIRGA_TEST_LONG") ? 100 : 4, seed = 1;
    for (unsigned i = 0; i < rounds; i++) {
        int out[2];
        cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0)
            child(b.dir, w.url, out[1]);
        close(out[1]);
        usleep(100000 + (unsigned)rand_r(&seed) % 300000);
        kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        cr_assert(WIFSIGNALED(status), "it ended by itself: %d", WEXITSTATUS(status));
        uint32_t promised[1000];
        ssize_t n = vg_read_full(out[0], promised, sizeof(promised));
        close(out[0]);
        if (i % 2) /* and now and then its disk is gone as well */
            nftw(b.dir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
        cr_assert_eq(vg_estore_open(b.dir, 0, &b.s, &err), 0, "%s", err.msg);
        cr_assert_eq(vg_estore_join(b.s, w.s3, "ann", 2000, &err), 0, "%s", err.msg);
        struct vg_egc_stat st;
        cr_assert_eq(vg_estore_gc(b.s, &st, &err), 0, "%s", err.msg);
        cr_assert_eq(vg_eref_each(b.s, check_version, b.s), 0);
        for (size_t k = 0; k < (size_t)n / sizeof(*promised); k++) {
            struct vg_eversion v;
            if (k % 3 == 2) /* it was removed, or about to be */
                continue;
            cr_assert_eq(vg_eref_get(b.s, "e", promised[k], &v, &err), 0, "%s", err.msg);
            vg_eversion_done(&v);
        }
        vg_estore_close(b.s);
    }
    nftw(b.dir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
    end(&w);
}

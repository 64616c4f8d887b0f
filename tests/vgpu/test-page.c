/* The page between its writer (gpu/share-page.h) and its reader (vgpu/page.h), in two processes. */
#include "gpu/share-page.h"
#include "vgpu/page.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/vgpu-page-XXXXXX";
static struct vg_share_device devices[17];
static struct vg_share_conf conf;
static struct vg_share_page *writer;
static struct vg_err err;

static void setup(void) {
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
    setenv("VIRGA_VGPU_PAGE", VG_VGPU_FILE, 1);
    for (unsigned i = 0; i < 17; i++) {
        devices[i] = (struct vg_share_device){.limit_bytes = i, .weight_milli = 10 * i};
        memset(devices[i].uuid, (int)i, sizeof devices[i].uuid);
    }
    conf = (struct vg_share_conf){.device = devices,
                                  .devices = 2,
                                  .driver = "580.159.04",
                                  .real_cuda = "/x/libcuda.so.1",
                                  .real_nvml = "/x/libnvidia-ml.so.1"};
}

static void teardown(void) {
    vg_share_page_close(writer);
    (void)unlink(VG_VGPU_FILE);
    (void)rmdir(folder);
}

TestSuite(page, .init = setup, .fini = teardown, .timeout = 60);

static int write_page(void) {
    return vg_share_page_open(AT_FDCWD, &conf, &writer, &err);
}

static const struct vg_vgpu_page *read_page(void) {
    const struct vg_vgpu_page *page = NULL;
    struct vg_why why = {""};
    cr_assert_eq(vg_page_open(&page, &why), 0, "%s", why.text);
    return page;
}

Test(page, says_what_was_set) {
    struct stat st;
    uint8_t uuid[16];
    conf.devices = 16;
    conf.sharing = true;
    umask(0077);
    cr_assert_eq(write_page(), 0, "%s", err.msg);
    cr_assert_eq(stat(VG_VGPU_FILE, &st), 0);
    cr_expect_eq(st.st_mode & 07777, 0444u);
    const struct vg_vgpu_page *page = read_page();
    cr_expect_eq(page->flags, VG_VGPU_SHARING);
    cr_expect_str_eq(page->driver, "580.159.04");
    cr_expect_str_eq(page->real_cuda, "/x/libcuda.so.1");
    cr_expect_str_eq(page->real_nvml, "/x/libnvidia-ml.so.1");
    for (int i = 0; i < 16; i++) {
        memset(uuid, i, sizeof uuid);
        cr_expect_eq(vg_page_find(page, uuid), i);
        cr_expect_eq(atomic_load(&page->device[i].weight_milli), 10u * (unsigned)i);
    }
    memset(uuid, 16, sizeof uuid);
    cr_expect_eq(vg_page_find(page, uuid), -1);
    vg_share_page_limit(writer, 15, 100);
    vg_share_page_used(writer, 15, 30);
    vg_share_page_weight(writer, 15, 250);
    struct vg_memory m = vg_page_memory(page, 15, 1000);
    cr_expect(m.total == 100 && m.used == 30 && m.free == 70);
    cr_expect_eq(vg_page_memory(page, 15, 50).free, 50u);
    cr_expect_eq(atomic_load(&page->device[15].weight_milli), 250u);
}

Test(page, cannot_be_written_by_its_reader) {
    cr_assert_eq(write_page(), 0);
    const struct vg_vgpu_page *page = read_page();
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_DUMPABLE, 0);
        signal(SIGSEGV, SIG_DFL);
        *(volatile uint32_t *)(uintptr_t)&page->devices = 1;
        _exit(0);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

Test(page, is_not_made_of_what_cannot_be) {
    char path[300];
    memset(path, '/', sizeof path);
    path[sizeof path - 1] = '\0';
    struct vg_share_conf good = conf;
#define REFUSED(change)                               \
    do {                                              \
        conf = good;                                  \
        change;                                       \
        cr_expect_eq(write_page(), -EINVAL, #change); \
        cr_expect_neq(err.msg[0], '\0');              \
        cr_expect_neq(access(VG_VGPU_FILE, F_OK), 0); \
    } while (0)
    REFUSED(conf.devices = 0);
    REFUSED(conf.devices = 17);
    REFUSED(conf.driver = NULL);
    REFUSED(conf.driver = "");
    REFUSED(conf.driver = path);
    REFUSED(conf.real_cuda = "libcuda.so.1");
    REFUSED(conf.real_nvml = path);
    REFUSED(devices[1].weight_milli = 1001);
    devices[1].weight_milli = 1000;
    conf = good;
    path[255] = '\0'; /* the longest that has room */
    conf.real_nvml = path;
    cr_assert_eq(write_page(), 0, "%s", err.msg);
    cr_expect_str_eq(read_page()->real_nvml, path);
}

Test(page, is_made_once) {
    cr_assert_eq(write_page(), 0);
    struct vg_share_page *other = NULL;
    cr_expect_eq(vg_share_page_open(AT_FDCWD, &conf, &other, &err), -EEXIST);
    cr_expect_null(other);
    cr_expect_not_null(strstr(err.msg, "page of a shared GPU"));
    (void)read_page(); /* the first is untouched */
}

Test(page, is_not_left_half_made_on_a_full_disk) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit none = {.rlim_cur = 100, .rlim_max = RLIM_INFINITY};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
    int r = write_page();
    none.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &none);
    cr_expect_eq(r, -EFBIG);
    cr_expect_neq(access(VG_VGPU_FILE, F_OK), 0);
}

/* Each table is of one generation: n entries, whose numbers follow from n. */
static unsigned make_table(unsigned generation, struct vg_share_process *table) {
    unsigned n = 1 + generation % VG_SHARE_PROCESSES_MAX;
    for (unsigned i = 0; i < n; i++)
        table[i] = (struct vg_share_process){generation + i, (uint64_t)generation << 32 | n};
    return n;
}

static bool is_whole(const struct vg_process *table, int n) {
    for (int i = 0; i < n; i++)
        if (table[i].used_bytes != table[0].used_bytes ||
            table[i].pid != table[0].pid + (unsigned)i || (int)(table[i].used_bytes & 0xffff) != n)
            return false;
    return true;
}

/* Reads until the writer says that it is done, and tells when it has begun; 0: everything was
 * whole, and something was seen. */
static int read_all(const struct vg_vgpu_page *page, int begun) {
    struct vg_process table[VG_VGPU_PROCESSES];
    uint64_t reads = 0, last = 0;
    while (atomic_load(&page->device[1].used_bytes) == 0) {
        int n = vg_page_processes(page, table);
        if (n == -EAGAIN)
            continue;
        uint64_t used = atomic_load(&page->device[0].used_bytes);
        if (n < 0 || !is_whole(table, n) || (uint32_t)used != (uint32_t)(used >> 32))
            return 1;
        if (n && table[0].used_bytes >> 32 < last)
            return 2; /* went backwards */
        last = n ? table[0].used_bytes >> 32 : last;
        if (n && reads++ == 0 && write(begun, "", 1) != 1)
            return 3;
    }
    return reads ? 0 : 4;
}

static void write_generations(unsigned from, unsigned to) {
    struct vg_share_process table[VG_SHARE_PROCESSES_MAX];
    for (unsigned g = from; g <= to; g++) {
        vg_share_page_used(writer, 0, (uint64_t)g << 32 | g);
        (void)vg_share_page_processes(writer, table, make_table(g, table));
        if (g % 64 == 0) /* on one core the reader gets its turn in the middle, too */
            sched_yield();
    }
}

Test(page, is_never_torn_while_it_is_written) {
    int status = -1, begun[2];
    char byte;
    cr_assert_eq(write_page(), 0);
    cr_assert_eq(pipe(begun), 0);
    write_generations(1, 1);
    pid_t child = fork();
    if (child == 0)
        _exit(read_all(read_page(), begun[1]));
    close(begun[1]);
    cr_assert_eq(read(begun[0], &byte, 1), 1, "the reader saw nothing");
    write_generations(2, 50000);
    vg_share_page_used(writer, 1, 1);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(status, 0, "the reader ended with %d", WEXITSTATUS(status));
}

/* The control: the check sees a table that is torn. */
Test(page, that_is_torn_would_be_seen) {
    struct vg_share_process made[VG_SHARE_PROCESSES_MAX];
    struct vg_process table[VG_VGPU_PROCESSES];
    cr_assert_eq(write_page(), 0);
    const struct vg_vgpu_page *page = read_page();
    cr_assert_eq(vg_share_page_processes(writer, made, make_table(99, made)), 100u);
    cr_assert_eq(vg_page_processes(page, table), 100);
    cr_expect(is_whole(table, 100));
    table[40].used_bytes++;
    cr_expect_not(is_whole(table, 100));
}

/* A second mapping, in which the page can be spoilt. */
static struct vg_vgpu_page *spoil(void) {
    cr_assert_eq(chmod(VG_VGPU_FILE, 0600), 0);
    int fd = open(VG_VGPU_FILE, O_RDWR);
    void *p = mmap(NULL, sizeof(struct vg_vgpu_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(p, MAP_FAILED);
    close(fd);
    return p;
}

Test(page, whose_writer_was_killed_in_the_middle_does_not_hold_up_its_readers) {
    struct vg_process table[VG_VGPU_PROCESSES];
    cr_assert_eq(write_page(), 0);
    atomic_store(&spoil()->sequence, 1);
    cr_expect_eq(vg_page_processes(read_page(), table), -EAGAIN);
}

Test(page, shows_as_many_processes_as_there_is_room_for) {
    static struct vg_share_process many[300];
    struct vg_process table[VG_VGPU_PROCESSES];
    for (unsigned i = 0; i < 300; i++)
        many[i] = (struct vg_share_process){i + 1, i};
    cr_assert_eq(write_page(), 0);
    cr_expect_eq(vg_share_page_processes(writer, many, 300), 256u);
    cr_expect_eq(vg_page_processes(read_page(), table), 256);
    cr_expect(table[255].pid == 256 && table[255].used_bytes == 255);
    cr_expect_eq(vg_share_page_processes(writer, NULL, 0), 0u);
    cr_expect_eq(vg_page_processes(read_page(), table), 0);
    atomic_store(&spoil()->processes, 1000000); /* a count that cannot be is cut */
    cr_expect_eq(vg_page_processes(read_page(), table), 256);
}

/* Random bytes anywhere in the head: refused with a sentence, or read without harm. */
Test(page, of_any_bytes_is_read_without_harm) {
    unsigned seed = 5, refused = 0;
    struct vg_process table[VG_VGPU_PROCESSES];
    struct vg_vgpu_page good;
    cr_assert_eq(write_page(), 0);
    struct vg_vgpu_page *page = spoil();
    memcpy(&good, page, sizeof good);
    for (int i = 0; i < 2000; i++) {
        memcpy(page, &good, sizeof good);
        for (int k = rand_r(&seed) % 4; k >= 0; k--)
            ((unsigned char *)page)[(unsigned)rand_r(&seed) % 600] = (unsigned char)rand_r(&seed);
        atomic_store(&page->processes, (uint32_t)rand_r(&seed));
        const struct vg_vgpu_page *seen = NULL;
        struct vg_why why = {""};
        if (vg_page_open(&seen, &why) < 0) {
            cr_assert_neq(why.text[0], '\0');
            refused++;
            continue;
        }
        cr_assert(memchr(seen->real_cuda, 0, VG_VGPU_PATH_MAX) && seen->devices <= VG_VGPU_DEVICES);
        (void)vg_page_find(seen, good.device[1].uuid);
        cr_assert_leq(vg_page_processes(seen, table), (int)VG_VGPU_PROCESSES);
        munmap((void *)(uintptr_t)seen, sizeof *seen);
    }
    cr_expect(refused > 100 && refused < 2000);
}

/* The stand-in driver (fake-rm.h) as a process, behind sockets that stand for device nodes:

       fake-rmd FOLDER CARDS CARD_MIB

   makes nvidiactl, nvidia0 … and nvidia-uvm in the folder, and says "ready". A connection is an
   open device (gpu/fake-call.h): the process that made it is the one whose calls come on it, also
   where its warden makes them, and its clients go with it. nvidia-uvm is a file, since a socket
   cannot be mapped; how much of it is mapped is looked up in /proc.

   `admin` takes a command a packet (admin[] below) and answers with JSON. Whatever is not
   understood ends the process: the tests that rest on it then fail. One thread. */
#include "fake-rm.h"
#include "gpu/fake-call.h"
#include "gpu/rm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#define ENDS_MAX 1024u
#define CLIENTS_MAX 1024u
#define GROUPS_MAX 1024u

enum what { ADMIN_DOOR, DOOR, ADMIN, DEVICE };

struct end {
    enum what what;
    int card; /* of a door or device; -1: nvidiactl */
    pid_t pid;
    char who[160]; /* the command line of that process */
    uint32_t client[16];
    size_t n_clients;
};

static struct fake_rm *rm;
static struct end end[ENDS_MAX];
static struct pollfd polled[ENDS_MAX];
static size_t n_ends;
static struct stat uvm;
static uint64_t most;                       /* of what was used and mapped at one time */
static unsigned long long direct, in_stead; /* calls that give or take memory */
static char answer[1 << 18];
static size_t answered;

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "fake-rmd: %s (%s)\n", what, strerror(errno));
    abort();
}

__attribute__((format(printf, 1, 2))) static void say(const char *form, ...) {
    va_list args;
    va_start(args, form);
    int n = vsnprintf(answer + answered, sizeof(answer) - answered, form, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof(answer) - answered)
        fail("the answer is too long");
    answered += (size_t)n;
}

/* ---- who ------------------------------------------------------------------------------------- */

static void add(int fd, struct end e) {
    if (fd < 0 || n_ends == ENDS_MAX)
        fail("too many connections");
    polled[n_ends] = (struct pollfd){fd, POLLIN, 0};
    end[n_ends++] = e;
}

static void drop(size_t i) {
    for (size_t k = 0; k < end[i].n_clients; k++)
        fake_rm_close(rm, end[i].client[k]);
    close(polled[i].fd);
    n_ends--;
    end[i] = end[n_ends];
    polled[i] = polled[n_ends];
}

static void open_door(const char *folder, const char *name, struct end e) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (snprintf(at.sun_path, sizeof(at.sun_path), "%s/%s", folder, name) >=
        (int)sizeof(at.sun_path))
        fail("the folder's name is too long");
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 ||
        chmod(at.sun_path, 0666) < 0 || listen(fd, 64) < 0)
        fail(at.sun_path);
    add(fd, e);
}

static void read_who(struct end *e) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)e->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, e->who, sizeof(e->who) - 1);
    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < n; i++)
        if (e->who[i] < ' ' || e->who[i] == '"' || e->who[i] == '\\')
            e->who[i] = ' ';
    e->who[n > 0 ? n : 0] = 0;
}

static void let_in(const struct end *door, int fd) {
    struct ucred peer;
    socklen_t n = sizeof(peer);
    struct end e = {.what = door->what == ADMIN_DOOR ? ADMIN : DEVICE, .card = door->card};
    int own = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    if (own < 0 || getsockopt(own, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
        fail("accept");
    e.pid = peer.pid;
    read_who(&e);
    add(own, e);
}

static const char *who(uint64_t process) {
    for (size_t i = 0; i < n_ends; i++)
        if (end[i].what == DEVICE && (uint64_t)end[i].pid == process)
            return end[i].who;
    return "";
}

static bool has_open(void *ud, uint64_t process, uint32_t card) {
    (void)ud;
    for (size_t i = 0; i < n_ends; i++)
        if (end[i].what == DEVICE && (uint64_t)end[i].pid == process && end[i].card == (int)card)
            return true;
    return false;
}

/* ---- managed memory -------------------------------------------------------------------------- */

static uint64_t mapped_by(pid_t pid) {
    char path[64], line[512];
    uint64_t sum = 0;
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        unsigned long long from, to, ino;
        unsigned major_no, minor_no;
        if (sscanf(line, "%llx-%llx %*s %*x %x:%x %llu", &from, &to, &major_no, &minor_no, &ino) ==
                5 &&
            ino == uvm.st_ino && makedev(major_no, minor_no) == uvm.st_dev)
            sum += to - from;
    }
    if (f)
        fclose(f);
    return sum;
}

/* Each process counts once, on the first card that it opened. */
static uint64_t managed_on(uint32_t card) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n_ends; i++) {
        bool first = end[i].what == DEVICE && end[i].card == (int)card;
        for (size_t k = 0; first && k < n_ends; k++)
            first = k == i || end[k].what != DEVICE || end[k].pid != end[i].pid ||
                    end[k].card < 0 || end[k].card > end[i].card ||
                    (end[k].card == end[i].card && k > i);
        sum += first ? mapped_by(end[i].pid) : 0;
    }
    return sum;
}

static uint64_t managed(void) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < FAKE_RM_CARDS; i++)
        sum += managed_on(i);
    uint64_t now = sum + fake_rm_used(rm);
    most = now > most ? now : most;
    return sum;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool makes_client(uint32_t cmd, const struct vg_rm_alloc *a) {
    return (cmd & 0xff) == VG_RM_ALLOC && (cmd >> 16 & 0x3fff) == sizeof(*a) &&
           (a->class_id == VG_RM_CLASS_ROOT || a->class_id == VG_RM_CLASS_ROOT_NON_PRIV ||
            a->class_id == VG_RM_CLASS_ROOT_CLIENT);
}

static int64_t make_call(struct end *e, struct vg_fake_call *head, void *arg) {
    struct vg_rm_alloc *a = arg;
    if (makes_client(head->cmd, a) && !head->in_stead) {
        if (e->n_clients == sizeof(e->client) / sizeof(e->client[0]))
            fail("too many clients on one descriptor");
        a->object = e->client[e->n_clients++] = fake_rm_client(rm, (uint64_t)e->pid);
        a->status = VG_RM_OK;
        return 0;
    }
    if ((head->cmd & 0xff) != VG_RM_CONTROL)
        *(head->in_stead ? &in_stead : &direct) += 1;
    int64_t r = fake_rm_ioctl(rm, (uint64_t)e->pid, head->cmd, arg);
    const struct vg_rm_control *c = arg;
    if ((head->cmd & 0xff) == VG_RM_CONTROL && c->command == FAKE_RM_MEMORY_INFO) {
        struct fake_rm_info *info = (void *)(uintptr_t)c->params;
        info->used += managed_on(info->card);
    }
    return r;
}

static void on_call(size_t i) {
    static _Alignas(16) uint8_t packet[VG_FAKE_CALL_MAX];
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec into = {packet, sizeof(packet)};
    struct msghdr m = {.msg_iov = &into,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(polled[i].fd, &m, MSG_CMSG_CLOEXEC);
    if (n <= 0) {
        drop(i);
        return;
    }
    struct vg_fake_call *head = (void *)packet;
    uint8_t *arg = packet + sizeof(*head);
    size_t bytes = head->cmd >> 16 & 0x3fff, at = SIZE_MAX;
    if ((size_t)n < sizeof(*head) || (size_t)n != sizeof(*head) + bytes + head->params_bytes ||
        m.msg_controllen < CMSG_LEN(sizeof(int)))
        fail("a call that is none");
    int back;
    memcpy(&back, CMSG_DATA(&control.head), sizeof(back));
    (void)vg_fake_call_params(head->cmd, arg, &at);
    if (at != SIZE_MAX) {
        uint64_t params = head->params_bytes ? (uint64_t)(uintptr_t)(arg + bytes) : 0;
        memcpy(arg + at, &params, sizeof(params));
    }
    head->value = make_call(&end[i], head, arg);
    (void)managed();
    (void)!send(back, packet, (size_t)n, MSG_NOSIGNAL); /* who asked may be gone */
    close(back);
}

/* ---- commands -------------------------------------------------------------------------------- */

static void cmd_stat(char *args) {
    static struct fake_rm_client_stat client[CLIENTS_MAX];
    static struct fake_rm_group group[GROUPS_MAX];
    (void)args;
    uint64_t mapped = managed();
    size_t n = fake_rm_clients(rm, client, CLIENTS_MAX), k = fake_rm_groups(rm, group, GROUPS_MAX);
    say("{\"used\": %llu, \"managed\": %llu, \"most\": %llu, \"direct\": %llu, \"in_stead\": %llu, "
        "\"cards\": [",
        (unsigned long long)fake_rm_used(rm), (unsigned long long)mapped, (unsigned long long)most,
        direct, in_stead);
    for (uint32_t i = 0; i < FAKE_RM_CARDS; i++) {
        struct fake_rm_card c = fake_rm_card(rm, i);
        say("%s{\"used\": %llu, \"peak\": %llu, \"lost\": %s}", i ? ", " : "",
            (unsigned long long)c.used, (unsigned long long)c.peak, c.lost ? "true" : "false");
    }
    say("], \"clients\": [");
    for (size_t i = 0; i < n; i++)
        say("%s{\"pid\": %llu, \"who\": \"%s\", \"bytes\": %llu}", i ? ", " : "",
            (unsigned long long)client[i].process, who(client[i].process),
            (unsigned long long)client[i].bytes);
    say("], \"groups\": [");
    for (size_t i = 0; i < k; i++)
        say("%s{\"pid\": %llu, \"who\": \"%s\", \"card\": %u, \"slice_usec\": %llu, \"held\": %s}",
            i ? ", " : "", (unsigned long long)group[i].process, who(group[i].process),
            group[i].card, (unsigned long long)group[i].slice_usec,
            group[i].held ? "true" : "false");
    say("]}");
}

static void cmd_peak(char *args) {
    (void)args;
    fake_rm_new_peak(rm);
    most = 0;
    direct = in_stead = 0;
    (void)managed();
    say("{}");
}

/* run CARD USEC [WORD...]: how the card divides that time among its groups, or among those of
   processes that have one of the words in their command line. */
static void cmd_run(char *args) {
    static struct fake_rm_group all[GROUPS_MAX], busy[GROUPS_MAX];
    static uint64_t got[GROUPS_MAX];
    char *save, *card = strtok_r(args, " ", &save), *usec = strtok_r(NULL, " ", &save);
    size_t n = fake_rm_groups(rm, all, GROUPS_MAX), k = 0, n_words = 0;
    const char *words[32];
    if (!card || !usec)
        fail("run CARD USEC [WORD...]");
    while (n_words < 32 && (words[n_words] = strtok_r(NULL, " ", &save)))
        n_words++;
    for (size_t i = 0; i < n; i++) {
        bool wanted = n_words == 0;
        for (size_t w = 0; w < n_words; w++)
            wanted |= strstr(who(all[i].process), words[w]) != NULL;
        if (wanted && all[i].card == strtoul(card, NULL, 10))
            busy[k++] = all[i];
    }
    fake_rm_divide(busy, k, strtoull(usec, NULL, 10), got);
    say("[");
    for (size_t i = 0; i < k; i++)
        say("%s{\"who\": \"%s\", \"usec\": %llu}", i ? ", " : "", who(busy[i].process),
            (unsigned long long)got[i]);
    say("]");
}

/* slice WORD USEC: somebody else than the warden sets it. */
static void cmd_slice(char *args) {
    static struct fake_rm_group all[GROUPS_MAX];
    char *save, *word = strtok_r(args, " ", &save), *usec = strtok_r(NULL, " ", &save);
    size_t n = fake_rm_groups(rm, all, GROUPS_MAX), set = 0;
    if (!word || !usec)
        fail("slice WORD USEC");
    for (size_t i = 0; i < n; i++)
        if (strstr(who(all[i].process), word)) {
            fake_rm_set_slice(rm, all[i].client, all[i].handle, strtoull(usec, NULL, 10));
            set++;
        }
    say("{\"set\": %zu}", set);
}

static void cmd_fail(char *args) {
    fake_rm_fail(rm, (uint32_t)strtoul(args, NULL, 10));
    say("{}");
}

/* lose CARD 0|1 */
static void cmd_lose(char *args) {
    char *rest;
    uint32_t card = (uint32_t)strtoul(args, &rest, 10);
    if (card >= FAKE_RM_CARDS)
        fail("lose CARD 0|1");
    fake_rm_lose(rm, card, strtoul(rest, NULL, 10) != 0);
    say("{}");
}

static const struct {
    const char *word;
    void (*run)(char *args);
} admin[] = {{"stat", cmd_stat},   {"peak", cmd_peak}, {"run", cmd_run},
             {"slice", cmd_slice}, {"fail", cmd_fail}, {"lose", cmd_lose}};

static void on_admin(size_t i) {
    char line[1024];
    ssize_t n = recv(polled[i].fd, line, sizeof(line) - 1, 0);
    if (n <= 0) {
        drop(i);
        return;
    }
    line[n] = 0;
    char *args = strchr(line, ' ');
    if (args)
        *args++ = 0;
    answered = 0;
    for (size_t k = 0; k < sizeof(admin) / sizeof(admin[0]); k++)
        if (!strcmp(admin[k].word, line))
            admin[k].run(args ? args : line + n);
    if (!answered)
        fail("an unknown command");
    if (send(polled[i].fd, answer, answered, MSG_NOSIGNAL) < 0)
        fail("answer");
}

static void on_event(size_t i) {
    if (end[i].what == DEVICE)
        on_call(i);
    else if (end[i].what == ADMIN)
        on_admin(i);
    else
        let_in(&end[i], polled[i].fd);
}

int main(int argc, char **argv) {
    unsigned long cards = argc == 4 ? strtoul(argv[2], NULL, 10) : 0;
    char name[512];
    if (!cards || cards > FAKE_RM_CARDS) {
        fprintf(stderr, "usage: fake-rmd FOLDER CARDS CARD_MIB\n");
        return 2;
    }
    rm = fake_rm_new(strtoull(argv[3], NULL, 10) << 20);
    fake_rm_set_may(rm, has_open, NULL);
    snprintf(name, sizeof(name), "%s/nvidia-uvm", argv[1]);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || fchmod(fd, 0666) < 0 || fstat(fd, &uvm) < 0)
        fail(name);
    close(fd);
    for (unsigned long i = 0; i < cards; i++) {
        snprintf(name, sizeof(name), "nvidia%lu", i);
        open_door(argv[1], name, (struct end){.what = DOOR, .card = (int)i});
    }
    open_door(argv[1], "admin", (struct end){.what = ADMIN_DOOR});
    open_door(argv[1], "nvidiactl", (struct end){.what = DOOR, .card = -1});
    puts("ready");
    fflush(stdout);
    for (;;) {
        if (poll(polled, n_ends, -1) < 0)
            continue;
        for (size_t i = n_ends; i-- > 0;) /* from behind: the last takes the place of one dropped */
            if (polled[i].revents)
                on_event(i);
    }
}

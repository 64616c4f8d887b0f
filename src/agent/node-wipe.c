/* `virga node-wipe`, started by the agent around a task that has the whole node: looks at the node
   before, and afterwards puts back and clears what the task's own namespaces do not take with them.
   A process of its own: a driver can hang, and takes nobody else with it.

   Says one line for each thing; a line that begins with '!' could not be done, and the last line is
   "done". Whoever does not hear that knows nothing. */
#include "agent/agent-bare.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "gpu/gpu-wipe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define STATE_MAX_BYTES (1u << 20)
#define NAMES_SHOWN 8
#define ENOUGH_PERCENT 85 /* of a card: the rest is the driver's own, and that of the context */

struct wipe {
    struct vg_wiper cards;
    bool has_cards, simulated;
};

/* ------------------------------------------------------------------ what the node looks like */

/* One field of each line of a file of the kernel's, as lines "KEY FIELD". */
static int add_fields(struct vg_buf *b, const char *file, const char *key, unsigned field) {
    FILE *f = fopen(file, "re");
    char line[4096];
    int r = 0;
    if (!f)
        return 0; /* a kernel without modules, say */
    while (r >= 0 && fgets(line, sizeof(line), f)) {
        char *next = line, *word = NULL;
        for (unsigned i = 0; i <= field; i++)
            word = strsep(&next, " \n");
        if (word && *word)
            r = vg_buf_printf(b, "%s %s\n", key, word);
    }
    fclose(f);
    return r;
}

static int add_settings(const struct wipe *w, struct vg_buf *b) {
    int r = 0;
    for (uint32_t i = 0; r >= 0 && i < w->cards.n; i++)
        for (int s = 0; r >= 0 && s < VG_SETTINGS; s++) {
            uint32_t v;
            if (w->cards.get(w->cards.state, i, (enum vg_setting)s, &v) >= 0)
                r = vg_buf_printf(b, "gpu %u %s %u\n", i, vg_setting_word((enum vg_setting)s), v);
        }
    return r;
}

static int add_system(struct vg_buf *b) {
    int r = add_fields(b, "/proc/modules", "module", 0);
    return r < 0 ? r : add_fields(b, "/proc/self/mounts", "mount", 1);
}

/* The file is there whole or not at all, also after a loss of power. */
static int save(const char *path, const struct vg_buf *b) {
    vg_auto_free char *tmp = vg_fmt("%s.new", path);
    vg_auto_fd int fd = tmp ? open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return -errno;
    int r = vg_write_full(fd, vg_buf_data((struct vg_buf *)b), vg_buf_len((struct vg_buf *)b));
    if (r >= 0 && (fsync(fd) < 0 || rename(tmp, path) < 0))
        r = -errno;
    return r;
}

static int before(const struct wipe *w, const char *path, const char *task, const char *attempt) {
    struct vg_buf b = {0};
    int r = vg_buf_printf(&b, "task %s %s\n", task, attempt);
    if (r >= 0)
        r = add_settings(w, &b);
    if (r >= 0)
        r = add_system(&b);
    if (r >= 0)
        r = save(path, &b);
    vg_buf_done(&b);
    if (r < 0)
        printf("!the state of the node cannot be noted: %s\n", strerror(-r));
    return r;
}

/* ------------------------------------------------------------------ cards */

static bool put_back(const struct wipe *w, uint32_t card, enum vg_setting s, uint32_t was) {
    uint32_t now;
    if (w->cards.get(w->cards.state, card, s, &now) < 0) {
        printf("!GPU %u: its %s cannot be read any more\n", card, vg_setting_name(s));
        return false;
    }
    if (now == was)
        return true;
    int r = w->cards.set(w->cards.state, card, s, was);
    if (r < 0)
        printf("!GPU %u: its %s is %u, was %u before, and cannot be put back\n", card,
               vg_setting_name(s), now, was);
    else
        printf("GPU %u: %s put back from %u to %u\n", card, vg_setting_name(s), now, was);
    return r >= 0;
}

static bool put_back_line(const struct wipe *w, const char *line) {
    unsigned card, was;
    char word[32];
    if (sscanf(line, "gpu %u %31s %u", &card, word, &was) != 3)
        return true;
    if (card >= w->cards.n) {
        printf("!GPU %u: it is not there any more\n", card);
        return false;
    }
    for (int s = 0; s < VG_SETTINGS; s++)
        if (!strcmp(word, vg_setting_word((enum vg_setting)s)))
            return put_back(w, card, (enum vg_setting)s, was);
    return true;
}

static bool clear(const struct wipe *w, uint32_t card) {
    struct vg_err err = VG_ERR_INIT;
    uint64_t bytes, total;
    char a[32], b[32], uuid[96] = "";
    if (w->cards.clear(w->cards.state, card, &bytes, &total, &err) < 0) {
        printf("!GPU %u: its memory is not cleared: %s\n", card, err.msg);
        return false;
    }
    if (w->simulated) {
        printf("GPU %u: simulated, there is no memory to overwrite\n", card);
        return true;
    }
    (void)w->cards.uuid(w->cards.state, card, uuid, sizeof(uuid));
    vg_format_size(bytes, a, sizeof(a));
    vg_format_size(total, b, sizeof(b));
    bool enough = bytes >= total / 100 * ENOUGH_PERCENT;
    if (enough)
        printf("GPU %u%s%s: %s of %s of memory overwritten with zeros\n", card, *uuid ? " " : "",
               uuid, a, b);
    else
        printf("!GPU %u: only %s of %s of memory could be overwritten: something holds the rest\n",
               card, a, b);
    return enough;
}

/* ------------------------------------------------------------------ the rest */

static bool has_line(const char *text, const char *line, size_t n) {
    for (const char *p = text; p && *p;) {
        const char *end = strchrnul(p, '\n');
        if ((size_t)(end - p) == n && !memcmp(p, line, n))
            return true;
        p = *end ? end + 1 : NULL;
    }
    return false;
}

/* Says what of a kind there is now and was not before. */
static void say_new(const char *was, const char *now, const char *key, const char *what) {
    size_t len = strlen(key), n = 0;
    for (const char *p = now; p && *p;) {
        const char *end = strchrnul(p, '\n');
        size_t line = (size_t)(end - p);
        if (line > len + 1 && !memcmp(p, key, len) && p[len] == ' ' && !has_line(was, p, line)) {
            if (n < NAMES_SHOWN)
                printf("%s%.*s", n ? ", " : what, (int)VG_MIN(line - len - 1, (size_t)100),
                       p + len + 1);
            n++;
        }
        p = *end ? end + 1 : NULL;
    }
    if (n > NAMES_SHOWN)
        printf(" and %zu more", n - NAMES_SHOWN);
    if (n)
        putchar('\n');
}

/* The task cannot load modules or mount on the node; whoever did should know. */
static void say_system(const char *was) {
    struct vg_buf b = {0};
    if (add_system(&b) >= 0 && vg_buf_append(&b, "", 1) >= 0) {
        const char *now = (const char *)vg_buf_data(&b);
        say_new(was, now, "module", "kernel modules loaded meanwhile, which stay: ");
        say_new(was, now, "mount", "mounts made on the node meanwhile, which stay: ");
    }
    vg_buf_done(&b);
}

static bool after(const struct wipe *w, const char *path) {
    vg_auto_free char *was = NULL;
    size_t len;
    bool good = true;
    int r = vg_read_file(path, STATE_MAX_BYTES, &was, &len);
    if (r < 0) {
        printf("!what the node looked like before cannot be read: %s\n", strerror(-r));
        return false;
    }
    for (const char *p = was; *p;
         p = *p ? p + 1 : p) { /* settings first: one may forbid the next */
        good = put_back_line(w, p) && good;
        p = strchrnul(p, '\n');
    }
    for (uint32_t i = 0; i < w->cards.n; i++)
        good = clear(w, i) && good;
    if (!w->has_cards)
        printf("GPUs: none\n");
    say_system(was);
    return good;
}

/* ------------------------------------------------------------------ */

static int open_cards(int argc, char **argv, struct wipe *w, struct vg_err *err) {
    uint64_t n;
    w->has_cards = argc > 0;
    if (!argc)
        return 0;
    if (argc == 3 && !strcmp(argv[0], "--fake") && vg_parse_u64(argv[1], &n) == 0 && n <= 64) {
        w->simulated = true;
        return vg_wiper_fake((uint32_t)n, argv[2], &w->cards, err);
    }
    if (!strcmp(argv[0], "--unknown"))
        return vg_err_set(err, VG_UNSUPPORTED, "there is a way for NVIDIA's cards only");
    if (argc == 3 && !strcmp(argv[0], "--nvidia"))
        return vg_wiper_nvidia(argv[1], argv[2], &w->cards, err);
    return vg_err_set(err, VG_INVALID, "virga node-wipe is started by the agent, not by hand");
}

int vg_node_wipe_main(int argc, char **argv) {
    struct wipe w = {0};
    struct vg_err err = VG_ERR_INIT;
    bool is_before = argc >= 5 && !strcmp(argv[1], "before");
    bool is_after = argc >= 3 && !strcmp(argv[1], "after");
    int used = is_before ? 5 : 3;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* an agent that died will look for itself */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!is_before && !is_after) {
        fputs("virga node-wipe is started by the agent, not by hand\n", stderr);
        return 2;
    }
    if (open_cards(argc - used, argv + used, &w, &err) < 0) {
        printf("!the memory of the node's GPUs cannot be cleared: %s\ndone\n", err.msg);
        return 1;
    }
    bool good = is_before ? before(&w, argv[2], argv[3], argv[4]) >= 0 : after(&w, argv[2]);
    if (w.cards.close)
        w.cards.close(w.cards.state);
    puts("done");
    return good ? 0 : 1;
}

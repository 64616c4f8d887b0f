/* The names of settings, and simulated cards. */
#include "gpu/gpu-wipe.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *word, *name;
} settings[VG_SETTINGS] = {
    [VG_SET_COMPUTE] = {"compute", "compute mode"},
    [VG_SET_PERSISTENCE] = {"persistence", "persistence mode"},
    [VG_SET_POWER] = {"power", "power limit (mW)"},
    [VG_SET_SM_CLOCK] = {"sm", "application clock (MHz)"},
    [VG_SET_MEM_CLOCK] = {"mem", "application memory clock (MHz)"},
    [VG_SET_MIG] = {"mig", "MIG mode"},
};

const char *vg_setting_word(enum vg_setting s) {
    return settings[s].word;
}

const char *vg_setting_name(enum vg_setting s) {
    return settings[s].name;
}

/* ------------------------------------------------------------------ simulated */

#define FILE_MAX_BYTES 4096

struct fake {
    char *dir; /* owned */
};

static char *path_of(const struct fake *f, uint32_t card, const char *what) {
    return vg_fmt("%s/%u.%s", f->dir, card, what);
}

static int fake_uuid(void *state, uint32_t card, char *out, size_t n) {
    (void)state;
    snprintf(out, n, "GPU-simulated-%u", card);
    return 0;
}

/* The values in its file; what is not there is UINT32_MAX. */
static void read_all(const struct fake *f, uint32_t card, uint32_t v[static VG_SETTINGS]) {
    vg_auto_free char *path = path_of(f, card, "set");
    vg_auto_free char *text = NULL;
    size_t len;
    for (int s = 0; s < VG_SETTINGS; s++)
        v[s] = UINT32_MAX;
    if (!path || vg_read_file(path, FILE_MAX_BYTES, &text, &len) < 0)
        return;
    for (char *next = text, *line; (line = strsep(&next, "\n"));) {
        char word[32];
        unsigned value;
        if (sscanf(line, "%31s %u", word, &value) != 2)
            continue;
        for (int s = 0; s < VG_SETTINGS; s++)
            if (!strcmp(word, settings[s].word))
                v[s] = value;
    }
}

static int fake_get(void *state, uint32_t card, enum vg_setting s, uint32_t *ret) {
    uint32_t v[VG_SETTINGS];
    read_all(state, card, v);
    if (v[s] == UINT32_MAX)
        return -ENOTSUP;
    *ret = v[s];
    return 0;
}

static int fake_set(void *state, uint32_t card, enum vg_setting s, uint32_t value) {
    uint32_t v[VG_SETTINGS];
    char text[FILE_MAX_BYTES];
    size_t n = 0;
    vg_auto_free char *path = path_of(state, card, "set");
    read_all(state, card, v);
    v[s] = value;
    for (int i = 0; i < VG_SETTINGS; i++)
        if (v[i] != UINT32_MAX)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s %u\n", settings[i].word, v[i]);
    return path ? vg_write_file(path, text, n, 0644) : -ENOMEM;
}

static int fake_clear(void *state, uint32_t card, uint64_t *ret_bytes, uint64_t *ret_total,
                      struct vg_err *err) {
    vg_auto_free char *path = path_of(state, card, "clear");
    vg_auto_free char *text = NULL;
    size_t len;
    unsigned ms;
    *ret_bytes = *ret_total = 0;
    if (!path || vg_read_file(path, FILE_MAX_BYTES, &text, &len) < 0)
        return 0;
    if (!strncmp(text, "fail", 4))
        return vg_err_set(err, VG_INTERNAL, "a simulated card that is told to fail");
    if (sscanf(text, "slow %u", &ms) == 1 && ms <= 600000)
        nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
    return 0;
}

static void fake_close(void *state) {
    struct fake *f = state;
    free(f->dir);
    free(f);
}

int vg_wiper_fake(uint32_t n, const char *dir, struct vg_wiper *ret, struct vg_err *err) {
    struct fake *f = vg_alloc(sizeof(*f));
    if (!f || !(f->dir = vg_strdup(dir))) {
        free(f);
        return vg_err_sys(err, -ENOMEM, "cannot open the simulated cards");
    }
    *ret = (struct vg_wiper){.n = n,
                             .state = f,
                             .uuid = fake_uuid,
                             .get = fake_get,
                             .set = fake_set,
                             .clear = fake_clear,
                             .close = fake_close};
    return 0;
}

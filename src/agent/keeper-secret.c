/* Secrets of a task in its keeper: they come behind the Start, go into the command's environment or
   into files of memory in its sandbox, and are wiped here when the command has been asked for. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

void ksecret_take(int start_fd, uint64_t bytes) {
    static const uint8_t zeros[4096];
    struct stat st;
    prctl(PR_SET_DUMPABLE, 0);
    if (fstat(start_fd, &st) < 0 || bytes == 0 || bytes >= (uint64_t)st.st_size)
        return;
    for (uint64_t at = bytes; at < (uint64_t)st.st_size; at += sizeof(zeros))
        if (pwrite(start_fd, zeros, VG_MIN((uint64_t)st.st_size - at, sizeof(zeros)), (off_t)at) <
            0)
            break;
    if (ftruncate(start_fd, (off_t)bytes) < 0)
        vg_error("keeper: a task's secrets cannot be cut off its Start: errno=%d", errno);
}

bool ksecret_replaces(const Vg__Pb__Start *st, const ProtobufCBinaryData *env) {
    for (size_t i = 0; i < st->n_secret; i++) {
        const char *var = st->secret[i]->as_var;
        size_t n = var ? strlen(var) : 0;
        if (n && env->len > n && memcmp(env->data, var, n) == 0 && env->data[n] == '=')
            return true;
    }
    return false;
}

static bool has_file(const Vg__Pb__SecretValue *s) {
    return s->as_file && *s->as_file;
}

size_t ksecret_env(const Vg__Pb__Start *st, char **out) {
    size_t n = 0;
    bool files = false;
    for (size_t i = 0; i < st->n_secret; i++) {
        const Vg__Pb__SecretValue *s = st->secret[i];
        files |= has_file(s);
        if (!s->as_var || !*s->as_var)
            continue;
        size_t name = strlen(s->as_var);
        char *v = out[n++] = vg_alloc(name + s->value.len + 2);
        if (!v)
            continue;
        memcpy(v, s->as_var, name);
        v[name] = '=';
        if (s->value.len)
            memcpy(v + name + 1, s->value.data, s->value.len);
    }
    if (files)
        out[n++] = vg_strdup("VIRGA_SECRETS=" VG_SANDBOX_SECRETS);
    return n;
}

int ksecret_files(const Vg__Pb__Start *st, struct vg_given_file **ret, size_t *ret_n,
                  struct vg_err *err) {
    size_t n = 0;
    if (!st->n_secret)
        return 0;
    struct vg_given_file *f = vg_alloc(st->n_secret * sizeof(*f));
    if (!f)
        return vg_err_sys(err, ENOMEM, "cannot pass on the task's secrets");
    for (size_t i = 0; i < st->n_secret; i++) {
        const Vg__Pb__SecretValue *s = st->secret[i];
        if (!has_file(s))
            continue;
        if (strchr(s->as_file, '/') || s->as_file[0] == '.') {
            free(f);
            return vg_err_set(err, VG_INVALID, "'%.64s' cannot be the file of a secret",
                              s->as_file);
        }
        f[n++] = (struct vg_given_file){s->as_file, s->value.data, s->value.len};
    }
    *ret = f;
    *ret_n = n;
    return 0;
}

void ksecret_wipe(Vg__Pb__Start *st, char **env) {
    for (size_t i = 0; i < st->n_secret; i++)
        if (st->secret[i]->value.len)
            explicit_bzero(st->secret[i]->value.data, st->secret[i]->value.len);
    for (size_t i = 0; env && env[i]; i++)
        explicit_bzero(env[i], strlen(env[i]));
}

/* The libraries that a program is linked to, found as the loader finds them. Everything in the
   files is checked before it is used. */
#include "fs/client/guess-int.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

#define ELF_MAX (256u << 20)
#define NEEDED_MAX 128

struct elf {
    const uint8_t *p;
    size_t n;
    const Elf64_Phdr *ph;
    size_t n_ph;
    const char *str; /* dynamic strings */
    size_t str_len;
};

static bool elf_open(struct elf *e, const void *data, size_t n) {
    const Elf64_Ehdr *h = data;
    if (n < sizeof(*h) || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 ||
        h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_ident[EI_DATA] != ELFDATA2LSB ||
        h->e_phentsize != sizeof(Elf64_Phdr) || h->e_phoff % 8 || h->e_phoff > n ||
        h->e_phnum > (n - h->e_phoff) / sizeof(Elf64_Phdr))
        return false;
    *e = (struct elf){.p = data, .n = n, .n_ph = h->e_phnum};
    e->ph = (const void *)(e->p + h->e_phoff);
    return true;
}

/* Bytes of the file behind an address of the loaded program: *ret_n of them. */
static const uint8_t *at_address(const struct elf *e, uint64_t address, size_t *ret_n) {
    for (size_t i = 0; i < e->n_ph; i++) {
        const Elf64_Phdr *p = &e->ph[i];
        if (p->p_type != PT_LOAD || address < p->p_vaddr || address - p->p_vaddr >= p->p_filesz)
            continue;
        uint64_t off = address - p->p_vaddr;
        if (p->p_offset > e->n || off >= e->n - p->p_offset)
            return NULL;
        *ret_n = VG_MIN(e->n - p->p_offset - off, p->p_filesz - off);
        return e->p + p->p_offset + off;
    }
    return NULL;
}

static const char *str_at(const struct elf *e, uint64_t off) {
    if (!e->str || off >= e->str_len || !memchr(e->str + off, 0, e->str_len - off))
        return NULL;
    return e->str + off;
}

static bool try_in(struct guess *g, const char *dir, size_t n, const char *origin, const char *lib,
                   char real[PATH_MAX]) {
    char path[PATH_MAX];
    int len;
    if (n >= 7 && strncmp(dir, "$ORIGIN", 7) == 0)
        len = snprintf(path, sizeof(path), "%s%.*s/%s", origin, (int)(n - 7), dir + 7, lib);
    else if (n >= 9 && strncmp(dir, "${ORIGIN}", 9) == 0)
        len = snprintf(path, sizeof(path), "%s%.*s/%s", origin, (int)(n - 9), dir + 9, lib);
    else
        len = snprintf(path, sizeof(path), "%.*s/%s", (int)n, dir, lib);
    return len < (int)sizeof(path) && path[0] == '/' && guess_add(g, path, real);
}

/* glibc's cache: header of 48 bytes, entries of 24 (flags, key, value, os, hwcap), strings by
   offset from the beginning. */
static const char *from_cache(struct guess *g, const char *lib) {
    static const char magic[] = "glibc-ld.so.cache1.1";
    if (!g->cache && !g->no_cache) {
        g->cache = guess_read(g, "/etc/ld.so.cache", 16u << 20, &g->cache_len);
        if (!g->cache || g->cache_len < 48 || memcmp(g->cache, magic, sizeof(magic) - 1) != 0) {
            free(g->cache);
            g->cache = NULL;
            g->no_cache = true;
        }
    }
    if (!g->cache)
        return NULL;
    uint32_t n, key, value;
    memcpy(&n, g->cache + 20, 4);
    for (uint32_t i = 0; i < n && 48 + (size_t)(i + 1) * 24 <= g->cache_len; i++) {
        const char *e = g->cache + 48 + (size_t)i * 24;
        memcpy(&key, e + 4, 4);
        memcpy(&value, e + 8, 4);
        /* guess_read puts a NUL behind the end. */
        if (key < g->cache_len && value < g->cache_len && strcmp(g->cache + key, lib) == 0)
            return g->cache + value;
    }
    return NULL;
}

static bool find_library(struct guess *g, const char *lib, const char *runpath, const char *origin,
                         char real[PATH_MAX]) {
    static const char *const usual[] = {"/lib/x86_64-linux-gnu",
                                        "/usr/lib/x86_64-linux-gnu",
                                        "/lib/aarch64-linux-gnu",
                                        "/lib64",
                                        "/usr/lib64",
                                        "/lib",
                                        "/usr/lib"};
    if (strchr(lib, '/'))
        return lib[0] == '/' && guess_add(g, lib, real);
    for (const char *p = runpath; p && *p;) {
        size_t n = strcspn(p, ":");
        if (n && try_in(g, p, n, origin, lib, real))
            return true;
        p += n;
        p += *p == ':';
    }
    const char *path = from_cache(g, lib);
    if (path && guess_add(g, path, real))
        return true;
    for (size_t i = 0; i < VG_COUNT(usual); i++)
        if (try_in(g, usual[i], strlen(usual[i]), origin, lib, real))
            return true;
    return false;
}

static void needed(struct guess *g, const struct elf *e, const Elf64_Dyn *dyn, size_t n,
                   const char *origin, int depth) {
    const char *runpath = NULL;
    for (size_t i = 0; i < n; i++)
        if (dyn[i].d_tag == DT_RUNPATH || (dyn[i].d_tag == DT_RPATH && !runpath))
            runpath = str_at(e, dyn[i].d_un.d_val);
    size_t count = 0;
    for (size_t i = 0; i < n && count < NEEDED_MAX; i++) {
        const char *lib = dyn[i].d_tag == DT_NEEDED ? str_at(e, dyn[i].d_un.d_val) : NULL;
        char real[PATH_MAX];
        size_t before = g->out->n;
        if (lib && ++count && find_library(g, lib, runpath, origin, real) && g->out->n > before)
            guess_elf(g, real, depth + 1);
    }
}

static void dynamic(struct guess *g, struct elf *e, const Elf64_Phdr *p, const char *origin,
                    int depth) {
    if (p->p_offset > e->n || p->p_filesz > e->n - p->p_offset || p->p_offset % 8)
        return;
    const Elf64_Dyn *dyn = (const void *)(e->p + p->p_offset);
    size_t n = 0, max = p->p_filesz / sizeof(*dyn);
    while (n < max && dyn[n].d_tag != DT_NULL)
        n++;
    for (size_t i = 0; i < n; i++)
        if (dyn[i].d_tag == DT_STRTAB)
            e->str = (const char *)at_address(e, dyn[i].d_un.d_ptr, &e->str_len);
    needed(g, e, dyn, n, origin, depth);
}

void guess_elf(struct guess *g, const char *real, int depth) {
    size_t n;
    struct elf e;
    char origin[PATH_MAX], interp[PATH_MAX];
    if (depth > 24 || g->err)
        return;
    /* Headers and the dynamic section lie in the first part of nearly all files. */
    vg_auto_free char *data = guess_read(g, real, ELF_MAX, &n);
    if (!data || !elf_open(&e, data, n))
        return;
    snprintf(origin, sizeof(origin), "%s", real);
    *strrchr(origin, '/') = 0;
    for (size_t i = 0; i < e.n_ph; i++) {
        const Elf64_Phdr *p = &e.ph[i];
        if (p->p_type != PT_INTERP || p->p_offset >= e.n || p->p_filesz > e.n - p->p_offset)
            continue;
        char real_interp[PATH_MAX];
        if (snprintf(interp, sizeof(interp), "%.*s", (int)VG_MIN(p->p_filesz, PATH_MAX - 1),
                     (const char *)e.p + p->p_offset) > 0)
            guess_add(g, interp, real_interp);
        guess_add(g, "/etc/ld.so.cache", real_interp);
    }
    for (size_t i = 0; i < e.n_ph; i++)
        if (e.ph[i].p_type == PT_DYNAMIC)
            dynamic(g, &e, &e.ph[i], origin, depth);
}

/* Loading the node's library behind the entries. See shim.h.
 *
 * 1. `state` goes from NEW to READY or CLOSED once, under `lock`, and to CLOSED ever after.
 * 2. The table is complete before `state` is READY. */
#include "shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* glibc moved these into libc.so.6 under a new version; environments with an older one have the old
 * version alone. */
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror,dlerror@GLIBC_2.2.5");
#endif

enum { NEW, READY, CLOSED };

struct place {
    void *real;
    unsigned index;
};

static _Atomic int state = NEW;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vg_shim shim;
static struct place *places; /* by address, hooks first among equals; owned for ever */
static unsigned place_count;
static _Atomic unsigned char *told; /* by index: its refusal; owned for ever */

static void close_all(const char *sentence) {
    if (atomic_exchange(&state, CLOSED) == CLOSED)
        return;
    fprintf(stderr, "virga: the shared GPU cannot be used: %s\n", sentence);
    shim.ready = false;
    for (unsigned i = 0; i < vg_shim_count; i++)
        vg_shim_table[i] = vg_shim_how[i] == VG_ANSWER ? vg_shim_hooks[i] : vg_shim_kind.not_ready;
}

void vg_shim_close(const char *sentence) {
    pthread_mutex_lock(&lock);
    close_all(sentence);
    pthread_mutex_unlock(&lock);
}

static bool is_refused(unsigned i) {
    return vg_shim_how[i] == VG_REFUSE ||
           (vg_shim_how[i] == VG_SHARE && !(shim.page->flags & VG_VGPU_SHARING));
}

/* A refused name's place is left as it is: its calls come by vg_shim_resolve(). */
static void lead(unsigned i, void *real) {
    if (is_refused(i))
        return;
    vg_shim_table[i] = !real ? vg_shim_kind.missing : vg_shim_hooks[i] ? vg_shim_hooks[i] : real;
}

static int by_address(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->real != y->real)
        return (uintptr_t)x->real < (uintptr_t)y->real ? -1 : 1;
    bool plain_x = vg_shim_how[x->index] == VG_PASS, plain_y = vg_shim_how[y->index] == VG_PASS;
    return plain_x != plain_y ? plain_x - plain_y : (int)x->index - (int)y->index;
}

static bool fill_table(void) {
    places = calloc(vg_shim_count, sizeof *places);
    told = calloc(vg_shim_count, sizeof *told);
    if (!places || !told)
        return false;
    for (unsigned i = 0; i < vg_shim_count; i++) {
        void *real = dlsym(shim.library, vg_shim_names[i]);
        lead(i, real);
        if (real)
            places[place_count++] = (struct place){real, i};
    }
    qsort(places, place_count, sizeof *places, by_address);
    return true;
}

/* What went wrong, or NULL. */
static const char *load(void) {
    static struct vg_why why;
    if (vg_page_open(&shim.page, &why) < 0)
        return why.text;
    const char *path = vg_shim_kind.path(shim.page);
    shim.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!shim.library) {
        const char *error = dlerror();
        snprintf(why.text, sizeof why.text,
                 "the library of the node's driver %s cannot be loaded (%s); ask the node's "
                 "administrator to look at its driver",
                 shim.page->driver, error ? error : path);
        return why.text;
    }
    if (!vg_shim_kind.bind(shim.library)) {
        snprintf(why.text, sizeof why.text,
                 "%s is not a driver library that is known here; ask the node's administrator to "
                 "look at its driver",
                 path);
        return why.text;
    }
    return fill_table() ? NULL : "this process is out of memory; free some";
}

const struct vg_shim *vg_shim_get(void) {
    if (atomic_load_explicit(&state, memory_order_acquire) == NEW) {
        pthread_mutex_lock(&lock);
        if (atomic_load(&state) == NEW) {
            const char *wrong = load();
            if (wrong)
                close_all(wrong);
            else {
                shim.ready = true;
                atomic_store(&state, READY);
            }
        }
        pthread_mutex_unlock(&lock);
    }
    return &shim;
}

static void tell_refusal(unsigned i) {
    if (!vg_shim_kind.tells || atomic_exchange(&told[i], 1))
        return;
    fprintf(stderr,
            "virga: %s is refused: a task with a share of a GPU cannot %s; ask for a whole GPU\n",
            vg_shim_names[i],
            vg_shim_how[i] == VG_SHARE ? "share the GPU's memory between processes"
                                       : "use graphics, multicast or checkpoints");
}

void *vg_shim_resolve(unsigned index) {
    if (!vg_shim_get()->ready || !is_refused(index))
        return vg_shim_table[index];
    tell_refusal(index);
    return vg_shim_kind.refused;
}

void *vg_shim_substitute(void *real) {
    unsigned low = 0, high = place_count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if ((uintptr_t)places[middle].real < (uintptr_t)real)
            low = middle + 1;
        else
            high = middle;
    }
    return low < place_count && places[low].real == real ? vg_shim_table[places[low].index] : NULL;
}

int vg_shim_find(const char *name) {
    for (unsigned i = 0; i < vg_shim_count; i++)
        if (strcmp(vg_shim_names[i], name) == 0)
            return (int)i;
    return -1;
}

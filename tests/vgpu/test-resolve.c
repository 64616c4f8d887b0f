/* What a program finds by name: hooks where the driver's own would pass them by, the driver's own
 * elsewhere, and nothing that no table knows. */
#include "fake/strict.h"
#include "world.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum how { PASS, OURS };
struct name {
    char text[96];
    enum how how;
};

static struct name names[1024];
static unsigned name_count;

/* The table as the tree has it, read anew. */
static void read_table(const char *path) {
    char line[256], how[16];
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f);
    name_count = 0;
    while (fgets(line, sizeof line, f))
        if (line[0] != '#' && sscanf(line, "%95s %15s", names[name_count].text, how) == 2)
            names[name_count++].how = strcmp(how, "pass") == 0 ? PASS : OURS;
    fclose(f);
}

static const struct name *name_of(const char *text) {
    for (unsigned i = 0; i < name_count; i++)
        if (strcmp(names[i].text, text) == 0)
            return &names[i];
    return NULL;
}

static bool lies_in(const void *address, const char *folder) {
    Dl_info info;
    return dladdr(address, &info) && strstr(info.dli_fname, folder) == info.dli_fname;
}

/* The fake's own name for an address of its. */
static const char *fake_name_of(void *fake, const void *address) {
    const struct fake_name *all = dlsym(fake, "fake_names");
    const unsigned *count = dlsym(fake, "fake_name_count");
    for (unsigned i = 0; i < *count; i++)
        if (all[i].address == address)
            return all[i].name;
    return NULL;
}

static int every_name(void *user) {
    void *shim = user ? shim_nvml() : shim_cuda();
    for (unsigned i = 0; i < name_count; i++)
        MUST(lies_in(function(shim, names[i].text), SHIM_DIR));
    return 0;
}

Test(resolve, every_name_of_the_tables_is_exported_by_the_shims) {
    (void)world_new(&(struct world_conf){.no_page = true});
    read_table(SOURCE_DIR "/cuda.sym");
    cr_assert_gt(name_count, 600);
    cr_assert_eq(world_run(every_name, NULL), 0, "%s", world_said());
    read_table(SOURCE_DIR "/nvml.sym");
    cr_assert_gt(name_count, 400);
    cr_assert_eq(world_run(every_name, ""), 0, "%s", world_said());
}

/* One question to both resolvers. */
static int compare(void *shim, void *fake, const char *name, int version, uint64_t flags,
                   bool old) {
    void *ours = (void *)1, *theirs = (void *)2;
    int our_status = -1, their_status = -1, r, want;
    if (old) {
        r = CALL(shim, cuGetProcAddress, name, &ours, version, flags);
        want = CALL(fake, cuGetProcAddress, name, &theirs, version, flags);
        our_status = their_status;
    } else {
        r = CALL(shim, cuGetProcAddress_v2, name, &ours, version, flags, &our_status);
        want = CALL(fake, cuGetProcAddress_v2, name, &theirs, version, flags, &their_status);
    }
    if (want != CUDA_OK) {
        MUST(r == want && our_status == their_status);
        return 0;
    }
    const struct name *known = name_of(fake_name_of(fake, theirs));
    if (!known) {
        MUST(r == CUDA_NOT_FOUND && ours == NULL && (old || our_status == CU_SYMBOL_NOT_FOUND));
        return 0;
    }
    MUST(r == CUDA_OK && our_status == their_status);
    if (known->how == PASS)
        MUST(ours == theirs);
    else
        MUST(ours != theirs && lies_in(ours, SHIM_DIR));
    return 0;
}

/* Names of the table, their bases and nonsense; versions and flags that exist and that do not. */
static int fuzz(void *user) {
    void *shim = shim_cuda(), *fake = dlopen(FAKE_DIR "/libcuda.so.1", RTLD_NOW);
    unsigned seed = 11;
    (void)user;
    MUST(CALL(shim, cuInit, 0) == CUDA_OK);
    for (int i = 0; i < 30000; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s", names[(unsigned)rand_r(&seed) % name_count].text);
        char *version_part = strstr(name, "_v");
        if (version_part && rand_r(&seed) % 2)
            *version_part = '\0';
        if (rand_r(&seed) % 16 == 0)
            name[(unsigned)rand_r(&seed) % strlen(name)] = (char)('a' + rand_r(&seed) % 26);
        if (rand_r(&seed) % 64 == 0)
            snprintf(name, sizeof name, "cuFromTheFuture");
        static const int versions[] = {0,     2000,  3020,  4000,  7000,  8000, 11020,
                                       11040, 12000, 12050, 13000, 99999, -1};
        int version = versions[(unsigned)rand_r(&seed) % (sizeof versions / sizeof *versions)];
        if (compare(shim, fake, name, version, (uint64_t)(rand_r(&seed) % 4), rand_r(&seed) % 2)) {
            dprintf(2, "  for %s at %d\n", name, version);
            return 1;
        }
    }
    MUST(CALL(shim, cuGetProcAddress_v2, "cuInit", NULL, 12000, (uint64_t)0, NULL) ==
         CUDA_INVALID_VALUE);
    return 0;
}

Test(resolve, any_name_version_and_flags_lead_where_the_table_says, .timeout = 60) {
    (void)world_new(&(struct world_conf){.limit = GIB});
    read_table(SOURCE_DIR "/cuda.sym");
    cr_assert_eq(world_run(fuzz, NULL), 0, "%s", world_said());
}

/* As a runtime does it: everything by the resolver, starting with the resolver. */
static int by_resolver_alone(void *user) {
    void *shim = shim_cuda();
    int (*resolve)(const char *, void **, int, uint64_t, int *) = NULL;
    int (*info)(size_t *, size_t *) = NULL, (*open_handle)(CUdeviceptr *, ...) = NULL;
    size_t left, total;
    (void)user;
    MUST(CALL(shim, cuGetProcAddress_v2, "cuGetProcAddress", &resolve, 12000, (uint64_t)0, NULL) ==
         CUDA_OK);
    MUST(resolve("cuMemGetInfo", (void **)&info, 3020, 2, NULL) == CUDA_OK);
    MUST(resolve("cuIpcOpenMemHandle", (void **)&open_handle, 11000, 0, NULL) == CUDA_OK);
    MUST(begin(shim) == CUDA_OK);
    MUST(info(&left, &total) == CUDA_OK && total == 4 * GIB);
    MUST(open_handle(NULL) == CUDA_NOT_SUPPORTED);
    return 0;
}

Test(resolve, what_the_resolver_gives_is_the_share) {
    (void)world_new(&(struct world_conf){.limit = 4 * GIB});
    cr_assert_eq(world_run(by_resolver_alone, NULL), 0, "%s", world_said());
}

/* Arguments in every register and on the stack come through the first call, which loads everything,
 * and the second. */
static int arguments(void *user) {
    void *shim = shim_cuda();
    (void)user;
    int r = CALL(shim, cuLaunchKernel, (void *)1, 2u, 3u, 4u, 5u, 6u, 7u, 8u, (void *)9, (void *)10,
                 (void *)11);
    int again = CALL(shim, cuLaunchKernel, (void *)1, 2u, 3u, 4u, 5u, 6u, 7u, 8u, (void *)9,
                     (void *)10, (void *)11);
    MUST(r == CUDA_OK && again == CUDA_OK);
    r = CALL(shim, cuLaunchKernel, (void *)1, 2u, 3u, 4u, 5u, 6u, 7u, 8u, (void *)9, (void *)10,
             (void *)12);
    MUST(r == CUDA_INVALID_VALUE);
    return 0;
}

Test(resolve, the_first_call_keeps_its_arguments) {
    (void)world_new(&(struct world_conf){.limit = GIB});
    setenv("FAKE_CHECK_LAUNCH", "1", 1);
    cr_assert_eq(world_run(arguments, NULL), 0, "%s", world_said());
}

static int unimplemented(void *user) {
    (void)user;
    return CALL(shim_cuda(), cuTexRefCreate, NULL);
}

/* The control of all tests here: the fake does not answer what it does not know. */
Test(resolve, a_call_that_the_fake_does_not_know_ends_the_tenant) {
    (void)world_new(&(struct world_conf){.limit = GIB});
    cr_assert_eq(world_run(unimplemented, NULL), 1006);
    cr_assert_not_null(strstr(world_said(), "cuTexRefCreate"));
}

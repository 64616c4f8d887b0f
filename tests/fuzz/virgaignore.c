/* Any bytes as a .virgaignore: the bad lines are named, the others answer, and the same question
   has the same answer. The last line is also asked for as a path. */
#include "mirror/policy.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(const struct vg_mpolicy *p, const char *path) {
    const char *why = NULL, *again = NULL;
    for (int folder = 0; folder < 2; folder++) {
        mode_t mode = folder ? S_IFDIR : S_IFREG;
        enum vg_verdict v = vg_mpolicy_ask(p, path, mode, &why);
        if (!why || v != vg_mpolicy_ask(p, path, mode, &again) || why != again)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct vg_mpolicy *p;
    struct vg_err err = VG_ERR_INIT;
    if (vg_mpolicy_new("/home/u", &p) < 0)
        abort();
    int r = vg_mpolicy_ignore(p, "/home/u/p", (const char *)data, size, &err);
    if (r < 0 && (r != -EINVAL || !strstr(err.msg, ".virgaignore, line")))
        abort();
    char path[512] = "/home/u/p/";
    size_t n = size < 256 ? size : 256;
    const uint8_t *tail = data + size - n;
    for (size_t i = 0; i < n; i++)
        path[10 + i] = (char)(tail[i] == '\n' || tail[i] == 0 ? '/' : tail[i]);
    ask(p, path);
    ask(p, "/home/u/p/src/main.o");
    ask(p, "/home/u/p/a/b/c/d");
    vg_mpolicy_free(p);
    return 0;
}

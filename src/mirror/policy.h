#pragma once
/* Which of the client's files may be read from a node. Pure: decides by path and stat. */
#include "base/err.h"
#include "mirror/stamp.h"

enum vg_verdict {
    VG_SERVE,
    VG_DENY,   /* name and stat are seen, content is refused */
    VG_SECRET, /* would be denied, but was allowed by hand: memory only */
    VG_IGNORE, /* a .virgaignore names it: as if it did not exist */
    VG_EMPTY,  /* a folder shown without its content: /proc, /sys, ... */
};
struct vg_policy;
/* home: the user's, for rules below ~. */
int vg_policy_new(const char *home, struct vg_policy **ret);
void vg_policy_free(struct vg_policy *p);
/* --allow PATH, absolute: that file, or all below that folder. */
int vg_policy_allow(struct vg_policy *p, const char *path);
/* Rules of a .virgaignore (gitignore's language) that lies in `folder`; replaces earlier ones of
   it. A bad line: -EINVAL, err names the line; the others hold. */
int vg_policy_ignore(struct vg_policy *p, const char *folder, const char *text, size_t n,
                     struct vg_err *err);
/* `path` absolute and clean. *ret_why (may be NULL): the rule in words, static or of the policy. */
enum vg_verdict vg_policy_ask(const struct vg_policy *p, const char *path, mode_t mode,
                              const char **ret_why);

#pragma once
/* Which of the client's files may be read from a node. Pure: decides by path and stat. The rules
   are the table policy.tbl, which explains itself. */
#include "base/err.h"
#include "mirror/stamp.h"

enum vg_verdict {
    VG_SERVE,
    VG_DENY,   /* name and stat are seen; content, of a folder its record, is refused */
    VG_SECRET, /* would be denied, but was allowed by hand: memory only */
    VG_IGNORE, /* a .virgaignore names it: as if it did not exist */
    VG_EMPTY,  /* a folder shown without its content: /proc, /sys, ... Also what lies below those
                  of the kernel; but not below /tmp, where a project may be */
};
struct vg_mpolicy;
/* home: the user's, for rules below ~; absolute. */
int vg_mpolicy_new(const char *home, struct vg_mpolicy **ret);
void vg_mpolicy_free(struct vg_mpolicy *p);
/* --allow PATH, absolute: that file, or all below that folder. -EINVAL: not absolute or not clean.
 */
int vg_mpolicy_allow(struct vg_mpolicy *p, const char *path);
/* Takes one allow() of that path back; others of it stay. */
void vg_mpolicy_disallow(struct vg_mpolicy *p, const char *path);
/* As the rules for Virga's own files, for another place: $VIRGA_HOME. */
int vg_mpolicy_deny(struct vg_mpolicy *p, const char *path);
/* The root of a project or of a --writable folder: names that merely look like private keys are
   served in it. A project that is the home folder or above it changes nothing. */
int vg_mpolicy_project(struct vg_mpolicy *p, const char *path);
/* Rules of a .virgaignore (gitignore's language) that lies in `folder`; replaces earlier ones of
   it, an empty text removes them. A bad line: -EINVAL, err names the first; the others hold. */
int vg_mpolicy_ignore(struct vg_mpolicy *p, const char *folder, const char *text, size_t n,
                      struct vg_err *err);
/* `path` absolute and clean. *ret_why (may be NULL): the rule in words, static or of the policy. */
enum vg_verdict vg_mpolicy_ask(const struct vg_mpolicy *p, const char *path, mode_t mode,
                               const char **ret_why);
/* The table, for people: "deny" and "PATTERN: words". False behind the last rule. */
bool vg_mpolicy_rule(size_t i, const char **ret_kind, const char **ret_why);

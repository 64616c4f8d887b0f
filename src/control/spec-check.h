#pragma once
/* What a client may ask for, before anything is done with it. Pure. */
#include "base/err.h"
#include "proto/virga.pb-c.h"

#define VG_SPEC_ARGS_MAX (8u << 20) /* bytes of argv and environment */
#define VG_SPEC_STRINGS_MAX 131072  /* of both */
#define VG_SPEC_LABELS_MAX 64
#define VG_SPEC_RETRIES_MAX 100
#define VG_SPEC_RLIMITS_MAX 16
#define VG_SPEC_TERMIOS_MAX 256
#define VG_SPEC_MEMBERS_MAX 1000000 /* of one group */
#define VG_SPEC_SWEEPS_MAX 16       /* variables */
#define VG_SPEC_AFTER_MAX 1000
#define VG_SPEC_KEY_MAX 128
#define VG_SPEC_POOLS_MAX 16
#define VG_SPEC_VIEWS_MAX 12 /* folders that are written back */
#define VG_SPEC_GROUPS_MAX 1024
#define VG_SPEC_SECRETS_MAX 64
#define VG_SPEC_REF_MAX 512 /* bytes of an environment's or image's name */
#define VG_MACHINE_BYTES 16
#define VG_SPEC_BACKOFF_MAX_USEC (7 * 86400 * 1000000ULL)

/* 0, or INVALID and so on with a sentence. */
int vg_spec_check(const Vg__Pb__TaskSpec *spec, struct vg_err *err);
/* The same of what a file service says for a task. */
int vg_spec_check_mirror(const Vg__Pb__MirrorSpec *m, struct vg_err *err);

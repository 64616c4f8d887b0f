#pragma once
/* Container Device Interface specifications (/etc/cdi, /var/run/cdi), where an administrator or
   NVIDIA's toolkit wrote one: which files, device nodes and variables a program needs to use a
   card. JSON is read as the YAML that it is. Hooks are not run: what they do (links beside
   libraries, the loader's cache) is done here in our own way. Any thread. */
#include "base/err.h"

#include <stddef.h>

#define VG_CDI_BYTES_MAX (4u << 20)
#define VG_CDI_LIST_MAX 1024 /* entries of one kind, of one specification */

struct vg_cdi_list {
    char **item; /* owned */
    size_t n, cap;
};
int vg_cdi_list_add(struct vg_cdi_list *l, const char *text); /* 0, or -ENOMEM, -E2BIG */
void vg_cdi_list_done(struct vg_cdi_list *l);

/* What is to be changed for a program that uses the device. */
struct vg_cdi_edits {
    struct vg_cdi_list nodes;  /* paths below /dev */
    struct vg_cdi_list mounts; /* files of this machine */
    struct vg_cdi_list env;    /* KEY=VALUE */
    size_t hooks;              /* that were left out */
};

struct vg_cdi_device {
    char *name; /* owned */
    struct vg_cdi_edits edits;
};

struct vg_cdi {
    char *kind;                 /* owned: "nvidia.com/gpu" */
    struct vg_cdi_edits common; /* for whichever device is used */
    struct vg_cdi_device *device;
    size_t n_devices, cap_devices;
};

/* Adds one specification to *c (which begins zeroed). -EINVAL with a sentence: not one; -ENOMEM. */
int vg_cdi_parse(struct vg_cdi *c, const char *text, size_t len, struct vg_err *err);
/* Every specification of NVIDIA's GPUs below `root`; files that are none are named in `err` and
   left out. Returns how many were read, or -ENOMEM. */
int vg_cdi_load(const char *root, struct vg_cdi *ret, struct vg_err *err);
void vg_cdi_done(struct vg_cdi *c);

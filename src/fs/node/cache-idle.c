/* Room on a node's disk beyond one user's cache: those of users who have no daemon now are trimmed
   by whoever notices that the disk gets full. Daemons that run see to their own. */
#include "fs/node/cache-int.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <dirent.h>
#include <sys/statvfs.h>

bool vg_cache_disk_low(const char *dir) {
    struct statvfs v;
    if (statvfs(dir, &v) < 0)
        return false;
    uint64_t disk = (uint64_t)v.f_blocks * v.f_frsize;
    return (uint64_t)v.f_bavail * v.f_frsize < VG_MIN(disk / 20, VG_KEEP_FREE_MAX);
}

static void trim_one(const char *dir) {
    struct vg_cache_conf conf = {.dir = dir, .inline_work = true};
    struct vg_cache *c;
    struct vg_err err = VG_ERR_INIT;
    if (vg_cache_open(&conf, &c, &err) < 0) {
        vg_debug("cache: not trimmed: %s", err.msg); /* its daemon runs */
        return;
    }
    vg_cache_work(c);
    vg_cache_close(c);
}

void vg_cache_trim_idle(const char *fs_dir) {
    DIR *d = opendir(fs_dir);
    for (struct dirent *e; d && (e = readdir(d)) && vg_cache_disk_low(fs_dir);) {
        uint64_t slot;
        if (vg_parse_u64(e->d_name, &slot) < 0)
            continue;
        vg_auto_free char *dir = vg_fmt("%s/%s/cache", fs_dir, e->d_name);
        if (dir && access(dir, F_OK) == 0)
            trim_one(dir);
    }
    if (d)
        closedir(d);
}

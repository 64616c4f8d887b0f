/* Holding a task: its channel groups get no turns of the card's time, so that a share can be a
   ceiling, too. What they have queued waits; nothing is lost. One thread, as in warden.c.

   Only groups that their task has scheduled are stopped and started: the others are not ready. The
   task can schedule a group at any moment; while there is a ceiling that call is made in its stead,
   so that the group is stopped again before the task hears of it. */
#include "base/cleanup.h"
#include "gpu/warden-int.h"

#include <errno.h>

#define COMMAND(form, number) \
    (3u << 30 | (uint32_t)sizeof(form) << 16 | VG_RM_TYPE << 8 | (uint32_t)(number))

static void give_turns(struct vg_warden *w, const struct vg_wobject *o, bool enable) {
    struct vg_rm_schedule s = {.enable = enable};
    struct vg_rm_control c = {.client = o->client->handle,
                              .object = o->handle,
                              .command = VG_RM_SCHEDULE_GROUP,
                              .params = (uint64_t)(uintptr_t)&s,
                              .params_bytes = sizeof(s)};
    int64_t r =
        w->ops.issue(w->ops.ud, o->client->process, o->client->fd, COMMAND(c, VG_RM_CONTROL), &c);
    if (!enable && (r < 0 || c.status != VG_RM_OK))
        w->stat.unheld++;
}

static void give_all_turns(struct vg_warden *w, bool enable) {
    for (struct vg_map_slot *s = NULL; (s = vg_map_next(&w->objects, s));) {
        const struct vg_wobject *o = s->value;
        if (o->class_id == VG_RM_CLASS_CHANNEL_GROUP && o->scheduled && o->client->fd >= 0)
            give_turns(w, o, enable);
    }
}

void vg_warden_hold(struct vg_warden *w, bool hold) {
    if (w->held == hold || (hold && !w->ceiling))
        return;
    w->held = hold;
    give_all_turns(w, !hold);
}

void vg_warden_ceiling(struct vg_warden *w, bool on) {
    w->ceiling = on;
    if (!on)
        vg_warden_hold(w, false);
}

/* A group by its own name, or by one of its channels'. */
static struct vg_wobject *group_of(struct vg_warden *w, const struct vg_rm_control *c) {
    struct vg_wobject *o = vg_wbooks_object(w, c->client, c->object);
    while (o && o->class_id != VG_RM_CLASS_CHANNEL_GROUP)
        o = o->parent;
    return o;
}

struct vg_warden_answer vg_whold_schedule(struct vg_warden *w, const struct vg_warden_call *k,
                                          struct vg_rm_control *c) {
    struct vg_rm_schedule s;
    uint64_t params = c->params;
    struct vg_wobject *o = group_of(w, c);
    if (c->params_bytes != sizeof(s) || /* the driver will say so itself */
        w->ops.read(k->caller, params, &s, sizeof(s)) != (int64_t)sizeof(s))
        return (struct vg_warden_answer){.let = !w->ceiling, .error = w->ceiling ? -EINVAL : 0};
    if (o && c->command == VG_RM_SCHEDULE_GROUP)
        o->scheduled = s.enable;
    if (!w->ceiling)
        return (struct vg_warden_answer){.let = true};
    int fd = w->ops.borrow(k->caller, k->fd);
    if (fd < 0)
        return (struct vg_warden_answer){.error = fd};
    c->params = (uint64_t)(uintptr_t)&s;
    int64_t r = w->ops.issue(w->ops.ud, k->process, fd, k->cmd, c);
    w->ops.close(w->ops.ud, fd);
    c->params = params;
    if (r >= 0 && w->held && o && o->client->fd >= 0)
        give_turns(w, o, false);
    (void)w->ops.write(k->caller, k->arg, c, sizeof(*c));
    return (struct vg_warden_answer){.error = r < 0 ? (int)r : 0, .value = r < 0 ? 0 : r};
}

bool vg_warden_window_at(struct vg_warden_window w, uint64_t now_usec, uint64_t *ret_left_usec) {
    const uint64_t period = VG_WARDEN_PERIOD_USEC;
    uint64_t at = (now_usec % period + period - w.from_usec % period) % period;
    bool held = w.for_usec && at >= w.for_usec;
    *ret_left_usec = !w.for_usec || w.for_usec >= period ? period
                     : held                              ? period - at
                                                         : w.for_usec - at;
    return held;
}

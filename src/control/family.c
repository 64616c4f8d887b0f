/* Groups and parents: counting, ending, restoring. */
#include "control/family.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/persist.h"
#include "control/place.h"

#include <stdio.h>
#include <string.h>

int vg_job_need_head(struct vg_job *j) {
    if (j->head)
        return 0;
    j->head = vg_alloc(sizeof *j->head);
    if (!j->head)
        return -ENOMEM;
    vg_list_init(&j->head->under);
    vg_list_init(&j->head->waiting);
    return 0;
}

/* Without counting: the caller knows what the counters say already. */
static int link_under(struct vg_job *head, struct vg_job *j) {
    if (vg_job_need_head(head) < 0 || vg_task_need_progress(head->task) < 0)
        return -ENOMEM;
    vg_list_push_back(&head->head->under, &j->sibling);
    j->above = head;
    return 0;
}

int vg_family_join(struct vg_job *j) {
    struct vg_job *head = vg_job_get(j->ctl, vg_task_fold(j->task));
    if (!head || head == j || j->above)
        return 0;
    int r = link_under(head, j);
    if (r >= 0)
        vg_family_count(j);
    return r;
}

void vg_family_leave(struct vg_job *j) {
    vg_list_remove(&j->sibling);
    j->above = NULL;
    if (!j->head)
        return;
    vg_list_for_each_safe (it, &j->head->under) {
        struct vg_job *m = vg_list_entry(it, struct vg_job, sibling);
        vg_list_remove(&m->sibling);
        m->above = NULL;
    }
    free(vg_take_ptr(j->head));
}

bool vg_family_open(const struct vg_job *j) {
    return j->head && j->task->progress && vg_progress_open(j->task->progress) > 0;
}

void vg_family_count(struct vg_job *j) {
    struct vg_job *head = j->above;
    const struct vg_task *t = j->task;
    if (!head || j->counted == t->state)
        return;
    vg_progress_move(head->task->progress, j->counted, t->state);
    j->counted = t->state;
    if (!vg_task_is_ended(t))
        return;
    /* Who was only stopped with its gang does not speak for it. */
    if (t->group && !(t->spec->gang && t->state == VG_TASK_CANCELLED))
        vg_progress_status(head->task->progress, t->index, t->status);
    /* The store writes in order: when it has this end, it has the parent's last count, too. */
    else if (!t->group && vg_task_is_ended(head->task) && !vg_family_open(head))
        vg_persist_write(head);
}

/* One sentence for a group that did not succeed. */
static void group_words(const struct vg_task *g, char *out, size_t n) {
    const struct vg_progress *p = g->progress;
    out[0] = '\0';
    if (g->cancel)
        snprintf(out, n, "%s", g->reason_text ? g->reason_text : "cancelled");
    else if (p->n[VG_TASK_FAILED] && p->bad_index != VG_PROGRESS_NONE)
        snprintf(out, n, "%u of %u failed; the first in their order is %u, with status %d",
                 p->n[VG_TASK_FAILED], g->members, p->bad_index, p->bad_status);
    else if (p->n[VG_TASK_CANCELLED])
        snprintf(out, n, "%u of %u were cancelled", p->n[VG_TASK_CANCELLED], g->members);
}

static void group_follows(struct vg_job *g) {
    struct vg_task *t = g->task;
    enum vg_task_state to = vg_progress_state(t->progress, t->state);
    char why[256];
    if (vg_task_is_ended(t) || to == t->state)
        return;
    if (vg_task_state_final(to)) {
        group_words(t, why, sizeof why);
        vg_job_end(g, 0, VG_OK, why[0] ? why : NULL);
        return;
    }
    vg_auto_free char *text = vg_strdup(t->reason_text);
    if (vg_task_move(t, to, vg_wall_usec(), text) < 0)
        return;
    if (to == VG_TASK_RUNNING)
        vg_job_event(g, VG__PB__RUN_EVENT__KIND__STARTED, NULL);
    vg_job_changed(g);
}

void vg_family_settle(struct vg_job *j) {
    struct vg_job *head = j->above;
    if (!head)
        return;
    vg_persist_news(head);
    if (vg_task_is_group(head->task))
        group_follows(head);
    else if (head->lingering && !vg_family_open(head))
        vg_job_free(head);
}

void vg_family_cancel(struct vg_job *j, uint64_t grace_usec, const char *why) {
    struct vg_control *c = j->ctl;
    bool placing = c->placing;
    if (!j->head)
        return;
    c->placing = true; /* what one sets free is for nobody under the same head */
    vg_list_for_each_safe (it, &j->head->under) {
        struct vg_job *m = vg_list_entry(it, struct vg_job, sibling);
        if (vg_task_is_ended(m->task))
            vg_family_cancel(m, grace_usec, why);
        else
            vg_job_cancel(m, grace_usec, why);
    }
    c->placing = placing;
    if (!placing)
        vg_place_all(c);
}

/* ------------------------------------------------------------------ members */

static struct vg_job *make_member(struct vg_job *group, uint32_t index) {
    struct vg_task *t = vg_task_new_member(group->task, index);
    struct vg_job *j = t ? vg_job_new(group->ctl, t) : NULL;
    if (!j) {
        vg_task_free(t);
        return NULL;
    }
    j->session = group->session;
    j->counted = t->state; /* the group counts all of them from its beginning */
    if (link_under(group, j) < 0) {
        vg_job_free(j);
        return NULL;
    }
    return j;
}

int vg_group_make(struct vg_job *group) {
    struct vg_progress *p = group->task->progress;
    for (uint32_t i = 0; i < group->task->members; i++)
        if (!make_member(group, i)) {
            /* Those that cannot be had are over. */
            p->n[VG_TASK_CANCELLED] += group->task->members - i;
            p->n[group->task->state] -= group->task->members - i;
            return -ENOMEM;
        }
    return 0;
}

/* ------------------------------------------------------------------ restoring */

struct restoring {
    struct vg_progress *progress;
    uint8_t *have; /* a bit for each index that has ended */
    uint32_t members;
    bool gang;
};

static int count_ended(void *arg, const struct vg_task_row *row) {
    struct restoring *r = arg;
    enum vg_task_state s;
    if (vg_task_state_parse(row->state, &s) < 0)
        return 0;
    vg_progress_move(r->progress, VG_TASK_STATES, s);
    if (r->have && row->index < r->members) {
        if (!r->gang || s != VG_TASK_CANCELLED)
            vg_progress_status(r->progress, row->index, row->status);
        r->have[row->index / 8] |= (uint8_t)(1 << row->index % 8);
    }
    return 0;
}

/* The counters of a head from the rows that have ended; what is in memory is counted as it joins.
 */
static int recount(struct vg_job *head, uint8_t *have) {
    if (vg_task_need_progress(head->task) < 0)
        return -ENOMEM;
    *head->task->progress = VG_PROGRESS_INIT;
    struct restoring r = {head->task->progress, have, head->task->members, head->task->spec->gang};
    return vg_store_load_folded(head->ctl->store, head->task->id, count_ended, &r);
}

/* Members that nothing has happened to yet have no row: they are made as they were at first. */
static int restore_members(struct vg_job *group, const uint8_t *have) {
    for (uint32_t i = 0; i < group->task->members; i++) {
        if (have[i / 8] >> i % 8 & 1 ||
            vg_job_get(group->ctl, vg_task_member_id(group->task->id, i)))
            continue;
        struct vg_job *j = make_member(group, i);
        if (!j)
            return -ENOMEM;
        vg_progress_move(group->task->progress, VG_TASK_STATES, j->task->state);
        j->loaded = true;
        j->held = j->task->state == VG_TASK_QUEUED;
    }
    return 0;
}

static int restore_group(struct vg_job *group) {
    vg_auto_free uint8_t *have = vg_alloc(group->task->members / 8 + 1);
    int r = have ? recount(group, have) : -ENOMEM;
    return r < 0 ? r : restore_members(group, have);
}

/* The parent of an open child: in memory, or read because it is needed for counting. */
static int restore_parent(struct vg_control *c, uint64_t id) {
    struct vg_job *head = vg_job_get(c, id);
    struct vg_task *t = NULL;
    if (!head) {
        int r = vg_persist_get(c, id, &t);
        if (r < 0)
            return r == -ENOENT || r == -EBADMSG ? 0 : r; /* long forgotten */
        head = vg_job_new(c, t);
        if (!head) {
            vg_task_free(t);
            return -ENOMEM;
        }
        head->stored = head->loaded = head->ending = head->lingering = true;
    }
    if (head->head)
        return 0;
    int r = vg_job_need_head(head);
    return r < 0 ? r : recount(head, NULL);
}

/* All ids first: making jobs changes the map. */
static uint64_t *all_ids(struct vg_control *c, size_t *ret_n) {
    uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    *ret_n = 0;
    if (ids)
        vg_map_for_each (s, &c->jobs)
            ids[(*ret_n)++] = ((struct vg_job *)s->value)->task->id;
    return ids;
}

int vg_family_restore(struct vg_control *c) {
    size_t n;
    int r = 0;
    vg_auto_free uint64_t *ids = all_ids(c, &n);
    if (!ids)
        return -ENOMEM;
    for (size_t i = 0; i < n && r >= 0; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        if (vg_task_is_group(j->task))
            r = restore_group(j);
        if (r >= 0 && !j->task->group && j->task->spec->parent)
            r = restore_parent(c, j->task->spec->parent);
    }
    for (size_t i = 0; i < n && r >= 0; i++)
        r = vg_family_join(vg_job_get(c, ids[i]));
    for (size_t i = 0; i < n && r >= 0; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        if (j && vg_task_is_group(j->task))
            group_follows(j); /* its last member's end may be all that was stored */
    }
    return r;
}

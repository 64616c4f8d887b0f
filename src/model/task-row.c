/* A task as the store keeps it. The three messages are packed one behind the other into one piece
   of memory that the row borrows. Pure. */
#include "model/task-row.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

/* "0,3", and of a share " share MILLI BYTES CLASS soft|hard SINCE HELD" after it. */
static void format_gpus(const struct vg_task *t, char *out, size_t n) {
    const struct vg_share *s = &t->share;
    size_t at = 0;
    out[0] = 0;
    for (unsigned i = 0; i < VG_NODE_GPUS_MAX; i++)
        if (t->gpus >> i & 1)
            at += (size_t)snprintf(out + at, n - at, at ? ",%u" : "%u", i);
    if (s->milli)
        snprintf(out + at, n - at, " share %u %llu %s %s %llu %llu", s->milli,
                 (unsigned long long)s->mem_bytes, vg_pool_class_name(s->class),
                 s->hard ? "hard" : "soft", (unsigned long long)s->since_usec,
                 (unsigned long long)s->held);
}

static int parse_share(const char *s, struct vg_share *ret) {
    unsigned long long bytes, since, held;
    unsigned milli;
    char class[16], hard[5];
    enum vg_pool_class c;
    if (sscanf(s, " share %u %llu %15s %4s %llu %llu", &milli, &bytes, class, hard, &since,
               &held) != 6 ||
        !milli || milli > 999 || vg_pool_class_parse(class, &c) < 0)
        return -EBADMSG;
    *ret = (struct vg_share){.milli = milli,
                             .mem_bytes = bytes,
                             .hard = strcmp(hard, "hard") == 0,
                             .class = c,
                             .since_usec = since,
                             .held = held};
    return 0;
}

static int parse_gpus(const char *s, struct vg_task *t) {
    uint64_t set = 0;
    while (s && *s && *s != ' ') {
        char *end;
        unsigned long i = strtoul(s, &end, 10);
        if (end == s || i >= VG_NODE_GPUS_MAX || (*end && *end != ',' && *end != ' '))
            return -EBADMSG;
        set |= 1ULL << i;
        s = *end == ',' ? end + 1 : end;
    }
    t->gpus = set;
    return s && *s ? parse_share(s, &t->share) : 0;
}

static size_t labels_len(const Vg__Pb__TaskSpec *spec) {
    size_t n = 1;
    for (size_t i = 0; i < spec->n_label; i++)
        n += strlen(spec->label[i]) + 1;
    return n;
}

/* "k=v\n" for each label. Returns the end. */
static char *put_labels(const Vg__Pb__TaskSpec *spec, char *out) {
    for (size_t i = 0; i < spec->n_label; i++) {
        size_t n = strlen(spec->label[i]);
        memcpy(out, spec->label[i], n);
        out[n] = '\n';
        out += n + 1;
    }
    *out = 0;
    return out + 1;
}

#define COMMAND_MAX 512 /* enough to find a task by */

static size_t command_len(const Vg__Pb__TaskSpec *spec) {
    size_t n = 0;
    for (size_t i = 0; i < spec->n_argv && n < COMMAND_MAX; i++)
        n += spec->argv[i].len + 1;
    return VG_MIN(n, (size_t)COMMAND_MAX);
}

static void put_command(const Vg__Pb__TaskSpec *spec, char *out, size_t room) {
    for (size_t i = 0; i < spec->n_argv && room; i++) {
        size_t n = VG_MIN(spec->argv[i].len, room);
        memcpy(out, spec->argv[i].data, n);
        out += n;
        room -= n;
        if (room) {
            *out++ = ' ';
            room--;
        }
    }
}

static size_t after_len(const struct vg_task *t) {
    return t->n_after * (VG_ID_LEN + 2) + 1;
}

/* "s0123456789abcdef " for each; the letter is the first of any, success, failure. */
static char *put_after(const struct vg_task *t, char *out) {
    for (uint32_t i = 0; i < t->n_after; i++) {
        enum vg_after_when w = t->after[i].when;
        *out++ = w == VG_AFTER_SUCCESS ? 's' : w == VG_AFTER_FAILURE ? 'f' : 'a';
        vg_id_format(t->after[i].id, out);
        out += VG_ID_LEN;
        *out++ = ' ';
    }
    *out = 0;
    return out + 1;
}

static int parse_after(const char *s, struct vg_task *t) {
    for (; s && *s; s += VG_ID_LEN + 2) {
        char id[VG_ID_LEN + 1];
        uint64_t n;
        if (strnlen(s, VG_ID_LEN + 2) < VG_ID_LEN + 2 || !strchr("asf", s[0]))
            return -EBADMSG;
        memcpy(id, s + 1, VG_ID_LEN);
        id[VG_ID_LEN] = 0;
        if (vg_id_parse(id, &n) < 0)
            return -EBADMSG;
        int r = vg_task_add_after(t, n,
                                  s[0] == 's'   ? VG_AFTER_SUCCESS
                                  : s[0] == 'f' ? VG_AFTER_FAILURE
                                                : VG_AFTER_ANY);
        if (r < 0)
            return r;
    }
    return 0;
}

static int pack(const struct vg_task *t, bool whole, struct vg_task_pack *p,
                struct vg_task_row *r) {
    Vg__Pb__Resources grant = vg_res_to_pb(t->grant);
    size_t n_labels = labels_len(t->spec);
    size_t n_spec = whole ? vg__pb__task_spec__get_packed_size(t->spec) : 0;
    size_t n_who = whole && t->who ? vg__pb__identity__get_packed_size(t->who) : 0;
    size_t n_grant = whole ? vg__pb__resources__get_packed_size(&grant) : 0;
    size_t n_command = whole ? command_len(t->spec) : 0;
    char *at = p->data = vg_alloc(n_labels + after_len(t) + n_spec + n_who + n_grant + n_command);
    if (!at)
        return -ENOMEM;
    r->labels = at;
    at = put_labels(t->spec, at);
    r->after = at;
    at = put_after(t, at);
    if (!whole)
        return 0;
    r->spec = (struct vg_bytes){at, n_spec};
    at += vg__pb__task_spec__pack(t->spec, (uint8_t *)at);
    r->who = (struct vg_bytes){at, n_who};
    if (n_who)
        at += vg__pb__identity__pack(t->who, (uint8_t *)at);
    r->grant = (struct vg_bytes){at, n_grant};
    at += vg__pb__resources__pack(&grant, (uint8_t *)at);
    r->command = (struct vg_bytes){at, n_command};
    put_command(t->spec, at, n_command);
    return 0;
}

int vg_task_to_row(const struct vg_task *t, bool whole, struct vg_task_pack *p,
                   struct vg_task_row *ret) {
    struct vg_task_row r = {
        .id = t->id,
        .user = t->user,
        .team = t->team,
        .pool = vg_task_pool(t),
        .name = vg_task_name(t),
        .session = t->spec->session,
        .state = vg_task_state_name(t->state),
        .ended = vg_task_is_ended(t),
        .durable = t->durable,
        .cancel = t->cancel,
        .interactive = t->spec->interactive,
        .attempt = t->attempt.number,
        .node = t->last_node,
        .retries_left = t->retries_left,
        .status = t->status,
        .reason = t->reason,
        .reason_text = t->reason_text,
        .created_usec = t->created_usec,
        .started_usec = t->started_usec,
        .ended_usec = t->ended_usec,
        .parent = t->spec->parent,
        .cpu_usec = t->cpu_usec,
        .mem_peak_bytes = t->mem_peak_bytes,
        .out_bytes = t->out_bytes,
        .gpus = p->gpus,
        .group = t->group,
        .fold = vg_task_fold(t),
        .index = t->index,
        .members = t->members,
        .preempted = t->preempted,
        .preempting = t->preempting,
        .due_usec = t->due_usec,
        .key = t->group ? NULL : t->spec->key,
        .progress = p->progress,
        .insert = whole,
    };
    format_gpus(t, p->gpus, sizeof p->gpus);
    if (t->progress)
        vg_progress_format(t->progress, p->progress);
    int e = pack(t, whole && !t->group, p, &r);
    if (e < 0)
        return e;
    *ret = r;
    return 0;
}

void vg_task_pack_done(struct vg_task_pack *p) {
    free(p->data);
    *p = (struct vg_task_pack){0};
}

/* The attempt follows from the state: the row does not hold it twice. */
static int restore_state(struct vg_task *t, const struct vg_task_row *row) {
    if (vg_task_state_parse(row->state, &t->state) < 0 || parse_gpus(row->gpus, t) < 0)
        return -EBADMSG;
    bool placed = !row->members && (t->state == VG_TASK_STARTING || t->state == VG_TASK_RUNNING);
    t->attempt = (struct vg_attempt){
        .number = row->attempt,
        .node = placed ? row->node : 0,
        .state = row->members                   ? VG_ATTEMPT_NONE
                 : t->state == VG_TASK_STARTING ? VG_ATTEMPT_STARTING
                 : t->state == VG_TASK_RUNNING  ? VG_ATTEMPT_RUNNING
                 : !row->attempt                ? VG_ATTEMPT_NONE
                 : t->state == VG_TASK_QUEUED   ? VG_ATTEMPT_LOST
                                                : VG_ATTEMPT_ENDED,
    };
    t->last_node = row->node;
    return 0;
}

static int restore_messages(struct vg_task *t, const struct vg_task_row *row) {
    if (row->group)
        return 0; /* its group has them */
    if (row->who.len) {
        vg_task_set_who(t, vg__pb__identity__unpack(NULL, row->who.len, row->who.data));
        if (!t->who)
            return -EBADMSG;
    }
    if (row->grant.len) {
        Vg__Pb__Resources *g = vg__pb__resources__unpack(NULL, row->grant.len, row->grant.data);
        if (!g)
            return -EBADMSG;
        t->grant = vg_res_from_pb(g);
        vg__pb__resources__free_unpacked(g, NULL);
    }
    return 0;
}

static int restore_batch(struct vg_task *t, const struct vg_task_row *row) {
    t->members = row->members;
    t->preempted = row->preempted;
    t->preempting = row->preempting;
    t->due_usec = row->due_usec;
    if (row->progress && *row->progress) {
        int r = vg_task_need_progress(t);
        return r < 0 ? r : vg_progress_parse(row->progress, t->progress);
    }
    return 0;
}

static void restore_rest(struct vg_task *t, const struct vg_task_row *row) {
    t->retries_left = row->retries_left;
    t->status = row->status;
    t->reason = row->reason ? vg_reason_from_wire(row->reason) : VG_OK;
    t->reason_text = row->reason_text && *row->reason_text ? vg_strdup(row->reason_text) : NULL;
    t->started_usec = row->started_usec;
    t->ended_usec = row->ended_usec;
    t->cpu_usec = row->cpu_usec;
    t->mem_peak_bytes = row->mem_peak_bytes;
    t->out_bytes = row->out_bytes;
    t->durable = row->durable;
    t->cancel = row->cancel;
    vg_task_set_pool(t, row->pool);
}

static struct vg_task *new_from(const struct vg_task_row *row, int *ret_error) {
    Vg__Pb__TaskSpec *spec = vg__pb__task_spec__unpack(NULL, row->spec.len, row->spec.data);
    *ret_error = spec ? -ENOMEM : -EBADMSG;
    struct vg_task *t =
        spec ? vg_task_new(row->id, row->user ? row->user : "", row->team ? row->team : "", spec,
                           false, row->created_usec)
             : NULL;
    if (!t && spec)
        vg__pb__task_spec__free_unpacked(spec, NULL);
    return t;
}

int vg_task_from_row(const struct vg_task_row *row, const struct vg_task *group,
                     struct vg_task **ret) {
    int r = -ENOMEM;
    if (row->group && (!group || group->id != row->group))
        return -EBADMSG;
    struct vg_task *t = row->group ? vg_task_new_member(group, row->index) : new_from(row, &r);
    if (!t)
        return r;
    r = t->id == row->id ? restore_state(t, row) : -EBADMSG;
    if (r == 0)
        r = restore_messages(t, row);
    if (r == 0)
        r = restore_batch(t, row);
    if (r == 0)
        r = parse_after(row->after, t);
    restore_rest(t, row);
    if (r == 0 && vg_task_check(t))
        r = -EBADMSG;
    if (r < 0) {
        vg_task_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

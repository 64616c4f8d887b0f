/* What the first message to a control plane says of the tasks and sessions that live here. Loop
   thread. */
#include "agent/agent-int.h"

#include "base/mem.h"

#include <stdlib.h>

/* Bytes of Starts in one AgentHello; the rest goes without. */
#define REPORT_STARTS_MAX (12u << 20)

static Vg__Pb__TaskReport *report_new(const struct vg_agent *a, const struct vg_agent_task *t,
                                      size_t *budget) {
    Vg__Pb__TaskReport *r = vg_alloc(sizeof(*r));
    if (!r)
        return NULL;
    vg__pb__task_report__init(r);
    r->has_task_id = r->has_attempt = r->has_state = true;
    r->task_id = t->id;
    r->attempt = t->attempt;
    bool ended = t->state == VG_AT_EXITED && !vg_bare_holds(a, t->id);
    r->state = ended ? VG__PB__TASK_REPORT__STATE__EXITED
               : t->state == VG_AT_RUNNING || (t->state == VG_AT_EXITED && t->started_usec)
                   ? VG__PB__TASK_REPORT__STATE__RUNNING
                   : VG__PB__TASK_REPORT__STATE__STARTING;
    r->has_started_usec = t->started_usec != 0;
    r->started_usec = t->started_usec;
    r->has_out_begin = r->has_out_end = true;
    r->out_begin = t->out_begin;
    r->out_end = t->out_end;
    r->exited = ended ? t->exited : NULL; /* borrowed */
    if (t->start_bytes <= *budget && (r->start = vg_tasks_read_start(t)))
        *budget -= t->start_bytes;
    return r;
}

static int report_sessions(struct vg_agent *a, Vg__Pb__AgentHello *hello) {
    hello->session = vg_alloc((vg_map_len(&a->sessions) + 1) * sizeof(*hello->session));
    if (!hello->session)
        return -ENOMEM;
    vg_map_for_each (s, &a->sessions) {
        struct vg_agent_keeper *k = s->value;
        Vg__Pb__SessionReport *r = vg_alloc(sizeof(*r));
        if (!r)
            return -ENOMEM;
        vg__pb__session_report__init(r);
        r->key = k->session;
        r->has_tasks = true;
        vg_list_for_each (it, &k->tasks)
            r->tasks++;
        hello->session[hello->n_session++] = r;
    }
    return 0;
}

int vg_tasks_report(struct vg_agent *a, Vg__Pb__AgentHello *hello) {
    size_t budget = REPORT_STARTS_MAX;
    hello->task = vg_alloc((vg_map_len(&a->tasks) + 1) * sizeof(*hello->task));
    if (!hello->task)
        return -ENOMEM;
    vg_map_for_each (s, &a->tasks) {
        Vg__Pb__TaskReport *r = report_new(a, s->value, &budget);
        if (!r)
            return -ENOMEM;
        hello->task[hello->n_task++] = r;
    }
    return report_sessions(a, hello);
}

void vg_tasks_report_done(Vg__Pb__AgentHello *hello) {
    for (size_t i = 0; i < hello->n_task; i++) {
        if (hello->task[i]->start)
            vg__pb__start__free_unpacked(hello->task[i]->start, NULL);
        free(hello->task[i]);
    }
    for (size_t i = 0; i < hello->n_session; i++)
        free(hello->session[i]);
    free(hello->task);
    free(hello->session);
}

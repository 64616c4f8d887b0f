/* Tasks and the queue as JSON. */
#include "view/view-int.h"
#include "view/views.h"

SHOWN(resources, "Resources", resources, PLAIN("cpu_milli"), PLAIN("mem_bytes"), PLAIN("gpus"),
      PLAIN("gpu_milli"), PLAIN("gpu_mem_bytes"), PLAIN("pids"), PLAIN("disk_bytes"));

SHOWN(progress, "Progress", progress, PLAIN("total"), PLAIN("blocked"), PLAIN("queued"),
      PLAIN("running"), PLAIN("succeeded"), PLAIN("failed"), PLAIN("cancelled"),
      PLAIN("expected_end_usec"));

/* Only a member of a group has a place in it. */
static json_t *task_index(const ProtobufCMessage *m) {
    const Vg__Pb__TaskInfo *t = (const Vg__Pb__TaskInfo *)m;
    return t->group ? vg_json_u64(t->index) : json_null();
}

static json_t *task_of(const ProtobufCMessage *m) {
    const Vg__Pb__TaskInfo *t = (const Vg__Pb__TaskInfo *)m;
    return t->group ? vg_json_u64(t->of) : json_null();
}

/* Only where it was asked for. */
static json_t *task_spec(const ProtobufCMessage *m) {
    const Vg__Pb__TaskInfo *t = (const Vg__Pb__TaskInfo *)m;
    return t->spec ? vg_view_json(&vg_view_task_spec, t->spec) : NULL;
}

SHOWN(task, "Task", task_info, ID("id", "id"), PLAIN("name"), PLAIN("state"), MAYBE("status"),
      PLAIN("reason"), PLAIN("argv"), PLAIN("cwd"), PLAIN("user"), PLAIN("team"), PLAIN("pool"),
      PLAIN("node"), PLAIN("session"), PLAIN("attempt"), ID("parent", "parent"),
      PLAIN("interactive"), INSIDE("want", "want", resources), LABELS("labels", "label"),
      PLAIN("created_usec"), PLAIN("started_usec"), PLAIN("ended_usec"), PLAIN("time_limit_usec"),
      PLAIN("out_bytes"), PLAIN("cpu_usec"), PLAIN("mem_peak_bytes"), AS("gpus", "gpu"),
      MAYBE("gpu_hard"), INSIDE("gpu_usage", "gpu_usage", gpu_usage), PLAIN("notice"),
      PLAIN("wiped"), PLAIN("members"), INSIDE("progress", "progress", progress), PLAIN("snapshot"),
      ID("group", "group"), MADE("index", task_index, "{\"type\": [\"integer\", \"null\"]}"),
      MADE("of", task_of, "{\"type\": [\"integer\", \"null\"]}"), PLAIN("gang"), PLAIN("after"),
      PLAIN("priority"), PLAIN("retries_left"), PLAIN("preempted"), FILLED("key"),
      ID("schedule", "schedule"), PLAIN("due_usec"), PLAIN("expected_start_usec"),
      PLAIN("expected_end_usec"), MAYBE("cost_micro"), PLAIN("currency"), AS("secrets", "secret"),
      FILLED("project"), PLAIN("org"),
      {.name = "spec",
       .kind = VG_VIEW_MADE,
       .make = task_spec,
       .schema = "{\"$ref\": \"#/components/schemas/TaskSpec\"}",
       .flags = VG_VIEW_RARE});
SHOWN(tasks, "Tasks", task_list, INSIDE("tasks", "task", task), PLAIN("next"), MAYBE("total"));

/* How many tasks were ended at once. */
SHOWN(cancelled, "Cancelled", task_list, AS("cancelled", "total"));

SHOWN(holder, "Holder", holder, PLAIN("tenant"), PLAIN("tasks"), PLAIN("gpu_milli"),
      PLAIN("until_usec"));
SHOWN(why, "Why", why_info, ID("task", "task_id"), PLAIN("state"), PLAIN("code"), PLAIN("text"),
      PLAIN("ahead"), PLAIN("pool"), PLAIN("node"), INSIDE("holders", "holder", holder),
      PLAIN("expected_start_usec"), PLAIN("expected_run_usec"), PLAIN("basis"), MAYBE("cost_micro"),
      PLAIN("currency"));

SHOWN(queue_row, "QueueRow", queue_row, ID("task", "task_id"), PLAIN("name"), PLAIN("user"),
      PLAIN("team"), PLAIN("pool"), INSIDE("want", "want", resources), PLAIN("priority"),
      PLAIN("members"), PLAIN("created_usec"), PLAIN("expected_start_usec"));
SHOWN(tenant, "Tenant", tenant_row, PLAIN("name"), PLAIN("queued"), PLAIN("running"),
      PLAIN("gpu_milli"), PLAIN("cpu_milli"), PLAIN("quota_gpu_milli"), MAYBE("limit_gpu_milli"),
      PLAIN("weight"), PLAIN("fair_ppm"), PLAIN("share_ppm"), PLAIN("usage_ppm"));
SHOWN(queue, "Queue", queue_info, INSIDE("queue", "row", queue_row), PLAIN("total"),
      INSIDE("tenants", "tenant", tenant));

SHOWN(attempt, "Attempt", attempt_info, PLAIN("attempt"), PLAIN("node"), PLAIN("pool"),
      PLAIN("from_usec"), PLAIN("until_usec"), PLAIN("how"), INSIDE("held", "held", resources),
      INSIDE("gpu_usage", "gpu_usage", gpu_usage), MAYBE("cost_micro"), PLAIN("cpu_usec"),
      PLAIN("mem_peak_bytes"));
SHOWN(attempts, "Attempts", attempt_list, INSIDE("attempts", "attempt", attempt));

SHOWN(series, "Series", series_info, PLAIN("when_usec"), PLAIN("cpu_milli"), PLAIN("mem_bytes"),
      PLAIN("gpu_percent"), PLAIN("gpu_mem_bytes"), PLAIN("power_mw"), PLAIN("read_bytes"),
      PLAIN("write_bytes"), MAYBE("cpu_milli_limit"), MAYBE("mem_bytes_limit"),
      MAYBE("gpu_mem_bytes_limit"));

SHOWN(schedule, "Schedule", schedule_info, ID("id", "id"), PLAIN("name"), PLAIN("user"),
      PLAIN("when"), PLAIN("next_usec"), PLAIN("last_usec"), ID("last_task", "last_task"),
      PLAIN("made"), PLAIN("argv"));
SHOWN(schedules, "Schedules", schedule_list, INSIDE("schedules", "schedule", schedule));

SHOWN(session, "Session", session_info, PLAIN("name"), PLAIN("user"), PLAIN("pool"), PLAIN("node"),
      PLAIN("tasks"), PLAIN("keep_usec"), PLAIN("created_usec"));
SHOWN(sessions, "Sessions", session_list, INSIDE("sessions", "session", session));

/* Prices, costs, budgets and hooks as JSON. */
#include "view/view-int.h"
#include "view/views.h"

SHOWN(price, "Price", price, PLAIN("id"), PLAIN("pool"), AS("class", "class_name"),
      PLAIN("from_usec"), PLAIN("gpu_hour_micro"), PLAIN("cpu_hour_micro"), PLAIN("gib_hour_micro"),
      PLAIN("storage_gib_month_micro"), PLAIN("idle_milli"), PLAIN("preemptible_milli"),
      PLAIN("currency"), PLAIN("who"), PLAIN("set_usec"));
SHOWN(prices, "Prices", price_list, INSIDE("prices", "price", price));

SHOWN(cost_row, "CostRow", cost_row, PLAIN("key"), PLAIN("cost_micro"), PLAIN("gpu_msec"),
      PLAIN("cpu_msec"), PLAIN("mem_gib_msec"), PLAIN("held_msec"), PLAIN("gpu_busy_msec"),
      PLAIN("energy_mj"), PLAIN("co2_mg"), PLAIN("tasks"), PLAIN("idle_cost_micro"),
      PLAIN("storage_gib_msec"), PLAIN("currency"));
SHOWN(cost, "Cost", cost_info, INSIDE("rows", "row", cost_row), INSIDE("total", "total", cost_row),
      PLAIN("currency"), PLAIN("from_usec"), PLAIN("until_usec"), PLAIN("around_clock_micro"),
      PLAIN("around_clock_gpu_milli"), PLAIN("running_micro"), PLAIN("more"),
      INSIDE("other", "other", cost_row));
SHOWN(charge, "Charge", ledger_row, PLAIN("seq"), ID("task", "task_id"), PLAIN("attempt"),
      PLAIN("from_usec"), PLAIN("until_usec"), PLAIN("user"), PLAIN("team"), PLAIN("org"),
      PLAIN("project"), PLAIN("pool"), AS("class", "class_name"), PLAIN("node"), PLAIN("gpu_milli"),
      PLAIN("cpu_milli"), PLAIN("mem_bytes"), PLAIN("price"), PLAIN("cost_micro"), PLAIN("kind"),
      PLAIN("currency"), PLAIN("energy_mj"), PLAIN("gpu_busy_usec"), PLAIN("gpu_unused_usec"),
      PLAIN("preemptible"), LABELS("labels", "label"), PLAIN("text"), PLAIN("who"));
SHOWN(ledger, "Ledger", ledger_list, INSIDE("ledger", "row", charge), PLAIN("next"));

SHOWN(budget_set, "BudgetSet", budget_set, PLAIN("name"), PLAIN("scope"), PLAIN("limit_micro"),
      PLAIN("period"), PLAIN("warn_percent"), PLAIN("policy"), PLAIN("grace_usec"),
      PLAIN("paused"));
SHOWN(budget, "Budget", budget_info, SPREAD("budget", budget_set), PLAIN("spent_micro"),
      PLAIN("rate_micro_hour"), PLAIN("from_usec"), PLAIN("until_usec"), PLAIN("reached_usec"),
      PLAIN("warned_percent"), PLAIN("state"), PLAIN("who"), PLAIN("set_usec"), PLAIN("currency"));
SHOWN(budgets, "Budgets", budget_list, INSIDE("budgets", "budget", budget));

SHOWN(hook_set, "HookSet", hook_set, PLAIN("name"), PLAIN("url"), AS("events", "event"),
      PLAIN("scope"), PLAIN("paused"));
SHOWN(hook, "Hook", hook_info, SPREAD("hook", hook_set), PLAIN("user"), PLAIN("sent"),
      PLAIN("failed"), PLAIN("waiting"), PLAIN("last_error"), PLAIN("last_usec"),
      FILLED("new_secret"));
SHOWN(hooks, "Hooks", hook_list, INSIDE("hooks", "hook", hook));

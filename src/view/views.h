#pragma once
/* Every view. A list's view is what REST answers; `-o json` prints its elements as an array. */
#include "view/view.h"

/* tasks and the queue */
extern struct vg_view vg_view_resources, vg_view_progress, vg_view_task, vg_view_tasks,
    vg_view_holder, vg_view_why, vg_view_queue_row, vg_view_tenant, vg_view_queue, vg_view_attempt,
    vg_view_attempts, vg_view_series, vg_view_schedule, vg_view_schedules, vg_view_session,
    vg_view_sessions;
/* what the cloud is made of */
extern struct vg_view vg_view_pool, vg_view_pools, vg_view_node, vg_view_nodes, vg_view_gpu_usage,
    vg_view_gpu_holder, vg_view_gpu_process, vg_view_gpu, vg_view_gpus, vg_view_status,
    vg_view_environment, vg_view_environments;
/* people */
extern struct vg_view vg_view_me, vg_view_user, vg_view_users, vg_view_team, vg_view_teams,
    vg_view_org, vg_view_orgs, vg_view_token, vg_view_tokens, vg_view_token_new,
    vg_view_audit_entry, vg_view_audit, vg_view_audit_verified, vg_view_login, vg_view_secret,
    vg_view_secrets;
/* money, and telling others */
extern struct vg_view vg_view_price, vg_view_prices, vg_view_cost_row, vg_view_cost, vg_view_charge,
    vg_view_ledger, vg_view_budget_set, vg_view_budget, vg_view_budgets, vg_view_hook_set,
    vg_view_hook, vg_view_hooks;

/* All of them, ended by NULL: schemas and tests walk it. */
extern struct vg_view *const vg_views[];

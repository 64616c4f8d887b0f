#pragma once
/* Between budget.c, which watches, budget-act.c, which does what is due, budget-list.c, which has
   them, and budget-api.c, which answers. */
#include "control/budget.h"

enum scope { SCOPE_CLOUD, SCOPE_ORG, SCOPE_TEAM, SCOPE_USER, SCOPE_PROJECT };
enum policy { POLICY_WARN, POLICY_QUEUE, POLICY_STOP };

struct vg_budget {
    char name[64], scope[80], who[64], currency[16];
    enum scope of;
    const char *target; /* into scope: whose */
    uint64_t limit_micro, grace_usec, set_usec;
    enum vg_period period;
    enum policy policy;
    bool paused;
    uint32_t warn[VG_BUDGET_WARNS_MAX];
    size_t n_warn;
    uint32_t warned_percent;   /* highest that was told ... */
    uint64_t warned_from_usec; /* ... in the period that began then */

    uint64_t from_usec, until_usec; /* the period that runs */
    int64_t closed_micro;           /* what the ledger has of it ... */
    bool counting;                  /* ... but for what is being read */
    uint64_t round;                 /* of its counting */
    int64_t running_micro;          /* at the last look: what runs ... */
    uint64_t rate_micro_hour;       /* ... and what an hour of that costs */
    bool stopping;                  /* what runs was told to end: nothing starts in this period */
    bool holds;                     /* nothing starts */
    bool ahead;                     /* the ledger may have rows of later periods */
    struct vg_budget *same;         /* borrowed; the next of the same scope */
};

struct vg_budgets {
    struct vg_budget **list; /* owned, as each is; in the order of their names */
    size_t n, cap;
    struct vg_timer *timer;
    uint64_t rounds;
    bool looking;
    struct vg_map scopes; /* scope -> its first budget, borrowed */
    bool sorted;          /* that is so */
};

/* budget.c */
bool vg_budget_is_in(const struct vg_budget *b, const char *user, const char *team, const char *org,
                     const char *project);
bool vg_budget_is_of(const struct vg_budget *b, const struct vg_job *j);
uint64_t vg_budget_spent(const struct vg_budget *b);
uint64_t vg_budget_left(const struct vg_budget *b);
/* When the limit is reached at the present rate, in whatever period; UINT64_MAX: never. */
uint64_t vg_budget_when(const struct vg_budget *b, uint64_t now_usec);
/* The period that `now` is in; whether it is another one. */
bool vg_budget_turn(struct vg_budget *b, uint64_t now);
/* When the limit is reached at the present rate; 0: not in this period. */
uint64_t vg_budget_reached(const struct vg_budget *b, uint64_t now_usec);
const char *vg_budget_state(const struct vg_budget *b);

/* budget-act.c */
void vg_budget_warn(struct vg_control *c, struct vg_budget *b); /* levels that are reached */
void vg_budget_cap(struct vg_control *c, struct vg_budget *b, uint64_t now);
/* Those whom no budget holds any more go on. */
void vg_budgets_let_go(struct vg_control *c);

/* budget-list.c */
const char *vg_budget_policy_name(enum policy p);
struct vg_budget *vg_budget_find(struct vg_control *c, const char *name);
/* Reads "team:NAME" and the like into scope, of and target. INVALID with a sentence. */
int vg_budget_read_scope(struct vg_budget *b, const char *scope, struct vg_err *err);
/* Counts anew what the ledger has of its period. 0 or -errno. */
int vg_budget_count(struct vg_control *c, struct vg_budget *b);
/* Takes it in place of one of the same name; counts what was spent in its period. 0 or -ENOMEM. */
int vg_budget_put(struct vg_control *c, struct vg_budget *b);
void vg_budget_drop(struct vg_control *c, const char *name);
int vg_budget_store(struct vg_control *c, const struct vg_budget *b, vg_store_cb *cb, void *arg);

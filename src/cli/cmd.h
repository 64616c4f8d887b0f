#pragma once
/* The command table and what every command needs: its command line, errors, help. A command is one
   row here and one function in a file of its own; help and completion are made from the rows. */
#include "base/err.h"
#include "cli/opt.h"

#include <stdbool.h>
#include <stddef.h>

struct vg_cmd_line;

struct vg_cmd {
    const char *name;
    const char *args;    /* ordinary arguments as usage shows them, "TASK..."; "" for none */
    const char *summary; /* one line; NULL: neither in help nor in completion */
    const struct vg_opt *opts;
    size_t n_opts;
    int (*run)(struct vg_cmd_line *l); /* returns the exit status */
    const struct vg_cmd *subs;         /* a group has these instead of run */
    size_t n_subs;
    int (*raw)(int argc, char **argv); /* parses for itself; argv[0] is the command's name */
};

/* The commands of `virga` itself. Static; not for several threads. */
const struct vg_cmd *vg_commands(size_t *ret_n);

/* -o in a command's table; vg_cmd_next() handles it and sets `json`. */
#define VG_CMD_OUTPUT \
    { "output", 'o', "FORMAT", "table (default) or json", 'o' }

struct vg_cmd_line {
    const struct vg_cmd *cmd;
    char program[64]; /* "virga task list" */
    struct vg_opt_state st;
    bool json;
    char **args; /* ordinary arguments seen so far; borrowed from argv */
    int n_args;
    int exit; /* what to return after vg_cmd_next() gave VG_OPT_ERROR */
};

/* The command's next own option, VG_OPT_END when all is read, or VG_OPT_ERROR when the command
   must return l->exit (the error was said, or help was shown). */
int vg_cmd_next(struct vg_cmd_line *l, const char **ret_arg);
/* Reads a command line that has no options of its own but -o and checks the number of ordinary
   arguments (max < 0: any). False: return l->exit. */
bool vg_cmd_plain(struct vg_cmd_line *l, int min, int max);
/* The check alone. */
bool vg_cmd_args(struct vg_cmd_line *l, int min, int max);

/* "virga: <message>" on stderr; returns the exit status of the reason. */
int vg_cmd_fail(const struct vg_err *err);
int vg_cmd_fail_opt(struct vg_cmd_line *l); /* says l->st.err */
void vg_cmd_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Finds and runs the command in argv[1...]; `subs` and `program` say where we are. */
int vg_cmd_dispatch(const char *program, const struct vg_cmd *subs, size_t n, int argc,
                    char **argv);
void vg_cmd_help(FILE *out, const char *program, const struct vg_cmd *subs, size_t n);

/* Commands and groups, each in its file. */
extern const struct vg_cmd vg_cmd_up, vg_cmd_down, vg_cmd_status, vg_cmd_login, vg_cmd_logout,
    vg_cmd_join, vg_cmd_agent, vg_cmd_task, vg_cmd_pool, vg_cmd_gpu, vg_cmd_node, vg_cmd_session,
    vg_cmd_user, vg_cmd_team, vg_cmd_org, vg_cmd_audit, vg_cmd_token, vg_cmd_completion,
    vg_cmd_queue, vg_cmd_schedule, vg_cmd_config, vg_cmd_mirror, vg_cmd_env, vg_cmd_envd;
/* Money. */
extern const struct vg_cmd vg_cmd_price, vg_cmd_cost, vg_cmd_usage, vg_cmd_budget;
extern const struct vg_cmd vg_cmd_secret, vg_cmd_ssh, vg_cmd_ssh_config, vg_cmd_ssh_proxy;
extern const struct vg_cmd vg_cmd_dashboard;
extern const struct vg_cmd vg_cmd_notebook;
extern const struct vg_cmd vg_cmd_hook;

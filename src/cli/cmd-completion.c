/* `virga completion SHELL`: completion scripts made from the command table, so that they never know
   more or less than the program. Names of tasks, nodes and so on are asked from the cloud while
   typing, through the hidden `virga completion words KIND`. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd.h"
#include "cli/run.h"

#include <string.h>

/* ------------------------------------------------------------------ words from the cloud */

static int on_words(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    char id[VG_ID_LEN + 1];
    (void)user, (void)err;
    if (env->body_case == VG__PB__ENVELOPE__BODY_TASKS)
        for (size_t i = 0; i < env->tasks->n_task; i++) {
            vg_id_format(env->tasks->task[i]->id, id);
            printf("%s\n", id);
        }
    if (env->body_case == VG__PB__ENVELOPE__BODY_POOLS)
        for (size_t i = 0; i < env->pools->n_pool; i++)
            printf("%s\n", env->pools->pool[i]->name);
    if (env->body_case == VG__PB__ENVELOPE__BODY_NODES)
        for (size_t i = 0; i < env->nodes->n_node; i++)
            printf("%s\n", env->nodes->node[i]->name);
    if (env->body_case == VG__PB__ENVELOPE__BODY_SESSIONS)
        for (size_t i = 0; i < env->sessions->n_session; i++)
            printf("%s\n", env->sessions->session[i]->name);
    if (env->body_case == VG__PB__ENVELOPE__BODY_SCHEDULES)
        for (size_t i = 0; i < env->schedules->n_schedule; i++) {
            vg_id_format(env->schedules->schedule[i]->id, id);
            printf("%s\n", id);
        }
    if (env->body_case == VG__PB__ENVELOPE__BODY_SECRETS)
        for (size_t i = 0; i < env->secrets->n_secret; i++)
            printf("%s\n", env->secrets->secret[i]->name);
    if (env->body_case == VG__PB__ENVELOPE__BODY_HOOKS)
        for (size_t i = 0; i < env->hooks->n_hook; i++)
            printf("%s\n", env->hooks->hook[i]->hook->name);
    if (env->body_case == VG__PB__ENVELOPE__BODY_USERS)
        for (size_t i = 0; i < env->users->n_user; i++)
            printf("%s\n", env->users->user[i]->name);
    if (env->body_case == VG__PB__ENVELOPE__BODY_TEAMS)
        for (size_t i = 0; i < env->teams->n_team; i++)
            printf("%s\n", env->teams->team[i]->name);
    if (env->body_case == VG__PB__ENVELOPE__BODY_ORGS)
        for (size_t i = 0; i < env->orgs->n_org; i++)
            printf("%s\n", env->orgs->org[i]->name);
    if (env->body_case == VG__PB__ENVELOPE__BODY_TOKENS)
        for (size_t i = 0; i < env->tokens->n_token; i++)
            printf("%s\n", env->tokens->token[i]->id);
    return 0;
}

/* Says nothing when the cloud does not answer: a completion must not shout. */
static int words(const char *kind) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__Empty none = VG__PB__EMPTY__INIT;
    Vg__Pb__TaskQuery query = VG__PB__TASK_QUERY__INIT;
    Vg__Pb__Envelope req = VG__PB__ENVELOPE__INIT;
    query.has_limit = true;
    query.limit = 50;
    if (strcmp(kind, "TASK") == 0)
        req = vg_request(TASK_LIST, task_list, &query);
    else if (strcmp(kind, "POOL") == 0)
        req = vg_request(POOL_LIST, pool_list, &none);
    else if (strcmp(kind, "NODE") == 0)
        req = vg_request(NODE_LIST, node_list, &none);
    else if (strcmp(kind, "SESSION") == 0)
        req = vg_request(SESSION_LIST, session_list, &none);
    else if (strcmp(kind, "SCHEDULE") == 0)
        req = vg_request(SCHEDULE_LIST, schedule_list, &none);
    else if (strcmp(kind, "SECRET") == 0)
        req = vg_request(SECRET_LIST, secret_list, &none);
    else if (strcmp(kind, "HOOK") == 0)
        req = vg_request(HOOK_LIST, hook_list, &none);
    else if (strcmp(kind, "USER") == 0)
        req = vg_request(USER_LIST, user_list, &none);
    else if (strcmp(kind, "TEAM") == 0)
        req = vg_request(TEAM_LIST, team_list, &none);
    else if (strcmp(kind, "ORG") == 0)
        req = vg_request(ORG_LIST, org_list, &none);
    else if (strcmp(kind, "TOKEN") == 0)
        req = vg_request(TOKEN_LIST, token_list, &none);
    else
        return 0;
    vg_call_once(&req, on_words, NULL, &err);
    return 0;
}

/* "TASK..." and "[TASK...]" are of kind TASK. Empty: nothing to ask. */
static const char *kind_of(const char *args, char *out, size_t n) {
    static const char *const kinds[] = {"TASK", "POOL",  "NODE",     "SESSION", "USER", "TEAM",
                                        "ORG",  "TOKEN", "SCHEDULE", "SECRET",  "HOOK", "FILE"};
    const char *a = args + (*args == '[');
    for (unsigned i = 0; i < VG_COUNT(kinds); i++)
        if (strncmp(a, kinds[i], strlen(kinds[i])) == 0) {
            snprintf(out, n, "%s", kinds[i]);
            return out;
        }
    return "";
}

/* ------------------------------------------------------------------ bash */

static void bash_opts(const struct vg_opt *o, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (o[i].help && o[i].long_name)
            printf(" --%s", o[i].long_name);
        if (o[i].help && !o[i].long_name)
            printf(" -%c", o[i].short_name);
    }
    printf(" --help");
}

static void bash_command(const char *path, const struct vg_cmd *c) {
    char kind[16];
    printf("    '%s') words=\"", path);
    bash_opts(c->opts, c->n_opts);
    printf("\"; kind=%s ;;\n", kind_of(c->args, kind, sizeof(kind)));
}

static void bash_names(const char *path, const struct vg_cmd *subs, size_t n) {
    printf("    '%s') words=\"", path);
    for (size_t i = 0; i < n; i++)
        if (subs[i].summary)
            printf("%s%s", i ? " " : "", subs[i].name);
    printf("\"; kind= ;;\n");
}

/* Options of vrun that take a value, so that the command word is found. */
static void bash_values(bool batch) {
    size_t n;
    const struct vg_opt *o = vg_run_options(batch, &n);
    for (size_t i = 0; i < n; i++) {
        if (o[i].arg && o[i].long_name)
            printf("%s--%s", i ? "|" : "", o[i].long_name);
        if (o[i].arg && o[i].short_name)
            printf("|-%c", o[i].short_name);
    }
    printf("%s", n ? "" : "-P");
}

static void bash_run(const char *name, bool batch) {
    size_t n;
    const struct vg_opt *o = vg_run_options(batch, &n);
    printf("_virga_%s() {\n"
           "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" i=${_virga_skip:-1}\n"
           "    while [ \"$i\" -lt \"$COMP_CWORD\" ]; do\n"
           "        case \"${COMP_WORDS[i]}\" in\n"
           "        --) i=$((i + 1)); break ;;\n        ",
           name);
    bash_values(batch);
    printf(
        ") i=$((i + 2)) ;;\n"
        "        -*) i=$((i + 1)) ;;\n"
        "        *) break ;;\n"
        "        esac\n"
        "    done\n"
        "    case \"${COMP_WORDS[COMP_CWORD-1]}\" in\n"
        "    -P|--pool) COMPREPLY=($(compgen -W \"$(virga completion words POOL)\" -- \"$cur\")); "
        "return ;;\n"
        "    --after|--after-success|--after-fail) COMPREPLY=($(compgen -W \"$(virga completion "
        "words "
        "TASK)\" -- \"$cur\")); return ;;\n"
        "    --gang-policy) COMPREPLY=($(compgen -W \"heal restart fail\" -- \"$cur\")); return "
        ";;\n"
        "    -s|--session) COMPREPLY=($(compgen -W \"$(virga completion words SESSION)\" -- "
        "\"$cur\")); return ;;\n"
        "    esac\n"
        "    if [ \"$i\" -lt \"$COMP_CWORD\" ]; then\n"
        "        if declare -F _command_offset >/dev/null; then _command_offset \"$i\"\n"
        "        else COMPREPLY=($(compgen -f -- \"$cur\")); fi\n"
        "    elif [ \"${cur#-}\" != \"$cur\" ]; then\n"
        "        COMPREPLY=($(compgen -W \"");
    bash_opts(o, n);
    printf("\" -- \"$cur\"))\n"
           "    else\n"
           "        COMPREPLY=($(compgen -c -- \"$cur\"))\n"
           "    fi\n"
           "}\n");
}

static void bash(const struct vg_cmd *commands, size_t n) {
    char path[128];
    printf("# bash completion for virga, vrun and vbatch; made by 'virga completion bash'\n");
    bash_run("vrun", false);
    bash_run("vbatch", true);
    printf("_virga() {\n"
           "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" words kind\n"
           "    case \"${COMP_WORDS[1]}\" in\n"
           "    run) [ \"$COMP_CWORD\" -gt 1 ] && { _virga_skip=2 _virga_vrun; return; } ;;\n"
           "    batch) [ \"$COMP_CWORD\" -gt 1 ] && { _virga_skip=2 _virga_vbatch; return; } ;;\n"
           "    esac\n"
           "    local path=\"${COMP_WORDS[1]}\"\n"
           "    [ \"$COMP_CWORD\" -eq 1 ] && path=\n"
           "    case \"$path\" in\n    ");
    for (size_t i = 0, first = 1; i < n; i++)
        if (commands[i].subs) {
            printf("%s%s", first ? "" : "|", commands[i].name);
            first = 0;
        }
    printf(") [ \"$COMP_CWORD\" -gt 2 ] && path=\"$path ${COMP_WORDS[2]}\" ;;\n"
           "    esac\n"
           "    case \"$path\" in\n");
    bash_names("", commands, n);
    for (size_t i = 0; i < n; i++) {
        const struct vg_cmd *c = &commands[i];
        if (c->subs)
            bash_names(c->name, c->subs, c->n_subs);
        else
            bash_command(c->name, c);
        for (size_t k = 0; c->subs && k < c->n_subs; k++) {
            snprintf(path, sizeof(path), "%s %s", c->name, c->subs[k].name);
            bash_command(path, &c->subs[k]);
        }
    }
    printf("    esac\n"
           "    if [ \"$kind\" = FILE ]; then COMPREPLY=($(compgen -f -- \"$cur\")); return; fi\n"
           "    if [ -n \"$kind\" ] && [ \"${cur#-}\" = \"$cur\" ]; then\n"
           "        words=$(virga completion words \"$kind\" 2>/dev/null)\n"
           "    fi\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "}\n"
           "complete -F _virga virga\n"
           "complete -F _virga_vrun vrun\n"
           "complete -F _virga_vbatch vbatch\n");
}

/* ------------------------------------------------------------------ fish */

static void fish_text(const char *s) {
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\')
            putchar('\\');
        putchar(*s);
    }
}

static void fish_opts(const char *head, const char *condition, const struct vg_opt *o, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!o[i].help)
            continue;
        printf("complete %s %s", head, condition);
        if (o[i].short_name)
            printf(" -s %c", o[i].short_name);
        if (o[i].long_name)
            printf(" -l %s", o[i].long_name);
        printf("%s -d '", o[i].arg ? " -r" : "");
        fish_text(o[i].help);
        printf("'\n");
    }
}

static void fish_command(const char *condition, const struct vg_cmd *c) {
    char kind[16];
    const char *k = kind_of(c->args, kind, sizeof(kind));
    fish_opts("-c virga", condition, c->opts, c->n_opts);
    if (strcmp(k, "FILE") == 0)
        printf("complete -c virga %s -F\n", condition);
    else if (*k)
        printf("complete -c virga %s -a '(virga completion words %s 2>/dev/null)'\n", condition, k);
}

static void fish(const struct vg_cmd *commands, size_t n) {
    char condition[160];
    size_t n_opts;
    printf("# fish completion for virga, vrun and vbatch; made by 'virga completion fish'\n"
           "complete -c virga -f\n");
    for (size_t i = 0; i < n; i++) {
        const struct vg_cmd *c = &commands[i];
        if (!c->summary)
            continue;
        printf("complete -c virga -n __fish_use_subcommand -a %s -d '", c->name);
        fish_text(c->summary);
        printf("'\n");
        snprintf(condition, sizeof(condition), "-n '__fish_seen_subcommand_from %s'", c->name);
        if (!c->subs)
            fish_command(condition, c);
        for (size_t k = 0; c->subs && k < c->n_subs; k++) {
            printf("complete -c virga %s -a %s -d '", condition, c->subs[k].name);
            fish_text(c->subs[k].summary);
            printf("'\n");
            char sub[320];
            snprintf(sub, sizeof(sub),
                     "-n '__fish_seen_subcommand_from %s; and __fish_seen_subcommand_from %s'",
                     c->name, c->subs[k].name);
            fish_command(sub, &c->subs[k]);
        }
    }
    for (int batch = 0; batch < 2; batch++) {
        const struct vg_opt *o = vg_run_options(batch, &n_opts);
        const char *head = batch ? "-c vbatch" : "-c vrun";
        fish_opts(head, "", o, n_opts);
        printf("complete %s -a '(__fish_complete_subcommand)'\n", head);
    }
}

/* ------------------------------------------------------------------ zsh */

/* zsh can run bash completions; one script means one set of mistakes. */
static void zsh(const struct vg_cmd *commands, size_t n) {
    printf("#compdef virga vrun vbatch\n"
           "# zsh completion for virga, vrun and vbatch; made by 'virga completion zsh'\n"
           "autoload -U +X bashcompinit && bashcompinit\n");
    bash(commands, n);
}

static int run(struct vg_cmd_line *l) {
    size_t n;
    const struct vg_cmd *commands = vg_commands(&n);
    if (!vg_cmd_plain(l, 1, 2))
        return l->exit;
    if (l->n_args == 2 && strcmp(l->args[0], "words") == 0)
        return words(l->args[1]);
    if (strcmp(l->args[0], "bash") == 0)
        bash(commands, n);
    else if (strcmp(l->args[0], "zsh") == 0)
        zsh(commands, n);
    else if (strcmp(l->args[0], "fish") == 0)
        fish(commands, n);
    else {
        vg_cmd_say("there is no completion for '%.60s': choose bash, zsh or fish", l->args[0]);
        return vg_reason_exit(VG_INVALID);
    }
    return 0;
}

const struct vg_cmd vg_cmd_completion = {.name = "completion",
                                         .args = "bash|zsh|fish",
                                         .summary = "print a completion script for a shell",
                                         .run = run};

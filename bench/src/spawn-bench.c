/* Starts programs and measures the time from spawn to wait in microseconds, without an interpreter
   in between. Two modes:

     spawn-bench interleave ROUNDS WARMUP < COMMANDS
         One command a line, its words separated by tabs; `{n}` in a word becomes a number that is
         never used twice. Runs all commands once a round, in turn, and prints "INDEX USEC STATUS"
         for each run after the warm-up rounds.

     spawn-bench parallel WIDTH TOTAL WORD...
         Keeps WIDTH copies running until TOTAL have ended; prints "USEC FAILED" for the whole.

   Standard input and output of the programs are /dev/null; their errors are ours. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COMMANDS_MAX 32
#define WORDS_MAX 128

extern char **environ;

static posix_spawn_file_actions_t actions;
static unsigned long counter;

static uint64_t now_usec(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static char *with_number(const char *word) {
    const char *at = strstr(word, "{n}");
    char *out;
    if (!at)
        return strdup(word);
    if (asprintf(&out, "%.*s%d-%lu%s", (int)(at - word), word, (int)getpid(), counter++, at + 3) <
        0)
        return NULL;
    return out;
}

static pid_t start(char *const *argv) {
    char *words[WORDS_MAX + 1] = {0};
    pid_t pid;
    for (int i = 0; i < WORDS_MAX && argv[i]; i++)
        if (!(words[i] = with_number(argv[i])))
            exit(1);
    int r = posix_spawnp(&pid, words[0], &actions, NULL, words, environ);
    if (r != 0) {
        fprintf(stderr, "cannot start %s: %s\n", words[0], strerror(r));
        exit(1);
    }
    for (int i = 0; words[i]; i++)
        free(words[i]);
    return pid;
}

static int wait_status(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 255;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int read_commands(char *argv[COMMANDS_MAX][WORDS_MAX + 1]) {
    int n = 0;
    char *line = NULL;
    size_t cap = 0;
    while (n < COMMANDS_MAX && getline(&line, &cap, stdin) > 0) {
        int k = 0;
        line[strcspn(line, "\n")] = 0;
        for (char *rest = line, *word; k < WORDS_MAX && (word = strsep(&rest, "\t"));)
            argv[n][k++] = strdup(word);
        argv[n++][k] = NULL;
    }
    free(line);
    return n;
}

static int interleave(long rounds, long warmup) {
    static char *argv[COMMANDS_MAX][WORDS_MAX + 1];
    int n = read_commands(argv);
    for (long round = -warmup; round < rounds; round++)
        for (int i = 0; i < n; i++) {
            uint64_t begin = now_usec();
            int status = wait_status(start(argv[i]));
            uint64_t took = now_usec() - begin;
            if (round >= 0)
                printf("%d %llu %d\n", i, (unsigned long long)took, status);
        }
    return 0;
}

static int parallel(long width, long total, char *const *argv) {
    long started = 0, ended = 0, failed = 0;
    uint64_t begin = now_usec();
    while (ended < total) {
        while (started < total && started - ended < width) {
            start(argv);
            started++;
        }
        int status;
        if (wait(&status) < 0)
            break;
        ended++;
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    printf("%llu %ld\n", (unsigned long long)(now_usec() - begin), failed);
    return 0;
}

int main(int argc, char **argv) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    if (argc == 4 && strcmp(argv[1], "interleave") == 0)
        return interleave(strtol(argv[2], NULL, 10), strtol(argv[3], NULL, 10));
    if (argc > 4 && strcmp(argv[1], "parallel") == 0)
        return parallel(strtol(argv[2], NULL, 10), strtol(argv[3], NULL, 10), argv + 4);
    fprintf(stderr, "usage: spawn-bench interleave ROUNDS WARMUP | parallel WIDTH TOTAL WORD...\n");
    return 2;
}

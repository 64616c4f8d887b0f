/* The main of every replay-<target>: runs LLVMFuzzerTestOneInput over the files of a corpus folder,
   over truncations of each, and over mutations drawn from a fixed seed, so that a run without a
   fuzzer still tries some ten thousand inputs and always the same ones. A crash is the failure;
   the input that caused it is left in ./crash-input. An empty corpus is an error, not a pass. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INPUT_MAX (1u << 20)
#define TRUNCATIONS_MAX 512u
#define MUTATIONS 256u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t current[INPUT_MAX];
static size_t current_len;
static uint64_t runs;

static void save_input(int signo) {
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd >= 0 && write(fd, current, current_len) < 0)
        _exit(3);
    signal(signo, SIG_DFL);
    raise(signo);
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* A copy of exactly the input's size, so that a sanitizer sees reads past its end. */
static void run_current(void) {
    uint8_t *copy = malloc(current_len ? current_len : 1);
    if (!copy)
        abort();
    memcpy(copy, current, current_len);
    LLVMFuzzerTestOneInput(copy, current_len);
    free(copy);
    runs++;
}

static void mutate(const uint8_t *data, size_t len, uint64_t *seed) {
    memcpy(current, data, len);
    current_len = len;
    for (uint32_t n = 1 + next_random(seed) % 8; n; n--) {
        size_t at = current_len ? next_random(seed) % current_len : 0;
        switch (next_random(seed) % 4) {
        case 0:
            if (current_len)
                current[at] ^= (uint8_t)(1u << (next_random(seed) % 8));
            break;
        case 1:
            if (current_len)
                current[at] = (uint8_t)next_random(seed);
            break;
        case 2: /* drop a byte */
            if (current_len) {
                memmove(current + at, current + at + 1, current_len - at - 1);
                current_len--;
            }
            break;
        default: /* insert one */
            if (current_len + 1 < INPUT_MAX) {
                memmove(current + at + 1, current + at, current_len - at);
                current[at] = (uint8_t)next_random(seed);
                current_len++;
            }
        }
    }
    run_current();
}

static bool replay_file(int dir, const char *name) {
    static uint8_t data[INPUT_MAX];
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        perror(name);
        return false;
    }
    ssize_t len = read(fd, data, sizeof data);
    close(fd);
    if (len < 0) {
        perror(name);
        return false;
    }
    memcpy(current, data, (size_t)len);
    current_len = (size_t)len;
    run_current();
    size_t step = (size_t)len / TRUNCATIONS_MAX + 1;
    for (current_len = 0; current_len < (size_t)len; current_len += step)
        run_current();
    uint64_t seed = 0x5eed;
    for (unsigned i = 0; i < MUTATIONS; i++)
        mutate(data, (size_t)len, &seed);
    return true;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS-FOLDER\n", argv[0]);
        return 2;
    }
    signal(SIGSEGV, save_input);
    signal(SIGABRT, save_input);
    DIR *dir = opendir(argv[1]);
    if (!dir) {
        perror(argv[1]);
        return 1;
    }
    unsigned files = 0;
    bool ok = true;
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') {
            ok = replay_file(dirfd(dir), e->d_name) && ok;
            files++;
        }
    closedir(dir);
    printf("%u files, %llu inputs\n", files, (unsigned long long)runs);
    return ok && files ? 0 : 1;
}

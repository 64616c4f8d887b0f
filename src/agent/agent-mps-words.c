#include "agent/agent-mps-words.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void vg_mps_percentage(uint32_t milli, char *ret, size_t n) {
    snprintf(ret, n, "%u.%u", milli / 10, milli % 10);
}

void vg_mps_words_cap(uint32_t milli, char *ret, size_t n) {
    char p[16];
    vg_mps_percentage(milli, p, sizeof(p));
    snprintf(ret, n, "set_default_active_thread_percentage %s\nget_server_list\n", p);
}

void vg_mps_words_servers(uint32_t milli, const pid_t *server, size_t n_servers, char *ret,
                          size_t n) {
    char p[16];
    size_t len = 0;
    ret[0] = 0;
    vg_mps_percentage(milli, p, sizeof(p));
    for (size_t i = 0; i < n_servers && len < n; i++)
        len += milli
                   ? (size_t)snprintf(ret + len, n - len, "set_active_thread_percentage %d %s\n",
                                      (int)server[i], p)
                   : (size_t)snprintf(ret + len, n - len, "get_server_status %d\n", (int)server[i]);
}

/* The next line that is not empty, without blanks around it; false at the end. */
static bool next_line(const char **at, char *ret, size_t n) {
    for (;;) {
        *at += strspn(*at, " \t\r\n");
        if (!**at)
            return false;
        size_t len = strcspn(*at, "\r\n");
        snprintf(ret, n, "%.*s", (int)VG_MIN(len, n - 1), *at);
        *at += len;
        return true;
    }
}

static bool is_number(const char *word, uint32_t milli) {
    uint64_t got;
    return vg_parse_milli(word, &got) == 0 && got == (uint64_t)milli * 100; /* of a hundred */
}

int vg_mps_read_servers(const char *said, uint32_t milli, pid_t ret[static VG_MPS_SERVERS_MAX]) {
    char line[32];
    int n = 0;
    if (milli && (!next_line(&said, line, sizeof(line)) || !is_number(line, milli)))
        return -EPROTO;
    while (next_line(&said, line, sizeof(line))) {
        uint64_t pid;
        if (n == (int)VG_MPS_SERVERS_MAX || vg_parse_u64(line, &pid) < 0 || pid < 2 ||
            pid > INT32_MAX)
            return -EPROTO;
        ret[n++] = (pid_t)pid;
    }
    return n;
}

int vg_mps_read_caps(const char *said, uint32_t milli) {
    char line[32];
    while (next_line(&said, line, sizeof(line)))
        if (line[0] >= '0' && line[0] <= '9' && !is_number(line, milli))
            return -EPROTO; /* words are of one that has just left */
    return 0;
}

bool vg_mps_read_fault(const char *said) {
    char line[32];
    while (next_line(&said, line, sizeof(line)))
        if (strcmp(line, "FAULT") == 0)
            return true;
    return false;
}

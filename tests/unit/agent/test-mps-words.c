/* What is said to NVIDIA's MPS control daemon, and what of its answers is believed. */
#include "agent/agent-mps-words.h"

#include <criterion/criterion.h>
#include <errno.h>

Test(mps_words, a_limit_is_told_with_the_servers_that_have_one_of_their_own) {
    char text[VG_MPS_WORDS_MAX];
    const pid_t server[] = {41, 42};
    vg_mps_words_cap(125, text, sizeof(text));
    cr_expect_str_eq(text, "set_default_active_thread_percentage 12.5\nget_server_list\n");
    vg_mps_words_servers(300, server, 2, text, sizeof(text));
    cr_expect_str_eq(text, "set_active_thread_percentage 41 30.0\n"
                           "set_active_thread_percentage 42 30.0\n");
    vg_mps_words_servers(0, server, 1, text, sizeof(text));
    cr_expect_str_eq(text, "get_server_status 41\n");
}

Test(mps_words, an_answer_is_the_number_and_the_servers) {
    pid_t server[VG_MPS_SERVERS_MAX] = {0};
    cr_expect_eq(vg_mps_read_servers("30.0\n", 300, server), 0);
    cr_expect_eq(vg_mps_read_servers("30.0\r\n\n 719\n720\n", 300, server), 2);
    cr_expect(server[0] == 719 && server[1] == 720);
    cr_expect_eq(vg_mps_read_servers("719\n", 0, server), 1);
    cr_expect_eq(vg_mps_read_servers("", 0, server), 0);
}

Test(mps_words, anything_else_is_refused) {
    pid_t server[VG_MPS_SERVERS_MAX];
    char many[256] = "30.0\n";
    static const char *const wrong[] = {"",
                                        "100.0\n",
                                        "Insufficient privileges for UID 1001.\n",
                                        "30.0\nno server\n",
                                        "30.0\n1\n",
                                        "30.0\n-5\n",
                                        "30.0\n99999999999\n",
                                        "719\n30.0\n"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        cr_expect_eq(vg_mps_read_servers(wrong[i], 300, server), -EPROTO, "%s", wrong[i]);
    for (size_t i = 0, at = 5; i <= VG_MPS_SERVERS_MAX; i++)
        at += (size_t)snprintf(many + at, sizeof(many) - at, "%zu\n", 100 + i);
    cr_expect_eq(vg_mps_read_servers(many, 300, server), -EPROTO);
}

Test(mps_words, servers_that_left_meanwhile_are_no_failure_and_another_number_is) {
    cr_expect_eq(vg_mps_read_caps("30.0\n30.0\n", 300), 0);
    cr_expect_eq(vg_mps_read_caps("Server 719 not found\n30.0\n", 300), 0);
    cr_expect_eq(vg_mps_read_caps("", 300), 0);
    cr_expect_eq(vg_mps_read_caps("100.0\n", 300), -EPROTO);
}

Test(mps_words, a_fault_is_a_word_by_itself) {
    cr_expect(vg_mps_read_fault("ACTIVE\nFAULT\n"));
    cr_expect(!vg_mps_read_fault("ACTIVE\n") && !vg_mps_read_fault("") &&
              !vg_mps_read_fault("no FAULT\n"));
}

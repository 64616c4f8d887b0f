/* The local terminal of vrun: raw while the task owns it, as it was otherwise. */
#include "cli/run-int.h"

#include <sys/ioctl.h>
#include <unistd.h>

bool run_tty_foreground(void) {
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

void run_tty_raw(struct run *r) {
    if (!r->tty || r->raw || !run_tty_foreground() || tcgetattr(STDIN_FILENO, &r->saved) < 0)
        return;
    struct termios t = r->saved;
    cfmakeraw(&t);
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &t) == 0)
        r->raw = true;
}

void run_tty_restore(struct run *r) {
    if (r->raw)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &r->saved);
    r->raw = false;
}

bool run_tty_size(uint16_t ret[4]) {
    struct winsize w;
    for (int fd = 0; fd < 3; fd++)
        if (ioctl(fd, TIOCGWINSZ, &w) == 0) {
            ret[0] = w.ws_row;
            ret[1] = w.ws_col;
            ret[2] = w.ws_xpixel;
            ret[3] = w.ws_ypixel;
            return true;
        }
    return false;
}

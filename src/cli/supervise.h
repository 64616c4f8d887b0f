#pragma once
/* The supervisor of a one-machine cloud: keeps virgad and the agent running until told to stop. */
#include "cli/cloud.h"

#include <stdbool.h>

struct vg_up {
    char home[VG_HOME_MAX];
    char virga[4096], virgad[4096]; /* programs to run, absolute */
    const char *listen;             /* for virgad; NULL: as configured */
    const char *gpus;               /* for the agent; NULL: as found */
    bool no_agent;
    bool foreground; /* children write to our stderr, not to log files */
};

/* Runs until SIGTERM (ends both programs, leaves tasks running), SIGINT or SIGUSR2 (ends tasks
   too). Adopts programs that run already. `report_fd` (-1: none) gets one line for each program
   that ends by itself, "virgad 1\n". Returns the exit status. Takes over the process: signal mask,
   children, subreaper. */
int vg_supervise(const struct vg_up *up, int report_fd);

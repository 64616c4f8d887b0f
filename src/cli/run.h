#pragma once
/* vrun, vbatch and attach: a command elsewhere that feels as if it ran here. */
#include <stdbool.h>

int vg_run_main(int argc, char **argv, bool batch); /* vrun, vbatch; returns the exit status */
int vg_attach_main(int argc, char **argv);          /* virga attach TASK */

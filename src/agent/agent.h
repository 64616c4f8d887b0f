#pragma once
/* `virga agent`: the program that offers a machine to a cloud. */

/* argv[0] is "agent". Returns the exit status. Needs root. */
int vg_agent_main(int argc, char **argv);

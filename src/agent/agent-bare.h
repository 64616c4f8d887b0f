#pragma once
/* The other end of agent-bare.c: the program that looks at a node and wipes it. */
int vg_node_wipe_main(int argc, char **argv);

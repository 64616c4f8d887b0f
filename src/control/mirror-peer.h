#pragma once
/* Daemons of one user on two nodes, joined so that what one node has read need not leave the
   client's machine again. Loop thread. */
#include "control/control.h"

struct vg_job;
struct vg_nodelink;

/* A task of this user has its files at that node from now on: joined to where he was before. */
void vg_mpeer_used(struct vg_job *j, struct vg_nodelink *a);
void vg_mpeer_tick(struct vg_control *c);
void vg_mpeer_done(struct vg_control *c);

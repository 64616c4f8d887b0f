#pragma once
/* The order to begin an attempt. */
#include "control/job.h"

struct vg_nodelink;

/* Sends the current attempt of a placed job to its node, with the client's channel if there is one,
   and tells its followers where it goes. */
void vg_start_send(struct vg_job *j, struct vg_nodelink *a);

#pragma once
/* Links between a person's file service and the node that has the task (docs/mirror.md): offers are
   kept until the task is placed, then their bytes are relayed. Also makes a task wait whose client
   has yet to offer its files. Loop thread. */
#include "control/control.h"

struct vg_job;
struct vg_nodelink;

#define VG_OFFERS_MAX 4096              /* waiting in the cloud, */
#define VG_OFFERS_USER_MAX 64           /* and of one user */
#define VG_OFFER_USEC (60 * 1000000ULL) /* that an offer waits for its task to be heard of */
#define VG_MIRROR_TELL_USEC (3 * 1000000ULL)
#define VG_MIRROR_WAIT_USEC                                                                      \
    (60 * 1000000ULL)                         /* that a placed task waits for its client's files \
                                               */
#define VG_LINK_LINGER_USEC (10 * 1000000ULL) /* of links whose task has ended */
#define VG_LINK_WIDTH (8u << 20)              /* bytes on the way: 1 Gbit/s at 60 ms */
#define VG_LINKS_WIDE 8                       /* links of one user that are so wide */

/* Before the Start of an attempt goes out. True: it must not yet, because the files that the task
   needs are on another machine than its node and were not offered. It is begun later, or ended. */
bool vg_mlink_holds(struct vg_job *j, struct vg_nodelink *a);
/* The Start went out: an offer that waits is linked. */
void vg_mlink_join(struct vg_job *j);
/* A node has reported its tasks: offers that came before it are looked at. */
void vg_mlink_resume(struct vg_control *c);
/* A link whose near end is this process's (a stored snapshot): takes the socket. 0 or -errno. */
int vg_mlink_join_fd(struct vg_job *j, int fd);
/* The attempt is over, or the job leaves memory: it waits for nothing any more. */
void vg_mlink_over(struct vg_job *j);
/* Offers that nobody wants, links whose task has ended; from housekeeping. */
void vg_mlink_tick(struct vg_control *c);
void vg_mlink_done(struct vg_control *c);

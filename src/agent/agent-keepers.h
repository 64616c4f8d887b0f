#pragma once
/* What the files around keepers share: agent-keepers.c (their life and their packets), agent-pool.c
   (who gets which) and agent-adopt.c (those of an earlier agent). Loop thread. */
#include "agent/agent-int.h"

/* agent-keepers.c */
struct vg_agent_keeper *vg_keeper_new(struct vg_agent *a);
/* k->fd is set; from here on the keeper is in the list and freed by vg_keeper_gone. */
int vg_keeper_watch(struct vg_agent_keeper *k);
/* Moves its state, and its place in the pool with it. */
void vg_keeper_set_state(struct vg_agent_keeper *k, enum vg_keeper_state state);
/* Its task lasts: it no longer counts as there. */
void vg_keeper_unlend(struct vg_agent_keeper *k);
/* `orderly`: its sandbox is gone and nothing of its unconfirmed starts has run. */
void vg_keeper_gone(struct vg_agent_keeper *k, bool orderly);
/* Removes what sandboxes left whose keeper is not in the list. */
void vg_keepers_sweep(struct vg_agent *a);

/* agent-pool.c */
void vg_pool_on_ready(struct vg_agent_keeper *k);
void vg_pool_on_failed(struct vg_agent_keeper *k, const char *text, size_t len);
/* A keeper that was being prepared is ready or gone: others may take its turn. */
void vg_pool_match_all(struct vg_agent *a);

/* agent-adopt.c */
void vg_adopt_on_hello(struct vg_agent_keeper *k, const uint8_t *data, size_t len);
void vg_adopt_on_reported(struct vg_agent_keeper *k);
/* Goes on to what waits for the last of them, if it has reported or is gone. */
void vg_adopt_step(struct vg_agent *a);

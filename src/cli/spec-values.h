#pragma once
/* The values that vrun's and vbatch's options take, from text into the protocol's form. Each
   answers 0, or VG_OPT_ERROR with a sentence in st->err that names the option, what was wrong and
   what would be right. What they allocate is the spec's: vg_spec_values_done. */
#include "cli/opt.h"
#include "proto/virga.pb-c.h"

#include <stdint.h>

#define VG_MEMBERS_MAX 100000 /* of one group */
#define VG_SWEEPS_MAX 16      /* variables of one sweep */
#define VG_AFTER_MAX 256      /* dependencies of one task */
#define VG_POOLS_MAX 16
#define VG_SECRETS_MAX 64
#define VG_KEY_MAX 128
#define VG_SPEC_SHOWN 60 /* bytes of a wrong value that a sentence repeats */

/* "a,b,c": the first is where it goes, the others will do, too. */
int vg_spec_pools(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s);
/* 2 whole ones, or 0.25 of one. */
int vg_spec_gpus(struct vg_opt_state *st, const char *arg, Vg__Pb__Resources *want);
/* "A100|H100" or "A100,H100". */
int vg_spec_models(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s);
/* name=a,b,c  name=1..10  name=1..10..2  name=@FILE (one value a line). */
int vg_spec_sweep(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s);
/* Comma-separated tasks. */
int vg_spec_after(struct vg_opt_state *st, const char *arg, Vg__Pb__Dependency__When when,
                  Vg__Pb__TaskSpec *s);
/* NAME, NAME=VARIABLE or NAME:FILE; TEAM/NAME for a team's. */
int vg_spec_secret(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s);
/* 1,75-77 */
int vg_spec_retry_on(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s);
/* 10s or 10s..10m */
int vg_spec_backoff(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s);
/* spec-times.c: +30m, 22:00, 2027-01-31 22:00; local time. `now_usec` is the wall clock. */
int vg_spec_begin(struct vg_opt_state *st, const char *arg, uint64_t now_usec, uint64_t *ret_usec);
/* 2h (ago), 08:00 (the last), 2027-01-31; local time. */
int vg_spec_since(struct vg_opt_state *st, const char *arg, uint64_t now_usec, uint64_t *ret_usec);
/* 12.50 in millionths. */
int vg_spec_cost(struct vg_opt_state *st, const char *arg, uint64_t *ret_micro);
int vg_spec_every(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s);
int vg_spec_cron(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s);
int vg_spec_key(struct vg_opt_state *st, const char *arg, Vg__Pb__TaskSpec *s);
int vg_spec_signal(struct vg_opt_state *st, const char *arg, uint32_t *ret);

int vg_spec_no_memory(struct vg_opt_state *st); /* says so */

/* Frees what the above have put into the spec; whatever else is in it stays. */
void vg_spec_values_done(Vg__Pb__TaskSpec *s);

/* TERM, SIGTERM or 15; -EINVAL. */
int vg_signal_parse(const char *text, uint32_t *ret);
/* How many tasks the request makes: shards or the product of the sweep; 1 for a single one. */
uint64_t vg_spec_count(const Vg__Pb__TaskSpec *s);

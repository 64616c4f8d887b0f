#pragma once
/* What is known of one card, whoever made it: facts that stay, samples that do not, events. A value
   that the driver does not tell is VG_NONE or VG_NONE64, and shown as unknown; nothing is guessed.
 */
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VG_NONE UINT32_MAX
#define VG_NONE64 UINT64_MAX
#define VG_CARDS_MAX 64
#define VG_PART_IDS 64u /* instances are numbered below this */
#define VG_PART(gi, ci) (1u + (uint32_t)(gi)*VG_PART_IDS + (uint32_t)(ci))
#define VG_CARD_PROCS_MAX 32 /* the largest by memory */
#define VG_CARD_MIGS_MAX 8

enum vg_card_vendor { VG_CARD_NVIDIA, VG_CARD_AMD, VG_CARD_FAKE };
const char *vg_card_vendor_name(enum vg_card_vendor v); /* "nvidia"; "simulated" */

struct vg_card_facts {
    enum vg_card_vendor vendor;
    uint32_t index; /* in the order of bus addresses */
    int32_t minor;  /* of its device node; -1: unknown */
    int32_t numa;   /* -1: unknown, or the machine has one */
    char name[64], uuid[64], bus[32];
    char driver[32];
    uint64_t mem_bytes;
    uint32_t power_limit_mw;
    uint32_t pcie_gen, pcie_width;
    uint64_t linked;            /* set of cards that it reaches by NVLink */
    uint8_t near[VG_CARDS_MAX]; /* near.h: how near the others are, by their index */
    uint32_t
        part; /* VG_PART: it is a part of a card (MIG); 0: whole. Minor and bus are the card's */
    bool mig;
    uint32_t n_migs;
    char mig_uuid[VG_CARD_MIGS_MAX][64];
};

struct vg_card_proc {
    uint32_t pid; /* as the machine counts */
    uint32_t sm_percent;
    uint64_t mem_bytes;
};

struct vg_card_sample {
    uint32_t index;
    uint64_t at_usec;                 /* vg_now_usec() */
    uint32_t sm_percent, mem_percent; /* of the time since the last: busy; memory busy */
    uint64_t mem_used_bytes;
    uint64_t energy_mj;                    /* counter since some beginning */
    uint64_t pcie_rx_bytes, pcie_tx_bytes; /* likewise: to the card, from it */
    uint32_t power_mw, temp_c, sm_mhz, mem_mhz;
    uint64_t ecc_corrected, ecc_uncorrected; /* since the driver was loaded */
    bool lost;                               /* the driver says that it cannot reach the card */
    bool counted;                            /* the counters were asked for */
    bool full;                               /* what changes slowly was asked for, too */
    bool uses;                               /* what each process did was asked for */
    uint32_t n_procs;
    struct vg_card_proc proc[VG_CARD_PROCS_MAX];
};

/* What a look asks for beside what costs next to nothing. Measured on an H200 (driver 580): the
   energy counter takes 3.9 ms of a core, what processes did 1.9 ms, everything else together 0.2
   ms.
 */
#define VG_ASK_SLOW 1u     /* what changes slowly: temperature, clocks, errors, processes */
#define VG_ASK_COUNTERS 2u /* energy, bytes over the bus */
#define VG_ASK_USES 4u     /* what each process did since this was last asked */

/* The driver said that something went wrong: NVIDIA's XID numbers. */
struct vg_card_event {
    uint32_t index, xid;
};

/* Where cards are looked at: a driver's library, a folder of the kernel's, or nothing real. */
struct vg_card_source {
    uint32_t n; /* cards */
    void *state;
    int (*facts)(void *state, uint32_t i, struct vg_card_facts *ret);
    /* `ask`: VG_ASK_*; without them what costs little. */
    int (*sample)(void *state, uint32_t i, unsigned ask, struct vg_card_sample *ret);
    int (*event)(void *state, struct vg_card_event *ret); /* 1: one, 0: none; never waits */
    void (*close)(void *state);
};

/* NVIDIA's library, opened at run time. Every function of it is optional but those that count cards
   and open one. `library` is a path or a name. */
int vg_nvml_open(const char *library, struct vg_card_source *ret, struct vg_err *err);
/* AMD's cards by what the kernel shows below /sys. UNTESTED on a real card. */
int vg_amd_open(const char *root, struct vg_card_source *ret, struct vg_err *err);
/* Cards that are not there, for tests and demonstrations. Card N does what `dir`/N says, one word
   a line: "sm 40", "mem 2147483648", "power 300000", "rx 4096", "tx 4096", "xid 79", "lost 1",
   "ecc 2", "hang 1", and "proc PID SM BYTES" for each of its processes; without such a file it is
   idle. Read once, when it is opened: "numa 1", "switch 2" (a PCIe switch), "island 1" (NVLink),
   where equal numbers are together; "mig 1": it is in MIG mode. */
int vg_fake_open(uint32_t n, const char *dir, struct vg_card_source *ret, struct vg_err *err);

/* The kernel's name of a device (0000:4b:00.0) by what drivers write (00000000:4B:00.0): four
   digits of the domain, in small. 0 or -EINVAL. */
#define VG_CARD_BUS 13
int vg_card_address(const char *bus, char ret[static VG_CARD_BUS]);
/* The UUID of such a card: "simulated" in hexadecimal, and its number. */
void vg_card_fake_uuid(uint32_t index, char *ret, size_t n);

/* By the kernel's list of devices; -1: unknown. `bus` as drivers write it. */
int32_t vg_card_numa(const char *root, const char *bus);
/* Everything unknown, now. */
void vg_card_sample_init(struct vg_card_sample *s, uint32_t index);

#pragma once
/* The stand-in for the driver's other device, as its warden meets it: memory that is mapped stays
   until it is unmapped; who maps for another must have been shared the object; no card is
   registered where pages could move to it (abort). Thread-safe. */
#include "fake-rm.h"

struct fake_uvm;

struct fake_uvm *fake_uvm_new(struct fake_rm *rm); /* borrowed */
void fake_uvm_free(struct fake_uvm *u);
/* A warden's call on an opening of that number. */
int64_t fake_uvm_ioctl(struct fake_uvm *u, uint64_t opening, uint32_t cmd, void *arg);
/* What the process itself does at first with an opening. */
void fake_uvm_begin(struct fake_uvm *u, uint64_t opening, uint64_t flags);
/* How much is mapped, over all openings. */
uint64_t fake_uvm_mapped(struct fake_uvm *u);
/* A form of VG_UVM_MAP for the one card, VG_UVM_MAP_BYTES_MAX bytes, and the status in one. */
void fake_uvm_form(uint8_t *form, uint64_t base, uint64_t bytes, uint32_t client, uint32_t object);
uint32_t fake_uvm_status(const uint8_t *form);

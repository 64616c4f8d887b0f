#pragma once
/* GPUs for people and for scripts: rows, sentences. What the driver does not tell is "-". */
#include "cli/table.h"
#include "proto/virga.pb-c.h"

/* "H200", or "Simulated GPU (simulated)": what is not real says so wherever it shows. */
char *vg_gpu_model_text(const Vg__Pb__GpuState *g, char *out, size_t n);
/* "4f21… train (ada)", "2 tasks"; "-": nobody. */
char *vg_gpu_holders_text(const Vg__Pb__GpuState *g, char *out, size_t n);

/* "87.5 % of the time, at most 100 %". */
char *vg_gpu_use_text(uint32_t mean_milli, uint32_t max_percent, char *out, size_t n);
/* "1.2 kJ", "0.35 kWh". */
char *vg_gpu_energy_text(uint64_t mj, char *out, size_t n);

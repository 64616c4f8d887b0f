#pragma once
/* Costs and charges for people and programs. */
#include "proto/virga.pb-c.h"

#include <stdbool.h>
#include <stddef.h>

enum vg_money_format { VG_MONEY_TABLE, VG_MONEY_JSON, VG_MONEY_CSV };

struct vg_money_how {
    enum vg_money_format format;
    bool usage; /* without prices */
    const char *const *by;
    size_t n_by;
};

/* 0, or -EIO: it could not be printed. */
int vg_money_show(const Vg__Pb__CostInfo *info, const struct vg_money_how *how);
/* A page of charges: JSON a line, else CSV with a line of names before the first. Likewise. */
int vg_money_show_charges(const Vg__Pb__LedgerList *m, enum vg_money_format format, bool first);

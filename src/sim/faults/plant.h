#pragma once
/* Planted bugs: whether this run has one. */
#include "sim/faults/plan.h"

bool vg_plant_is(enum vg_plant p);

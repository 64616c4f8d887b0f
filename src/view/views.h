#pragma once
/* Every view; views.tbl lists them. */
#include "view/view.h"

#define VIEW(name) extern struct vg_view vg_view_##name;
#include "view/views.tbl"
#undef VIEW

/* All of them, ended by NULL: schemas and tests walk it. */
extern struct vg_view *const vg_views[];

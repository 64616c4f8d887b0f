/* All views in one list. */
#include "view/views.h"

#include <stddef.h>

struct vg_view *const vg_views[] = {
#define VIEW(name) &vg_view_##name,
#include "view/views.tbl"
#undef VIEW
    NULL,
};

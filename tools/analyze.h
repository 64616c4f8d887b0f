/* For the static analyzer alone, which looks at one file at a time: that these always fail is known
   to whoever reads base/err.h, and without it every use of what was not made looks possible. */
#include "base/err.h"

#define vg_err_set(...) ((vg_err_set)(__VA_ARGS__), -1)
#define vg_err_sys(...) ((vg_err_sys)(__VA_ARGS__), -1)

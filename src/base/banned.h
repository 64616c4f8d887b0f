#pragma once
/* Functions that are never right here are compile errors. Included by the build for every file. */
#ifndef VG_NO_BANNED
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* With fortified headers some of them are macros for clang, which warns when a macro is poisoned.
 */
#undef sprintf
#undef vsprintf
#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf gets strtok system popen atoi \
    atol tmpnam mktemp
#endif

#pragma once
/* Allocation through the fault points. NULL means no memory; the caller returns -ENOMEM. */
#include <stddef.h>

void *vg_alloc(size_t size);                                   /* zeroed */
void *vg_realloc(void *p, size_t size);                        /* as realloc */
void *vg_grow(void *p, size_t *cap, size_t need, size_t item); /* doubles; NULL keeps p valid */
char *vg_strdup(const char *s);                                /* NULL in, NULL out */
char *vg_strndup(const char *s, size_t n);
void *vg_memdup(const void *p, size_t n);
char *vg_fmt(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* For a program that walks much small memory in no order (the scheduler does): lets the heap's
   first `bytes` lie in huge pages. Costs address space only. Early in main; a kernel or C library
   that cannot is no error. */
void vg_mem_huge_heap(size_t bytes);

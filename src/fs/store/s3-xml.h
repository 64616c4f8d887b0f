#pragma once
/* As much of XML as a bucket's answers take: elements, text, the five entities and numbered ones.
   Attributes, comments and the prologue are passed over; document types and CDATA are refused.
   Bounded; pure. */
#include <stddef.h>

#define VG_XML_DEPTH_MAX 16
#define VG_XML_PATH_MAX 512
#define VG_XML_VALUE_MAX 8192

/* For every element at its end: its names from the root on, joined by '/', without prefixes, and
   its text when no other element is in it, else NULL. A negative return ends it. */
typedef int vg_xml_fn(void *user, const char *path, const char *value);
/* 0, what `each` returned, or -EBADMSG. */
int vg_xml_each(const char *text, size_t n, vg_xml_fn *each, void *user);

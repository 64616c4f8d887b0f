#pragma once
/* Signatures of requests to an S3-compatible bucket (AWS Signature, version 4). Pure: the time is
   told. */
#include "base/buf.h"

#include <time.h>

struct vg_s3_auth {
    char id[160];
    char secret[256];
    char token[2048]; /* of temporary credentials; "": none */
    char region[64];
};
struct vg_s3_signing {
    const char *method, *host;
    const char *path;    /* as it is sent */
    const char *query;   /* as it is sent, without '?': sorted by name, each with '=' */
    const char *payload; /* SHA-256 of the body, 64 digits */
    time_t when;
};
/* Appends the header lines that the request needs, each ended by \r\n, and a NUL that does not
   count. */
int vg_s3_sign(const struct vg_s3_auth *a, const struct vg_s3_signing *q, struct vg_buf *lines);

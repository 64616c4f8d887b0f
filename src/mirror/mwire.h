#pragma once
/* Frames of a link between a file service and a node's file daemon: docs/mirror.md. Pure: bytes in,
   frames out; bytes of a frame. */
#include "base/buf.h"
#include "mirror/dirrec.h"
#include "proto/mirror.pb-c.h"

#define VG_MW_HEADER 8
#define VG_MW_MAX (1u << 20)              /* payload of a frame */
#define VG_MW_DIR_MAX VG_DIRREC_MAX       /* a folder's record, put together */
#define VG_MW_WRITE_MAX (VG_MW_MAX - 64u) /* bytes of one WRITE */
#define VG_KEEP_THINGS_MAX (1u << 20)     /* that one task's Keeps may tell of */

enum vg_mw_kind { VG_MW_MSG = 1, VG_MW_DIR = 2, VG_MW_DATA = 3, VG_MW_WRITE = 4 };
enum { VG_MW_MORE = 1, VG_MW_ZSTD = 2 };

struct vg_mw_frame {
    enum vg_mw_kind kind;
    uint8_t flags;
    /* MSG */
    Vg__Mr__Msg *msg; /* owned by the frame: vg_mw_frame_done */
    /* DIR, DATA: req, object; DIR: seq; DATA: offset, size; WRITE: op, object, offset */
    uint64_t req, object, seq, offset, size, op;
    uint32_t tag; /* DATA: vg_state_tag of the state it was read in; 0: not said */
    /* DIR: a piece of the record; DATA: exactly one leaf, or the end of the file; WRITE: bytes.
       Unpacked; valid until the next call. */
    const uint8_t *data;
    size_t len;
};

/* Takes frames out of a stream of bytes. Zero-initialised is empty and valid. */
struct vg_mw_in {
    struct vg_buf buf;
    struct vg_buf unpacked;
    struct ZSTD_DCtx_s *zstd; /* owned; made when the first packed frame comes */
};
int vg_mw_feed(struct vg_mw_in *in, const void *data, size_t n);
/* 1 and a frame, 0 when more bytes are needed, -EBADMSG (the link must be dropped), -ENOMEM. */
int vg_mw_next(struct vg_mw_in *in, struct vg_mw_frame *ret);
void vg_mw_frame_done(struct vg_mw_frame *f);
void vg_mw_in_done(struct vg_mw_in *in);

/* Append a whole frame. `level`: 0 plain, else zstd of that level where it saves at least 5 %.
   0, -EMSGSIZE, -ENOMEM (what was appended before stays). */
int vg_mw_msg(struct vg_buf *out, const Vg__Mr__Msg *m);
/* Cuts the record into as many frames as it takes. */
int vg_mw_dir(struct vg_buf *out, uint64_t req, uint64_t object, uint64_t seq, const void *rec,
              size_t len, int level);
/* Whole leaves, or up to the end of the file (else -EINVAL): a frame for each. */
int vg_mw_data(struct vg_buf *out, uint64_t req, uint64_t object, uint64_t offset, uint64_t size,
               const void *data, size_t len, int level);
/* The same, naming the state that the bytes belong to. */
int vg_mw_data_of(struct vg_buf *out, uint64_t req, uint64_t object, uint64_t offset,
                  const struct vg_mstat *st, const void *data, size_t len, int level);
/* Makes a DATA frame that stands alone in the buffer the answer to another request (0: a push). */
void vg_mw_data_for(struct vg_buf *frame, uint64_t req);
int vg_mw_write(struct vg_buf *out, uint64_t op, uint64_t object, uint64_t offset, const void *data,
                size_t len, int level);

void vg_mw_stat_to(Vg__Mr__Stat *out, const struct vg_mstat *st); /* inits *out */
void vg_mw_stat_from(struct vg_mstat *out, const Vg__Mr__Stat *st);

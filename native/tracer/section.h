/* The file that a process writes: a header page and chunks. See ../FORMAT.md. */
#pragma once

#include "../traceformat.h"
#include "tracer.h"

/* Kept free at the end of the control writer's chunks: END always has room. */
enum { END_RESERVE = 64 };

/* One recording's file. Writers keep the section that they belong to: a thread that was in the middle of an event
   when recording stopped never touches the file of the next recording. */
struct section;

/* Makes the file with its header and its first chunk (the control writer's), unless there is one. 0, or an errno;
   ECANCELED where recording has stopped meanwhile (*starting*: it is just about to begin). */
int section_begin(bool starting);
/* No more control records; the file is closed when no writer uses it any longer. */
void section_close(void);
/* In a forked child: the parent's file is not ours. */
void section_forget(void);

/* The one that is being written, with a reference that section_drop() gives up; NULL when there is none. */
struct section *section_hold(void);
void section_drop(struct section *section);
/* Reserves and maps the next chunk, its header filled in. NULL: recording has ended, and the file says why. */
uint8_t *section_chunk(struct section *section, uint32_t writer, uint32_t sequence, uint32_t thread, uint64_t time);
void section_unmap_chunk(uint8_t *chunk);

const char *section_path(void);
bool section_is_open(void);
uint64_t section_nbytes(void);
extern _Atomic uint64_t section_lost;

/* ---- records of the control writer, by any thread ---- */

void record_end(enum end_reason reason, uint64_t time);
void record_gap(enum gap_reason reason, bool begins);
int record_mark(const char *text);
int record_before(int device, uint64_t nbytes, const char *source);
int record_device(int device, const char *pci, const char *name, uint64_t nbytes);
int record_blob(const char *name, const void *bytes, uint64_t nbytes);

/* The numbers of the trace file (FORMAT.md), for the recorder that writes it and the reader. */
#pragma once

#define SECTION_MAGIC "VRAMTRAC"
#define CHUNK_MAGIC "VRAMCHNK"

enum {
    MAGIC_NBYTES = 8,
    FORMAT_MAJOR = 1,
    PAGE_NBYTES = 4096, /* of a section's header, too */
    FIXED_HEADER_NBYTES = 80,
    CHUNK_NBYTES = 65536,
    CHUNK_HEADER_NBYTES = 64,
};

enum record_type {
    RECORD_FAILED = 0x01,
    RECORD_THREAD = 0x02,
    RECORD_WHERE = 0x03,
    RECORD_PLACE = 0x04,
    RECORD_NODE = 0x05,
    RECORD_MAP = 0x06,
    RECORD_UNMAP = 0x07,
    RECORD_RETAIN = 0x08,
    RECORD_GAP = 0x09,
    RECORD_END = 0x0a,
    RECORD_BLOB = 0x0b,
    RECORD_MARK = 0x0c,
    RECORD_BEFORE = 0x0d,
    RECORD_TRIM = 0x0e,
    RECORD_DEVICE = 0x0f,
    RECORD_ALLOC = 0x40, /* plus the kind */
    RECORD_FREE = 0x60,  /* plus the space */
};

enum memory_kind {
    KIND_DEVICE = 0,
    KIND_MANAGED = 1,
    KIND_STREAM_ORDERED = 2,
    KIND_OPENED = 3,
    KIND_GRAPH = 4,
    KIND_IMPORTED = 5,
    KIND_PHYSICAL = 6,
    KIND_MULTICAST = 7,
    KIND_PINNED_HOST = 8,
    KIND_REGISTERED_HOST = 9,
    KIND_ARRAY = 10,
    KIND_ADDRESS_RANGE = 11,
    KIND_MODULE = 12,
    KIND_CONTEXT = 13,
    KIND_POOL = 14,
    KIND_PHYSICAL_HOST = 15,
    KIND_BLOCK = 16, /* the first of the frameworks' */
    KIND_OTHER_BLOCK = 19,
    KINDS = 32,
};

enum memory_space {
    SPACE_DEVICE = 0,
    SPACE_HOST = 1,
    SPACE_HANDLES = 2,
    SPACE_ARRAYS = 3,
    SPACE_RANGES = 4,
    SPACE_MODULES = 5,
    SPACE_CONTEXTS = 6,
    SPACE_POOLS = 7,
    SPACE_BLOCKS = 8, /* the first of the frameworks' */
    SPACES = 12,
};

enum end_reason { END_EXIT = 1, END_DETACHED = 2, END_DISK_FULL = 3, END_WRITE_ERROR = 4, END_CUPTI = 5 };
enum gap_reason { GAP_SUBSCRIBER = 1, GAP_SHUT_DOWN = 2, GAP_DETACHED = 3 };

/* What the driver side does to the folder: its client file, its bytes, its exports.
 *
 * Everything here that creates, destroys or moves bytes is called inside admission
 * (store_enter ... store_leave), except where it says otherwise.
 */
#ifndef VRAM_VIRTUALGPU_CLIENT_H
#define VRAM_VIRTUALGPU_CLIENT_H

#include "store.h"

/* ---- extents.c: free ranges of file offsets, of slabs and of pool chunks ---- */

struct extent {
    uint64_t begin, end;
};

/* Sorted, never touching each other. Zero-initialised means: nothing is free. */
struct extents {
    struct extent *free;
    size_t count, capacity;
    size_t taken; /* ranges in use: there is room for each of them to come back */
};

/* First fit; false where no single range is large enough, or memory ran out. */
bool extents_take(struct extents *extents, uint64_t nbytes, uint64_t *begin);
/* Adds a range, joining its neighbours. A range that was taken always fits; false where memory ran out for
 * another one. */
bool extents_give(struct extents *extents, uint64_t begin, uint64_t nbytes);
/* Whether exactly [0, nbytes) is free, that is, nothing is in use. */
bool extents_all_free(const struct extents *extents, uint64_t nbytes);
void extents_clear(struct extents *extents);

/* ---- client.c ---- */

/* This process's presence on one GPU. */
struct store_holding {
    int lock_fd; /* keeps the memory; never mapped, because a mapping would hold it too */
    int data_fd; /* device bytes, a file of the same name in memory/; only orders lock it (driver/orders.c) */
    struct store_client *header;
    char name[32];          /* in dev/ and in memory/ */
    struct extents offsets; /* free byte ranges of the data file */
};

/* The next number of the folder, never given twice; 0 where the folder cannot be written. */
uint64_t store_next_number(void);

/* What the driver has taken of a GPU for managed memory and nobody uses yet: all processes share it. */
uint64_t store_managed_reserve(uint32_t gpu);
void store_set_managed_reserve(uint32_t gpu, uint64_t nbytes);

/* Lives until the last process that has its descriptor ends. */
int store_client_open(struct store_holding *holding, uint32_t gpu, const struct store_mig *mig);
/* Undoes an open that nothing was allocated in: the files are removed. */
void store_client_close(struct store_holding *holding);

/* The client is on another GPU from now on: its files have that one's names. Takes no memory and no lock. */
int store_client_move(struct store_holding *holding, uint32_t gpu);

/* Another process's header, mapped for reading and for its checkpoint state. */
struct store_client *store_client_map(uint32_t gpu, uint32_t serial);
void store_client_unmap(struct store_client *client);

struct store_found {
    uint32_t gpu, serial;
};
/* The client files of a process, named by its pid here: how many, or -errno. No admission needed. */
int store_clients_of(uint32_t pid, struct store_found *found, int room);

/* Device bytes are ranges of the data file: zero when taken, punched out when returned. */
int store_bytes_take(struct store_holding *holding, uint64_t nbytes, uint64_t *offset);
void store_bytes_return(struct store_holding *holding, uint64_t offset, uint64_t nbytes);
/* Drops the contents of a range of any data file, without making it free. */
void store_bytes_punch(int fd, uint64_t offset, uint64_t nbytes);

int store_shared_add(struct store_client *client, struct store_shared slot);
void store_shared_remove(struct store_client *client, uint64_t object, bool imported);
bool store_shared_has(const struct store_client *client, uint64_t object);
/* Whether any live file, of whatever process, still keeps the object; *nbytes*, unless NULL, becomes its size
 * (0 where that is unknown). */
bool store_object_kept(uint64_t object, uint64_t *nbytes);

/* Makes an export file and returns the descriptor that keeps it alive, or -errno. */
int store_export_create(const struct store_export *header, uint64_t file_nbytes);
/* Reads what *fd* exports: 0, or -EINVAL where it is no descriptor of ours. No admission needed. */
int store_export_read(int fd, struct store_export *header);
/* The serial of the client in whose data file an object lies, or 0. */
uint32_t store_maker(const struct store_export *header);
/* A description of a data file, for mapping. No admission needed. */
int store_data_open(const char *data_file);

#endif

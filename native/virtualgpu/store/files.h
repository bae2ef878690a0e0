/* Declarations for the files of this folder only. */
#ifndef VRAM_VIRTUALGPU_FILES_H
#define VRAM_VIRTUALGPU_FILES_H

#include "store.h"

#define CLIENT_MAGIC "VRAMGPU1"
#define EXPORT_MAGIC "VRAMEXP1"

enum dev_kind { DEV_OTHER, DEV_CLIENT, DEV_EXPORT, DEV_DMABUF };

/* What a name in dev/ means; *gpu* and *serial* are set where the name has them. */
enum dev_kind dev_kind(const char *name, uint32_t *gpu, uint32_t *serial);
int dev_path(char *path, size_t size, const char *name);
/* Opens dev/<name> close-on-exec; created files can be opened by everybody who can enter the folder. */
int dev_open(const char *name, int flags);
/* The data file of a client, in memory/: device bytes must not look like a mapped device. */
int memory_path(char *path, size_t size, const char *name);
int memory_open(const char *name, int flags);

/* Creates dev/<name>, which must not exist, and takes the lock that keeps it alive. Nothing is left of a
 * file that could not be locked. */
int dev_create_locked(const char *name);
void dev_remove(const char *name);
void memory_remove(const char *name);
/* Whether anybody's open file description still holds the file's lock. */
bool dev_locked(int fd);

/* The lock file of admission, opened; not locked yet. A descriptor or -errno. */
int open_lock_file(void);
/* The descriptor of store_enter. Inside admission. */
int admission_fd(void);
/* The reserve for managed memory, by a descriptor of the lock file. */
uint64_t reserve_read(int lock_file, uint32_t gpu);
void reserve_write(int lock_file, uint32_t gpu, uint64_t nbytes);

uint64_t process_started_at(void);
uint64_t process_pid_namespace(void);
/* The pid by which this namespace knows the process, or 0. */
uint32_t process_visible_pid(uint32_t creator_pid, uint64_t pid_namespace, uint64_t started_at);

#endif

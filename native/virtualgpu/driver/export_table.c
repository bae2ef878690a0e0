/* cuGetExportTable: private tables of NVIDIA's driver, which are not imitated. NVIDIA's runtime library cannot
 * work without them, and a program is told so once, with the file that needs them and what to do instead. */
#define _GNU_SOURCE
#include "driver.h"

#include <ctype.h>
#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The table without which the runtime gives up (12.9, 13.0 and 13.4 were tried). It asks for another one first and
 * copes without. cuda.bindings' driver module, cuda.core, Numba and PyCUDA ask for none. */
static const struct uuid runtime_table = {
    {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}};

/* ---- the message, written at once so that lines of other threads do not get in between ---- */

struct message {
    char text[4096];
    size_t length;
};

static void __attribute__((format(printf, 2, 3))) add(struct message *message, const char *format, ...) {
    size_t room = sizeof message->text - message->length;
    va_list values;
    va_start(values, format);
    int written = vsnprintf(message->text + message->length, room, format, values);
    va_end(values);
    if (written > 0) message->length += (size_t)written < room ? (size_t)written : room - 1;
}

/* A file's name comes from others. What a terminal would obey is replaced: control characters, also those that
 * UTF-8 writes as C2 80 to C2 9F. */
static void add_name(struct message *message, const char *name) {
    size_t from = message->length;
    add(message, "%s", name);
    for (unsigned char *at = (unsigned char *)message->text + from; *at; at++) {
        bool two_bytes = *at == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f;
        if (two_bytes || iscntrl(*at)) *at = '?';
        if (two_bytes) *++at = '?';
    }
}

static void send(const struct message *message) {
    ssize_t ignored = write(STDERR_FILENO, message->text, message->length);
    (void)ignored; /* stderr may be closed: the error code is still there */
}

/* ---- which file asks ---- */

struct asker {
    const char *file;
    const struct link_map *object; /* NULL: not known to the loader */
    char program[4096];
};

/* The program itself is known to the loader by the word that started it, which may be a name on PATH. */
static void find_asker(struct asker *asker, void *address) {
    Dl_info found;
    struct link_map *object = NULL;
    *asker = (struct asker){.file = "this program"};
    if (!dladdr1(address, &found, (void **)&object, RTLD_DL_LINKMAP)) return;
    asker->object = object;
    if (found.dli_fname && *found.dli_fname) asker->file = found.dli_fname;
    if (strchr(asker->file, '/')) return;
    if (readlink("/proc/self/exe", asker->program, sizeof asker->program - 1) > 0) asker->file = asker->program;
}

/* The loader turns the address of an object's texts into a pointer, except where it cannot write: in the vDSO. */
static const char *texts_of(const struct link_map *object) {
    for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB)
            return (const char *)(entry->d_un.d_ptr < object->l_addr ? object->l_addr + entry->d_un.d_ptr
                                                                     : entry->d_un.d_ptr);
    return NULL;
}

/* The first text under *tag* that is *wanted*, or any where that is NULL. */
static const char *text_of(const struct link_map *object, ElfW(Sxword) tag, const char *wanted) {
    const char *texts = texts_of(object);
    for (const ElfW(Dyn) *entry = object->l_ld; texts && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag != tag) continue;
        const char *text = texts + entry->d_un.d_val;
        if (!wanted || strcmp(text, wanted) == 0) return text;
    }
    return NULL;
}

/* ---- how a libcudart.so of NVIDIA's came to be used instead of ours ---- */

static const char *named_by_rpath(const struct link_map *any, const char *library) {
    const struct link_map *object = any;
    while (object->l_prev) object = object->l_prev;
    for (; object; object = object->l_next)
        if (text_of(object, DT_NEEDED, library) && text_of(object, DT_RPATH, NULL))
            return *object->l_name ? object->l_name : "the program";
    return NULL;
}

/* Whether LD_LIBRARY_PATH has the folder of *file* before *ours*. */
static bool path_has_first(const char *file, const char *ours) {
    const char *path = getenv("LD_LIBRARY_PATH"), *slash = strrchr(file, '/');
    if (!path || !slash) return false;
    size_t length = (size_t)(slash - file), ours_length = strlen(ours);
    for (const char *folder = path; *folder; folder += strspn(folder, ":")) {
        size_t size = strcspn(folder, ":");
        if (size == ours_length && strncmp(folder, ours, size) == 0) return false;
        if (size == length && strncmp(folder, file, size) == 0) return true;
        folder += size;
    }
    return false;
}

static const char needs_tables[] =
    "      It needs private tables of NVIDIA's driver, which the virtual GPU does not have:\n"
    "      its calls return error 801 (not supported).\n      ";

static void add_dynamic(struct message *message, const struct asker *asker, const char *library) {
    char ours[4096], same[4200];
    const char *root = getenv("VRAM_VIRTUAL_GPU"), *by_rpath = named_by_rpath(asker->object, library);
    snprintf(ours, sizeof ours, "%s/lib", root ? root : "");
    snprintf(same, sizeof same, "%s/%s", ours, library);
    add_name(message, asker->file);
    add(message, " is NVIDIA's CUDA runtime.\n%s", needs_tables);
    if (access(same, F_OK) != 0) {
        add(message, "The virtual GPU has no runtime of its own under the name %s. Use a real GPU.\n", library);
    } else if (path_has_first(asker->file, ours)) {
        add(message, "It was found first because its folder comes first in LD_LIBRARY_PATH. Put %s first.\n", ours);
    } else if (by_rpath) {
        add(message, "It was found first because of the RPATH in ");
        add_name(message, by_rpath);
        add(message, ".\n      Start it with LD_PRELOAD=%s\n", same);
    } else {
        add(message, "It was loaded by its path. Its name alone, %s, finds the virtual GPU's own.\n", library);
    }
}

static void add_static(struct message *message, const struct asker *asker) {
    add_name(message, asker->file);
    add(message, " has NVIDIA's CUDA runtime linked in statically.\n%s", needs_tables);
    bool is_the_program = asker->object && !*asker->object->l_name; /* see runtime/static.c */
    add(message, "%s it with `nvcc -cudart shared`, or use a real GPU.\n",
        is_the_program ? "Do not strip it, link" : "Link");
}

static void tell_once(void *address) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    struct message message = {.length = 0};
    struct asker asker;
    if (atomic_flag_test_and_set(&told)) return;
    find_asker(&asker, address);
    const char *library = asker.object ? text_of(asker.object, DT_SONAME, NULL) : NULL;
    add(&message, "vram: ");
    if (library && strncmp(library, "libcudart.so.", 13) == 0)
        add_dynamic(&message, &asker, library);
    else
        add_static(&message, &asker);
    send(&message);
}

API result cuGetExportTable(const void **table, const struct uuid *id);

/* Exported as it is: behind entry.c, the return address would be the driver's own. */
API result cuGetExportTable(const void **table, const struct uuid *id) {
    if (table) *table = NULL;
    if (!id || !store_config() || memcmp(id, &runtime_table, sizeof *id) != 0) return NOT_FOUND;
    tell_once(__builtin_return_address(0));
    return NOT_SUPPORTED;
}

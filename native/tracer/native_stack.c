// Walks the native stack with libgcc's unwinder, and knows where the libraries of interest are.
#define _GNU_SOURCE
#include "native_stack.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The unwinder is found at run time: a program need not have one. Declared as in GCC's unwind.h.
struct _Unwind_Context;
typedef int (*frame_visitor)(struct _Unwind_Context *, void *);
static int (*visit_frames)(frame_visitor, void *);                  // _Unwind_Backtrace
static uintptr_t (*frame_address)(struct _Unwind_Context *, int *); // _Unwind_GetIPInfo
enum { GO_ON = 0, STOP = 5 };                                       // _URC_NO_REASON, _URC_END_OF_STACK
enum { UNTRIED, ABSENT, USABLE };
static atomic_int unwinder = UNTRIED;

// ---- where the libraries of interest are ----

enum kind { OWN, CUDA, PYTHON, KINDS };
enum { MOST_RANGES = 15 };

// Code of libraries, a list for each kind that ends with a zero. Read without a lock: while a library is loaded or
// unloaded, a walk in another thread may keep a frame of libcuda that it would have left out.
static struct {
    atomic_uintptr_t begin, end;
} ranges[KINDS][MOST_RANGES + 1];
static _Atomic(unsigned long long) loads, unloads; // the loader's counters when the lists were made
static atomic_flag refreshing = ATOMIC_FLAG_INIT;

struct search {
    int count[KINDS];
    struct {
        uintptr_t begin, end;
    } found[KINDS][MOST_RANGES];
    uintptr_t own, python; // addresses in those
    unsigned long long loads, unloads;
};

static bool begins_with(const char *text, const char *prefix) {
    return !strncmp(text, prefix, strlen(prefix));
}

static bool is_inside(const struct dl_phdr_info *info, uintptr_t address) {
    for (int each = 0; each < info->dlpi_phnum; each++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[each];
        if (header->p_type == PT_LOAD && address - info->dlpi_addr - header->p_vaddr < header->p_memsz) return true;
    }
    return false;
}

static int add_library(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *search = data;
    search->loads = info->dlpi_adds;
    search->unloads = info->dlpi_subs;
    const char *name = strrchr(info->dlpi_name, '/');
    name = name ? name + 1 : info->dlpi_name;
    enum kind kind;
    if (is_inside(info, search->own))
        kind = OWN;
    else if (begins_with(name, "libcuda.so") || begins_with(name, "libcupti.so"))
        kind = CUDA;
    else if (begins_with(name, "libpython3.") || (search->python && is_inside(info, search->python)))
        kind = PYTHON;
    else
        return 0;
    for (int each = 0; each < info->dlpi_phnum && search->count[kind] < MOST_RANGES; each++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[each];
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_X)) continue;
        int count = search->count[kind]++;
        search->found[kind][count].begin = info->dlpi_addr + header->p_vaddr;
        search->found[kind][count].end = info->dlpi_addr + header->p_vaddr + header->p_memsz;
    }
    return 0;
}

static void refresh_ranges(void) {
    if (atomic_flag_test_and_set(&refreshing)) return; // another thread does it
    struct search search = {.own = (uintptr_t)&refresh_ranges,
                            .python = (uintptr_t)dlsym(RTLD_DEFAULT, "Py_GetVersion")};
    dl_iterate_phdr(add_library, &search);
    for (int kind = 0; kind < KINDS; kind++) {
        for (int each = 0; each < search.count[kind]; each++) {
            atomic_store_explicit(&ranges[kind][each].end, search.found[kind][each].end, memory_order_relaxed);
            atomic_store_explicit(&ranges[kind][each].begin, search.found[kind][each].begin, memory_order_relaxed);
        }
        atomic_store_explicit(&ranges[kind][search.count[kind]].begin, 0, memory_order_relaxed);
    }
    atomic_store_explicit(&loads, search.loads, memory_order_relaxed);
    atomic_store_explicit(&unloads, search.unloads, memory_order_relaxed);
    atomic_flag_clear(&refreshing);
}

static int compare_counters(struct dl_phdr_info *info, size_t size, void *changed) {
    (void)size;
    *(bool *)changed = info->dlpi_adds != atomic_load_explicit(&loads, memory_order_relaxed) ||
                       info->dlpi_subs != atomic_load_explicit(&unloads, memory_order_relaxed);
    return 1; // the counters are the same for all libraries
}

static inline bool is_in(enum kind kind, uintptr_t address) {
    for (int each = 0; each < MOST_RANGES; each++) {
        uintptr_t begin = atomic_load_explicit(&ranges[kind][each].begin, memory_order_relaxed);
        if (!begin) return false;
        if (address >= begin && address < atomic_load_explicit(&ranges[kind][each].end, memory_order_relaxed))
            return true;
    }
    return false;
}

bool native_is_python(uintptr_t address) {
    return is_in(PYTHON, address - 1);
}

// ---- walking ----

bool native_prepare(void) {
    int known = atomic_load_explicit(&unwinder, memory_order_acquire);
    if (known != UNTRIED) return known == USABLE;
    // Stays loaded. Several threads may come here at once: each finds the same.
    void *library = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library) {
        *(void **)&visit_frames = dlsym(library, "_Unwind_Backtrace");
        *(void **)&frame_address = dlsym(library, "_Unwind_GetIPInfo");
    }
    known = library && visit_frames && frame_address ? USABLE : ABSENT;
    refresh_ranges();
    atomic_store_explicit(&unwinder, known, memory_order_release);
    return known == USABLE;
}

struct walk {
    uintptr_t *addresses;
    int count, most;
};

static int add_frame(struct _Unwind_Context *context, void *data) {
    struct walk *walk = data;
    int before = 0;
    uintptr_t address = frame_address(context, &before);
    if (!address) return STOP;
    // A frame that a signal interrupted is at its next instruction, not after a call: native_describe steps back.
    if (before) address++;
    if (!walk->count && (is_in(OWN, address - 1) || is_in(CUDA, address - 1))) return GO_ON;
    if (walk->count == walk->most) return STOP;
    walk->addresses[walk->count++] = address;
    return GO_ON;
}

int native_walk(uintptr_t *addresses, int most) {
    if (!native_prepare()) return 0;
    bool changed = false;
    dl_iterate_phdr(compare_counters, &changed);
    if (changed) refresh_ranges();
    struct walk walk = {addresses, 0, most > 0 ? most : 0};
    visit_frames(add_frame, &walk);
    return walk.count;
}

// ---- describing ----

static void copy_path(const struct link_map *map, const char *name, char *to, size_t size) {
    char path[PATH_MAX];
    ssize_t nbytes = -1;
    if (!map->l_name[0]) nbytes = readlink("/proc/self/exe", path, sizeof path - 1); // the program
    if (nbytes >= 0)
        path[nbytes] = '\0';
    else if (!realpath(name, path) || name[0] == '/')
        strncpy(path, name, sizeof path - 1)[sizeof path - 1] = '\0';
    size_t length = strlen(path);
    if (length >= size) length = size - 1;
    memcpy(to, path, length);
    to[length] = '\0';
}

bool native_describe(uintptr_t address, struct native_place *place) {
    Dl_info info;
    struct link_map *map = NULL;
    if (!address || !dladdr1((void *)(address - 1), &info, (void **)&map, RTLD_DL_LINKMAP) || !map) return false;
    copy_path(map, info.dli_fname ? info.dli_fname : map->l_name, place->library, sizeof place->library);
    const char *symbol = info.dli_sname ? info.dli_sname : "";
    size_t length = strnlen(symbol, sizeof place->symbol - 1);
    memcpy(place->symbol, symbol, length);
    place->symbol[length] = '\0';
    place->offset = address - 1 - map->l_addr;
    return true;
}

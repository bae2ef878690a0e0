// Walks the native stack, and knows where the libraries of interest are.
#define _GNU_SOURCE
#include "native_stack.h"

#include "call_frames.h"

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
enum { MAX_RANGES = 15 };

// Code of libraries, a list for each kind that ends with a zero. Read without a lock: while a library is loaded or
// unloaded, a walk in another thread may keep a frame of libcuda that it would have left out.
static struct {
    atomic_uintptr_t begin, end;
} ranges[KINDS][MAX_RANGES + 1];
static _Atomic(unsigned long long) loads, unloads; // the loader's counters when the lists were made
static atomic_flag refreshing = ATOMIC_FLAG_INIT;
static atomic_uintptr_t in_python; // an address in the program, where that is Python

struct search {
    int count[KINDS];
    struct {
        uintptr_t begin, end;
    } found[KINDS][MAX_RANGES];
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
    for (int each = 0; each < info->dlpi_phnum && search->count[kind] < MAX_RANGES; each++) {
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
    struct search search = {.own = (uintptr_t)&refresh_ranges, .python = atomic_load(&in_python)};
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

static int read_counters(struct dl_phdr_info *info, size_t size, void *counters) {
    (void)size;
    ((unsigned long long *)counters)[0] = info->dlpi_adds;
    ((unsigned long long *)counters)[1] = info->dlpi_subs;
    return 1; // they are the same for all libraries
}

static inline bool is_in(enum kind kind, uintptr_t address) {
    for (int each = 0; each < MAX_RANGES; each++) {
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
    atomic_store(&in_python, (uintptr_t)dlsym(RTLD_DEFAULT, "Py_GetVersion"));
    known = library && visit_frames && frame_address ? USABLE : ABSENT;
    refresh_ranges();
    atomic_store_explicit(&unwinder, known, memory_order_release);
    return known == USABLE;
}

struct walk {
    uintptr_t *addresses;
    int count, most;
};

static bool is_left_out(uintptr_t address) {
    return is_in(OWN, address - 1) || is_in(CUDA, address - 1);
}

static int add_frame(struct _Unwind_Context *context, void *data) {
    struct walk *walk = data;
    int before = 0;
    uintptr_t address = frame_address(context, &before);
    if (!address) return STOP;
    // A frame that a signal interrupted is at its next instruction, not after a call: native_describe steps back.
    if (before) address++;
    if (!walk->count && is_left_out(address)) return GO_ON;
    if (walk->count == walk->most) return STOP;
    walk->addresses[walk->count++] = address;
    return GO_ON;
}

int native_walk_by_libgcc(uintptr_t *addresses, int most) {
    if (!native_prepare()) return 0;
    struct walk walk = {addresses, 0, most > 0 ? most : 0};
    visit_frames(add_frame, &walk);
    return walk.count;
}

int native_walk(uintptr_t *addresses, int most, unsigned long long *unloaded) {
    native_prepare();
    unsigned long long counters[2] = {0, 0};
    dl_iterate_phdr(read_counters, counters);
    if (counters[0] != atomic_load_explicit(&loads, memory_order_relaxed) ||
        counters[1] != atomic_load_explicit(&unloads, memory_order_relaxed))
        refresh_ranges();
    *unloaded = counters[1];
    int count = most > 0 ? call_frames_walk(addresses, most, is_left_out, counters[1]) : 0;
    return count >= 0 ? count : native_walk_by_libgcc(addresses, most);
}

// ---- describing ----

// dladdr would hold the loader's lock, for 1.5 ms in the largest library of PyTorch: it compares all of its symbols.
// Where there are that many, the name is left to whoever reads the file (vram.trace.symbols).
enum { MAX_SYMBOLS = 20000 };

struct library {
    uintptr_t place; // an address in it
    uintptr_t bias;
    const ElfW(Dyn) * dynamic;
    bool is_program;
    int number; // libraries before it
    char name[PATH_MAX];
    char build_id[65];
};

// Notes follow each other: sizes of owner and contents, a type, owner, contents; each padded. Source: elf(5).
static void read_build_id(const char *notes, size_t nbytes, char text[65]) {
    enum { BUILD_ID = 3, HEADER = 12 };
    while (nbytes >= HEADER) {
        uint32_t header[3];
        memcpy(header, notes, sizeof header);
        size_t owner = ((size_t)header[0] + 3) & ~(size_t)3, contents = ((size_t)header[1] + 3) & ~(size_t)3;
        if (owner > nbytes - HEADER || contents > nbytes - HEADER - owner) return;
        const unsigned char *bytes = (const unsigned char *)notes + HEADER + owner;
        if (header[2] == BUILD_ID && header[0] == 4 && !memcmp(notes + HEADER, "GNU", 4) && header[1] <= 32) {
            for (uint32_t each = 0; each < header[1]; each++) {
                *text++ = "0123456789abcdef"[bytes[each] >> 4];
                *text++ = "0123456789abcdef"[bytes[each] & 15];
            }
            *text = '\0';
            return;
        }
        notes += HEADER + owner + contents;
        nbytes -= HEADER + owner + contents;
    }
}

static int find_library(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct library *library = data;
    if (!is_inside(info, library->place)) {
        library->number++;
        return 0;
    }
    library->bias = info->dlpi_addr;
    library->is_program = !library->number; // comes first
    size_t length = strnlen(info->dlpi_name, sizeof library->name - 1);
    memcpy(library->name, info->dlpi_name, length);
    library->name[length] = '\0';
    for (int each = 0; each < info->dlpi_phnum; each++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[each];
        const char *at = (const char *)(info->dlpi_addr + header->p_vaddr);
        if (header->p_type == PT_DYNAMIC) library->dynamic = (const ElfW(Dyn) *)at;
        if (header->p_type == PT_NOTE && !*library->build_id && is_inside(info, (uintptr_t)at) &&
            is_inside(info, (uintptr_t)at + header->p_filesz - 1))
            read_build_id(at, header->p_filesz, library->build_id);
    }
    return 1;
}

static void copy_text(const char *text, char *to, size_t size) {
    size_t length = strnlen(text, size - 1);
    memcpy(to, text, length);
    to[length] = '\0';
}

static void copy_path(const struct library *library, char *to, size_t size) {
    char path[PATH_MAX];
    ssize_t nbytes = library->is_program ? readlink("/proc/self/exe", path, sizeof path - 1) : -1;
    if (nbytes >= 0) path[nbytes] = '\0';
    // A library that was loaded by a relative name; where the program has changed its folder, that remains.
    bool is_path =
        nbytes >= 0 || (library->name[0] != '/' && strchr(library->name, '/') && realpath(library->name, path));
    copy_text(is_path ? path : library->name, to, size);
}

// The number of dynamic symbols, which only the table for finding them by name tells.
static uint32_t count_symbols(const uint32_t *table, bool is_gnu) {
    if (!is_gnu) return table[1]; // DT_HASH: the number of buckets, the number of symbols
    uint32_t nbuckets = table[0], first = table[1], last = 0;
    const uint32_t *buckets = table + 4 + (size_t)table[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    for (uint32_t each = 0; each < nbuckets; each++)
        if (buckets[each] > last) last = buckets[each];
    if (last < first) return first;
    while (last < MAX_SYMBOLS && !(buckets[nbuckets + last - first] & 1)) last++;
    return last + 1;
}

static const char *find_symbol(const struct library *library) {
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL, *gnu_hash = NULL;
    for (const ElfW(Dyn) *each = library->dynamic; each && each->d_tag != DT_NULL; each++) {
        // The loader makes these addresses in place; where it did not, they are offsets.
        uintptr_t address = each->d_un.d_ptr < library->bias ? library->bias + each->d_un.d_ptr : each->d_un.d_ptr;
        if (each->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)address;
        if (each->d_tag == DT_STRTAB) names = (const char *)address;
        if (each->d_tag == DT_HASH) hash = (const uint32_t *)address;
        if (each->d_tag == DT_GNU_HASH) gnu_hash = (const uint32_t *)address;
    }
    if (!symbols || !names || (!hash && !gnu_hash)) return "";
    uint32_t count = hash ? count_symbols(hash, false) : count_symbols(gnu_hash, true);
    const ElfW(Sym) *best = NULL;
    for (uint32_t each = 0; count <= MAX_SYMBOLS && each < count; each++) {
        const ElfW(Sym) *symbol = &symbols[each];
        int type = ELF64_ST_TYPE(symbol->st_info);
        if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol->st_shndx == SHN_UNDEF) continue;
        if (library->place - library->bias - symbol->st_value >= symbol->st_size) continue;
        if (!best || ELF64_ST_BIND(best->st_info) != STB_GLOBAL) best = symbol;
    }
    return best ? names + best->st_name : "";
}

bool native_describe(uintptr_t address, struct native_place *place) {
    struct library library = {.place = address - 1};
    if (!address || !dl_iterate_phdr(find_library, &library)) return false;
    copy_path(&library, place->library, sizeof place->library);
    copy_text(find_symbol(&library), place->symbol, sizeof place->symbol);
    copy_text(library.build_id, place->build_id, sizeof place->build_id);
    place->offset = library.place - library.bias;
    return true;
}

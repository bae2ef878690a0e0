/* The one subscription that CUPTI gives to a process, shared with a profiler in the program.
 *
 * PyTorch's profiler subscribes when it is first used and never leaves. Without us it would be refused
 * (and then records no GPU work at all). So the libraries of the program that import CUPTI's functions get
 * the ones below: a second subscriber is a callback that we call, with the callbacks that it has asked for.
 * Only entries of libraries' import tables are changed, and only to functions with the same signature;
 * a program that finds CUPTI's functions with dlsym is not covered, and is refused by CUPTI as always.
 */
#define _GNU_SOURCE
#include "cupti.h"
#include "section.h"
#include "tracer.h"

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DOMAINS = 16, MAX_IDS = 2048 };

static struct {
    _Atomic(cupti_callback) callback;
    _Atomic(void *) data;
    _Atomic bool wanted[DOMAINS][MAX_IDS];
} other;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool subscription_is_shared(void) {
    return atomic_load(&other.callback) != NULL;
}

bool subscriber_wants(int domain, uint32_t id) {
    return atomic_load(&other.callback) && domain >= 0 && domain < DOMAINS && id < MAX_IDS &&
           atomic_load(&other.wanted[domain][id]);
}

void dispatch(void *unused, int domain, uint32_t id, const void *data) {
    on_callback(unused, domain, id, data);
    cupti_callback callback = atomic_load_explicit(&other.callback, memory_order_acquire);
    if (likely(!callback)) return;
    if (subscriber_wants(domain, id)) callback(atomic_load(&other.data), domain, id, data);
}

/* ---- what the other subscriber calls ---- */

static void forget_wanted(void) {
    for (int domain = 0; domain < DOMAINS; domain++)
        for (int id = 0; id < MAX_IDS; id++)
            atomic_store_explicit(&other.wanted[domain][id], false, memory_order_relaxed);
}

static int shared_subscribe(void **handle, cupti_callback callback, void *data) {
    pthread_mutex_lock(&lock);
    int result = CUPTI_SUBSCRIBERS;
    if (!subscription) {
        result = cupti.subscribe(handle, callback, data);
    } else if (handle && callback && !atomic_load(&other.callback)) {
        forget_wanted();
        atomic_store(&other.data, data);
        atomic_store_explicit(&other.callback, callback, memory_order_release);
        *handle = subscription;
        result = CUPTI_OK;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static bool is_ours(const void *handle) {
    return subscription && handle == subscription && atomic_load(&other.callback);
}

static void enable_again(int domain, uint32_t id) {
    cupti.enable_callback(1, subscription, domain, id);
}

static int shared_enable_callback(uint32_t enable, void *handle, int domain, uint32_t id) {
    if (!is_ours(handle)) return cupti.enable_callback(enable, handle, domain, id);
    if (domain < 0 || domain >= DOMAINS || id >= MAX_IDS) return cupti.enable_callback(enable, handle, domain, id);
    if (!enable && is_hooked(domain, id)) { /* the recorder needs it */
        atomic_store(&other.wanted[domain][id], false);
        return CUPTI_OK;
    }
    int result = cupti.enable_callback(enable, handle, domain, id);
    if (result == CUPTI_OK) atomic_store(&other.wanted[domain][id], enable != 0);
    return result;
}

static void want_domain(int domain, bool wanted) {
    for (int id = 0; domain >= 0 && domain < DOMAINS && id < MAX_IDS; id++)
        atomic_store(&other.wanted[domain][id], wanted);
}

static int shared_enable_domain(uint32_t enable, void *handle, int domain) {
    if (!is_ours(handle)) return cupti.enable_domain(enable, handle, domain);
    want_domain(domain, enable != 0);
    int result = cupti.enable_domain(enable, handle, domain);
    if (!enable) for_each_hook(enable_again);
    return result;
}

static int shared_enable_all(uint32_t enable, void *handle) {
    if (!is_ours(handle)) return cupti.enable_all(enable, handle);
    for (int domain = 0; domain < DOMAINS; domain++) want_domain(domain, enable != 0);
    int result = cupti.enable_all(enable, handle);
    if (!enable) for_each_hook(enable_again);
    return result;
}

static int shared_state(uint32_t *enabled, void *handle, int domain, uint32_t id) {
    int result = cupti.state(enabled, handle, domain, id);
    if (result == CUPTI_OK && is_ours(handle) && domain >= 0 && domain < DOMAINS && id < MAX_IDS)
        *enabled = atomic_load(&other.wanted[domain][id]);
    return result;
}

static int shared_unsubscribe(void *handle) {
    if (!is_ours(handle)) return cupti.unsubscribe(handle);
    pthread_mutex_lock(&lock);
    atomic_store(&other.callback, NULL);
    forget_wanted();
    cupti.enable_all(0, subscription);
    if (atomic_load(&recording) == RECORDING) {
        for_each_hook(enable_again);
    } else {
        cupti.unsubscribe(subscription);
        subscription = NULL;
    }
    pthread_mutex_unlock(&lock);
    return CUPTI_OK;
}

static int shared_finalize(void) {
    /* CUPTI is shut down for everybody: from here on nothing is recorded. */
    bool was_recording = subscription && atomic_load(&recording) == RECORDING;
    if (was_recording) record_gap(GAP_SHUT_DOWN, true);
    int result = cupti.finalize();
    if (result == CUPTI_OK) {
        pthread_mutex_lock(&lock);
        atomic_store(&other.callback, NULL);
        subscription = NULL;
        pthread_mutex_unlock(&lock);
    } else if (was_recording) {
        record_gap(GAP_SHUT_DOWN, false);
    }
    return result;
}

/* ---- import tables ---- */

#if defined(__x86_64__)
enum { JUMP_SLOT = R_X86_64_JUMP_SLOT, GLOBAL_DATA = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { JUMP_SLOT = R_AARCH64_JUMP_SLOT, GLOBAL_DATA = R_AARCH64_GLOB_DAT };
#else
enum { JUMP_SLOT = -1, GLOBAL_DATA = -1 };
#endif

static const struct {
    const char *name;
    void *function;
} replaced[] = {
    {"cuptiSubscribe", shared_subscribe},
    {"cuptiUnsubscribe", shared_unsubscribe},
    {"cuptiEnableCallback", shared_enable_callback},
    {"cuptiEnableDomain", shared_enable_domain},
    {"cuptiEnableAllDomains", shared_enable_all},
    {"cuptiGetCallbackState", shared_state},
    {"cuptiFinalize", shared_finalize},
};

static void *replacement(const char *name) {
    if (strncmp(name, "cupti", 5)) return NULL;
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++)
        if (!strcmp(name, replaced[i].name)) return replaced[i].function;
    return NULL;
}

struct import_tables {
    const ElfW(Rela) * plt, *data;
    size_t plt_nbytes, data_nbytes;
    const ElfW(Sym) * symbols;
    const char *names;
    ElfW(Addr) protected_from, protected_to; /* after relocation */
};

static bool import_tables(const struct dl_phdr_info *info, struct import_tables *tables) {
    memset(tables, 0, sizeof *tables);
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_DYNAMIC) dynamic = (const void *)(info->dlpi_addr + header->p_vaddr);
        if (header->p_type == PT_GNU_RELRO) {
            tables->protected_from = info->dlpi_addr + header->p_vaddr;
            tables->protected_to = tables->protected_from + header->p_memsz;
        }
    }
    bool needs_cupti = false;
    for (const ElfW(Dyn) *each = dynamic; each && each->d_tag != DT_NULL; each++) {
        /* glibc has made these absolute. */
        const void *place = (const void *)each->d_un.d_ptr;
        if (each->d_tag == DT_SYMTAB) tables->symbols = place;
        if (each->d_tag == DT_STRTAB) tables->names = place;
        if (each->d_tag == DT_JMPREL) tables->plt = place;
        if (each->d_tag == DT_PLTRELSZ) tables->plt_nbytes = each->d_un.d_val;
        if (each->d_tag == DT_RELA) tables->data = place;
        if (each->d_tag == DT_RELASZ) tables->data_nbytes = each->d_un.d_val;
    }
    if (!tables->symbols || !tables->names || (uintptr_t)tables->names < 4096) return false;
    for (const ElfW(Dyn) *each = dynamic; each->d_tag != DT_NULL; each++)
        if (each->d_tag == DT_NEEDED && !strncmp(tables->names + each->d_un.d_val, "libcupti.so", 11))
            needs_cupti = true;
    return needs_cupti;
}

static void write_entry(const struct import_tables *tables, void **entry, void *function) {
    if (*entry == function) return;
    uintptr_t page = (uintptr_t)entry & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);
    bool is_protected = (uintptr_t)entry >= tables->protected_from && (uintptr_t)entry < tables->protected_to;
    size_t nbytes = (uintptr_t)(entry + 1) - page;
    if (is_protected && mprotect((void *)page, nbytes, PROT_READ | PROT_WRITE)) return;
    __atomic_store_n(entry, function, __ATOMIC_RELEASE);
    if (is_protected) mprotect((void *)page, nbytes, PROT_READ);
}

static void replace_in(const struct dl_phdr_info *info, const struct import_tables *tables,
                       const ElfW(Rela) * relocations, size_t nbytes) {
    for (size_t i = 0; relocations && i < nbytes / sizeof *relocations; i++) {
        int type = (int)ELF64_R_TYPE(relocations[i].r_info);
        if (type != JUMP_SLOT && type != GLOBAL_DATA) continue;
        const ElfW(Sym) *symbol = &tables->symbols[ELF64_R_SYM(relocations[i].r_info)];
        void *function = replacement(tables->names + symbol->st_name);
        if (function) write_entry(tables, (void **)(info->dlpi_addr + relocations[i].r_offset), function);
    }
}

static _Atomic unsigned long long libraries_seen;

static unsigned long long libraries_loaded(const struct dl_phdr_info *info, size_t size) {
    return size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof info->dlpi_adds ? info->dlpi_adds : 0;
}

static int each_library(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)unused;
    atomic_store(&libraries_seen, libraries_loaded(info, size));
    struct import_tables tables;
    if (!import_tables(info, &tables)) return 0;
    replace_in(info, &tables, tables.plt, tables.plt_nbytes);
    replace_in(info, &tables, tables.data, tables.data_nbytes);
    return 0;
}

static int any_loaded_since(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)unused;
    return libraries_loaded(info, size) == atomic_load(&libraries_seen) ? 1 : 2; /* the first library is enough */
}

void share_subscription(void) {
    if (dl_iterate_phdr(any_loaded_since, NULL) == 1) return;
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(each_library, NULL);
    pthread_mutex_unlock(&lock);
}

void subscribers_forked(void) {
    pthread_mutex_init(&lock, NULL);
}

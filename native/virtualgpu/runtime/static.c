/* Programs with NVIDIA's runtime linked in, nvcc's default: their calls come here too.
 *
 * That runtime works only over NVIDIA's driver (driver/export_table.c). It is never started: the program's symbol table
 * says where its functions begin, and before the program's own code runs, each gets a jump to the function of the
 * same name in this library. Nothing is changed in the file. Both runtimes are preloaded (src/vram/virtualgpu/folder.py),
 * and the one of the program's own version does it.
 *
 * A program without a symbol table (strip) is left as it is, and so are other processors than x86-64, and libraries:
 * they are told what to do by export_table.c.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __x86_64__

/* movabs $address, %r11; jmp *%r11. No call passes anything in r11. */
enum { JUMP_SIZE = 13, ADDRESS_AT = 2 };
static const unsigned char jump[JUMP_SIZE] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3};

/* Names that one major version's runtime has and no other's, from tests/virtualgpu/runtime/exported.txt. */
#define ONLY_HERE (RUNTIME_MAJOR == 12 ? "cudaGetDeviceProperties_v2" : "cudaMemGetDefaultMemPool")

/* The program's file, mapped, and the parts of it that say where functions are. */
struct program {
    const unsigned char *bytes;
    size_t nbytes;
    const ElfW(Sym) * symbols;
    size_t count;
    const char *names;
    size_t names_size;
    uintptr_t base; /* where it was loaded; 0 for a program that is always at the same place */
};

static bool has_range(const struct program *program, uint64_t from, uint64_t nbytes) {
    return from <= program->nbytes && nbytes <= program->nbytes - from;
}

static bool map_file(struct program *program) {
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat found;
    void *bytes = MAP_FAILED;
    if (file >= 0 && fstat(file, &found) == 0 && (size_t)found.st_size >= sizeof(ElfW(Ehdr)))
        bytes = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (file >= 0) close(file);
    if (bytes == MAP_FAILED) return false;
    program->bytes = bytes;
    program->nbytes = (size_t)found.st_size;
    return true;
}

/* What is mapped is whatever file was started: nothing in it is believed to lie inside of it. */
static bool find_symbols(struct program *program) {
    const ElfW(Ehdr) *head = (const ElfW(Ehdr) *)program->bytes;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64) return false;
    if (head->e_shentsize != sizeof(ElfW(Shdr)) || head->e_shoff % sizeof(void *)) return false;
    if (!has_range(program, head->e_shoff, (uint64_t)head->e_shnum * sizeof(ElfW(Shdr)))) return false;
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(program->bytes + head->e_shoff);
    for (unsigned i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= head->e_shnum) continue;
        const ElfW(Shdr) *texts = &sections[sections[i].sh_link];
        if (!has_range(program, sections[i].sh_offset, sections[i].sh_size)) return false;
        if (!has_range(program, texts->sh_offset, texts->sh_size) || !texts->sh_size) return false;
        program->symbols = (const ElfW(Sym) *)(program->bytes + sections[i].sh_offset);
        program->count = sections[i].sh_size / sizeof(ElfW(Sym));
        program->names = (const char *)(program->bytes + texts->sh_offset);
        program->names_size = texts->sh_size;
        return sections[i].sh_offset % sizeof(void *) == 0 && program->names[texts->sh_size - 1] == '\0';
    }
    return false;
}

/* The name of a function that is in the program itself and may be the runtime's; else NULL. */
static const char *runtime_name(const struct program *program, size_t number) {
    const ElfW(Sym) *symbol = &program->symbols[number];
    if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_shndx == SHN_UNDEF) return NULL;
    if (symbol->st_name >= program->names_size) return NULL;
    const char *name = program->names + symbol->st_name;
    return strncmp(name, "cuda", 4) == 0 || strncmp(name, "__cuda", 6) == 0 ? name : NULL;
}

static bool has_this_runtime(const struct program *program) {
    bool is_a_runtime = false, is_this_version = false;
    for (size_t i = 0; i < program->count; i++) {
        const char *name = runtime_name(program, i);
        if (!name) continue;
        is_a_runtime |= strcmp(name, "__cudaRegisterFatBinary") == 0;
        is_this_version |= strcmp(name, ONLY_HERE) == 0;
    }
    return is_a_runtime && is_this_version;
}

/* Functions begin at multiples of 16: a short one may be followed by bytes that are nobody's. */
static bool has_room(const ElfW(Sym) * symbol) {
    return symbol->st_size >= JUMP_SIZE || symbol->st_value % 16 == 0;
}

static void redirect(const struct program *program, void *library, uintptr_t from, uintptr_t end) {
    for (size_t i = 0; i < program->count; i++) {
        const char *name = runtime_name(program, i);
        void *ours = name && has_room(&program->symbols[i]) ? dlsym(library, name) : NULL;
        if (!ours) continue;
        uintptr_t place = program->base + program->symbols[i].st_value;
        if (place < from || place > end - JUMP_SIZE) continue;
        memcpy((void *)place, jump, JUMP_SIZE);
        memcpy((void *)(place + ADDRESS_AT), &ours, sizeof ours);
    }
}

/* The first object is the program itself. Its code can be written while nothing of it runs yet. */
static int change_program(struct dl_phdr_info *object, size_t size, void *argument) {
    struct program *program = argument;
    Dl_info self;
    (void)size;
    program->base = object->dlpi_addr;
    void *library = dladdr(jump, &self) ? dlopen(self.dli_fname, RTLD_NOLOAD | RTLD_NOW) : NULL;
    for (int i = 0; library && i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = object->dlpi_addr + part->p_vaddr;
        uintptr_t from = begin & -page, end = begin + part->p_memsz;
        if (mprotect((void *)from, end - from, PROT_READ | PROT_WRITE) != 0) break;
        redirect(program, library, from, end);
        mprotect((void *)from, end - from, PROT_READ | PROT_EXEC);
        break;
    }
    if (library) dlclose(library);
    return 1;
}

__attribute__((constructor)) static void carry_static_runtime(void) {
    struct program program = {.bytes = NULL};
    /* Loaded later, by a program that runs already, it must not touch that program's code. */
    const char *preloaded = getenv("LD_PRELOAD");
    if (!getenv("VRAM_VIRTUAL_GPU") || !preloaded || !strstr(preloaded, "libcudart.so.") || !map_file(&program)) return;
    if (find_symbols(&program) && has_this_runtime(&program)) dl_iterate_phdr(change_program, &program);
    munmap((void *)program.bytes, program.nbytes);
}

#endif

// Unwinds by DWARF's call frame instructions (.eh_frame), in the forms that compilers write for x86-64 and aarch64.
//
// libgcc's unwinder interprets the tables anew for each frame of each walk, which takes 150 to 300 ns a frame. What a
// table says of a return address does not change while its library is loaded: here it is read once and remembered.
// Whatever is unusual (signal frames, expressions, other registers) is unknown here, and libgcc's task.
#define _GNU_SOURCE
#include "call_frames.h"

#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__) || defined(__aarch64__)

// DWARF's numbers of registers. On x86-64 a call has put the return address right below the end of the frame; on
// aarch64 it is in a register, and lies wherever the function has saved that.
#if defined(__x86_64__)
enum { BASE_POINTER = 6, STACK_POINTER = 7, RETURN_ADDRESS = 16, HIGHEST = -8 };
#else
// libffi saves both at what it declares to be the end of its frame: its caller has made room for them.
enum { BASE_POINTER = 29, STACK_POINTER = 31, RETURN_ADDRESS = 30, HIGHEST = 8 };
#endif
enum { PC_RELATIVE_SIGNED_4 = 0x1b, DATA_RELATIVE_SIGNED_4 = 0x3b, UNSIGNED_4 = 0x03, OMITTED = 0xff };
enum { MAX_REMEMBERED_STATES = 8, MAX_AUGMENTATION = 8 };

// ---- reading tables ----

struct cursor {
    const unsigned char *at, *end;
    bool failed;
};

static uint8_t take_byte(struct cursor *cursor) {
    if (cursor->at >= cursor->end) {
        cursor->failed = true;
        return 0;
    }
    return *cursor->at++;
}

static uint64_t take_fixed(struct cursor *cursor, size_t nbytes) {
    uint64_t value = 0;
    if ((size_t)(cursor->end - cursor->at) < nbytes) {
        cursor->failed = true;
        return 0;
    }
    memcpy(&value, cursor->at, nbytes); // little-endian
    cursor->at += nbytes;
    return value;
}

static uint64_t take_unsigned(struct cursor *cursor) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = take_byte(cursor);
        if (shift < 63) value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return value;
    }
}

static int64_t take_signed(struct cursor *cursor) {
    uint64_t value = 0;
    for (int shift = 0;;) {
        uint8_t byte = take_byte(cursor);
        if (shift < 63) value |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
        if (byte & 0x80) continue;
        if (byte & 0x40 && shift < 64) value |= ~(uint64_t)0 << shift;
        return (int64_t)value;
    }
}

static void skip(struct cursor *cursor, uint64_t nbytes) {
    if (nbytes > (uint64_t)(cursor->end - cursor->at)) {
        cursor->failed = true;
        nbytes = 0;
    }
    cursor->at += nbytes;
}

static int32_t load_int(const unsigned char *at) {
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

// An entry of .eh_frame without its length: false where that is of the rare 64-bit form, or none.
static bool open_entry(const unsigned char *at, struct cursor *entry) {
    uint32_t nbytes = (uint32_t)load_int(at);
    *entry = (struct cursor){at + 4, at + 4 + nbytes, false};
    return nbytes >= 4 && nbytes < 0xfffffff0;
}

struct common { // what a CIE says
    uint64_t code_unit;
    int64_t data_unit;
    struct cursor instructions;
};

static bool read_common(const unsigned char *at, struct common *common) {
    struct cursor entry;
    if (!open_entry(at, &entry) || take_fixed(&entry, 4) != 0) return false;
    uint8_t version = take_byte(&entry);
    char augmentation[MAX_AUGMENTATION] = "";
    for (int each = 0; (augmentation[each] = (char)take_byte(&entry)); each++)
        if (each == MAX_AUGMENTATION - 1) return false;
    common->code_unit = take_unsigned(&entry);
    common->data_unit = take_signed(&entry);
    uint64_t return_register = version == 1 ? take_byte(&entry) : take_unsigned(&entry);
    if ((version != 1 && version != 3) || return_register != RETURN_ADDRESS || augmentation[0] != 'z') return false;
    uint64_t nbytes = take_unsigned(&entry);
    struct cursor data = entry;
    for (const char *letter = augmentation + 1; *letter; letter++) {
        if (*letter == 'R') {
            if (take_byte(&data) != PC_RELATIVE_SIGNED_4) return false;
        } else if (*letter == 'L') {
            take_byte(&data);
        } else if (*letter == 'P') { // a pointer to the language's own function
            uint8_t form = take_byte(&data) & 0x0f;
            skip(&data, form == 0 || form == 4 || form == 12 ? 8 : 4);
            if (form != 0 && form != 3 && form != 4 && form != 11 && form != 12) return false;
        } else {
            return false; // S: the frame of a signal handler
        }
    }
    skip(&entry, nbytes);
    common->instructions = entry;
    return !entry.failed && !data.failed;
}

// ---- call frame instructions ----

struct state {
    bool frame_known;
    uint64_t frame_register;
    int64_t frame_offset;
    enum { SAME, SAVED, UNKNOWN } base_pointer;
    int64_t base_pointer_at;
    enum { IN_FRAME, UNDEFINED, ELSEWHERE } return_address;
    int64_t return_address_at;
};

static void set_saved(struct state *state, uint64_t number, int64_t offset) {
    if (number == BASE_POINTER) {
        state->base_pointer = SAVED;
        state->base_pointer_at = offset;
    } else if (number == RETURN_ADDRESS) {
        state->return_address = IN_FRAME;
        state->return_address_at = offset;
    }
}

static void set_unknown(struct state *state, uint64_t number) {
    if (number == BASE_POINTER) state->base_pointer = UNKNOWN;
    if (number == RETURN_ADDRESS) state->return_address = ELSEWHERE;
}

static void set_restored(struct state *state, const struct state *initial, uint64_t number) {
    if (number == BASE_POINTER) {
        state->base_pointer = initial->base_pointer;
        state->base_pointer_at = initial->base_pointer_at;
    } else if (number == RETURN_ADDRESS) {
        state->return_address = initial->return_address;
        state->return_address_at = initial->return_address_at;
    }
}

static void set_frame(struct state *state, uint64_t number, int64_t offset) {
    state->frame_known = true;
    state->frame_register = number;
    state->frame_offset = offset;
}

// Runs the instructions up to `place`, from `begin` on; false where one of them is unknown.
static bool run(struct cursor code, const struct common *common, const struct state *initial, struct state *state,
                uintptr_t begin, uintptr_t place) {
    struct state remembered[MAX_REMEMBERED_STATES];
    int depth = 0;
    int64_t unit = common->data_unit;
    uint64_t number;
    while (code.at < code.end && !code.failed) {
        uint8_t first = take_byte(&code), low = first & 0x3f;
        switch (first & 0xc0) {
        case 0x40: // advance_loc
            begin += low * common->code_unit;
            if (begin > place) return true;
            continue;
        case 0x80: // offset
            set_saved(state, low, (int64_t)take_unsigned(&code) * unit);
            continue;
        case 0xc0: // restore
            set_restored(state, initial, low);
            continue;
        }
        switch (first) {
        case 0x00: break; // nop
        case 0x02:        // advance_loc1, 2, 4
        case 0x03:
        case 0x04:
            begin += take_fixed(&code, (size_t)1 << (first - 2)) * common->code_unit;
            if (begin > place) return true;
            break;
        case 0x05: // offset_extended
            number = take_unsigned(&code);
            set_saved(state, number, (int64_t)take_unsigned(&code) * unit);
            break;
        case 0x06: set_restored(state, initial, take_unsigned(&code)); break; // restore_extended
        case 0x07:                                                            // undefined
            number = take_unsigned(&code);
            set_unknown(state, number);
            if (number == RETURN_ADDRESS) state->return_address = UNDEFINED;
            break;
        case 0x08: // same_value
            number = take_unsigned(&code);
            if (number == BASE_POINTER) state->base_pointer = SAME;
            if (number == RETURN_ADDRESS) state->return_address = ELSEWHERE;
            break;
        case 0x09: // register
            set_unknown(state, take_unsigned(&code));
            take_unsigned(&code);
            break;
        case 0x0a: // remember_state
            if (depth == MAX_REMEMBERED_STATES) return false;
            remembered[depth++] = *state;
            break;
        case 0x0b: // restore_state
            if (!depth) return false;
            *state = remembered[--depth];
            break;
        case 0x0c: // def_cfa
            number = take_unsigned(&code);
            set_frame(state, number, (int64_t)take_unsigned(&code));
            break;
        case 0x0d: state->frame_register = take_unsigned(&code); break;        // def_cfa_register
        case 0x0e: state->frame_offset = (int64_t)take_unsigned(&code); break; // def_cfa_offset
        case 0x0f:                                                             // def_cfa_expression
            state->frame_known = false;
            skip(&code, take_unsigned(&code));
            break;
        case 0x10: // expression
        case 0x16: // val_expression
            set_unknown(state, take_unsigned(&code));
            skip(&code, take_unsigned(&code));
            break;
        case 0x11: // offset_extended_sf
            number = take_unsigned(&code);
            set_saved(state, number, take_signed(&code) * unit);
            break;
        case 0x12: // def_cfa_sf
            number = take_unsigned(&code);
            set_frame(state, number, take_signed(&code) * unit);
            break;
        case 0x13: state->frame_offset = take_signed(&code) * unit; break; // def_cfa_offset_sf
        case 0x14:                                                         // val_offset, val_offset_sf
        case 0x15:
            set_unknown(state, take_unsigned(&code));
            take_unsigned(&code);
            break;
#if defined(__aarch64__)
        case 0x2d: break; // negate_ra_state: what is saved is signed, or no longer; see without_signature()
#endif
        case 0x2e: take_unsigned(&code); break; // GNU_args_size
        default: return false;
        }
    }
    return !code.failed;
}

// Whether a register may be saved at this distance from the end of a frame, and the distance fits into what is
// remembered.
static bool is_in_frame(int64_t at) {
    return at >= -(1 << 17) && at <= HIGHEST && !(at & 7);
}

static struct frame_rule make_rule(const struct state *state) {
    struct frame_rule rule = {.kind = FRAME_UNKNOWN};
    if (state->return_address == UNDEFINED) rule.kind = FRAME_OUTERMOST;
    if (state->return_address != IN_FRAME || !state->frame_known || state->base_pointer == UNKNOWN) return rule;
    const int64_t largest = 1 << 26; // fits into what is remembered
    if (state->frame_offset < 8 - largest || state->frame_offset >= largest) return rule;
    if (!is_in_frame(state->return_address_at)) return rule;
    rule.size = (int32_t)state->frame_offset;
    rule.return_address = (int32_t)state->return_address_at;
    if (state->base_pointer == SAVED) {
        if (!is_in_frame(state->base_pointer_at)) return rule;
        rule.saves_base_pointer = true;
        rule.base_pointer = (int32_t)state->base_pointer_at;
    }
    if (state->frame_register == STACK_POINTER) rule.kind = FRAME_BY_STACK_POINTER;
    if (state->frame_register == BASE_POINTER) rule.kind = FRAME_BY_BASE_POINTER;
    return rule;
}

static struct frame_rule read_entry(const unsigned char *at, uintptr_t place) {
    struct frame_rule unknown = {.kind = FRAME_UNKNOWN};
    struct cursor entry;
    if (!open_entry(at, &entry)) return unknown;
    const unsigned char *here = entry.at;
    struct common common;
    uint32_t back = (uint32_t)take_fixed(&entry, 4);
    if (!back || !read_common(here - back, &common)) return unknown;
    uintptr_t begin = (uintptr_t)entry.at + (uintptr_t)(intptr_t)(int32_t)take_fixed(&entry, 4);
    uint32_t length = (uint32_t)take_fixed(&entry, 4);
    if (entry.failed || place < begin || place - begin >= length) return unknown;
    skip(&entry, take_unsigned(&entry));
    struct state initial = {.return_address = ELSEWHERE}, state;
    if (!run(common.instructions, &common, &initial, &initial, begin, UINTPTR_MAX)) return unknown;
    state = initial;
    return run(entry, &common, &initial, &state, begin, place) ? make_rule(&state) : unknown;
}

struct search {
    uintptr_t place;
    const unsigned char *header; // .eh_frame_hdr of the library
};

static int find_header(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *search = data;
    const unsigned char *header = NULL;
    bool inside = false;
    for (int each = 0; each < info->dlpi_phnum; each++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[each];
        if (part->p_type == PT_LOAD && search->place - info->dlpi_addr - part->p_vaddr < part->p_memsz) inside = true;
        if (part->p_type == PT_GNU_EH_FRAME) header = (const unsigned char *)(info->dlpi_addr + part->p_vaddr);
    }
    if (inside) search->header = header;
    return inside;
}

static struct frame_rule read_rule(uintptr_t place, bool *in_library) {
    struct frame_rule unknown = {.kind = FRAME_UNKNOWN};
    struct search search = {place, NULL};
    *in_library = dl_iterate_phdr(find_header, &search);
    const unsigned char *header = search.header;
    if (!header || header[0] != 1 || header[1] == OMITTED || header[2] != UNSIGNED_4 ||
        header[3] != DATA_RELATIVE_SIGNED_4 || (header[1] & 0x0f) == 4 || (header[1] & 0x0f) == 12 ||
        !(header[1] & 0x0f))
        return unknown;
    // A version, three forms, the place of .eh_frame (4 bytes), the number of rows, and pairs of function and entry,
    // sorted by function, both relative to the header.
    uint32_t low = 0, high = (uint32_t)load_int(header + 8);
    int64_t wanted = (int64_t)(place - (uintptr_t)header);
    if (!high || wanted < load_int(header + 12)) return unknown;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (load_int(header + 12 + (size_t)middle * 8) <= wanted)
            low = middle;
        else
            high = middle;
    }
    return read_entry(header + load_int(header + 12 + (size_t)low * 8 + 4), place);
}

struct frame_rule frame_rule_read(uintptr_t address) {
    bool in_library;
    return read_rule(address - 1, &in_library);
}

// ---- what is remembered ----

// An entry holds a packed rule, and the address mixed with it: where two threads write an entry at once, the halves of
// different rules do not fit together, and it counts as empty. An address has four entries that it may be in, one line
// of the cache: with one each, two addresses of the same stack would displace each other in every walk.
enum { SETS = 1 << 11, WAYS = 4 };
static _Alignas(64) struct {
    _Atomic(uint64_t) check, packed;
} remembered[SETS][WAYS];
static atomic_uint displaced;

static inline uint64_t pack(struct frame_rule rule) {
    return (uint64_t)rule.kind | (uint64_t)rule.saves_base_pointer << 2 |
           (uint64_t)((uint32_t)rule.size & 0xfffffff) << 3 |
           (uint64_t)((uint32_t)(rule.base_pointer / 8) & 0xffff) << 31 |
           (uint64_t)((uint32_t)(rule.return_address / 8) & 0xffff) << 47 | (uint64_t)1 << 63;
}

static inline struct frame_rule unpack(uint64_t packed) {
    return (struct frame_rule){
        .kind = packed & 3,
        .saves_base_pointer = packed >> 2 & 1,
        .size = (int32_t)((uint32_t)(packed >> 3) << 4) >> 4,
        .base_pointer = (int16_t)(packed >> 31) * 8,
        .return_address = (int16_t)(packed >> 47) * 8,
    };
}

static inline struct frame_rule find_rule(uintptr_t address, unsigned long long unloads) {
    uint64_t key = address ^ (uint64_t)unloads << 48;
    size_t set = (key * 0x9e3779b97f4a7c15u) >> 53;
    int way = -1;
    for (int each = 0; each < WAYS; each++) {
        uint64_t packed = atomic_load_explicit(&remembered[set][each].packed, memory_order_relaxed);
        uint64_t check = atomic_load_explicit(&remembered[set][each].check, memory_order_relaxed);
        if (packed && check == (key ^ packed * 0xd6e8feb86659fd93u)) return unpack(packed);
        if (!packed && way < 0) way = each;
    }
    bool in_library;
    struct frame_rule rule = read_rule(address - 1, &in_library);
    if (in_library) { // code that is made at run time can change
        if (way < 0) way = (int)(atomic_fetch_add_explicit(&displaced, 1, memory_order_relaxed) % WAYS);
        uint64_t packed = pack(rule);
        atomic_store_explicit(&remembered[set][way].packed, packed, memory_order_relaxed);
        atomic_store_explicit(&remembered[set][way].check, key ^ packed * 0xd6e8feb86659fd93u, memory_order_relaxed);
    }
    return rule;
}

// ---- walking ----

// The stack of the calling thread, which a sanitizer may have marked in parts.
__attribute__((no_sanitize_address)) static inline uintptr_t load_stack(uintptr_t at) {
    return *(const volatile uintptr_t *)at;
}

// Where the calling thread's stack ends: nothing beyond it is read, whatever a table says. 0 where that is unknown.
static uintptr_t stack_end(uintptr_t inside) {
    static __thread uintptr_t low, high;
    if (!high) {
        pthread_attr_t attributes;
        void *base = NULL;
        size_t size = 0;
        high = 1;
        if (!pthread_getattr_np(pthread_self(), &attributes)) {
            if (!pthread_attr_getstack(&attributes, &base, &size)) {
                low = (uintptr_t)base;
                high = low + size;
            }
            pthread_attr_destroy(&attributes);
        }
    }
    return inside >= low && inside < high ? high : 0; // coroutines have stacks of their own
}

// Where code is protected by signatures (pointer authentication), the upper bits of a saved return address are one.
static inline uintptr_t without_signature(uintptr_t address) {
#if defined(__aarch64__)
    register uintptr_t x30 __asm__("x30") = address;
    __asm__("hint #7" : "+r"(x30)); // xpaclri; does nothing on processors that have no such thing
    return x30;
#else
    return address;
#endif
}

__attribute__((noinline)) int call_frames_walk(uintptr_t *addresses, int most, bool (*is_left_out)(uintptr_t),
                                               unsigned long long unloads) {
    uintptr_t address, stack_pointer, base_pointer;
#if defined(__x86_64__)
    __asm__ volatile("lea 0(%%rip), %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2"
#else
    __asm__ volatile("adr %0, .\n\tmov %1, sp\n\tmov %2, x29"
#endif
                     : "=r"(address), "=r"(stack_pointer), "=r"(base_pointer));
    uintptr_t limit = stack_end(stack_pointer);
    address++; // not a return address: the byte before it must be this function's
    for (int count = 0;;) {
        struct frame_rule rule = find_rule(address, unloads);
        if (rule.kind == FRAME_OUTERMOST) return count;
        if (rule.kind == FRAME_UNKNOWN) return -1;
        uintptr_t end = (rule.kind == FRAME_BY_STACK_POINTER ? stack_pointer : base_pointer) + (intptr_t)rule.size;
        // Callers' frames lie above those of whom they called; everything else is no stack.
        if (end <= stack_pointer || end > limit || end & 7) return -1;
        uintptr_t saved = end + (intptr_t)rule.base_pointer;
        if (rule.saves_base_pointer && (saved < stack_pointer || saved > limit - 8 || saved & 7)) return -1;
        if (rule.saves_base_pointer) base_pointer = load_stack(saved);
        uintptr_t returns = end + (intptr_t)rule.return_address;
        if (returns < stack_pointer || returns > limit - 8) return -1;
        address = without_signature(load_stack(returns));
        stack_pointer = end;
        if (!address || count == most) return count;
        if (count || !is_left_out(address)) addresses[count++] = address;
    }
}

#else

struct frame_rule frame_rule_read(uintptr_t address) {
    (void)address;
    return (struct frame_rule){.kind = FRAME_UNKNOWN};
}

int call_frames_walk(uintptr_t *addresses, int most, bool (*is_left_out)(uintptr_t), unsigned long long unloads) {
    (void)addresses, (void)most, (void)is_left_out, (void)unloads;
    return -1;
}

#endif

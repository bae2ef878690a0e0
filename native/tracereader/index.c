/* Pages of a file: the headers of its sections, and the chunks of their writers.
 *
 * Everything begins at a multiple of a page, counted from the section's header: a file that was cut at any
 * byte may be followed by another (`cat`), whose header is then searched for byte by byte.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A thread reserves a chunk and begins it at once. A file that has more than this is made of holes. */
enum { MAX_PENDING = 65536 };

static uint16_t u16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, 2);
    return value;
}

static uint32_t u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static uint64_t u64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

uint64_t read_bytes(struct vramreader *reader, const struct file *file, uint64_t offset, void *bytes, uint64_t nbytes) {
    uint64_t done = 0;
    while (done < nbytes) {
        ssize_t got = pread(file->descriptor, (uint8_t *)bytes + done, nbytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            reader->errno_value = errno;
            fail(reader, VRAMREADER_READ_FAILED);
        }
        if (got <= 0) break;
        done += (uint64_t)got;
    }
    if (done < nbytes) memset((uint8_t *)bytes + done, 0, nbytes - done);
    return done;
}

static bool is_zero(const uint8_t *bytes, uint64_t nbytes) {
    return !nbytes || (!bytes[0] && !memcmp(bytes, bytes + 1, nbytes - 1));
}

static bool is_header(const uint8_t *at) {
    return !memcmp(at, SECTION_MAGIC, MAGIC_NBYTES);
}

/* ---- sections ---- */

static struct section *new_section(struct vramreader *reader, uint32_t file, uint64_t offset) {
    struct section *section = push(reader, &reader->sections, sizeof *section);
    if (!section) return NULL;
    section->offset = offset;
    section->first_base = UINT64_MAX;
    section->row.file = file;
    section->row.usable = 1;
    AT(reader->files, struct file, file).section = (uint32_t)reader->sections.count - 1;
    return section;
}

static void read_texts(struct vramreader *reader, struct section *section, const uint8_t *page, uint64_t nbytes) {
    for (uint64_t at = FIXED_HEADER_NBYTES; at + 4 <= nbytes;) {
        uint32_t key = u16(page + at), length = u16(page + at + 2);
        at += 4;
        if (!key) return;
        if (length > nbytes - at) {
            damaged(reader, DAMAGE_HEADER, (uint32_t)reader->sections.count - 1, section->row.file, section->offset, 1);
            return;
        }
        if (key < 8 && !section->row.texts[key]) section->row.texts[key] = intern_string(reader, page + at, length);
        at += length;
    }
}

/* A header at *offset* that is as this version writes it. */
static bool fits(const uint8_t *at) {
    return is_header(at) && u32(at + 12) == PAGE_NBYTES && u32(at + 16) == CHUNK_NBYTES;
}

static void add_section(struct vramreader *reader, uint32_t file, uint64_t offset) {
    uint8_t page[PAGE_NBYTES];
    struct file *from = &AT(reader->files, struct file, file);
    uint64_t nbytes = from->nbytes - offset < PAGE_NBYTES ? from->nbytes - offset : PAGE_NBYTES;
    read_bytes(reader, from, offset, page, nbytes);
    struct section *section = new_section(reader, file, offset);
    if (!section) return;
    uint32_t number = (uint32_t)reader->sections.count - 1;
    struct row_section *row = &section->row;
    if (u16(page + 8) != FORMAT_MAJOR) {
        damaged(reader, DAMAGE_NEWER, number, file, offset, u16(page + 8));
        row->usable = 0;
        return;
    }
    if (!fits(page)) {
        damaged(reader, DAMAGE_HEADER, number, file, offset, 1);
        row->usable = 0;
        return;
    }
    row->pid = u32(page + 20);
    row->wall_ns = u64(page + 24);
    section->mono_ns = u64(page + 32);
    row->process_started = u64(page + 40);
    row->parent_pid = u32(page + 48);
    row->how = u32(page + 52);
    row->stacks = u32(page + 56);
    row->flags = u32(page + 60);
    read_texts(reader, section, page, nbytes);
}

/* Sections of one machine, started from one boot, share CLOCK_MONOTONIC. Where it does not run while the
 * machine sleeps, or another one was set by a time namespace, the difference to the wall clock tells. */
static uint32_t cluster_of(struct vramreader *reader, const struct section *section) {
    int64_t boot = (int64_t)(section->row.wall_ns - section->mono_ns);
    uint32_t host = section->row.texts[6];
    for (uint64_t at = 0; at < reader->clusters.count; at++) {
        const struct cluster *cluster = &AT(reader->clusters, struct cluster, at);
        int64_t difference = boot - cluster->boot_ns;
        if (cluster->host == host && difference > -2000000000 && difference < 2000000000) return (uint32_t)at;
    }
    struct cluster *cluster = push(reader, &reader->clusters, sizeof *cluster);
    if (!cluster) return 0;
    *cluster = (struct cluster){host, boot};
    return (uint32_t)reader->clusters.count - 1;
}

/* Times that no clock shows are replaced by what the chunks say. */
static void correct_clock(struct vramreader *reader, uint32_t number) {
    struct section *section = SECTION(reader, number);
    const uint64_t far = (uint64_t)1 << 53; /* 104 days */
    bool wrong = section->mono_ns >= (uint64_t)1 << 62;
    if (section->first_base != UINT64_MAX) {
        uint64_t base = section->first_base, mono = section->mono_ns;
        wrong |= base > mono ? base - mono > far : mono - base > far;
        if (wrong) section->mono_ns = base;
    } else if (wrong)
        section->mono_ns = 0;
    bool no_wall = section->row.wall_ns >= (uint64_t)1 << 62;
    if (no_wall) section->row.wall_ns = 0;
    if (wrong || no_wall) damaged(reader, DAMAGE_TIME, number, section->row.file, section->offset, 1);
}

static void place_section(struct vramreader *reader, uint32_t number) {
    struct section *section = SECTION(reader, number);
    const struct cluster *cluster = &AT(reader->clusters, struct cluster, section->row.cluster);
    section->shift = cluster->boot_ns - reader->origin_ns;
    section->row.first_ns = section->row.last_ns = relative_time(section, section->mono_ns);
    section->placed = true;
}

void place_sections(struct vramreader *reader) {
    int64_t earliest = INT64_MAX;
    for (uint32_t at = 0; at < reader->sections.count && !reader->error; at++) {
        struct section *section = SECTION(reader, at);
        if (section->placed) continue;
        correct_clock(reader, at);
        section->row.cluster = cluster_of(reader, section);
        if (reader->error) return;
        int64_t start = AT(reader->clusters, struct cluster, section->row.cluster).boot_ns + (int64_t)section->mono_ns;
        if (section->row.usable && start < earliest) earliest = start;
    }
    if (reader->error || !reader->sections.count) return;
    if (!reader->placed) reader->origin_ns = earliest == INT64_MAX ? 0 : earliest;
    reader->placed = true;
    for (uint32_t at = 0; at < reader->sections.count; at++)
        if (!SECTION(reader, at)->placed) place_section(reader, at);
}

uint64_t relative_time(const struct section *section, uint64_t time) {
    int64_t relative;
    if (__builtin_add_overflow((int64_t)time, section->shift, &relative)) return section->shift < 0 ? 0 : MAX_NS;
    if (relative < 0) return 0;
    return (uint64_t)relative > MAX_NS ? MAX_NS : (uint64_t)relative;
}

/* ---- chunks ---- */

static void add_chunk(struct vramreader *reader, uint32_t file, uint64_t offset, uint64_t nbytes, const uint8_t *head) {
    struct file *from = &AT(reader->files, struct file, file);
    if (from->section == NONE && !new_section(reader, file, offset)) return;
    uint32_t section_number = from->section;
    struct section *section = SECTION(reader, section_number);
    if (!section->row.usable) return;
    uint64_t base = u64(head + 16);
    if (base >= (uint64_t)1 << 62) {
        damaged(reader, DAMAGE_TIME, section_number, file, offset, 1);
        base = section->mono_ns;
    }
    if (base < section->first_base) section->first_base = base;
    uint32_t *number = map_value(reader, &reader->writer_numbers, (uint64_t)section_number << 32 | u32(head + 8));
    if (!number) return;
    if (!*number) {
        struct writer *made = push(reader, &reader->writers, sizeof *made);
        if (!made) return;
        made->section = section_number;
        made->number = u32(head + 8);
        *number = (uint32_t)reader->writers.count;
    }
    struct writer *writer = WRITER(reader, *number - 1);
    struct chunk *chunk = push(reader, &writer->chunks, sizeof *chunk);
    if (!chunk) return;
    *chunk = (struct chunk){offset, base, (uint32_t)nbytes, u32(head + 12), u32(head + 24), file};
    if (writer->chunks.count > 1 && chunk[-1].number >= chunk->number) writer->unsorted = true;
    SECTION(reader, section_number)->found_chunks++;
    note_thread(reader, section_number, chunk->thread);
}

/* How much of the chunk at *offset* is its own: another section may begin in it, where a file was cut and
 * another one appended. */
static uint64_t own_bytes(struct vramreader *reader, const struct file *file, uint64_t offset) {
    uint64_t left = file->nbytes - offset;
    uint8_t bytes[CHUNK_NBYTES];
    if (left == CHUNK_NBYTES) return left;
    if (left > CHUNK_NBYTES) {
        uint8_t next[8];
        uint64_t nbytes = left - CHUNK_NBYTES < sizeof next ? left - CHUNK_NBYTES : sizeof next;
        read_bytes(reader, file, offset + CHUNK_NBYTES, next, nbytes);
        if (nbytes < 8 || !memcmp(next, CHUNK_MAGIC, MAGIC_NBYTES) || is_header(next)) return CHUNK_NBYTES;
        left = CHUNK_NBYTES;
    }
    read_bytes(reader, file, offset, bytes, left);
    const uint8_t *at = bytes + CHUNK_HEADER_NBYTES, *end = bytes + left;
    while (end - at >= FIXED_HEADER_NBYTES && (at = memmem(at, (size_t)(end - at), SECTION_MAGIC, MAGIC_NBYTES))) {
        if (end - at < FIXED_HEADER_NBYTES) break;
        if (fits(at)) return (uint64_t)(at - bytes);
        at++;
    }
    return left;
}

/* ---- what is neither ---- */

/* Where it may go on: the next page with a magic, or a header at any byte; *skipped* counts what is no zero. */
static uint64_t resume(struct vramreader *reader, const struct file *file, uint64_t offset, uint64_t *skipped) {
    uint8_t page[PAGE_NBYTES + FIXED_HEADER_NBYTES];
    while (offset < file->nbytes) {
        uint64_t left = file->nbytes - offset;
        uint64_t nbytes = left < sizeof page ? left : sizeof page;
        read_bytes(reader, file, offset, page, nbytes);
        if (reader->error) return file->nbytes;
        if (nbytes >= 8 && (!memcmp(page, CHUNK_MAGIC, MAGIC_NBYTES) || is_header(page))) return offset;
        uint64_t own = nbytes < PAGE_NBYTES ? nbytes : PAGE_NBYTES;
        const uint8_t *at = page;
        while ((at = memmem(at, nbytes - (size_t)(at - page), SECTION_MAGIC, MAGIC_NBYTES))) {
            if ((uint64_t)(at - page) + FIXED_HEADER_NBYTES <= nbytes && fits(at)) {
                *skipped += (uint64_t)(at - page);
                return offset + (uint64_t)(at - page);
            }
            at++;
        }
        if (!is_zero(page, own)) *skipped += own;
        offset += own;
        /* The holes of a sparse file are not read. */
        if (is_zero(page, own)) {
            off_t data = lseek(file->descriptor, (off_t)offset, SEEK_DATA);
            if (data > (off_t)offset)
                offset += ((uint64_t)data - offset) / PAGE_NBYTES * PAGE_NBYTES;
            else if (data < 0 && errno == ENXIO)
                return file->nbytes;
        }
    }
    return file->nbytes;
}

static uint64_t skip(struct vramreader *reader, uint32_t number, uint64_t offset) {
    struct file *file = &AT(reader->files, struct file, number);
    uint64_t skipped = 0, at = resume(reader, file, offset, &skipped);
    if (!skipped) return at;
    damaged(reader, DAMAGE_PAGES, file->section, number, offset, skipped);
    /* One page between chunks: it was a header. What follows is not the process before it. */
    uint8_t head[8];
    if (at < file->nbytes && (at - offset) % CHUNK_NBYTES == PAGE_NBYTES && skipped == at - offset &&
        read_bytes(reader, file, at, head, 8) == 8 && !memcmp(head, CHUNK_MAGIC, MAGIC_NBYTES)) {
        uint32_t before = file->section;
        struct section *section = new_section(reader, number, offset);
        if (section && before != NONE) {
            section->row.wall_ns = SECTION(reader, before)->row.wall_ns;
            section->mono_ns = SECTION(reader, before)->mono_ns;
            section->row.texts[6] = SECTION(reader, before)->row.texts[6];
        }
        if (section) damaged(reader, DAMAGE_LOST_HEADER, file->section, number, offset, 1);
    }
    return at;
}

/* ---- files ---- */

static bool index_next(struct vramreader *reader, uint32_t number) {
    struct file *file = &AT(reader->files, struct file, number);
    uint64_t offset = file->indexed, left = file->nbytes - offset;
    uint8_t head[CHUNK_HEADER_NBYTES + 16];
    if (!left) return false;
    uint64_t got = read_bytes(reader, file, offset, head, left < sizeof head ? left : sizeof head);
    if (got >= 8 && is_header(head)) {
        if (reader->growing && left < PAGE_NBYTES) return false;
        if (left < FIXED_HEADER_NBYTES) {
            damaged(reader, DAMAGE_CUT, file->section, number, offset, 1);
            file->indexed = file->nbytes;
            return false;
        }
        add_section(reader, number, offset);
        file->indexed = offset + (left < PAGE_NBYTES ? left : PAGE_NBYTES);
    } else if (got >= 8 && !memcmp(head, CHUNK_MAGIC, MAGIC_NBYTES)) {
        if (reader->growing && left < CHUNK_NBYTES) return false;
        uint64_t nbytes = own_bytes(reader, file, offset);
        if (nbytes > CHUNK_HEADER_NBYTES) add_chunk(reader, number, offset, nbytes, head);
        file->indexed = offset + nbytes;
    } else if (reader->growing) {
        /* Reserved, and its header not written yet. */
        if (left < CHUNK_NBYTES || !is_zero(head, 8) || file->section == NONE) return false;
        if (file->pending.count >= MAX_PENDING) return false;
        uint64_t *pending = push(reader, &file->pending, sizeof *pending);
        if (pending) *pending = offset;
        file->indexed = offset + CHUNK_NBYTES;
    } else {
        file->indexed = skip(reader, number, offset);
    }
    return !reader->error;
}

static void index_pending(struct vramreader *reader, uint32_t number) {
    struct file *file = &AT(reader->files, struct file, number);
    uint64_t kept = 0;
    for (uint64_t at = 0; at < file->pending.count; at++) {
        uint64_t offset = AT(file->pending, uint64_t, at);
        uint8_t head[CHUNK_HEADER_NBYTES];
        read_bytes(reader, file, offset, head, sizeof head);
        if (!memcmp(head, CHUNK_MAGIC, MAGIC_NBYTES))
            add_chunk(reader, number, offset, CHUNK_NBYTES, head);
        else
            AT(file->pending, uint64_t, kept++) = offset;
    }
    file->pending.count = kept;
}

static int by_number(const void *left, const void *right) {
    const struct chunk *a = left, *b = right;
    if (a->number != b->number) return a->number < b->number ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

int index_files(struct vramreader *reader) {
    for (uint32_t at = 0; at < reader->files.count && !reader->error; at++) {
        struct file *file = &AT(reader->files, struct file, at);
        off_t end = lseek(file->descriptor, 0, SEEK_END);
        if (end > 0 && (uint64_t)end > file->nbytes) file->nbytes = (uint64_t)end;
        index_pending(reader, at);
        while (!reader->error && index_next(reader, at)) {
        }
    }
    for (uint64_t at = 0; at < reader->writers.count && !reader->error; at++) {
        struct writer *writer = WRITER(reader, at);
        uint64_t from = writer->next + (writer->begun ? 1 : 0);
        if (writer->unsorted && from < writer->chunks.count)
            qsort(&AT(writer->chunks, struct chunk, from), writer->chunks.count - from, sizeof(struct chunk),
                  by_number);
        writer->unsorted = false;
    }
    if (!reader->error) place_sections(reader);
    return reader->error;
}

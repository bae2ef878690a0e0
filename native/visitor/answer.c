/* The answer: one JSON object in a buffer of this library's own, so that nothing is taken from the program's heap. */
#include "visitor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NBYTES = 1 << 16, MAX_NOTE_NBYTES = 400, MAX_NOTES_NBYTES = 8192 };

static char buffer[MAX_NBYTES];
static size_t used;
static bool overflowed;
static char notes[MAX_NOTES_NBYTES]; /* each ended by a zero byte */
static size_t notes_used;

void answer_begin(void) {
    buffer[0] = '{';
    used = 1;
    overflowed = false;
    notes_used = 0;
}

static void add(const char *text, size_t nbytes) {
    if (overflowed || nbytes > sizeof buffer - used) {
        overflowed = true;
        return;
    }
    memcpy(buffer + used, text, nbytes);
    used += nbytes;
}

void answer_raw(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof text)
        overflowed = true;
    else
        add(text, (size_t)length);
}

/* How many bytes from here are one character of UTF-8; 0 where they are none. */
static size_t character(const unsigned char *at) {
    size_t more = at[0] < 0x80 ? 0 : at[0] >= 0xc2 && at[0] < 0xe0 ? 1 : at[0] >= 0xe0 && at[0] < 0xf0 ? 2 : 3;
    if (at[0] >= 0x80 && (at[0] < 0xc2 || at[0] > 0xf4)) return 0;
    for (size_t i = 1; i <= more; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if (at[0] == 0xe0 && at[1] < 0xa0) return 0; /* longer than needed */
    if (at[0] == 0xed && at[1] > 0x9f) return 0; /* half of a pair of UTF-16 */
    if (at[0] == 0xf0 && at[1] < 0x90) return 0;
    if (at[0] == 0xf4 && at[1] > 0x8f) return 0;
    return more + 1;
}

void answer_text(const char *text) {
    add("\"", 1);
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        size_t nbytes = character(at);
        if (nbytes == 0)
            answer_raw("\\\\x%02x", *at++);
        else if (*at < 0x20 || *at == '"' || *at == '\\' || *at == 0x7f)
            answer_raw("\\u%04x", *at++);
        else {
            add((const char *)at, nbytes);
            at += nbytes;
        }
    }
    add("\"", 1);
}

void answer_note(const char *format, ...) {
    char text[MAX_NOTE_NBYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    size_t nbytes = strlen(text) + 1;
    if (nbytes > sizeof notes - notes_used) return;
    memcpy(notes + notes_used, text, nbytes);
    notes_used += nbytes;
}

const char *answer_end(size_t *nbytes) {
    if (notes_used) {
        answer_raw(",\"notes\":");
        for (size_t at = 0; at < notes_used; at += strlen(notes + at) + 1) {
            add(at ? "," : "[", 1);
            answer_text(notes + at);
        }
        add("]", 1);
    }
    add("}\n", 2);
    *nbytes = used;
    return overflowed ? NULL : buffer;
}

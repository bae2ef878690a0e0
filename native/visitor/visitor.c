/* Loaded, it starts one thread and returns; the thread asks for permission, does what it is asked, and leaves. */
#define _GNU_SOURCE
#include "visitor.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/memfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Volatile: what a copy of this file has here is not known when it is compiled. */
const volatile struct visit visit __attribute__((used)) = {.mark = "vram visitor: request follows.."};

static const char GO[] = "go\n";
enum { MAX_STACK_NBYTES = 1 << 20 };

/* ---- the request ---- */

static struct visit ours; /* a plain copy */

static const char *find_line(const char *key, int number, size_t *length) {
    size_t nbytes = strlen(key);
    for (const char *line = ours.request; *line;) {
        const char *end = strchr(line, '\n');
        if (!end || !strncmp(line, "settings:", 9)) return NULL;
        if (!strncmp(line, key, nbytes) && line[nbytes] == '=' && number-- == 0) {
            *length = (size_t)(end - line) - nbytes - 1;
            return line + nbytes + 1;
        }
        line = end + 1;
    }
    return NULL;
}

const char *request_nth(const char *key, int number) {
    static char value[VALUE_NBYTES];
    size_t length;
    const char *found = find_line(key, number, &length);
    if (!found || length >= sizeof value) return NULL;
    memcpy(value, found, length);
    value[length] = 0;
    return value;
}

const char *request_value(const char *key) {
    return request_nth(key, 0);
}

const char *request_settings(void) {
    const char *found = strstr(ours.request, "settings:\n");
    return found ? found + strlen("settings:\n") : "";
}

static bool copy_request(void) {
    ours.until_ns = visit.until_ns;
    ours.pid = visit.pid;
    ours.carried = visit.carried;
    for (size_t i = 0; i < sizeof ours.secret; i++) ours.secret[i] = visit.secret[i];
    for (size_t i = 0; i < sizeof ours.address; i++) ours.address[i] = visit.address[i];
    for (size_t i = 0; i < sizeof ours.request; i++) ours.request[i] = visit.request[i];
    return ours.pid > 0 && !ours.address[sizeof ours.address - 1] && !ours.request[sizeof ours.request - 1];
}

/* ---- the connection ---- */

static int left_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    if (now_ns >= ours.until_ns) return 0;
    uint64_t left = (ours.until_ns - now_ns) / 1000000u + 1;
    return left > 3600000 ? 3600000 : (int)left;
}

static bool wait_for(int connection, short events) {
    struct pollfd each = {.fd = connection, .events = events};
    for (;;) {
        int ms = left_ms();
        if (!ms) return false;
        int ready = poll(&each, 1, ms);
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return false;
    }
}

static int connect_to(const struct sockaddr_un *address, size_t nbytes) {
    /* Not blocking: where vram is stopped, its queue may be full. */
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection >= 0 && connect(connection, (const struct sockaddr *)address, (socklen_t)nbytes) != 0) {
        close(connection);
        connection = -1;
    }
    return connection;
}

/* Addresses of sockets end at 108 bytes; folders of users may be deeper. */
static int connect_to_vram(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (ours.address[0] == '@') {
        size_t length = strlen(ours.address);
        if (length > sizeof address.sun_path) return -1;
        memcpy(address.sun_path + 1, ours.address + 1, length - 1);
        return connect_to(&address, offsetof(struct sockaddr_un, sun_path) + length);
    }
    int folder = open(ours.address, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -1;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/answers", folder);
    int connection = connect_to(&address, sizeof address);
    close(folder);
    return connection;
}

static bool receive(int connection, char *heard, size_t nbytes) {
    for (size_t have = 0; have < nbytes;) {
        if (!wait_for(connection, POLLIN)) return false;
        ssize_t more = recv(connection, heard + have, nbytes - have, 0);
        if (more == 0 || (more < 0 && errno != EINTR && errno != EAGAIN)) return false;
        if (more > 0) have += (size_t)more;
    }
    return true;
}

/* Anybody may listen under an abstract name when vram does not any more: nothing is done without the secret. */
static bool is_vram(int connection) {
    char heard[SECRET_NBYTES];
    if (!ours.secret[0]) return ours.address[0] != '@';
    return receive(connection, heard, sizeof heard) && !memcmp(heard, ours.secret, sizeof heard);
}

static bool may_go(int connection) {
    char heard[sizeof GO - 1];
    return receive(connection, heard, sizeof heard) && !memcmp(heard, GO, sizeof heard) && left_ms() > 0;
}

/* ---- files in memory: what travels where none of vram's files can be seen ---- */

static int carried_library = -1;

static bool receive_library(int connection) {
    static char part[1 << 16];
    if (!ours.carried) return true;
    // glibc has memfd_create() from 2.27 on, and nothing else here needs more than 2.17.
    carried_library = (int)syscall(SYS_memfd_create, "libvramtracer.so", MFD_CLOEXEC);
    if (carried_library < 0) return false;
    for (size_t left = ours.carried; left;) {
        size_t nbytes = left < sizeof part ? left : sizeof part;
        if (!receive(connection, part, nbytes)) return false;
        for (size_t done = 0; done < nbytes;) {
            ssize_t more = write(carried_library, part + done, nbytes - done);
            if (more < 0 && errno != EINTR) return false;
            if (more > 0) done += (size_t)more;
        }
        left -= nbytes;
    }
    return true;
}

const char *recorder_library(void) {
    static char path[64];
    if (carried_library < 0) return request_value("library");
    /* No program spells it so: the loader takes a library whose path it knows for that one. */
    snprintf(path, sizeof path, "/proc/self/fd/./%d", carried_library);
    return path;
}

/* Whether some vram listens under that name. Not found out by connecting, which it would take for its visit. */
static bool is_listened_to(const char *name) {
    char line[512], wanted[128];
    bool found = false;
    FILE *table = fopen("/proc/self/net/unix", "re");
    snprintf(wanted, sizeof wanted, "@vram-%s", name);
    while (table && !found && fgets(line, sizeof line, table)) found = strstr(line, wanted) != NULL;
    if (!table) return true;
    fclose(table);
    return found;
}

/* The file that this library came in, and those that visits left whose vram was killed. */
static void close_memory_files(void) {
    static const char prefix[] = "/memfd:vram-visitor-";
    const char *own = ours.address + sizeof "@vram-" - 1;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return;
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        char name[96];
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, name, sizeof name - 1);
        if (length < (ssize_t)sizeof prefix || memcmp(name, prefix, sizeof prefix - 1) != 0) continue;
        name[length] = 0;
        char *found = name + sizeof prefix - 1;
        found[strcspn(found, " ")] = 0;
        if (!strcmp(found, own) || !is_listened_to(found)) close(atoi(entry->d_name));
    }
    closedir(folder);
}

/* vram may die while it is sent: MSG_NOSIGNAL, or the program would die of SIGPIPE. */
static void send_all(int connection, const char *text, size_t nbytes) {
    while (nbytes && wait_for(connection, POLLOUT)) {
        ssize_t sent = send(connection, text, nbytes, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR && errno != EAGAIN) return;
        if (sent > 0) {
            text += sent;
            nbytes -= (size_t)sent;
        }
    }
}

/* ---- the work ---- */

static void do_work(void) {
    const char *asked = request_value("verb");
    char verb[16];
    snprintf(verb, sizeof verb, "%s", asked ? asked : "");
    if (!strcmp(verb, "trim") || !strcmp(verb, "measure"))
        trim_pools(verb[0] == 't');
    else if (!strcmp(verb, "start"))
        recorder_start();
    else if (!strcmp(verb, "stop"))
        recorder_stop();
    else if (!strcmp(verb, "status"))
        recorder_status();
    else
        answer_raw("\"status\":\"cancelled\",\"notes\":[\"this visitor does not know what it is asked\"]");
}

static void visit_once(void) {
    if (!copy_request() || getpid() != ours.pid) return; /* a forked child */
    if (ours.address[0] == '@') close_memory_files();
    if (!left_ms()) return; /* too late */
    int connection = connect_to_vram();
    if (connection < 0) return; /* called off, or vram has died */
    if (is_vram(connection) && receive_library(connection) && may_go(connection)) {
        size_t nbytes;
        answer_begin();
        do_work();
        const char *text = answer_end(&nbytes);
        if (text) send_all(connection, text, nbytes);
    }
    if (carried_library >= 0) close(carried_library);
    close(connection);
}

/* ---- its thread, and how it leaves ---- */

/* Called by visitor_thread alone; returns what the loader calls this library. */
__attribute__((used)) static void *visitor_work(void) {
    Dl_info here;
    struct link_map *map = NULL;
    pthread_setname_np(pthread_self(), "vram-visit");
    visit_once();
    if (!dladdr1((const void *)&visit, &here, (void **)&map, RTLD_DL_LINKMAP)) map = NULL;
    return map;
}

/* The thread unloads the code that it runs. So its last instruction here is a jump, not a call: dlclose returns
 * straight into the C library, which started the thread, and nothing of this library is executed again. dlclose
 * itself waits until the dlopen that brought us here is over, because both take the loader's lock. */
#if defined(__x86_64__)
__asm__(".text\n"
        ".type visitor_thread, @function\n"
        "visitor_thread:\n"
        "  .cfi_startproc\n"
        "  sub $8, %rsp\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  call visitor_work\n"
        "  add $8, %rsp\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  mov %rax, %rdi\n"
        "  jmp *dlclose@GOTPCREL(%rip)\n"
        "  .cfi_endproc\n"
        ".size visitor_thread, . - visitor_thread\n");
#elif defined(__aarch64__)
/* hint #34 is bti c; x16 is where a jump to a function may come from. The result in x0 is the argument. */
__asm__(".text\n"
        ".type visitor_thread, %function\n"
        "visitor_thread:\n"
        "  .cfi_startproc\n"
        "  hint #34\n"
        "  stp x29, x30, [sp, #-16]!\n"
        "  .cfi_def_cfa_offset 16\n"
        "  .cfi_offset x29, -16\n"
        "  .cfi_offset x30, -8\n"
        "  mov x29, sp\n"
        "  bl visitor_work\n"
        "  ldp x29, x30, [sp], #16\n"
        "  .cfi_restore x29\n"
        "  .cfi_restore x30\n"
        "  .cfi_def_cfa_offset 0\n"
        "  adrp x16, :got:dlclose\n"
        "  ldr x16, [x16, :got_lo12:dlclose]\n"
        "  br x16\n"
        "  .cfi_endproc\n"
        ".size visitor_thread, . - visitor_thread\n");
#else
#error "no way to leave on this machine: write visitor_thread for it"
#endif
void *visitor_thread(void *unused);

/* The visited thread has all signals blocked meanwhile (reach/native.py), and its child inherits that: no handler
 * of the program runs in a thread that it does not know. Again here, should somebody else load this file. */
__attribute__((constructor)) static void arrive(void) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    size_t stack_nbytes;
    if (visit.pid <= 0) return;
    sigfillset(&all);
    if (pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_attr_getstacksize(&attributes, &stack_nbytes) == 0 && stack_nbytes < MAX_STACK_NBYTES)
        pthread_attr_setstacksize(&attributes, MAX_STACK_NBYTES);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    (void)!pthread_create(&thread, &attributes, visitor_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

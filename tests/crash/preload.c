/* Counts the file operations of one process below one folder, and disturbs the k-th.
 *
 * Loaded before libc (LD_PRELOAD), it stands between the program and libc's functions, so it sees
 * what Python, ctypes, Rust and C++ ask for alike. It does nothing until `crash_arm` is called, and
 * then only in the process that called it. Not here: which operations are to be disturbed (the
 * engine asks for them one by one), memory maps, and what libc calls within itself: stdio is seen at
 * fopen, fwrite, fflush and fclose, a listing at opendir and at its first readdir.
 *
 * Long because libc has many names for few operations; each function is three lines of the same form.
 *
 * Invariant: a descriptor is closed whatever is said of its close, and what a lie reports as failed
 * has been performed.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utime.h>

#define PATH_ROOM 8192

/* What an operation is; the engine reads these letters in the trace. */
enum { CHANGES = 1, LIES = 2, NAMES = 4, EXCLUSIVE = 8, SPLITS = 16, CLOSES = 32, SYNCS = 64 };

/* How the k-th operation is disturbed; the numbers are the engine's. */
enum {
    COUNT_ONLY,
    KILL_BEFORE,
    KILL_AFTER,
    TORN_KILL,   /* a write writes half, and the process is killed */
    TORN_FULL,   /* a write writes half and says so; the next one finds no room */
    FAIL,        /* not performed, reported as failed */
    LIE,         /* performed, reported as failed */
    FROM_CHANGE, /* this and every later change fails */
    FROM_ALL     /* this and every later operation fails, but closing */
};

enum { GO, REFUSE, LOOK_AFTER, HALF };

/* In memory that the engine shares, so that it can be read after the process was killed. */
struct board {
    _Atomic int64_t count;
    _Atomic int64_t hit; /* the operation that was disturbed, from 1; 0 when none was */
    char operation[32];
    char path[1000];
    _Atomic int64_t used; /* bytes of the trace */
    int64_t room;
    char trace[];
};

static _Atomic pid_t armed;
static char root[PATH_ROOM], real_root[PATH_ROOM];
static size_t root_length, real_root_length;
static struct board *board;
static int64_t at;
static int how, code;
static _Atomic int no_room;

#define REAL(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real)                                                                                     \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* ---- where an operation takes place */

static int is_below(const char *path, const char *folder, size_t length) {
    return length && strncmp(path, folder, length) == 0 && (path[length] == '/' || !path[length]);
}

static int below(const char *path) {
    return is_below(path, root, root_length) || is_below(path, real_root, real_root_length);
}

static int descriptor_path(int fd, char *into) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, into, (size_t)PATH_ROOM - 1);
    if (length < 0)
        return 0;
    into[length] = 0;
    return 1;
}

/* The absolute path of what is named relative to a folder; false when that cannot be told. */
static int full_path(int folder, const char *path, char *into) {
    if (!path || !*path)
        return folder >= 0 && descriptor_path(folder, into);
    if (*path == '/') {
        if (strlen(path) >= PATH_ROOM)
            return 0;
        strcpy(into, path);
        return 1;
    }
    if (folder == AT_FDCWD) {
        if (syscall(SYS_getcwd, into, (size_t)PATH_ROOM) < 0)
            return 0;
    } else if (!descriptor_path(folder, into)) {
        return 0;
    }
    size_t length = strlen(into);
    if (length + strlen(path) + 2 > PATH_ROOM)
        return 0;
    into[length] = '/';
    strcpy(into + length + 1, path);
    return 1;
}

static int is_armed(void) {
    return armed && armed == (pid_t)syscall(SYS_getpid);
}

static int concerns(int folder, const char *path, char *where) {
    if (!is_armed())
        return 0;
    int kept = errno;
    int found = full_path(folder, path, where) && below(where);
    errno = kept;
    return found;
}

static int concerns_fd(int fd, char *where) {
    if (!is_armed())
        return 0;
    int kept = errno;
    int found = descriptor_path(fd, where) && below(where);
    errno = kept;
    return found;
}

/* ---- what is done to it */

static void die(void) {
    syscall(SYS_kill, (pid_t)syscall(SYS_getpid), SIGKILL);
    for (;;)
        pause();
}

static void write_trace(const char *operation, int kind, const char *where) {
    char line[PATH_ROOM + 64];
    int length = snprintf(line, sizeof line, "%s\t%s%s%s%s%s%s%s\t%s\n", operation,
                          kind & CHANGES ? "c" : "", kind & LIES ? "l" : "",
                          kind & NAMES ? "n" : "", kind & EXCLUSIVE ? "x" : "",
                          kind & SPLITS ? "s" : "", kind & CLOSES ? "z" : "",
                          kind & SYNCS ? "f" : "", where);
    int64_t start = atomic_fetch_add(&board->used, length);
    if (start + length <= board->room)
        memcpy(board->trace + start, line, (size_t)length);
}

static void note_hit(int64_t number, const char *operation, const char *where) {
    int64_t none = 0;
    if (!atomic_compare_exchange_strong(&board->hit, &none, number))
        return;
    snprintf(board->operation, sizeof board->operation, "%s", operation);
    snprintf(board->path, sizeof board->path, "%s", where);
}

static int applies(int kind) {
    switch (how) {
    case TORN_KILL:
    case TORN_FULL:
        return kind & SPLITS;
    case LIE:
        return kind & LIES;
    case FROM_CHANGE:
        return kind & CHANGES;
    case FROM_ALL:
        return !(kind & CLOSES);
    }
    return 1;
}

/* Counts an operation, and says what becomes of it. */
static int begin(const char *operation, int kind, const char *where) {
    int64_t number = atomic_fetch_add(&board->count, 1) + 1;
    if (how == COUNT_ONLY) {
        write_trace(operation, kind, where);
        return GO;
    }
    if (no_room && (kind & SPLITS)) {
        no_room = 0;
        return REFUSE;
    }
    int goes_on = how == FROM_CHANGE || how == FROM_ALL;
    if ((goes_on ? number < at : number != at) || !applies(kind))
        return GO;
    note_hit(number, operation, where);
    switch (how) {
    case KILL_BEFORE:
        die();
        return GO;
    case FAIL: /* a close that fails has closed all the same */
        return kind & CLOSES ? LOOK_AFTER : REFUSE;
    case FROM_CHANGE:
    case FROM_ALL:
        return REFUSE;
    case TORN_KILL:
    case TORN_FULL:
        return HALF;
    }
    return LOOK_AFTER;
}

/* What is said of an operation that was performed. */
static int64_t end(int64_t result) {
    if (how == KILL_AFTER)
        die();
    if (result < 0)
        return result;
    errno = code;
    return -1;
}

/* What is said of a half: the rest was never asked for, or the process has seen nothing of it. */
static int64_t end_half(int64_t result) {
    if (how == TORN_KILL)
        die();
    no_room = 1;
    return result;
}

__attribute__((visibility("default"))) void crash_arm(const char *folder, const char *resolved,
                                                      void *shared, int64_t size, int64_t number,
                                                      int manner, int error) {
    board = shared;
    board->room = size - (int64_t)sizeof(struct board);
    board->count = board->hit = board->used = 0;
    snprintf(root, sizeof root, "%s", folder);
    snprintf(real_root, sizeof real_root, "%s", resolved);
    root_length = strlen(root);
    real_root_length = strlen(real_root);
    at = number;
    how = manner;
    code = error;
    no_room = 0;
    armed = (pid_t)syscall(SYS_getpid);
}

__attribute__((visibility("default"))) void crash_disarm(void) {
    armed = 0;
}

/* Where the trace begins, so that the engine needs not know the compiler's padding. */
__attribute__((visibility("default"))) int64_t crash_trace_offset(void) {
    return (int64_t)sizeof(struct board);
}

/* ---- operations: one that is performed or not, with -1 for a failure */

#define DISTURB(operation, kind, is_ours, call)                                                    \
    do {                                                                                           \
        char where[PATH_ROOM];                                                                     \
        if (is_ours) {                                                                             \
            switch (begin(operation, kind, where)) {                                               \
            case REFUSE:                                                                           \
                errno = code;                                                                      \
                return -1;                                                                         \
            case LOOK_AFTER:                                                                       \
                return (__typeof__(call))end(call);                                                \
            }                                                                                      \
        }                                                                                          \
        return call;                                                                               \
    } while (0)

#define BY_PATH(type, name, kind, folder, path, parameters, ...)                                   \
    type name parameters {                                                                         \
        REAL(name);                                                                                \
        DISTURB(#name, kind, concerns(folder, path, where), real(__VA_ARGS__));                    \
    }

#define BY_FD(type, name, kind, fd, parameters, ...)                                               \
    type name parameters {                                                                         \
        REAL(name);                                                                                \
        DISTURB(#name, kind, concerns_fd(fd, where), real(__VA_ARGS__));                           \
    }

#define BY_TWO(name, kind, folder, path, other_folder, other, parameters, ...)                     \
    int name parameters {                                                                          \
        REAL(name);                                                                                \
        DISTURB(#name, kind,                                                                       \
                concerns(other_folder, other, where) || concerns(folder, path, where),             \
                real(__VA_ARGS__));                                                                \
    }

/* ---- opening */

static int kind_of_open(int flags) {
    int kind = 0;
    if (flags & (O_CREAT | O_TRUNC))
        kind |= CHANGES;
    if (flags & O_CREAT)
        kind |= LIES;
    if ((flags & O_CREAT) && (flags & O_EXCL))
        kind |= EXCLUSIVE;
    return kind;
}

#define DISTURB_OPEN(operation, folder, path, flags, call)                                         \
    do {                                                                                           \
        char where[PATH_ROOM];                                                                     \
        if (concerns(folder, path, where)) {                                                       \
            switch (begin(operation, kind_of_open(flags), where)) {                                \
            case REFUSE:                                                                           \
                errno = code;                                                                      \
                return -1;                                                                         \
            case LOOK_AFTER: {                                                                     \
                int opened = call;                                                                 \
                int said = (int)end(opened);                                                       \
                if (said < 0 && opened >= 0)                                                       \
                    syscall(SYS_close, opened);                                                    \
                return said;                                                                       \
            }                                                                                      \
            }                                                                                      \
        }                                                                                          \
        return call;                                                                               \
    } while (0)

#define MODE_OF(last)                                                                              \
    mode_t mode = 0;                                                                               \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                                         \
        va_list rest;                                                                              \
        va_start(rest, last);                                                                      \
        mode = (mode_t)va_arg(rest, int);                                                          \
        va_end(rest);                                                                              \
    }

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        REAL(name);                                                                                \
        MODE_OF(flags)                                                                             \
        DISTURB_OPEN(#name, AT_FDCWD, path, flags, real(path, flags, mode));                       \
    }
#define OPENAT(name)                                                                               \
    int name(int folder, const char *path, int flags, ...) {                                       \
        REAL(name);                                                                                \
        MODE_OF(flags)                                                                             \
        DISTURB_OPEN(#name, folder, path, flags, real(folder, path, flags, mode));                 \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* What programs call that were compiled with _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int folder, const char *path, int flags);
int __openat64_2(int folder, const char *path, int flags);
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int folder, const char *path, int flags) { return openat(folder, path, flags); }
int __openat64_2(int folder, const char *path, int flags) { return openat64(folder, path, flags); }

int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) {
    return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

BY_FD(int, close, LIES | CLOSES, fd, (int fd), fd)

/* ---- bytes */

BY_FD(ssize_t, read, 0, fd, (int fd, void *into, size_t count), fd, into, count)
BY_FD(ssize_t, pread, 0, fd, (int fd, void *into, size_t count, off_t offset), fd, into, count,
      offset)
BY_FD(ssize_t, pread64, 0, fd, (int fd, void *into, size_t count, off64_t offset), fd, into, count,
      offset)
BY_FD(ssize_t, readv, 0, fd, (int fd, const struct iovec *parts, int count), fd, parts, count)
BY_FD(ssize_t, preadv, 0, fd, (int fd, const struct iovec *parts, int count, off_t offset), fd,
      parts, count, offset)
BY_FD(ssize_t, preadv64, 0, fd, (int fd, const struct iovec *parts, int count, off64_t offset), fd,
      parts, count, offset)
BY_FD(ssize_t, preadv2, 0, fd,
      (int fd, const struct iovec *parts, int count, off_t offset, int flags), fd, parts, count,
      offset, flags)
BY_FD(ssize_t, preadv64v2, 0, fd,
      (int fd, const struct iovec *parts, int count, off64_t offset, int flags), fd, parts, count,
      offset, flags)

ssize_t __read_chk(int fd, void *into, size_t count, size_t room);
ssize_t __pread_chk(int fd, void *into, size_t count, off_t offset, size_t room);
ssize_t __pread64_chk(int fd, void *into, size_t count, off64_t offset, size_t room);
ssize_t __read_chk(int fd, void *into, size_t count, size_t room) {
    return read(fd, into, count < room ? count : room);
}
ssize_t __pread_chk(int fd, void *into, size_t count, off_t offset, size_t room) {
    return pread(fd, into, count < room ? count : room, offset);
}
ssize_t __pread64_chk(int fd, void *into, size_t count, off64_t offset, size_t room) {
    return pread64(fd, into, count < room ? count : room, offset);
}

#define WRITTEN(name, fd, count, call, half)                                                       \
    do {                                                                                           \
        char where[PATH_ROOM];                                                                     \
        if (concerns_fd(fd, where)) {                                                              \
            switch (begin(#name, CHANGES | LIES | ((count) > 1 ? SPLITS : 0), where)) {            \
            case REFUSE:                                                                           \
                errno = code;                                                                      \
                return -1;                                                                         \
            case LOOK_AFTER:                                                                       \
                return (ssize_t)end(call);                                                         \
            case HALF:                                                                             \
                return (ssize_t)end_half(half);                                                    \
            }                                                                                      \
        }                                                                                          \
        return call;                                                                               \
    } while (0)

ssize_t write(int fd, const void *data, size_t count) {
    REAL(write);
    WRITTEN(write, fd, count, real(fd, data, count), real(fd, data, count / 2));
}
ssize_t pwrite(int fd, const void *data, size_t count, off_t offset) {
    REAL(pwrite);
    WRITTEN(pwrite, fd, count, real(fd, data, count, offset), real(fd, data, count / 2, offset));
}
ssize_t pwrite64(int fd, const void *data, size_t count, off64_t offset) {
    REAL(pwrite64);
    WRITTEN(pwrite64, fd, count, real(fd, data, count, offset), real(fd, data, count / 2, offset));
}

/* The half of several parts is the first half of them, or half of the only one. */
static struct iovec *half_of(const struct iovec *parts, int *count, struct iovec *room) {
    if (*count > 1) {
        *count /= 2;
        return (struct iovec *)parts;
    }
    *room = *parts;
    room->iov_len /= 2;
    return room;
}
static size_t length_of(const struct iovec *parts, int count) {
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += parts[i].iov_len;
    return total;
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    struct iovec room;
    int halved = count;
    struct iovec *half = half_of(parts, &halved, &room);
    WRITTEN(writev, fd, length_of(parts, count), real(fd, parts, count), real(fd, half, halved));
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    REAL(pwritev);
    struct iovec room;
    int halved = count;
    struct iovec *half = half_of(parts, &halved, &room);
    WRITTEN(pwritev, fd, length_of(parts, count), real(fd, parts, count, offset),
            real(fd, half, halved, offset));
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    REAL(pwritev64);
    struct iovec room;
    int halved = count;
    struct iovec *half = half_of(parts, &halved, &room);
    WRITTEN(pwritev64, fd, length_of(parts, count), real(fd, parts, count, offset),
            real(fd, half, halved, offset));
}
ssize_t sendfile(int to, int from, off_t *offset, size_t count) {
    REAL(sendfile);
    WRITTEN(sendfile, to, count, real(to, from, offset, count), real(to, from, offset, count / 2));
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t count) {
    REAL(sendfile64);
    WRITTEN(sendfile64, to, count, real(to, from, offset, count),
            real(to, from, offset, count / 2));
}
ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t count,
                        unsigned int flags) {
    REAL(copy_file_range);
    WRITTEN(copy_file_range, to, count, real(from, in, to, out, count, flags),
            real(from, in, to, out, count / 2, flags));
}

/* ---- forcing to disk, and length */

#define SYNC (CHANGES | LIES | SYNCS)
BY_FD(int, fsync, SYNC, fd, (int fd), fd)
BY_FD(int, fdatasync, SYNC, fd, (int fd), fd)
BY_FD(int, syncfs, SYNC, fd, (int fd), fd)
BY_FD(int, sync_file_range, SYNC, fd, (int fd, off64_t start, off64_t count, unsigned int flags),
      fd, start, count, flags)
#define LENGTH (CHANGES | LIES)
BY_FD(int, ftruncate, LENGTH, fd, (int fd, off_t length), fd, length)
BY_FD(int, ftruncate64, LENGTH, fd, (int fd, off64_t length), fd, length)
BY_FD(int, fallocate, LENGTH, fd, (int fd, int mode, off_t start, off_t count), fd, mode, start,
      count)
BY_FD(int, fallocate64, LENGTH, fd, (int fd, int mode, off64_t start, off64_t count), fd, mode,
      start, count)
BY_PATH(int, truncate, LENGTH, AT_FDCWD, path, (const char *path, off_t length), path, length)
BY_PATH(int, truncate64, LENGTH, AT_FDCWD, path, (const char *path, off64_t length), path, length)

/* These two return the error instead of -1. */
#define RESERVE(name, offset_type)                                                                 \
    int name(int fd, offset_type start, offset_type count) {                                       \
        REAL(name);                                                                                \
        char where[PATH_ROOM];                                                                     \
        if (concerns_fd(fd, where)) {                                                              \
            switch (begin(#name, LENGTH, where)) {                                                 \
            case REFUSE:                                                                           \
                return code;                                                                       \
            case LOOK_AFTER: {                                                                     \
                int failed = real(fd, start, count);                                               \
                return end(failed ? -1 : 0) < 0 && !failed ? code : failed;                        \
            }                                                                                      \
            }                                                                                      \
        }                                                                                          \
        return real(fd, start, count);                                                             \
    }
RESERVE(posix_fallocate, off_t)
RESERVE(posix_fallocate64, off64_t)

/* ---- names */

#define NAMING (CHANGES | LIES | NAMES)
BY_TWO(rename, NAMING, AT_FDCWD, from, AT_FDCWD, to, (const char *from, const char *to), from, to)
BY_TWO(renameat, NAMING, folder, from, other, to,
       (int folder, const char *from, int other, const char *to), folder, from, other, to)
BY_TWO(renameat2, NAMING, folder, from, other, to,
       (int folder, const char *from, int other, const char *to, unsigned int flags), folder, from,
       other, to, flags)
BY_TWO(link, NAMING, AT_FDCWD, from, AT_FDCWD, to, (const char *from, const char *to), from, to)
BY_TWO(linkat, NAMING, folder, from, other, to,
       (int folder, const char *from, int other, const char *to, int flags), folder, from, other,
       to, flags)
BY_PATH(int, symlink, NAMING, AT_FDCWD, path, (const char *to, const char *path), to, path)
BY_PATH(int, symlinkat, NAMING, folder, path, (const char *to, int folder, const char *path), to,
        folder, path)
BY_PATH(int, unlink, NAMING, AT_FDCWD, path, (const char *path), path)
BY_PATH(int, unlinkat, NAMING, folder, path, (int folder, const char *path, int flags), folder,
        path, flags)
BY_PATH(int, rmdir, NAMING, AT_FDCWD, path, (const char *path), path)
BY_PATH(int, remove, NAMING, AT_FDCWD, path, (const char *path), path)
BY_PATH(int, mkdir, NAMING, AT_FDCWD, path, (const char *path, mode_t mode), path, mode)
BY_PATH(int, mkdirat, NAMING, folder, path, (int folder, const char *path, mode_t mode), folder,
        path, mode)

/* ---- facts that are changed */

#define FACTS CHANGES
BY_PATH(int, chmod, FACTS, AT_FDCWD, path, (const char *path, mode_t mode), path, mode)
BY_FD(int, fchmod, FACTS, fd, (int fd, mode_t mode), fd, mode)
BY_PATH(int, fchmodat, FACTS, folder, path,
        (int folder, const char *path, mode_t mode, int flags), folder, path, mode, flags)
BY_PATH(int, chown, FACTS, AT_FDCWD, path, (const char *path, uid_t user, gid_t group), path, user,
        group)
BY_PATH(int, lchown, FACTS, AT_FDCWD, path, (const char *path, uid_t user, gid_t group), path, user,
        group)
BY_FD(int, fchown, FACTS, fd, (int fd, uid_t user, gid_t group), fd, user, group)
BY_PATH(int, fchownat, FACTS, folder, path,
        (int folder, const char *path, uid_t user, gid_t group, int flags), folder, path, user,
        group, flags)
BY_PATH(int, utimensat, FACTS, folder, path,
        (int folder, const char *path, const struct timespec times[2], int flags), folder, path,
        times, flags)
BY_FD(int, futimens, FACTS, fd, (int fd, const struct timespec times[2]), fd, times)
BY_PATH(int, utimes, FACTS, AT_FDCWD, path, (const char *path, const struct timeval times[2]), path,
        times)
BY_PATH(int, utime, FACTS, AT_FDCWD, path, (const char *path, const struct utimbuf *times), path,
        times)

/* ---- looking */

#define STAT(name, structure)                                                                      \
    BY_PATH(int, name, 0, AT_FDCWD, path, (const char *path, struct structure *facts), path, facts)
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
STAT(statfs, statfs)
STAT(statfs64, statfs64)
STAT(statvfs, statvfs)
STAT(statvfs64, statvfs64)
BY_FD(int, fstat, 0, fd, (int fd, struct stat *facts), fd, facts)
BY_FD(int, fstat64, 0, fd, (int fd, struct stat64 *facts), fd, facts)
BY_FD(int, fstatfs, 0, fd, (int fd, struct statfs *facts), fd, facts)
BY_FD(int, fstatfs64, 0, fd, (int fd, struct statfs64 *facts), fd, facts)
BY_FD(int, fstatvfs, 0, fd, (int fd, struct statvfs *facts), fd, facts)
BY_FD(int, fstatvfs64, 0, fd, (int fd, struct statvfs64 *facts), fd, facts)
BY_PATH(int, fstatat, 0, folder, path,
        (int folder, const char *path, struct stat *facts, int flags), folder, path, facts, flags)
BY_PATH(int, fstatat64, 0, folder, path,
        (int folder, const char *path, struct stat64 *facts, int flags), folder, path, facts, flags)
BY_PATH(int, statx, 0, folder, path,
        (int folder, const char *path, int flags, unsigned int mask, struct statx *facts), folder,
        path, flags, mask, facts)

/* What programs call that were linked with a libc before 2.33. */
#define OLD_STAT(name, structure)                                                                  \
    int name(int version, const char *path, struct structure *facts);                              \
    BY_PATH(int, name, 0, AT_FDCWD, path,                                                          \
            (int version, const char *path, struct structure *facts), version, path, facts)
#define OLD_FSTAT(name, structure)                                                                 \
    int name(int version, int fd, struct structure *facts);                                        \
    BY_FD(int, name, 0, fd, (int version, int fd, struct structure *facts), version, fd, facts)
#define OLD_FSTATAT(name, structure)                                                               \
    int name(int version, int folder, const char *path, struct structure *facts, int flags);       \
    BY_PATH(int, name, 0, folder, path,                                                            \
            (int version, int folder, const char *path, struct structure *facts, int flags),       \
            version, folder, path, facts, flags)
OLD_STAT(__xstat, stat)
OLD_STAT(__xstat64, stat64)
OLD_STAT(__lxstat, stat)
OLD_STAT(__lxstat64, stat64)
OLD_FSTAT(__fxstat, stat)
OLD_FSTAT(__fxstat64, stat64)
OLD_FSTATAT(__fxstatat, stat)
OLD_FSTATAT(__fxstatat64, stat64)

BY_PATH(int, access, 0, AT_FDCWD, path, (const char *path, int mode), path, mode)
BY_PATH(int, euidaccess, 0, AT_FDCWD, path, (const char *path, int mode), path, mode)
BY_PATH(int, eaccess, 0, AT_FDCWD, path, (const char *path, int mode), path, mode)
BY_PATH(int, faccessat, 0, folder, path, (int folder, const char *path, int mode, int flags),
        folder, path, mode, flags)
BY_PATH(ssize_t, readlink, 0, AT_FDCWD, path, (const char *path, char *into, size_t room), path,
        into, room)
BY_PATH(ssize_t, readlinkat, 0, folder, path,
        (int folder, const char *path, char *into, size_t room), folder, path, into, room)

/* ---- listing */

/* Streams whose first entry has not been asked for yet. */
#define STREAMS 64
static DIR *_Atomic fresh[STREAMS];

static DIR *note_stream(DIR *stream) {
    for (int i = 0; stream && i < STREAMS; i++) {
        DIR *none = NULL;
        if (atomic_compare_exchange_strong(&fresh[i], &none, stream))
            break;
    }
    return stream;
}
static int is_fresh(DIR *stream) {
    for (int i = 0; i < STREAMS; i++) {
        DIR *mine = stream;
        if (atomic_compare_exchange_strong(&fresh[i], &mine, NULL))
            return 1;
    }
    return 0;
}
DIR *opendir(const char *path) {
    REAL(opendir);
    char where[PATH_ROOM];
    if (!concerns(AT_FDCWD, path, where))
        return real(path);
    switch (begin("opendir", 0, where)) {
    case REFUSE:
        errno = code;
        return NULL;
    case LOOK_AFTER: {
        DIR *stream = note_stream(real(path));
        end(0);
        return stream;
    }
    }
    return note_stream(real(path));
}
DIR *fdopendir(int fd) {
    REAL(fdopendir);
    char where[PATH_ROOM];
    DIR *stream = real(fd);
    return concerns_fd(fd, where) ? note_stream(stream) : stream;
}
#define READDIR(name, structure)                                                                   \
    struct structure *name(DIR *stream) {                                                          \
        REAL(name);                                                                                \
        char where[PATH_ROOM];                                                                     \
        if (!is_armed() || !is_fresh(stream) || !concerns_fd(dirfd(stream), where))                \
            return real(stream);                                                                   \
        int todo = begin(#name, 0, where);                                                         \
        struct structure *entry = NULL;                                                            \
        if (todo != REFUSE)                                                                        \
            entry = real(stream);                                                                  \
        else                                                                                       \
            errno = code;                                                                          \
        if (todo == LOOK_AFTER)                                                                    \
            end(0);                                                                                \
        return entry;                                                                              \
    }
READDIR(readdir, dirent)
READDIR(readdir64, dirent64)
int closedir(DIR *stream) {
    REAL(closedir);
    is_fresh(stream); /* its memory may belong to the next one */
    DISTURB("closedir", CLOSES, concerns_fd(dirfd(stream), where), real(stream));
}

/* ---- locks */

BY_FD(int, flock, 0, fd, (int fd, int operation), fd, operation)
BY_FD(int, lockf, 0, fd, (int fd, int command, off_t length), fd, command, length)
BY_FD(int, lockf64, 0, fd, (int fd, int command, off64_t length), fd, command, length)

static int is_lock(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_GETLK ||
           command == F_OFD_SETLK || command == F_OFD_SETLKW || command == F_OFD_GETLK;
}
#define FCNTL(name)                                                                                \
    int name(int fd, int command, ...) {                                                           \
        REAL(name);                                                                                \
        va_list rest;                                                                              \
        va_start(rest, command);                                                                   \
        void *argument = va_arg(rest, void *);                                                     \
        va_end(rest);                                                                              \
        DISTURB(#name, 0, is_lock(command) && concerns_fd(fd, where),                              \
                real(fd, command, argument));                                                      \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

/* ---- stdio */

#define FOPEN(name)                                                                                \
    FILE *name(const char *path, const char *mode) {                                               \
        REAL(name);                                                                                \
        char where[PATH_ROOM];                                                                     \
        if (!concerns(AT_FDCWD, path, where))                                                      \
            return real(path, mode);                                                               \
        switch (begin(#name, strpbrk(mode, "wa") ? CHANGES : 0, where)) {                          \
        case REFUSE:                                                                               \
            errno = code;                                                                          \
            return NULL;                                                                           \
        case LOOK_AFTER: {                                                                         \
            FILE *file = real(path, mode);                                                         \
            end(0);                                                                                \
            return file;                                                                           \
        }                                                                                          \
        }                                                                                          \
        return real(path, mode);                                                                   \
    }
FOPEN(fopen)
FOPEN(fopen64)

size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    REAL(fwrite);
    char where[PATH_ROOM];
    if (!is_armed() || !concerns_fd(fileno(file), where))
        return real(data, size, count, file);
    switch (begin("fwrite", CHANGES | (size * count > 1 ? SPLITS : 0), where)) {
    case REFUSE:
        errno = code;
        return 0;
    case LOOK_AFTER: {
        size_t written = real(data, size, count, file);
        end(0);
        return written;
    }
    case HALF: {
        size_t written = real(data, 1, size * count / 2, file);
        fflush(file);
        end_half(0);
        errno = ENOSPC;
        return written / (size ? size : 1);
    }
    }
    return real(data, size, count, file);
}
int fflush(FILE *file) {
    REAL(fflush);
    if (!file || !is_armed())
        return real(file);
    DISTURB("fflush", CHANGES | LIES, concerns_fd(fileno(file), where), real(file));
}
int fclose(FILE *file) {
    REAL(fclose);
    if (!is_armed())
        return real(file);
    DISTURB("fclose", LIES | CLOSES, concerns_fd(fileno(file), where), real(file));
}

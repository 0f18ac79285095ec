// What a call has written to its arguments' memory, without what differs from one file system to the next.
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <linux/stat.h>

#include "answers.h"

static void put_stat(struct text *out, const struct stat *st) {
    put(out, "stat %o links=%ld %d:%d rdev=%lx", st->st_mode, S_ISDIR(st->st_mode) ? 0 : (long)st->st_nlink,
        st->st_uid, st->st_gid, S_ISCHR(st->st_mode) ? st->st_rdev : 0);
    if (!S_ISDIR(st->st_mode))
        put(out, " size=%ld", (long)st->st_size);
    // Linux leaves a new socket's times as its memory was.
    if (!S_ISSOCK(st->st_mode)) {
        put(out, " m=");
        put_time(out, st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
    }
}

static void put_statx(struct text *out, const struct statx *st) {
    put(out, "statx mask=%x %o links=%d %d:%d", st->stx_mask & 0x7ff, st->stx_mode,
        S_ISDIR(st->stx_mode) ? 0 : st->stx_nlink, st->stx_uid, st->stx_gid);
    if (!S_ISDIR(st->stx_mode))
        put(out, " size=%ld", (long)st->stx_size);
    if (!S_ISSOCK(st->stx_mode)) {
        put(out, " m=");
        put_time(out, st->stx_mtime.tv_sec, st->stx_mtime.tv_nsec);
    }
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// Names and kinds of what getdents64 has written, in the order of names.
static void put_entries(struct text *out, char *at, long size) {
    char *entries[32];
    int count = 0;
    for (char *end = at + size; at < end && count < 32; at += *(unsigned short *)(at + 16))
        entries[count++] = at + 18;
    // The kind's byte goes before the name's: both are the text that is sorted.
    qsort(entries, count, sizeof *entries, by_text);
    for (int i = 0; i < count; i++)
        put(out, "%d:%s ", entries[i][0], entries[i] + 1);
}

void put_written(struct text *out, domain *of, long value, struct slot *slot, const char *before, long answer) {
    long first = 0, last = SLOT_BYTES;
    while (first < SLOT_BYTES && slot->base[first] == before[first])
        first++;
    if (first == SLOT_BYTES)
        return;
    while (slot->base[last - 1] == before[last - 1])
        last--;
    put(out, "[");
    int whole = answer >= 0 && value >= (long)slot->base;
    if (of == STAT || of == STATX || of == STATFS || of == STATVFS) {
        if (of == STAT && whole && value + sizeof(struct stat) <= (long)slot->end)
            put_stat(out, (struct stat *)value);
        else if (of == STATX && whole && value + sizeof(struct statx) <= (long)slot->end)
            put_statx(out, (struct statx *)value);
        else
            put(out, "a part or another file system's");
    } else if (of == DENTS && whole && answer > 0)
        put_entries(out, (char *)value, answer);
    else if (of == TEMPLATE)
        put(out, "a name");
    else if (of == TIMEVAL || of == TIMESPEC)
        put(out, "the time left");
    else if (of == SCANDIRLIST || of == HANDLE || of == MOUNTID)
        put(out, "written");
    else {
        // Paths are of one length, not of one text.
        static char shown[1 << 17];
        struct text text = {shown, shown + sizeof shown};
        put_escaped(&text, slot->base + first, last - first);
        put(out, "%ld+%ld %08x %.40s", first, last - first, hash_of(shown, text.at - shown), shown);
    }
    put(out, "]");
}

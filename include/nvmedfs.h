/*
 * nvmedfs.h: files on an NVMe device, in this process (NVMeDFS, TCE 2017, III.C).
 *
 * A device that `nvmed format` (or nvmedfs_format) has made a file system on is mounted; files are opened by paths from
 * its root. Each open file has a policy: through the cache or past it, sync or not, with an I/O handle of its own
 * settings if it wants one. Calls are those of POSIX with a prefix; asynchronous ones are polled or waited for.
 *
 * Unless said otherwise a call answers -1 (or NULL) when it fails and sets errno as the call of that name does;
 * nvmed_last_error() has the text. Every call may be used from every thread. Descriptors are no descriptors of the
 * kernel, and none of the kernel's is one of these: EBADF. After fork() the child has none: EBADF.
 *
 * nvmedfs(3) is the overview, docs/files.md the longer one.
 */
#ifndef NVMEDFS_H
#define NVMEDFS_H

#include <nvmed.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nvmedfs NVMEDFS;         /* a mounted file system */
typedef struct nvmedfs_dir NVMEDFS_DIR; /* a directory being listed */

/* ---- File systems ---------------------------------------------------------------------------------------- */

/* All zero: the defaults. */
struct nvmedfs_format_options {
	uint64_t size;            /* of a file that is made or grown; 0: as it is */
	uint64_t metadata_bytes;  /* 0: an eighth of the device */
	uint32_t flags;           /* 0 */
	uint32_t reserved;
	char label[72];           /* at most 64 bytes and a zero */
	uint64_t reserved2[4];
};
/* Makes an empty file system; all that the device holds is lost. NULL: the defaults. */
int nvmedfs_format(const char *device, const struct nvmedfs_format_options *options);

#define NVMEDFS_FORMAT_BLANK 1   /* flag: format the device first if it is blank */
#define NVMEDFS_DURABLE_CALLS 2  /* flag: each completed call has reached the device */
#define NVMEDFS_NO_READAHEAD 4   /* flag: no reading ahead */

/* All zero: the defaults. */
struct nvmedfs_mount_options {
	uint64_t cache_bytes;       /* 0: 64 MiB */
	uint64_t prealloc_bytes;    /* allocated ahead of a growing file (ffs_prealloc); 0: none */
	uint64_t readahead_bytes;   /* largest window (ffs_readahead); 0: 128 KiB */
	uint64_t dirty_limit_bytes; /* at which writers write back; 0: half the cache */
	uint32_t flags;             /* NVMEDFS_FORMAT_BLANK and so on */
	uint32_t writeback_seconds; /* after which dirty data is written back unasked; 0: 5 */
	uint64_t reserved[4];
};
/* NULL: the defaults. EBUSY when another process has the device. */
NVMEDFS *nvmedfs_mount(const char *device, const struct nvmedfs_mount_options *options);
/* Writes everything back. EBUSY while files, directories, buffers or unfinished calls remain. File systems that are mounted when the
 * process ends by exit() are written back too. */
int nvmedfs_unmount(NVMEDFS *fs);
/* Makes everything durable that was done before. */
int nvmedfs_sync(NVMEDFS *fs);
int nvmedfs_statfs(NVMEDFS *fs, struct statvfs *status);

/* ---- Files ----------------------------------------------------------------------------------------------- */

#define NVMEDFS_DIRECT 1    /* past the cache; offsets and lengths are multiples of nvmedfs_direct_align() */
#define NVMEDFS_OWN_QUEUE 2 /* a queue for this file alone */
#define NVMEDFS_URGENT 4    /* its calls pass others on the way to the device, whoever makes them */

/* How a file's data moves. All zero: through the cache, on the mount's queues. */
struct nvmedfs_policy {
	uint32_t flags;       /* NVMEDFS_DIRECT, NVMEDFS_OWN_QUEUE, NVMEDFS_URGENT */
	int32_t completion;   /* NVMED_COMPLETION_* */
	int32_t priority;     /* NVMED_PRIORITY_*; 0 is NVMED_PRIORITY_URGENT: NVMED_PRIORITY_MEDIUM is usual */
	int32_t scheduler;    /* NVMED_SCHED_*, of the own queue */
	uint32_t queue_depth; /* of the own queue; 0: 128 */
	uint32_t weight;      /* 1 to 1000 with NVMED_SCHED_FAIR; 0: 100 */
	uint32_t stream;      /* of writes; 0: none */
	uint32_t reserved[5];
};

/* Flags are open(2)'s: O_DIRECT is NVMEDFS_DIRECT, O_SYNC and O_DSYNC say what is durable when a write is over. mode counts
 * with O_CREAT and O_TMPFILE, less the umask that the process had at the mount. */
int nvmedfs_open(NVMEDFS *fs, const char *path, int flags, mode_t mode);
/* NULL: the policy is the mount's. */
int nvmedfs_open_policy(NVMEDFS *fs, const char *path, int flags, mode_t mode, const struct nvmedfs_policy *policy);
int nvmedfs_close(int fd);

ssize_t nvmedfs_read(int fd, void *buf, size_t count);
ssize_t nvmedfs_write(int fd, const void *buf, size_t count);
ssize_t nvmedfs_pread(int fd, void *buf, size_t count, off_t offset);
ssize_t nvmedfs_pwrite(int fd, const void *buf, size_t count, off_t offset);
ssize_t nvmedfs_readv(int fd, const struct iovec *iov, int iovcnt);
ssize_t nvmedfs_writev(int fd, const struct iovec *iov, int iovcnt);
ssize_t nvmedfs_preadv(int fd, const struct iovec *iov, int iovcnt, off_t offset);
ssize_t nvmedfs_pwritev(int fd, const struct iovec *iov, int iovcnt, off_t offset);
off_t nvmedfs_lseek(int fd, off_t offset, int whence);
int nvmedfs_fsync(int fd);
int nvmedfs_fdatasync(int fd);
int nvmedfs_ftruncate(int fd, off_t length);
/* mode: FALLOC_FL_* of <linux/falloc.h>, those that nvmed knows. */
int nvmedfs_fallocate(int fd, int mode, off_t offset, off_t len);
int nvmedfs_fstat(int fd, struct stat *status);
int nvmedfs_fchmod(int fd, mode_t mode);
int nvmedfs_fchown(int fd, uid_t owner, gid_t group);
int nvmedfs_futimens(int fd, const struct timespec times[2]);

/* Features of an open file: NVMEDFS_PARAM_DIRECT, NVMED_PARAM_URGENT; to set only, NVMED_PARAM_READAHEAD and NVMEDFS_PARAM_PREALLOC, the bytes of
 * the largest readahead window and of what is allocated ahead when the file grows; and NVMED_PARAM_COMPLETION, _PRIORITY, _STREAM, _WEIGHT, _TIMEOUT_MS,
 * _REPLAY, _RATE_IOPS, _RATE_KIB of its handle. EINVAL for a file without one: it was opened buffered and without a policy. */
#define NVMEDFS_PARAM_DIRECT 1
#define NVMEDFS_PARAM_PREALLOC 2
int nvmedfs_get_param(int fd, int param);
int nvmedfs_set_param(int fd, int param, int value);
/* What offsets and lengths of direct calls are multiples of. */
int nvmedfs_direct_align(int fd);
/* Memory that the device knows, in pages of 4096 bytes: direct calls need no copy. nvmed_put_buffer() gives it back. */
void *nvmedfs_get_buffer(NVMEDFS *fs, unsigned int num_pages);

/* ---- Names ----------------------------------------------------------------------------------------------- */

int nvmedfs_stat(NVMEDFS *fs, const char *path, struct stat *status);
int nvmedfs_lstat(NVMEDFS *fs, const char *path, struct stat *status);
int nvmedfs_access(NVMEDFS *fs, const char *path, int mode);
int nvmedfs_mkdir(NVMEDFS *fs, const char *path, mode_t mode);
int nvmedfs_rmdir(NVMEDFS *fs, const char *path);
int nvmedfs_unlink(NVMEDFS *fs, const char *path);
int nvmedfs_rename(NVMEDFS *fs, const char *from, const char *to);
int nvmedfs_link(NVMEDFS *fs, const char *from, const char *to);
int nvmedfs_symlink(NVMEDFS *fs, const char *target, const char *path);
ssize_t nvmedfs_readlink(NVMEDFS *fs, const char *path, char *buf, size_t size);
int nvmedfs_truncate(NVMEDFS *fs, const char *path, off_t length);
int nvmedfs_chmod(NVMEDFS *fs, const char *path, mode_t mode);
int nvmedfs_chown(NVMEDFS *fs, const char *path, uid_t owner, gid_t group);
int nvmedfs_lchown(NVMEDFS *fs, const char *path, uid_t owner, gid_t group);
/* flags: 0 or AT_SYMLINK_NOFOLLOW. */
int nvmedfs_utimens(NVMEDFS *fs, const char *path, const struct timespec times[2], int flags);

/* Extended attributes: xattr(7). A size of 0 asks how large the answer is. */
ssize_t nvmedfs_getxattr(NVMEDFS *fs, const char *path, const char *name, void *value, size_t size);
/* flags: 0, XATTR_CREATE or XATTR_REPLACE of <sys/xattr.h>. */
int nvmedfs_setxattr(NVMEDFS *fs, const char *path, const char *name, const void *value, size_t size, int flags);
ssize_t nvmedfs_listxattr(NVMEDFS *fs, const char *path, char *list, size_t size);
int nvmedfs_removexattr(NVMEDFS *fs, const char *path, const char *name);

struct nvmedfs_dirent {
	uint64_t d_ino;
	int64_t d_off;        /* where the listing continues after it */
	uint16_t d_reclen;    /* of this structure */
	uint8_t d_type;       /* DT_* of <dirent.h> */
	uint8_t reserved[5];
	char d_name[256];
};
NVMEDFS_DIR *nvmedfs_opendir(NVMEDFS *fs, const char *path);
/* The next entry, valid until the directory's next call; NULL with errno as it was at the end. */
struct nvmedfs_dirent *nvmedfs_readdir(NVMEDFS_DIR *dir);
void nvmedfs_rewinddir(NVMEDFS_DIR *dir);
int64_t nvmedfs_telldir(NVMEDFS_DIR *dir);
void nvmedfs_seekdir(NVMEDFS_DIR *dir, int64_t position);
int nvmedfs_closedir(NVMEDFS_DIR *dir);

/* ---- Asynchronous calls ---------------------------------------------------------------------------------- */

/* Set everything to 0, then fill in the first part. It is the library's from a call that answered 0 until nvmedfs_aio_poll or
 * _wait has said that it is done, and must stay where it is; so must the memory. */
struct nvmedfs_aio {
	int fd;
	uint32_t flags; /* NVMED_AIO_URGENT */
	off_t offset;
	size_t len;
	void *buf;
	void (*callback)(struct nvmedfs_aio *aio, void *userdata); /* may be NULL; run by poll or wait */
	void *userdata;
	/* Answers. */
	int64_t result;  /* bytes moved, or -1 */
	int32_t error;   /* errno, 0 for success */
	int32_t done;    /* 1 */
	uint64_t ticket; /* the library's */
	uint64_t reserved2[2];
};

/* Direct calls of blocks that were written before run in the device; others on a thread, those of one file in order. */
int nvmedfs_aio_read(struct nvmedfs_aio *aio);
int nvmedfs_aio_write(struct nvmedfs_aio *aio);
/* What was written, and what was begun, before. */
int nvmedfs_aio_fsync(struct nvmedfs_aio *aio);
/* 1: done, see the answers; 0: not yet. -1: nothing is under way with it (EINVAL). */
int nvmedfs_aio_poll(struct nvmedfs_aio *aio);
/* 0: done, see the answers. */
int nvmedfs_aio_wait(struct nvmedfs_aio *aio);

#ifdef __cplusplus
}
#endif
#endif /* NVMEDFS_H */

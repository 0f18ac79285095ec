/*
 * nvmed.h: a user-space storage stack for NVMe devices, from C.
 *
 * A device is opened by one string (virtual:disk.img?size=1G, vfio:0000:01:00.0, uring:/dev/nvme0n1, a plain path).
 * Queues are made on a device, handles on one or several queues; all calls move bytes through a handle. Offsets and
 * lengths are bytes and 64 bits wide; nothing has to be aligned, but what is aligned to logical blocks and lies in a
 * buffer of nvmed_get_buffer() goes to the device without a copy.
 *
 * Unless said otherwise a call answers -1 (or NULL, or (off_t)-1) when it fails and sets errno; nvmed_last_error()
 * has the whole story. Every call may be used from every thread. A device, queue or handle that was closed, or never
 * was one, is EBADF. After fork() the child has none of them: EBADF.
 *
 * Names are those of NVMeDirect 1.0; what differs: docs/capi.md, nvmed(3).
 */
#ifndef NVMED_H
#define NVMED_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NVMED_VERSION_MAJOR 0
#define NVMED_VERSION_MINOR 1

typedef struct nvmed NVMED;              /* an open device */
typedef struct nvmed_queue NVMED_QUEUE;  /* a submission and a completion queue */
typedef struct nvmed_handle NVMED_HANDLE; /* a way to the bytes of a device */

/* Results of calls that answer int. NVMeDirect answered others negated; here every failure is -NVMED_FAULT. */
#define NVMED_SUCCESS 0
#define NVMED_FAULT 1

/* ---- Errors ---------------------------------------------------------------------------------------------- */

/* What went wrong in this thread's last call that failed. */
struct nvmed_error {
	int32_t error;        /* errno */
	uint16_t status;      /* status code type << 8 | status code, as the device answered; 0 if it was not asked */
	uint16_t reserved;
	uint64_t lba;         /* first logical block of the command that failed, if status is not 0 */
	uint64_t reserved2[2];
};

/* The text of this thread's last failed call: operation, LBA, status, what to do. Valid until its next call. */
const char *nvmed_last_error(void);
/* The same as numbers. 0, or -1 if no call of this thread has failed. */
int nvmed_last_error_info(struct nvmed_error *info);
/* A short text for an errno value, or for the error of an NVMED_AIO_CTX. Never NULL. */
const char *nvmed_strerror(int error);
/* "0.1.0" */
const char *nvmed_version(void);

/* ---- Devices --------------------------------------------------------------------------------------------- */

/* Flags of nvmed_open; NVMED_CACHE_SIZE and NVMED_CACHE_LAZY_INIT are features too. */
#define NVMED_NO_CACHE 1         /* no block cache: every handle is direct */
#define NVMED_CACHE_SIZE 2       /* feature: frames of the cache, 4096 bytes each; 0 takes it away */
#define NVMED_CACHE_LAZY_INIT 4  /* accepted; the cache is always made when first needed */
#define NVMED_CREATE 8           /* make the image of a virtual device, of the size= in the string */
#define NVMED_OVERWRITE 16       /* allow writes to a device that holds a file system, see nvmed_open */
/* Further features. */
#define NVMED_CACHE_WRITE_THROUGH 0x100 /* 1: a write reaches the device before it returns */
#define NVMED_CACHE_DIRTY_LIMIT 0x101   /* dirty frames above which writers write back; 0: half */
#define NVMED_CACHE_POLICY 0x102        /* NVMED_POLICY_*: which frame is given up for another page */

#define NVMED_POLICY_S3FIFO 0
#define NVMED_POLICY_CLOCK 1
#define NVMED_POLICY_SIEVE 2

struct nvmed_info {
	uint64_t bytes;          /* of the namespace, now */
	uint32_t lba_bytes;      /* of a logical block */
	uint32_t transfer_bytes; /* that one command moves at most */
	uint32_t queues_max;
	uint32_t queue_depth_max;
	uint32_t volatile_cache; /* 1: completed writes may be lost before a flush */
	uint32_t reserved;
	char serial[24];
	char model[48];
	char firmware[16];
};

/* Counts of the block cache since it was made, in pages of 4096 bytes. */
struct nvmed_cache_stats {
	uint64_t frames;
	uint64_t hits;
	uint64_t misses;
	uint64_t evictions;
	uint64_t dirty;
	uint64_t write_backs;
	uint64_t write_backs_failed;
	uint64_t reserved;
};

/* A device that holds a file system (ours or another that blkid knows), a volume, a partition table, swap or a store of
 * nvmed can be read. Each call that would write to it answers EPERM, and nvmed_last_error() says what is there and at
 * which byte; with NVMED_OVERWRITE it writes, and what was there is lost. The library looks when the first handle is
 * made. Passthrough commands are sent all the same. */
NVMED *nvmed_open(const char *path, int flags);
/* Writes back and flushes. EBUSY while queues or buffers remain. After any other error the device is closed. Devices that
 * are open when the process ends by exit() are written back and flushed too, but nobody is told of errors. */
int nvmed_close(NVMED *device);
int nvmed_feature_get(NVMED *device, int feature);
int nvmed_feature_set(NVMED *device, int feature, int value);
int nvmed_get_info(NVMED *device, struct nvmed_info *info);
/* All zero when there is no cache. */
int nvmed_get_cache_stats(NVMED *device, struct nvmed_cache_stats *stats);

/* Quotas of queues by user need a server that shares the device; this library has none: ENOTSUP. */
int nvmed_set_user_quota(NVMED *device, uid_t uid, unsigned int num_queue, unsigned int *max, unsigned int *current);
int nvmed_get_user_quota(NVMED *device, uid_t uid, unsigned int *max, unsigned int *current);

/* ---- Queues ---------------------------------------------------------------------------------------------- */

#define QUEUE_MANUAL_COMPLETION 1 /* accepted: asynchronous calls are always reaped by the caller */
#define QUEUE_INTERRUPT 2         /* with an interrupt, for nvmed_queue_fd and NVMED_COMPLETION_INTERRUPT */

/* Classes of weighted round robin (NVMe Base 2.0, 3.4.4), for queues and handles. */
#define NVMED_PRIORITY_URGENT 0
#define NVMED_PRIORITY_HIGH 1
#define NVMED_PRIORITY_MEDIUM 2
#define NVMED_PRIORITY_LOW 3

#define NVMED_SCHED_NONE 0
#define NVMED_SCHED_DEADLINE 1
#define NVMED_SCHED_FAIR 2

NVMED_QUEUE *nvmed_queue_create(NVMED *device, int flags);
/* depth 0: the default, 128; more than the device has (16,383 at most) is cut to what it has. */
NVMED_QUEUE *nvmed_queue_create_opt(NVMED *device, int flags, unsigned int depth, int priority, int scheduler);
/* EBUSY while handles remain. */
int nvmed_queue_destroy(NVMED_QUEUE *queue);
int nvmed_queue_set_scheduler(NVMED_QUEUE *queue, int scheduler);
/* A descriptor that is readable when the queue may have completions, for poll(2); the caller reads it empty before
 * nvmed_aio_handle_complete and does not close it. ENOTSUP for devices and queues without interrupts. */
int nvmed_queue_fd(NVMED_QUEUE *queue);

/* ---- Handles --------------------------------------------------------------------------------------------- */

/* Flags of nvmed_handle_create, and features that can be switched at any time. */
#define HANDLE_DIRECT_IO 1  /* past the cache */
#define HANDLE_SYNC_IO 2    /* a write is durable when it returns */
#define HANDLE_HINT_DMEM 4  /* accepted: buffers of nvmed_get_buffer are recognised anyway */
#define HANDLE_MQ 8         /* has several queues; read only */
#define HANDLE_INTERRUPT 16 /* waits by interrupt, as NVMED_COMPLETION_INTERRUPT */

/* Features with values. */
#define NVMED_PARAM_COMPLETION 0x100 /* NVMED_COMPLETION_* */
#define NVMED_PARAM_PRIORITY 0x101   /* NVMED_PRIORITY_* */
#define NVMED_PARAM_STREAM 0x102     /* of writes (directives), 0: none */
#define NVMED_PARAM_READAHEAD 0x103  /* bytes, 0: off */
#define NVMED_PARAM_WEIGHT 0x104     /* 1 to 1000, share of a queue with NVMED_SCHED_FAIR */
#define NVMED_PARAM_TIMEOUT_MS 0x105 /* after which a command is aborted, and the controller reset */
#define NVMED_PARAM_REPLAY 0x106     /* 1: what a reset interrupted is sent again; 0: it fails */
#define NVMED_PARAM_RATE_IOPS 0x107  /* requests a second with NVMED_SCHED_FAIR, 0: no limit */
#define NVMED_PARAM_RATE_KIB 0x108   /* KiB a second with NVMED_SCHED_FAIR, 0: no limit */
#define NVMED_PARAM_URGENT 0x109     /* 1: its calls pass others on the way to the device, whoever makes them; 0: those of
                                      * threads of the I/O class real-time (ionice -c 1), if the opening thread was of it */

#define NVMED_COMPLETION_ADAPTIVE 0
#define NVMED_COMPLETION_POLL 1
#define NVMED_COMPLETION_HYBRID 2
#define NVMED_COMPLETION_THREAD 3
#define NVMED_COMPLETION_INTERRUPT 4

/* Chooses a queue of a handle for a call: opcode is NVMe's (0 flush, 1 write, 2 read, 5 compare, 8 write zeroes, 9
 * discard). A queue that is not the handle's stands for its first. It must not call back into its handle. */
typedef NVMED_QUEUE *(*nvmed_mq_func)(NVMED_HANDLE *handle, uint8_t opcode, uint64_t offset, size_t len);

NVMED_HANDLE *nvmed_handle_create(NVMED_QUEUE *queue, int flags);
/* EBUSY while asynchronous calls are not reaped. */
int nvmed_handle_destroy(NVMED_HANDLE *handle);
/* The array stays the caller's. func NULL: the queues take turns. */
NVMED_HANDLE *nvmed_handle_create_mq(NVMED_QUEUE **queues, int num_queue, int flags, nvmed_mq_func func);
int nvmed_handle_destroy_mq(NVMED_HANDLE *handle);
int nvmed_handle_feature_get(NVMED_HANDLE *handle, int feature);
int nvmed_handle_feature_set(NVMED_HANDLE *handle, int feature, int value);

/* What a handle asked of the device, since it was made. A call may be several requests, or, through the cache, none. */
struct nvmed_handle_stats {
	uint64_t reads;
	uint64_t writes;
	uint64_t flushes;
	uint64_t discards;
	uint64_t write_zeroes;
	uint64_t compares;
	uint64_t bytes_read;
	uint64_t bytes_written;
	uint64_t errors;
	uint64_t reserved[3];
};
int nvmed_get_handle_stats(NVMED_HANDLE *handle, struct nvmed_handle_stats *stats);

/* Names of the paper (TCE'17, table I). */
NVMED_QUEUE *nvmed_create_queue(NVMED *device, int flags);
NVMED_HANDLE *nvmed_create_handle(NVMED_QUEUE *queue, int flags);
int nvmed_set_param(NVMED_HANDLE *handle, int feature, int value);

/* ---- Buffers --------------------------------------------------------------------------------------------- */

/* Memory that the device knows, in pages of 4096 bytes, at most 1 GiB. What it holds is anything. */
void *nvmed_get_buffer(NVMED *device, unsigned int num_pages);
/* Does nothing for NULL; sets errno to EINVAL for what is no buffer. */
void nvmed_put_buffer(void *buffer);
/* Device addresses of the pages under num_bytes bytes of a buffer; answers how many pages. */
int nvmed_virt_to_phys(NVMED *device, const void *addr, uint64_t *addresses, size_t num_bytes);

/* ---- Synchronous calls ----------------------------------------------------------------------------------- */

/* As on a block device: fewer bytes at its end; past it reads answer 0 and writes ENOSPC. */
off_t nvmed_lseek(NVMED_HANDLE *handle, off_t offset, int whence);
ssize_t nvmed_read(NVMED_HANDLE *handle, void *buf, size_t count);
ssize_t nvmed_write(NVMED_HANDLE *handle, const void *buf, size_t count);
ssize_t nvmed_pread(NVMED_HANDLE *handle, void *buf, size_t count, off_t offset);
ssize_t nvmed_pwrite(NVMED_HANDLE *handle, const void *buf, size_t count, off_t offset);
ssize_t nvmed_readv(NVMED_HANDLE *handle, const struct iovec *iov, int iovcnt);
ssize_t nvmed_writev(NVMED_HANDLE *handle, const struct iovec *iov, int iovcnt);
ssize_t nvmed_preadv(NVMED_HANDLE *handle, const struct iovec *iov, int iovcnt, off_t offset);
ssize_t nvmed_pwritev(NVMED_HANDLE *handle, const struct iovec *iov, int iovcnt, off_t offset);
/* Makes every write that returned before durable. EIO once if cached data could not be written since the last flush. */
int nvmed_flush(NVMED_HANDLE *handle);
/* The blocks that lie wholly in the range are no longer needed; they may read as anything. */
int nvmed_discard(NVMED_HANDLE *handle, uint64_t start, uint64_t len);
int nvmed_write_zeroes(NVMED_HANDLE *handle, uint64_t start, uint64_t len);
/* EILSEQ for a difference. */
int nvmed_compare(NVMED_HANDLE *handle, const void *buf, size_t count, off_t offset);

struct nvmed_range {
	uint64_t start;
	uint64_t len;
};
/* The ranges that will be read next, in order: a file's extents. 0 ranges: none. At most 4096 are kept. */
int nvmed_advise(NVMED_HANDLE *handle, const struct nvmed_range *ranges, size_t count);

/* ---- Passthrough ----------------------------------------------------------------------------------------- */

/* A command as Linux has it in struct nvme_passthru_cmd, same layout. metadata must be 0. */
struct nvmed_passthru_cmd {
	uint8_t opcode;
	uint8_t flags;       /* must be 0 */
	uint16_t rsvd1;
	uint32_t nsid;
	uint32_t cdw2;
	uint32_t cdw3;
	uint64_t metadata;
	uint64_t addr;       /* of the data, any memory */
	uint32_t metadata_len;
	uint32_t data_len;
	uint32_t cdw10;
	uint32_t cdw11;
	uint32_t cdw12;
	uint32_t cdw13;
	uint32_t cdw14;
	uint32_t cdw15;
	uint32_t timeout_ms; /* not used */
	uint32_t result;     /* dword 0 of the completion */
};
/* The command is sent as it is: one that formats the namespace does so. */
int nvmed_admin_passthru(NVMED *device, struct nvmed_passthru_cmd *cmd);
/* Past the cache, which writes everything back and forgets it before. */
int nvmed_io_passthru(NVMED_HANDLE *handle, struct nvmed_passthru_cmd *cmd);

/* ---- Asynchronous calls ---------------------------------------------------------------------------------- */

/* States of a context. */
#define AIO_INIT 0
#define AIO_PROCESS 2
#define AIO_COMPLETE 4
/* Answers of nvmed_aio_read and the like. */
#define NVMED_AIO_ERROR 1  /* see errno; the callback is not called */
#define NVMED_AIO_BUSY 2   /* 1024 calls of the handle are not reaped yet, errno EAGAIN */
#define NVMED_AIO_QUEUED 4

/* Flag of a context: this call passes others on the way to the device. */
#define NVMED_AIO_URGENT 1

/* Set everything to 0, then fill in what the first part has. It belongs to the library from a call that answered
 * NVMED_AIO_QUEUED until status is AIO_COMPLETE, and must stay where it is; so does the memory. */
typedef struct nvmed_aio_ctx {
	NVMED_HANDLE *handle;
	union {
		off_t offset;    /* bytes */
		off_t start_lba; /* its name in NVMeDirect: bytes as well */
	};
	size_t len;
	void *buf;
	void (*aio_callback)(const struct nvmed_aio_ctx *ctx, void *userdata); /* may be NULL */
	void *cb_userdata;
	void *private_data;      /* not looked at */
	uint64_t *prpList;       /* not used: device addresses are known */
	/* Answers. */
	volatile int32_t status; /* AIO_* */
	int32_t error;           /* errno, 0 for success */
	int64_t result;          /* bytes moved, or -1 */
	uint64_t lba;            /* where it failed */
	uint16_t nvme_status;    /* as in struct nvmed_error */
	uint16_t opcode;         /* 0 flush, 1 write, 2 read */
	/* Of the first part. */
	uint32_t flags;          /* NVMED_AIO_URGENT */
} NVMED_AIO_CTX;

int nvmed_aio_read(NVMED_AIO_CTX *ctx);
int nvmed_aio_write(NVMED_AIO_CTX *ctx);
int nvmed_aio_flush(NVMED_AIO_CTX *ctx);
/* Rings the doorbell for everything queued. Answers 0. */
int nvmed_aio_queue_submit(NVMED_HANDLE *handle);
/* Reaps up to 32 finished calls and runs their callbacks in this thread. Answers how many; does not wait. */
int nvmed_aio_handle_complete(NVMED_HANDLE *handle);
/* As nvmed_aio_handle_complete, but waits until one is finished. 0 if none was under way. */
int nvmed_aio_handle_wait(NVMED_HANDLE *handle);

#ifdef __cplusplus
}
#endif
#endif /* NVMED_H */

/* Every call of nvmed.h, used well and badly. Ends with 0, or says which line was not so. */
#include <nvmed.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(what)                                                                                              \
	do {                                                                                                    \
		if (!(what)) {                                                                                  \
			fprintf(stderr, "%s:%d: not so: %s\nerrno %d, last error: %s\n", __FILE__, __LINE__, #what, \
				errno, nvmed_last_error());                                                     \
			exit(1);                                                                                \
		}                                                                                               \
	} while (0)
/* The call fails with this errno, and says why. */
#define FAILS(call, error) MUST((errno = 0, (intptr_t)(call) == FAILED_##error) && errno == error && *nvmed_last_error())
#define FAILED_EBADF failed
#define FAILED_EINVAL failed
#define FAILED_ENOSPC failed
#define FAILED_EBUSY failed
#define FAILED_EFAULT failed
#define FAILED_ENOTSUP failed
#define FAILED_EILSEQ failed
#define FAILED_ENOENT failed
#define FAILED_EIO failed
#define FAILED_ENOMEM failed

#define SIZE ((off_t)16 << 20)

static NVMED *device;
static NVMED_QUEUE *queue;

/* The device under test, from the command line. */
static const char *path = "virtual:?media=dram,size=16M";
/* Whether it has 512-byte blocks and NVMe commands. */
static int plain = 1;

static void opening(void)
{
	intptr_t failed = 0;
	FAILS(nvmed_open(NULL, 0), EFAULT);
	FAILS(nvmed_open("warp:drive", 0), EINVAL);
	FAILS(nvmed_open("virtual:?media=dram,size=16M", 0x8000), EINVAL);
	FAILS(nvmed_open("virtual:new.img", NVMED_CREATE), EINVAL); /* no size */
	FAILS(nvmed_open("virtual:not-there.img", 0), ENOENT);
	NVMED *made = nvmed_open("virtual:new.img?size=1M", NVMED_CREATE);
	MUST(made && nvmed_close(made) == 0 && access("new.img", F_OK) == 0);
	failed = -1;
	FAILS(nvmed_close(made), EBADF);
	FAILS(nvmed_close(NULL), EBADF);

	device = nvmed_open(path, strncmp(path, "uring", 5) ? 0 : NVMED_CREATE);
	MUST(device);
	struct nvmed_info info;
	MUST(nvmed_get_info(device, &info) == 0);
	MUST(info.bytes == (uint64_t)SIZE && (info.lba_bytes == 512) >= plain && *info.model && *info.serial);
	FAILS(nvmed_get_info(device, NULL), EFAULT);
	unsigned int max, current;
	FAILS(nvmed_set_user_quota(device, 0, 1, &max, &current), ENOTSUP);
	FAILS(nvmed_get_user_quota(device, 0, &max, &current), ENOTSUP);
	MUST(nvmed_feature_get(device, NVMED_CACHE_SIZE) > 0);
	failed = 0;
	FAILS(nvmed_get_buffer(device, 0), EINVAL);
	FAILS(nvmed_get_buffer(device, 1 << 30), EINVAL);
	failed = -1;
	FAILS(nvmed_feature_set(device, NVMED_CACHE_SIZE, -1), EINVAL);
	FAILS(nvmed_feature_get(device, 0x7777), EINVAL);
	MUST(strcmp(nvmed_strerror(0), "success") == 0 && *nvmed_strerror(123456) && *nvmed_version());
}

static void queues(void)
{
	intptr_t failed = 0;
	FAILS(nvmed_queue_create(NULL, 0), EBADF);
	FAILS(nvmed_queue_create(device, 0x100), EINVAL);
	FAILS(nvmed_queue_create_opt(device, 0, 8, 99, 0), EINVAL);
	FAILS(nvmed_queue_create_opt(device, 0, 8, 0, 99), EINVAL);
	queue = nvmed_queue_create(device, QUEUE_INTERRUPT);
	MUST(queue);
	for (int i = 0; i < 1000; i++) { /* queues come back to the device */
		NVMED_QUEUE *other = nvmed_queue_create_opt(device, 0, 16, NVMED_PRIORITY_LOW, NVMED_SCHED_FAIR);
		MUST(other && nvmed_queue_set_scheduler(other, NVMED_SCHED_NONE) == 0 && nvmed_queue_destroy(other) == 0);
		failed = -1;
		if (i == 0)
			FAILS(nvmed_queue_destroy(other), EBADF);
	}
	FAILS(nvmed_queue_destroy((NVMED_QUEUE *)device), EBADF); /* another kind */
	int here;
	FAILS(nvmed_queue_destroy((NVMED_QUEUE *)&here), EBADF); /* foreign memory */
	FAILS(nvmed_close(device), EBUSY);
	int fd = nvmed_queue_fd(queue);
	MUST(fd >= 0 || errno == ENOTSUP);
}

static void transfers(NVMED_HANDLE *handle)
{
	intptr_t failed = -1;
	char out[10000], in[10000];
	char *memory = nvmed_get_buffer(device, 4);
	MUST(memory && (uintptr_t)memory % 4096 == 0);
	for (size_t i = 0; i < sizeof out; i++)
		out[i] = (char)(i * 7);
	/* Unaligned, foreign memory; then aligned in registered memory. */
	MUST(nvmed_pwrite(handle, out, sizeof out, 4321) == sizeof out);
	MUST(nvmed_pread(handle, in, sizeof in, 4321) == sizeof in && memcmp(in, out, sizeof in) == 0);
	memcpy(memory, out, 8192);
	MUST(nvmed_pwrite(handle, memory, 8192, 65536) == 8192);
	memset(memory, 0, 8192);
	MUST(nvmed_pread(handle, memory, 8192, 65536) == 8192 && memcmp(memory, out, 8192) == 0);
	MUST(nvmed_pread(handle, memory + 100, 1000, 65536 + 3) == 1000 && memcmp(memory + 100, out + 3, 1000) == 0);
	/* The position. */
	MUST(nvmed_lseek(handle, 65536, SEEK_SET) == 65536);
	MUST(nvmed_read(handle, in, 10) == 10 && nvmed_lseek(handle, 0, SEEK_CUR) == 65546);
	MUST(nvmed_write(handle, memory, 10) == 10 && nvmed_read(handle, memory, 10) == 10);
	MUST(nvmed_lseek(handle, -1, SEEK_END) == SIZE - 1 && nvmed_read(handle, in, 10) == 1);
	MUST(nvmed_read(handle, in, 10) == 0);
	FAILS(nvmed_lseek(handle, -1, SEEK_SET), EINVAL);
	FAILS(nvmed_lseek(handle, 1, SEEK_END), EINVAL);
	FAILS(nvmed_lseek(handle, INT64_MAX, SEEK_CUR), EINVAL);
	FAILS(nvmed_lseek(handle, 0, 77), EINVAL);
	/* Pieces, one of them registered. */
	struct iovec iov[] = {{out, 5}, {NULL, 0}, {out + 5, 4000}, {memory, 100}};
	MUST(nvmed_preadv(handle, iov, 4, 4321) == 4105);
	MUST(nvmed_pwritev(handle, iov, 3, 99) == 4005 && nvmed_pread(handle, in, 4005, 99) == 4005);
	MUST(memcmp(in, out, 4005) == 0);
	MUST(nvmed_lseek(handle, 99, SEEK_SET) == 99 && nvmed_readv(handle, iov, 3) == 4005);
	MUST(nvmed_writev(handle, iov, 4) == 4105 && nvmed_lseek(handle, 0, SEEK_CUR) == 99 + 4005 + 4105);
	MUST(nvmed_readv(handle, NULL, 0) == 0);
	FAILS(nvmed_readv(handle, NULL, 1), EFAULT);
	FAILS(nvmed_readv(handle, iov, -1), EINVAL);
	FAILS(nvmed_readv(handle, iov, 5000), EINVAL);
	/* Ends and other mistakes. */
	MUST(nvmed_pread(handle, in, 0, 0) == 0 && nvmed_pwrite(handle, NULL, 0, INT64_MAX) == 0);
	MUST(nvmed_pwrite(handle, out, 100, SIZE - 60) == 60 && nvmed_pread(handle, in, 100, SIZE) == 0);
	FAILS(nvmed_pwrite(handle, out, 1, SIZE), ENOSPC);
	FAILS(nvmed_pread(handle, in, 1, -1), EINVAL);
	FAILS(nvmed_pread(handle, NULL, 1, 0), EFAULT);
	FAILS(nvmed_pread(handle, in, SIZE_MAX, 0), EFAULT);
	/* The rest. */
	MUST(nvmed_write_zeroes(handle, 5000, 3000) == 0 && nvmed_pread(handle, in, 3000, 5000) == 3000);
	for (int i = 0; i < 3000; i++)
		MUST(in[i] == 0);
	MUST(nvmed_compare(handle, in, 3000, 5000) == 0);
	in[2999] = 1;
	FAILS(nvmed_compare(handle, in, 3000, 5000), EILSEQ);
	memset(memory, 1, 4096);
	FAILS(nvmed_compare(handle, memory, 4096, 1 << 20), EILSEQ);
	MUST(nvmed_discard(handle, 1 << 20, 1 << 20) == 0 && nvmed_discard(handle, 1, 2) == 0);
	FAILS(nvmed_discard(handle, (uint64_t)SIZE - 1, 2), EINVAL);
	FAILS(nvmed_discard(handle, UINT64_MAX, UINT64_MAX), EINVAL);
	FAILS(nvmed_write_zeroes(handle, (uint64_t)SIZE, 1), EINVAL);
	struct nvmed_range ranges[] = {{0, 4096}, {1 << 20, UINT64_MAX}};
	MUST(nvmed_advise(handle, ranges, 2) == 0 && nvmed_advise(handle, NULL, 0) == 0);
	MUST(nvmed_flush(handle) == 0);
	/* Device addresses of a buffer. */
	uint64_t addresses[4];
	MUST(nvmed_virt_to_phys(device, memory + 512, addresses, 8192) == 3);
	MUST(addresses[0] % 4096 == 512 && addresses[1] % 4096 == 0);
	FAILS(nvmed_virt_to_phys(device, in, addresses, 1), EFAULT);
	nvmed_put_buffer(memory);
	errno = 0;
	nvmed_put_buffer(memory); /* twice */
	MUST(errno == EINVAL);
	errno = 0;
	nvmed_put_buffer(in);
	MUST(errno == EINVAL);
	nvmed_put_buffer(NULL);
}

static NVMED_QUEUE *pair[2];
static int asked[2];

static NVMED_QUEUE *choose(NVMED_HANDLE *handle, uint8_t opcode, uint64_t offset, size_t len)
{
	MUST(handle && (opcode == 1 || opcode == 2) && len == 4096);
	int which = offset >= (uint64_t)SIZE / 2;
	asked[which]++;
	return pair[which];
}

static void handles(void)
{
	intptr_t failed = 0;
	FAILS(nvmed_handle_create(NULL, 0), EBADF);
	FAILS(nvmed_handle_create(queue, 0x4000), EINVAL);
	NVMED_HANDLE *handle = nvmed_handle_create(queue, 0);
	MUST(handle);
	transfers(handle);
	failed = -1;
	FAILS(nvmed_queue_destroy(queue), EBUSY);
	/* Switched while in use. */
	MUST(nvmed_handle_feature_set(handle, HANDLE_DIRECT_IO, 1) == 0);
	MUST(nvmed_handle_feature_get(handle, HANDLE_DIRECT_IO) == 1);
	transfers(handle);
	MUST(nvmed_handle_feature_set(handle, HANDLE_DIRECT_IO, 0) == 0 && nvmed_set_param(handle, HANDLE_SYNC_IO, 1) == 0);
	transfers(handle);
	for (int wait = NVMED_COMPLETION_ADAPTIVE; wait <= NVMED_COMPLETION_INTERRUPT; wait++) {
		MUST(nvmed_handle_feature_set(handle, NVMED_PARAM_COMPLETION, wait) == 0);
		transfers(handle);
	}
	MUST(nvmed_handle_feature_get(handle, HANDLE_INTERRUPT) == 1);
	static const int values[][2] = {{NVMED_PARAM_COMPLETION, NVMED_COMPLETION_POLL}, {NVMED_PARAM_PRIORITY, 1},
		{NVMED_PARAM_STREAM, 3}, {NVMED_PARAM_READAHEAD, 65536}, {NVMED_PARAM_WEIGHT, 7}, {NVMED_PARAM_TIMEOUT_MS, 5000},
		{NVMED_PARAM_REPLAY, 1}, {NVMED_PARAM_RATE_IOPS, 1000}, {NVMED_PARAM_RATE_KIB, 4},
		{NVMED_PARAM_URGENT, 1}, {NVMED_PARAM_URGENT, 0}, {HANDLE_SYNC_IO, 0}};
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		MUST(nvmed_handle_feature_set(handle, values[i][0], values[i][1]) == 0);
		MUST(nvmed_handle_feature_get(handle, values[i][0]) == values[i][1]);
		FAILS(nvmed_handle_feature_set(handle, values[i][0], -1), EINVAL);
	}
	FAILS(nvmed_handle_feature_set(handle, NVMED_PARAM_COMPLETION, 99), EINVAL);
	FAILS(nvmed_handle_feature_set(handle, NVMED_PARAM_WEIGHT, 0), EINVAL);
	FAILS(nvmed_handle_feature_set(handle, 0x7777, 0), EINVAL);
	FAILS(nvmed_handle_feature_get(handle, 0x7777), EINVAL);
	MUST(nvmed_handle_destroy(handle) == 0);
	char byte;
	FAILS(nvmed_handle_destroy(handle), EBADF);
	FAILS(nvmed_pread(handle, &byte, 1, 0), EBADF);
	FAILS(nvmed_flush(handle), EBADF);
	FAILS(nvmed_lseek(handle, 0, SEEK_SET), EBADF);
	FAILS(nvmed_aio_handle_complete(handle), EBADF);
	/* One handle, two queues; a queue that is not its own is the first. */
	pair[0] = nvmed_create_queue(device, 0);
	pair[1] = nvmed_queue_create_opt(device, 0, 4, NVMED_PRIORITY_HIGH, NVMED_SCHED_DEADLINE);
	NVMED_HANDLE *mq = nvmed_handle_create_mq(pair, 2, HANDLE_DIRECT_IO, choose);
	MUST(mq && nvmed_handle_feature_get(mq, HANDLE_MQ) == 1);
	char *memory = nvmed_get_buffer(device, 1);
	memset(memory, 'q', 4096);
	MUST(nvmed_pwrite(mq, memory, 4096, 0) == 4096 && nvmed_pwrite(mq, memory, 4096, SIZE - 4096) == 4096);
	MUST(asked[0] == 1 && asked[1] == 1);
	struct nvmed_handle_stats stats;
	MUST(nvmed_get_handle_stats(mq, &stats) == 0 && stats.writes == 2 && stats.bytes_written == 8192 && !stats.reads);
	FAILS(nvmed_get_handle_stats(mq, NULL), EFAULT);
	nvmed_put_buffer(memory);
	FAILS(nvmed_queue_destroy(pair[1]), EBUSY);
	MUST(nvmed_handle_destroy_mq(mq) == 0);
	mq = nvmed_handle_create_mq(pair, 2, 0, NULL);
	MUST(mq);
	transfers(mq);
	MUST(nvmed_handle_destroy_mq(mq) == 0);
	MUST(nvmed_queue_destroy(pair[0]) == 0 && nvmed_queue_destroy(pair[1]) == 0);
	failed = 0;
	FAILS(nvmed_handle_create_mq(pair, 0, 0, NULL), EINVAL);
	FAILS(nvmed_handle_create_mq(NULL, 1, 0, NULL), EFAULT);
	FAILS(nvmed_handle_create_mq(pair, 2, 0, NULL), EBADF);
}

static int called;

static void count(const NVMED_AIO_CTX *ctx, void *userdata)
{
	MUST(ctx->status == AIO_COMPLETE && userdata == &called);
	called++;
}

static void asynchronous(int flags)
{
	intptr_t failed = -1;
	static NVMED_AIO_CTX ctx[40];
	static char data[40][5000];
	NVMED_HANDLE *handle = nvmed_create_handle(queue, flags);
	char *memory = nvmed_get_buffer(device, 40);
	MUST(handle && memory);
	called = 0;
	/* Half in registered memory and aligned, half neither. */
	for (int i = 0; i < 40; i++) {
		ctx[i] = (NVMED_AIO_CTX){.handle = handle, .offset = i * 8192 + i % 2, .len = i % 2 ? 5000 : 4096,
			.buf = i % 2 ? data[i] : memory + i * 4096, .aio_callback = count, .cb_userdata = &called,
			.flags = i % 3 ? 0 : NVMED_AIO_URGENT};
		memset(ctx[i].buf, 'a' + i % 26, ctx[i].len);
		MUST(nvmed_aio_write(&ctx[i]) == NVMED_AIO_QUEUED && ctx[i].opcode == 1);
	}
	errno = 0;
	MUST(nvmed_aio_write(&ctx[0]) == NVMED_AIO_ERROR && errno == EBUSY); /* it is under way */
	FAILS(nvmed_handle_destroy(handle), EBUSY);
	MUST(nvmed_aio_queue_submit(handle) == 0);
	while (called < 40) {
		int done = nvmed_aio_handle_wait(handle);
		MUST(done > 0 && done <= 32);
	}
	MUST(nvmed_aio_handle_complete(handle) == 0 && nvmed_aio_handle_wait(handle) == 0);
	for (int i = 0; i < 40; i++) {
		MUST(ctx[i].error == 0 && ctx[i].result == (int64_t)ctx[i].len);
		memset(ctx[i].buf, 0, ctx[i].len);
		ctx[i].aio_callback = NULL;
		MUST(nvmed_aio_read(&ctx[i]) == NVMED_AIO_QUEUED);
	}
	nvmed_aio_queue_submit(handle);
	for (int done = 0; done < 40;) {
		int more = nvmed_aio_handle_wait(handle);
		MUST(more >= 0);
		done += more;
	}
	for (int i = 0; i < 40; i++)
		for (size_t at = 0; at < ctx[i].len; at++)
			MUST(((char *)ctx[i].buf)[at] == 'a' + i % 26);
	NVMED_AIO_CTX flush = {.handle = handle};
	MUST(nvmed_aio_flush(&flush) == NVMED_AIO_QUEUED && nvmed_aio_handle_wait(handle) == 1);
	MUST(flush.status == AIO_COMPLETE && flush.error == 0);
	/* Mistakes are told at once, or by the context. */
	NVMED_AIO_CTX bad = {.handle = handle, .offset = SIZE, .len = 512, .buf = memory};
	MUST(nvmed_aio_write(&bad) == NVMED_AIO_QUEUED && nvmed_aio_handle_wait(handle) == 1);
	MUST(bad.error == ENOSPC && bad.result == -1);
	bad = (NVMED_AIO_CTX){.handle = handle, .offset = -1, .len = 512, .buf = memory};
	MUST(nvmed_aio_write(&bad) == NVMED_AIO_ERROR && errno == EINVAL && bad.status == AIO_INIT);
	bad = (NVMED_AIO_CTX){.handle = handle, .len = 512};
	MUST(nvmed_aio_read(&bad) == NVMED_AIO_ERROR && errno == EFAULT);
	bad = (NVMED_AIO_CTX){.len = 512, .buf = memory};
	MUST(nvmed_aio_read(&bad) == NVMED_AIO_ERROR && errno == EBADF);
	bad.flags = 2;
	MUST(nvmed_aio_read(&bad) == NVMED_AIO_ERROR && errno == EINVAL);
	bad.flags = 0;
	MUST(nvmed_aio_read(NULL) == NVMED_AIO_ERROR && errno == EFAULT);
	bad = (NVMED_AIO_CTX){.handle = handle, .buf = memory};
	MUST(nvmed_aio_read(&bad) == NVMED_AIO_QUEUED && nvmed_aio_handle_wait(handle) == 1 && bad.result == 0);
	/* Refused when too many are not reaped. */
	static NVMED_AIO_CTX many[1025];
	for (int i = 0; i < 1025; i++)
		many[i] = (NVMED_AIO_CTX){.handle = handle, .len = 512, .buf = memory};
	for (int i = 0; i < 1024; i++)
		MUST(nvmed_aio_read(&many[i]) == NVMED_AIO_QUEUED);
	MUST(nvmed_aio_read(&many[1024]) == NVMED_AIO_BUSY && errno == EAGAIN && many[1024].status == AIO_INIT);
	while (nvmed_aio_handle_wait(handle) > 0)
		;
	MUST(many[1023].status == AIO_COMPLETE);
	nvmed_put_buffer(memory);
	MUST(nvmed_handle_destroy(handle) == 0);
}

static void passthrough(void)
{
	intptr_t failed = -1;
	unsigned char page[4096];
	struct nvmed_passthru_cmd identify = {.opcode = 0x06, .cdw10 = 1, .addr = (uintptr_t)page, .data_len = sizeof page};
	memset(page, 0xee, sizeof page);
	MUST(nvmed_admin_passthru(device, &identify) == 0);
	struct nvmed_info info;
	MUST(nvmed_get_info(device, &info) == 0 && memcmp(page + 24, info.model, strlen(info.model)) == 0);
	struct nvmed_passthru_cmd wrong = {.opcode = 0x7f};
	struct nvmed_error error;
	FAILS(nvmed_admin_passthru(device, NULL), EFAULT);
	MUST(nvmed_admin_passthru(device, &wrong) == -1 && nvmed_last_error_info(&error) == 0 && error.error == errno);
	wrong = identify;
	wrong.data_len = 1 << 20;
	FAILS(nvmed_admin_passthru(device, &wrong), EINVAL);
	wrong = identify;
	wrong.addr = 0;
	FAILS(nvmed_admin_passthru(device, &wrong), EFAULT);
	wrong.metadata_len = 8;
	FAILS(nvmed_admin_passthru(device, &wrong), ENOTSUP);

	NVMED_HANDLE *handle = nvmed_handle_create(queue, 0);
	char line[512] = "through the cache, then past it", back[512];
	MUST(nvmed_pwrite(handle, line, sizeof line, 2048) == sizeof line);
	struct nvmed_passthru_cmd read = {.opcode = 2, .nsid = 1, .cdw10 = 4, .addr = (uintptr_t)back, .data_len = 512};
	MUST(nvmed_io_passthru(handle, &read) == 0 && memcmp(line, back, 512) == 0);
	strcpy(line, "written past the cache");
	struct nvmed_passthru_cmd write = {.opcode = 1, .nsid = 1, .cdw10 = 4, .addr = (uintptr_t)line, .data_len = 512};
	MUST(nvmed_io_passthru(handle, &write) == 0);
	MUST(nvmed_pread(handle, back, 512, 2048) == 512 && memcmp(line, back, 512) == 0);
	/* Past the end: the device's own status and LBA come up. */
	read.cdw10 = (uint32_t)(SIZE / 512);
	MUST(nvmed_io_passthru(handle, &read) == -1 && nvmed_last_error_info(&error) == 0);
	MUST(error.status == 0x80 && error.error == errno); /* LBA Out of Range */
	FAILS(nvmed_io_passthru((NVMED_HANDLE *)queue, &read), EBADF);
	MUST(nvmed_handle_destroy(handle) == 0);
}

/* A queue's descriptor tells of completions, so that a program can wait for several things at once. */
static void events(void)
{
	NVMED_QUEUE *told = nvmed_queue_create(device, QUEUE_INTERRUPT);
	int fd = nvmed_queue_fd(told);
	if (fd < 0) {
		MUST(errno == ENOTSUP && nvmed_queue_destroy(told) == 0);
		return;
	}
	NVMED_HANDLE *handle = nvmed_handle_create(told, HANDLE_DIRECT_IO);
	char *memory = nvmed_get_buffer(device, 1);
	for (int round = 0; round < 20; round++) {
		NVMED_AIO_CTX ctx = {.handle = handle, .offset = round * 4096, .len = 4096, .buf = memory};
		uint64_t count;
		MUST(nvmed_aio_write(&ctx) == NVMED_AIO_QUEUED && nvmed_aio_queue_submit(handle) == 0);
		while (nvmed_aio_handle_complete(handle) == 0) {
			struct pollfd wait = {.fd = fd, .events = POLLIN};
			MUST(poll(&wait, 1, 10000) == 1); /* it comes, or the test fails */
			MUST(read(fd, &count, sizeof count) == sizeof count || errno == EAGAIN);
		}
		MUST(ctx.status == AIO_COMPLETE && ctx.result == 4096);
	}
	nvmed_put_buffer(memory);
	MUST(nvmed_handle_destroy(handle) == 0 && nvmed_queue_destroy(told) == 0);
}

static void *worker(void *number)
{
	long which = (long)number;
	NVMED_HANDLE *handle = nvmed_handle_create(queue, which % 2 ? HANDLE_DIRECT_IO : 0);
	char mine[100], back[100];
	for (int round = 0; round < 200; round++) {
		off_t at = ((off_t)round * 4 + which) * 100; /* between the others' bytes */
		memset(mine, (int)(which * 50 + round % 50), sizeof mine);
		MUST(nvmed_pwrite(handle, mine, sizeof mine, at) == sizeof mine);
		MUST(nvmed_pread(handle, back, sizeof back, at) == sizeof back && memcmp(mine, back, sizeof mine) == 0);
	}
	/* Errors are each thread's own. */
	MUST(nvmed_pread(handle, back, 1, -1 - which) == -1 && strstr(nvmed_last_error(), "negative"));
	MUST(nvmed_handle_destroy(handle) == 0);
	return NULL;
}

static void threads(void)
{
	pthread_t all[4];
	for (long i = 0; i < 4; i++)
		MUST(pthread_create(&all[i], NULL, worker, (void *)i) == 0);
	for (int i = 0; i < 4; i++)
		MUST(pthread_join(all[i], NULL) == 0);
}

static void forking(void)
{
	NVMED_HANDLE *handle = nvmed_handle_create(queue, 0);
	char byte = 'x';
	MUST(nvmed_pwrite(handle, &byte, 1, 7) == 1);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0)
		_exit(nvmed_pread(handle, &byte, 1, 7) == -1 && errno == EBADF && nvmed_close(device) == -1 ? 0 : 1);
	int status;
	MUST(waitpid(child, &status, 0) == child && status == 0);
	MUST(nvmed_pread(handle, &byte, 1, 7) == 1 && byte == 'x' && nvmed_handle_destroy(handle) == 0);
}

static void caching(void)
{
	intptr_t failed = -1;
	struct nvmed_cache_stats s;
	NVMED_HANDLE *handle = nvmed_handle_create(queue, 0);
	char page[4096] = "dirty";
	MUST(nvmed_feature_set(device, NVMED_CACHE_SIZE, 128) == 0 && nvmed_feature_get(device, NVMED_CACHE_SIZE) == 128);
	MUST(nvmed_pwrite(handle, page, sizeof page, 0) == sizeof page);
	MUST(nvmed_get_cache_stats(device, &s) == 0 && s.frames == 128 && s.dirty == 1);
	MUST(nvmed_feature_set(device, NVMED_CACHE_WRITE_THROUGH, 1) == 0);
	MUST(nvmed_pwrite(handle, page, sizeof page, 4096) == sizeof page);
	MUST(nvmed_get_cache_stats(device, &s) == 0 && s.dirty == 0);
	MUST(nvmed_feature_set(device, NVMED_CACHE_DIRTY_LIMIT, 10) == 0);
	FAILS(nvmed_feature_set(device, NVMED_CACHE_SIZE, INT_MAX), ENOMEM);
	MUST(nvmed_feature_get(device, NVMED_CACHE_SIZE) == 128);
	MUST(nvmed_feature_set(device, NVMED_CACHE_POLICY, NVMED_POLICY_SIEVE) == 0);
	MUST(nvmed_feature_get(device, NVMED_CACHE_POLICY) == NVMED_POLICY_SIEVE);
	FAILS(nvmed_feature_set(device, NVMED_CACHE_POLICY, 77), EINVAL);
	MUST(nvmed_feature_set(device, NVMED_CACHE_SIZE, 0) == 0 && nvmed_feature_get(device, NVMED_NO_CACHE) == 1);
	MUST(nvmed_get_cache_stats(device, &s) == 0 && s.frames == 0);
	memset(page, 0, sizeof page);
	MUST(nvmed_pread(handle, page, sizeof page, 0) == sizeof page && strcmp(page, "dirty") == 0);
	FAILS(nvmed_get_cache_stats(device, NULL), EFAULT);
	MUST(nvmed_handle_destroy(handle) == 0);
}

int main(int argc, char **argv)
{
	intptr_t failed = -1;
	if (argc > 1) {
		path = argv[1];
		plain = 0;
	}
	opening();
	queues();
	handles();
	asynchronous(0);
	asynchronous(HANDLE_DIRECT_IO);
	if (plain)
		passthrough();
	events();
	threads();
	forking();
	caching();
	void *buffer = nvmed_get_buffer(device, 1);
	MUST(nvmed_queue_destroy(queue) == 0);
	FAILS(nvmed_close(device), EBUSY);
	nvmed_put_buffer(buffer);
	MUST(nvmed_close(device) == 0);
	FAILS(nvmed_feature_get(device, NVMED_CACHE_SIZE), EBADF);
	return 0;
}

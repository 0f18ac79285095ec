/* What raw writes to a device with a file system do: overwrite DEVICE refused WHAT | allowed | formatted. */
#include <errno.h>
#include <nvmed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(is) \
	do { \
		if (!(is)) { \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #is, nvmed_last_error()); \
			exit(1); \
		} \
	} while (0)

static const char *what;

static void refused(long answer)
{
	CHECK(answer == -1 && errno == EPERM);
	CHECK(strstr(nvmed_last_error(), what) && strstr(nvmed_last_error(), "NVMED_OVERWRITE"));
}

/* All ways to write, through the cache or past it. */
static void every_write(NVMED *device, int flags)
{
	char first[512], again[512];
	NVMED_QUEUE *queue = nvmed_queue_create(device, 0);
	NVMED_HANDLE *handle = nvmed_handle_create(queue, flags);
	void *memory = nvmed_get_buffer(device, 1);
	CHECK(queue && handle && memory);
	CHECK(nvmed_pread(handle, first, sizeof first, 0) == sizeof first);
	refused(nvmed_pwrite(handle, "hello", 5, 0));
	refused(nvmed_write(handle, memory, 4096));
	refused(nvmed_discard(handle, 0, 1 << 20));
	refused(nvmed_write_zeroes(handle, 0, 4096));
	NVMED_AIO_CTX ctx = { .handle = handle, .offset = 0, .len = 4096, .buf = memory };
	CHECK(nvmed_aio_write(&ctx) == NVMED_AIO_QUEUED);
	while (ctx.status != AIO_COMPLETE)
		nvmed_aio_handle_wait(handle);
	CHECK(ctx.error == EPERM && ctx.result == -1);
	CHECK(nvmed_flush(handle) == 0);
	CHECK(nvmed_pread(handle, again, sizeof again, 0) == sizeof again && !memcmp(first, again, sizeof first));
	nvmed_put_buffer(memory);
	CHECK(nvmed_handle_destroy(handle) == 0 && nvmed_queue_destroy(queue) == 0);
}

/* Writes at the front, then takes it back: what is there afterwards is data of a kind that nobody knows. */
static void allowed(NVMED *device)
{
	NVMED_QUEUE *queue = nvmed_queue_create(device, 0);
	NVMED_HANDLE *handle = nvmed_handle_create(queue, 0);
	CHECK(handle && nvmed_pwrite(handle, "hello", 5, 0) == 5 && nvmed_flush(handle) == 0);
	CHECK(nvmed_handle_destroy(handle) == 0 && nvmed_queue_destroy(queue) == 0);
}

/* Its file system formatted away by a passthrough command, a device takes writes without the flag. */
static void formatted(const char *name)
{
	struct nvmed_info info;
	NVMED *device = nvmed_open(name, NVMED_NO_CACHE);
	NVMED_QUEUE *queue = nvmed_queue_create(device, 0);
	NVMED_HANDLE *handle = nvmed_handle_create(queue, 0);
	CHECK(handle && nvmed_get_info(device, &info) == 0);
	what = "an nvmed file system";
	refused(nvmed_pwrite(handle, "hello", 5, 0));
	/* Write Zeroes over the far superblock: the near one is gone. */
	uint64_t last = info.bytes / info.lba_bytes - 4096 / info.lba_bytes;
	struct nvmed_passthru_cmd zeroes = { .opcode = 8, .nsid = 1, .cdw10 = (uint32_t)last, .cdw11 = (uint32_t)(last >> 32),
					     .cdw12 = 4096 / info.lba_bytes - 1 };
	CHECK(nvmed_io_passthru(handle, &zeroes) == 0);
	CHECK(nvmed_pwrite(handle, "hello", 5, 0) == 5);
	CHECK(nvmed_handle_destroy(handle) == 0 && nvmed_queue_destroy(queue) == 0 && nvmed_close(device) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc > 2);
	if (!strcmp(argv[2], "formatted")) {
		formatted(argv[1]);
		return 0;
	}
	NVMED *device = nvmed_open(argv[1], strcmp(argv[2], "allowed") ? 0 : NVMED_OVERWRITE);
	CHECK(device);
	if (argc > 3) {
		what = argv[3];
		every_write(device, 0);
		every_write(device, HANDLE_DIRECT_IO);
	} else {
		allowed(device);
	}
	CHECK(nvmed_close(device) == 0);
	return 0;
}

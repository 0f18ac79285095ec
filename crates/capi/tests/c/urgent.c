/* Writes 48 KiB to a device or a file, urgently in the way that is named; the device's record says what came of it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <nvmedfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES ((size_t)48 << 10)
#define MUST(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: not so: %s: %s\n", __FILE__, __LINE__, #what, nvmed_last_error()); \
			exit(1); \
		} \
	} while (0)

/* Through the device's own calls. */
static void device(const char *path, const char *way)
{
	NVMED *device = nvmed_open(path, 0);
	MUST(device);
	NVMED_QUEUE *queue = nvmed_queue_create(device, 0);
	NVMED_HANDLE *handle = nvmed_handle_create(queue, HANDLE_DIRECT_IO);
	char *memory = nvmed_get_buffer(device, BYTES / 4096);
	MUST(handle && memory);
	memset(memory, 'a', BYTES);
	MUST(strcmp(way, "handle") || nvmed_handle_feature_set(handle, NVMED_PARAM_URGENT, 1) == 0);
	if (strncmp(way, "aio", 3) == 0) {
		NVMED_AIO_CTX ctx = {.handle = handle, .len = BYTES, .buf = memory,
			.flags = strcmp(way, "aio") ? 0 : NVMED_AIO_URGENT};
		MUST(nvmed_aio_write(&ctx) == NVMED_AIO_QUEUED && nvmed_aio_handle_wait(handle) == 1 && ctx.error == 0);
	} else {
		MUST(nvmed_pwrite(handle, memory, BYTES, 0) == (ssize_t)BYTES);
	}
	nvmed_put_buffer(memory);
	MUST(nvmed_handle_destroy(handle) == 0 && nvmed_queue_destroy(queue) == 0 && nvmed_close(device) == 0);
}

/* Through a file of a file system that is made on it. */
static void file(const char *path, const char *way)
{
	struct nvmedfs_mount_options options = {.flags = NVMEDFS_FORMAT_BLANK};
	NVMEDFS *fs = nvmedfs_mount(path, &options);
	MUST(fs);
	struct nvmedfs_policy policy = {.priority = NVMED_PRIORITY_MEDIUM};
	if (strcmp(way, "file-policy") == 0)
		policy.flags |= NVMEDFS_URGENT;
	int fd = nvmedfs_open_policy(fs, "/f", O_RDWR | O_CREAT, 0600, &policy);
	char *memory = nvmedfs_get_buffer(fs, BYTES / 4096);
	MUST(fd >= 0 && memory);
	memset(memory, 'a', BYTES);
	MUST(strcmp(way, "file-feature") || nvmedfs_set_param(fd, NVMED_PARAM_URGENT, 1) == 0);
	MUST(nvmedfs_pwrite(fd, memory, BYTES, 0) == (ssize_t)BYTES);
	if (strncmp(way, "file-aio", 8) == 0) {
		struct nvmedfs_aio aio = {.fd = fd, .flags = strcmp(way, "file-aio") ? 0 : NVMED_AIO_URGENT};
		MUST(nvmedfs_aio_fsync(&aio) == 0 && nvmedfs_aio_wait(&aio) == 0 && aio.error == 0);
	} else {
		MUST(nvmedfs_fsync(fd) == 0);
	}
	nvmed_put_buffer(memory);
	MUST(nvmedfs_close(fd) == 0 && nvmedfs_unmount(fs) == 0);
}

int main(int argc, char **argv)
{
	MUST(argc == 3);
	if (strncmp(argv[2], "file", 4) == 0)
		file(argv[1], argv[2]);
	else
		device(argv[1], argv[2]);
	return 0;
}

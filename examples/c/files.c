/* Files on a device, by four policies: buffered, synchronous, direct, and direct without waiting.
 *
 *   cc -o files files.c $(pkg-config --cflags --libs nvmed)
 *   ./files [DEVICE]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <nvmedfs.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS 64
#define BLOCK 4096

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, nvmed_last_error());
	return 1;
}

/* Reads all blocks of a file, up to 16 at once, into memory that the device knows: no copy, no thread, no cache. */
static int read_without_waiting(NVMEDFS *fs, const char *path)
{
	struct nvmedfs_policy policy = {
		.flags = NVMEDFS_DIRECT | NVMEDFS_OWN_QUEUE,
		.completion = NVMED_COMPLETION_POLL,
		.priority = NVMED_PRIORITY_MEDIUM,
		.scheduler = NVMED_SCHED_DEADLINE,
	};
	struct nvmedfs_aio calls[16];
	int bad = 0, begun = 0, ended = 0;
	char *memory = nvmedfs_get_buffer(fs, 16);
	int fd = nvmedfs_open_policy(fs, path, O_RDONLY, 0, &policy);
	if (!memory || fd < 0)
		return fail("open");
	while (ended < BLOCKS) {
		while (begun < BLOCKS && begun < ended + 16) {
			struct nvmedfs_aio *call = &calls[begun % 16];
			memset(call, 0, sizeof *call);
			call->fd = fd;
			call->offset = (off_t)begun * BLOCK;
			call->len = BLOCK;
			call->buf = memory + begun % 16 * BLOCK;
			if (nvmedfs_aio_read(call) != 0)
				return fail("aio_read");
			begun++;
		}
		struct nvmedfs_aio *call = &calls[ended % 16];
		if (nvmedfs_aio_wait(call) != 0)
			return fail("aio_wait");
		bad += call->result != BLOCK || ((char *)call->buf)[100] != 'a' + ended % 26;
		ended++;
	}
	nvmedfs_close(fd);
	nvmed_put_buffer(memory);
	return bad;
}

int main(int argc, char **argv)
{
	struct nvmedfs_mount_options options = { .flags = NVMEDFS_FORMAT_BLANK, .prealloc_bytes = 128 << 10 };
	NVMEDFS *fs = nvmedfs_mount(argc > 1 ? argv[1] : "virtual:?media=dram,size=64M", &options);
	char block[BLOCK];
	if (!fs)
		return fail("mount");
	if (nvmedfs_mkdir(fs, "/photos", 0755) != 0)
		return fail("mkdir");

	/* Buffered: a copy into the cache; durable after fsync. */
	int fd = nvmedfs_open(fs, "/photos/one", O_RDWR | O_CREAT, 0644);
	for (int i = 0; i < BLOCKS; i++) {
		memset(block, 'a' + i % 26, sizeof block);
		if (nvmedfs_write(fd, block, sizeof block) != BLOCK)
			return fail("write");
	}
	if (nvmedfs_fsync(fd) != 0)
		return fail("fsync");
	nvmedfs_close(fd);

	/* Synchronous: durable when the call returns. */
	fd = nvmedfs_open(fs, "/photos/index", O_WRONLY | O_CREAT | O_DSYNC, 0644);
	if (nvmedfs_write(fd, "one\n", 4) != 4)
		return fail("write");
	nvmedfs_close(fd);

	/* Direct: past the cache, and it sees what went through it. */
	fd = nvmedfs_open(fs, "/photos/one", O_RDWR | O_DIRECT, 0);
	if (nvmedfs_pread(fd, block, sizeof block, 25 * BLOCK) != BLOCK || block[0] != 'z')
		return fail("direct read");
	nvmedfs_close(fd);

	int bad = read_without_waiting(fs, "/photos/one");
	NVMEDFS_DIR *dir = nvmedfs_opendir(fs, "/photos");
	for (struct nvmedfs_dirent *entry; dir && (entry = nvmedfs_readdir(dir));)
		if (entry->d_name[0] != '.')
			printf("/photos/%s\n", entry->d_name);
	nvmedfs_closedir(dir);
	if (nvmedfs_unmount(fs) != 0)
		return fail("unmount");
	printf("%d blocks read, %d bad\n", BLOCKS, bad);
	return bad;
}

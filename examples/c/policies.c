/* One device, two handles: a cached one with readahead for scans, a direct one that polls for single blocks. What each of
 * the settings does shows in the statistics.
 *
 *   cc -o policies policies.c $(pkg-config --cflags --libs nvmed)
 *   ./policies [DEVICE]
 */
#include <nvmed.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "%s: %s\n", what, nvmed_last_error());
		exit(1);
	}
}

static struct nvmed_cache_stats show(NVMED *device, const char *when)
{
	struct nvmed_cache_stats s;
	check(nvmed_get_cache_stats(device, &s) == 0, "statistics");
	printf("%-22s hits %6" PRIu64 "  misses %6" PRIu64 "  dirty %5" PRIu64 "  written back %6" PRIu64 "\n", when, s.hits,
	       s.misses, s.dirty, s.write_backs);
	return s;
}

int main(int argc, char **argv)
{
	static char data[65536], back[65536];
	NVMED *device = nvmed_open(argc > 1 ? argv[1] : "virtual:?media=dram,size=64M", 0);
	check(device != NULL, "open");
	check(nvmed_feature_set(device, NVMED_CACHE_SIZE, 2048) == 0, "a cache of 8 MiB");
	NVMED_QUEUE *queue = nvmed_queue_create_opt(device, 0, 64, NVMED_PRIORITY_MEDIUM, NVMED_SCHED_DEADLINE);
	check(queue != NULL, "queue");
	NVMED_HANDLE *scan = nvmed_handle_create(queue, 0);
	NVMED_HANDLE *point = nvmed_handle_create(queue, HANDLE_DIRECT_IO);
	check(scan && point, "handles");
	check(nvmed_handle_feature_set(scan, NVMED_PARAM_READAHEAD, 1 << 20) == 0, "readahead");
	check(nvmed_handle_feature_set(point, NVMED_PARAM_COMPLETION, NVMED_COMPLETION_POLL) == 0, "completion");
	check(nvmed_handle_feature_set(point, NVMED_PARAM_PRIORITY, NVMED_PRIORITY_HIGH) == 0, "priority");

	memset(data, 'n', sizeof data);
	for (int i = 0; i < 64; i++)
		check(nvmed_write(scan, data, sizeof data) == (ssize_t)sizeof data, "write");
	struct nvmed_cache_stats s = show(device, "4 MiB written");
	check(s.dirty > 0, "written back only later");

	/* The direct handle sees what the cached one has written, flushed or not. */
	check(nvmed_pread(point, back, 4096, 4096) == 4096 && memcmp(back, data, 4096) == 0, "direct read");
	check(nvmed_flush(scan) == 0, "flush");
	s = show(device, "flushed");
	check(s.dirty == 0, "nothing is dirty");

	check(nvmed_lseek(scan, 0, SEEK_SET) == 0, "seek");
	for (int i = 0; i < 256; i++)
		check(nvmed_read(scan, back, sizeof back) == (ssize_t)sizeof back, "read");
	show(device, "16 MiB read");

	/* Switched while in use: from now on this handle's writes are durable when they return. */
	check(nvmed_handle_feature_set(scan, HANDLE_SYNC_IO, 1) == 0, "sync");
	check(nvmed_pwrite(scan, data, 100, 12345) == 100, "durable write");
	s = show(device, "durable write");
	check(s.dirty == 0, "nothing is dirty");

	check(nvmed_handle_destroy(scan) == 0 && nvmed_handle_destroy(point) == 0, "destroy");
	check(nvmed_queue_destroy(queue) == 0 && nvmed_close(device) == 0, "close");
	return 0;
}

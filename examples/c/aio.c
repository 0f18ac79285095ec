/* Writes 64 MiB with 32 asynchronous calls in flight, then checks them by reading. Each callback submits the next call.
 *
 *   cc -o aio aio.c $(pkg-config --cflags --libs nvmed)
 *   ./aio [DEVICE]
 */
#include <nvmed.h>
#include <stdio.h>
#include <string.h>

#define DEPTH 32
#define BLOCK ((size_t)16384)
#define TOTAL ((off_t)64 << 20)

static struct {
	int (*submit)(NVMED_AIO_CTX *);
	off_t next;   /* where the next call begins */
	int flying;
	int errors;
} run;

static void fill(NVMED_AIO_CTX *ctx)
{
	memset(ctx->buf, (int)(ctx->offset / (off_t)BLOCK % 251), ctx->len);
}

static int matches(const NVMED_AIO_CTX *ctx)
{
	const unsigned char *bytes = ctx->buf;
	for (size_t i = 0; i < ctx->len; i++)
		if (bytes[i] != ctx->offset / (off_t)BLOCK % 251)
			return 0;
	return 1;
}

static void start(NVMED_AIO_CTX *ctx)
{
	if (run.next == TOTAL)
		return;
	ctx->offset = run.next;
	run.next += (off_t)BLOCK;
	if (run.submit == nvmed_aio_write)
		fill(ctx);
	if (run.submit(ctx) != NVMED_AIO_QUEUED) {
		fprintf(stderr, "submit at %lld: %s\n", (long long)ctx->offset, nvmed_last_error());
		run.errors++;
		return;
	}
	run.flying++;
}

/* Runs in the thread that called nvmed_aio_handle_wait. */
static void done(const NVMED_AIO_CTX *ctx, void *userdata)
{
	run.flying--;
	if (ctx->error) {
		fprintf(stderr, "at %lld: %s (NVMe status %#x)\n", (long long)ctx->offset, nvmed_strerror(ctx->error),
			ctx->nvme_status);
		run.errors++;
	} else if (run.submit == nvmed_aio_read && !matches(ctx)) {
		fprintf(stderr, "at %lld: other bytes than written\n", (long long)ctx->offset);
		run.errors++;
	}
	start(userdata);
}

static void pass(NVMED_HANDLE *handle, NVMED_AIO_CTX *all, int (*submit)(NVMED_AIO_CTX *))
{
	run.submit = submit;
	run.next = 0;
	for (int i = 0; i < DEPTH; i++)
		start(&all[i]);
	while (run.flying > 0) {
		nvmed_aio_queue_submit(handle); /* one doorbell for all that the callbacks have queued */
		if (nvmed_aio_handle_wait(handle) < 0) {
			fprintf(stderr, "wait: %s\n", nvmed_last_error());
			run.errors++;
			return;
		}
	}
}

int main(int argc, char **argv)
{
	static NVMED_AIO_CTX all[DEPTH];
	NVMED *device = nvmed_open(argc > 1 ? argv[1] : "virtual:?media=dram,size=64M", NVMED_NO_CACHE);
	NVMED_QUEUE *queue = device ? nvmed_queue_create(device, 0) : NULL;
	NVMED_HANDLE *handle = queue ? nvmed_handle_create(queue, HANDLE_DIRECT_IO) : NULL;
	/* Memory that the device knows: no call copies a byte. */
	unsigned char *memory = handle ? nvmed_get_buffer(device, DEPTH * BLOCK / 4096) : NULL;
	if (!memory) {
		fprintf(stderr, "%s\n", nvmed_last_error());
		return 1;
	}
	for (int i = 0; i < DEPTH; i++) {
		all[i].handle = handle;
		all[i].buf = memory + (size_t)i * BLOCK;
		all[i].len = BLOCK;
		all[i].aio_callback = done;
		all[i].cb_userdata = &all[i];
	}
	pass(handle, all, nvmed_aio_write);
	pass(handle, all, nvmed_aio_read);
	printf("%lld MiB written and read back, %d errors\n", (long long)(TOTAL >> 20), run.errors);

	nvmed_put_buffer(memory);
	nvmed_handle_destroy(handle);
	nvmed_queue_destroy(queue);
	return nvmed_close(device) != 0 || run.errors != 0;
}

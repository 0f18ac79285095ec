/* Writes a line to a device, makes it durable, reads it back.
 *
 *   cc -o hello hello.c $(pkg-config --cflags --libs nvmed)
 *   ./hello [DEVICE]
 */
#include <nvmed.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, nvmed_last_error());
	return 1;
}

int main(int argc, char **argv)
{
	const char *line = "hello, device\n";
	char back[32] = "";
	NVMED *device = nvmed_open(argc > 1 ? argv[1] : "virtual:?media=dram,size=64M", 0);
	if (!device)
		return fail("open");
	NVMED_QUEUE *queue = nvmed_queue_create(device, 0);
	NVMED_HANDLE *handle = queue ? nvmed_handle_create(queue, 0) : NULL;
	if (!handle)
		return fail("create");

	/* Neither offset nor length nor memory has to be aligned. */
	if (nvmed_pwrite(handle, line, strlen(line), 1000) != (ssize_t)strlen(line))
		return fail("write");
	if (nvmed_flush(handle) != 0)
		return fail("flush");
	if (nvmed_pread(handle, back, strlen(line), 1000) != (ssize_t)strlen(line))
		return fail("read");
	fputs(back, stdout);

	nvmed_handle_destroy(handle);
	nvmed_queue_destroy(queue);
	if (nvmed_close(device) != 0)
		return fail("close");
	return strcmp(back, line) != 0;
}

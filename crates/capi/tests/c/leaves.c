/* Writes through the cache and ends: by return, by exit in a callback, or in a forked child. */
#include <nvmed.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(const NVMED_AIO_CTX *ctx, void *userdata)
{
	(void)userdata;
	exit(ctx->error);
}

int main(int argc, char **argv)
{
	NVMED *device = nvmed_open(argv[1], 0);
	NVMED_HANDLE *handle = nvmed_handle_create(nvmed_queue_create(device, 0), 0);
	if (argc < 3 || nvmed_pwrite(handle, argv[2], strlen(argv[2]), 5000) != (ssize_t)strlen(argv[2]))
		return 1;
	if (strcmp(argv[2], "callback") == 0) {
		NVMED_AIO_CTX ctx = {.handle = handle, .aio_callback = leave};
		nvmed_aio_flush(&ctx);
		nvmed_pwrite(handle, "CALL", 4, 5000);
		for (;;)
			nvmed_aio_handle_wait(handle);
	}
	if (strcmp(argv[2], "child") == 0) {
		pid_t child = fork();
		if (child == 0)
			exit(0); /* must not touch the parent's device */
		waitpid(child, NULL, 0);
		nvmed_pwrite(handle, "CHILD", 5, 5000);
	}
	return 0;
}

/* Virtual addresses on which count.c (in QEMU) and file-load.c (in the guest) agree. No program is loaded there. */

/* The bytes that are read and written. */
#define BUFFER UINT64_C(0x610000000000)
#define BUFFER_BYTES (UINT64_C(1) << 20)

/* What a read of it says, by its offset: a page frame of the buffer (64 GiB of memory), a region's begin or end with
 * its number, or that no page is the buffer's any more. */
#define MAILBOX UINT64_C(0x600000000000)
#define MAILBOX_PAGES (UINT64_C(1) << 24)
#define MAILBOX_BEGIN MAILBOX_PAGES
#define MAILBOX_END (MAILBOX_BEGIN + 65536)
#define MAILBOX_FORGET (MAILBOX_END + 65536)
#define MAILBOX_BYTES (MAILBOX_FORGET + 4096)

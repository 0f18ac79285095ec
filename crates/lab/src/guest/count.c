/* A plugin of QEMU (7.2 and later, TCG) that counts the instructions of regions, and of those the ones that copy.
 *
 * file-load.c, which runs in the guest, marks regions and names the pages of its buffer by reads of a mailbox: a
 * mapping at a fixed virtual address, of which nothing but the address of a read says something. A block of
 * instructions is part of the copy each time it touches the buffer, whoever runs it: at the buffer's own address, or
 * at one of its pages in the kernel's direct mapping. One processor, since nothing here is atomic.
 *
 * TCG carries `rep movsb` out byte by byte, `rep movsq` by eight; processors take as long for both. A round of the
 * former therefore counts as an eighth, so that who copies by bytes and who copies by words are counted alike.
 *
 * QEMU 7.2 of Debian ships no header; the declarations below are what this file uses of its interface, version 1
 * (docs/devel/tcg-plugins.rst there).
 *
 * Output, a line each: `begin ID`; `region ID INSTRUCTIONS OF_THESE_IN_THE_KERNEL OF_THESE_COPYING`. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "places.h"

#define EXPORT __attribute__((visibility("default")))
typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct {
    const char *target_name;
    struct { int min, cur; } version;
    bool system_emulation;
    struct { int smp_vcpus, max_vcpus; } system;
} qemu_info_t;
enum { ADD_U64 = 0, NO_REGISTERS = 0, READS_AND_WRITES = 3 };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int op, void *at, uint64_t operand);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
                                      void (*)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *), int, int, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
EXPORT int qemu_plugin_version = 1;

/* The kernel's direct mapping of memory with four levels of page tables and without KASLR (tools/vm). */
#define DIRECT_MAP UINT64_C(0xffff888000000000)

/* Counts are of eighths. */
#define EIGHTHS 8

/* A translated block. */
struct block {
    uint64_t eighths;
    /* `executed` when it last touched the buffer: no two executions have the same. */
    uint64_t touched_at;
};

static FILE *out;
static uint64_t executed, in_kernel, copied;
static struct { bool is_open; uint64_t id, executed, in_kernel, copied; } region;
static uint8_t is_buffer[MAILBOX_PAGES / 8];

static void said(uint64_t at)
{
    if (at < MAILBOX_PAGES) {
        is_buffer[at / 8] |= 1u << at % 8;
    } else if (at < MAILBOX_END) {
        region.is_open = true;
        region.id = at - MAILBOX_BEGIN;
        fprintf(out, "begin %" PRIu64 "\n", region.id);
        fflush(out);
        region.executed = executed, region.in_kernel = in_kernel, region.copied = copied;
    } else if (at < MAILBOX_FORGET) {
        if (region.is_open && region.id == at - MAILBOX_END)
            fprintf(out, "region %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", region.id,
                    (executed - region.executed) / EIGHTHS, (in_kernel - region.in_kernel) / EIGHTHS,
                    (copied - region.copied) / EIGHTHS);
        fflush(out);
        region.is_open = false;
    } else {
        memset(is_buffer, 0, sizeof is_buffer);
    }
}

static void accessed(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t at, void *data)
{
    struct block *block = data;
    uint64_t page = (at - DIRECT_MAP) >> 12;
    (void)cpu, (void)info;
    if (at - MAILBOX < MAILBOX_BYTES) {
        said(at - MAILBOX);
    } else if (region.is_open && block->touched_at != executed
               && (at - BUFFER < BUFFER_BYTES || (page < MAILBOX_PAGES && is_buffer[page / 8] >> page % 8 & 1))) {
        block->touched_at = executed;
        copied += block->eighths;
    }
}

/* Whether a block is one `rep movsb` or `rep stosb` and nothing else: its rounds but the first. */
static bool moves_bytes(const struct qemu_plugin_tb *tb)
{
    const struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, 0);
    const uint8_t *code = qemu_plugin_insn_data(insn);
    return qemu_plugin_tb_n_insns(tb) == 1 && qemu_plugin_insn_size(insn) == 2 && code[0] == 0xf3
           && (code[1] == 0xa4 || code[1] == 0xaa);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    /* Never freed: QEMU does not tell when a block goes. Some megabytes in a run. */
    struct block *block = calloc(1, sizeof *block);
    size_t count = qemu_plugin_tb_n_insns(tb);
    (void)id;
    if (!block)
        abort();
    block->eighths = moves_bytes(tb) ? 1 : count * EIGHTHS;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &executed, block->eighths);
    if (qemu_plugin_tb_vaddr(tb) >> 63)
        qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &in_kernel, block->eighths);
    for (size_t i = 0; i < count; i++)
        qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), accessed, NO_REGISTERS, READS_AND_WRITES,
                                         block);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    if (argc != 1 || strncmp(argv[0], "out=", 4) || !info->system_emulation || info->system.max_vcpus != 1) {
        fprintf(stderr, "count: needs out=FILE, a whole machine and one processor\n");
        return -1;
    }
    out = fopen(argv[0] + 4, "w");
    if (!out) {
        perror(argv[0] + 4);
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}

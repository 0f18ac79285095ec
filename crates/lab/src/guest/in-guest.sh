#!/bin/sh
# What runs in the guest: in-guest.sh NVMED FILE_LOAD. The plan, lines of calls of these functions, follows below.
# Standard output: `did ID BYTES CALLS` (file-load.c), `skipped CONTENDER: REASON`, `kernel VERSION`, `done`.
set -u
here=/run/lab dir=/run/lab/on said=/run/lab/said nvmed=/run/lab/nvmed load=/run/lab/file-load
mkdir -p $dir
# In memory of the guest, so that what empties caches does not empty them of these programs.
cp "$1" "$(dirname "$1")/libnvmed_wrapper.so" "$2" $here || exit 1
echo "kernel $(uname -r)"

# A contender is a subshell: what it cannot have ends it, and not the others.
skip() { echo "skipped $contender: $*"; exit 1; }
try() { "$@" >$said 2>&1 || skip "$* failed: $(tail -n 1 $said)"; }
module() { try modprobe "$@"; }
put() { { echo "$1" >"$2"; } 2>$said || skip "$2 does not take $1: $(tail -n 1 $said)"; }

# Disks. null_blk keeps its bytes in memory and completes a request where it is served, so that bio (no queue) and mq
# (a queue, with or without a scheduler) differ in the queueing alone.
null_blk() { # MIB bio|none|mq-deadline
    disk=/dev/nullb0
    module configfs
    module null_blk nr_devices=0
    mountpoint -q /sys/kernel/config || try mount -t configfs configfs /sys/kernel/config
    at=/sys/kernel/config/nullb/nullb0
    try mkdir $at
    mode=2
    [ "$2" = bio ] && mode=0
    for pair in "$mode:queue_mode" 0:irqmode "$1:size" 4096:blocksize 1:memory_backed 1:submit_queues 1:power; do
        put "${pair%:*}" $at/"${pair#*:}"
    done
    [ "$2" = bio ] || put "$2" /sys/block/nullb0/queue/scheduler
}
brd() { # MIB
    disk=/dev/ram0
    module brd rd_nr=1 rd_size=$(($1 * 1024))
}
pmem() {
    disk=/dev/pmem0
    module nd_pmem
    module nd_e820
    # The kernel looks at it in a thread of its own.
    for _ in $(seq 100); do [ -b $disk ] && break; sleep 0.1; done
    [ -b $disk ] || skip "the kernel made no $disk of the memory that memmap= set aside"
}
gone() {
    for at in $dir $here/image; do mountpoint -q $at && umount $at; done
    if [ -d /sys/kernel/config/nullb/nullb0 ]; then rmdir /sys/kernel/config/nullb/nullb0; fi
    modprobe -r brd 2>/dev/null
    true
}

# File systems. The paper's ext2 is its format by the driver of ext4: this kernel has no other.
made() { # ext2|ext4|btrfs|xfs [MOUNT_OPTIONS]
    options=${2:-defaults} type=$1
    case $1 in
        ext2) type=ext4; try mke2fs -t ext2 -b 4096 -q -F $disk ;;
        # Nothing is left to be initialised later, by a thread that would be counted.
        ext4) try mkfs.ext4 -b 4096 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $disk ;;
        btrfs) module btrfs; try mkfs.btrfs -f -q $disk ;;
        xfs) module xfs; try mkfs.xfs -f -q -m reflink=0 $disk ;;
    esac
    try mount -t "$type" -o "$options" $disk $dir
}
remount() { # MOUNT_OPTIONS
    options=$1
    try umount $dir
    try mount -t "$type" -o "$options" $disk $dir
}
tmpfs() { # MIB
    try mount -t tmpfs -o "size=${1}M" tmpfs $dir
}
readahead() { # KIB
    for of in /sys/class/bdi/*/read_ahead_kb; do echo "$1" >"$of"; done
}

# Loads. `on` names what runs a program on our file system; on the kernel's it is empty.
files() { # MIB...
    for mib in "$@"; do try $on $load create "$dir/f$mib" "$mib"; done
}
region() { # OPERATION ID NAME SIZE CALL_BYTES [direct] [again]
    operation=$1 id=$2 name=$3
    shift 3
    $on $load "$operation" "$id" "$dir/$name" "$@" 2>$said ||
        skip "$operation of $name ($*) failed: $(tail -n 1 $said)"
}
# Ours: on an image of the mounted file system, which is $dir before and the directory of the image behind it.
image() { # MIB
    mkdir -p $here/image
    try umount $dir
    try mount -t "$type" -o "$options" $disk $here/image
    disk_image=$here/image/disk.img
    try $nvmed format "nvm:$disk_image?flush=dax" --size "${1}M"
}
ours() { # DEVICE private|shared CACHE
    on="$nvmed run --$2 --cache $3 --dir $dir --device $1 --"
}
on=
trap 'exit 1' INT TERM

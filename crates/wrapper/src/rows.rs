//! What a call of libc is, a row each: from these come the exported functions, the gates, what is counted, the answers
//! to calls by number, and `docs/symbols.md`.
//!
//! ```text
//! module {
//!     function: gate [names of libc's] "what it takes" (what is counted) @about SYS_number(words of its arguments);
//! }
//! ```
//! - The *gate* says how a name is exported: `gate` has them; with `direct` the function serves the host's too. A
//!   function that answers a number alone has no names.
//! - *What is counted* is a `Shape`, or `none` for what is no file call and for what is counted by the calls that it
//!   makes. A hook without it does not compile; a function that is no hook has nothing there.
//! - `@held` is a call about descriptors alone, `@named` any other.
//!
//! `rows!(reader)` hands all of them to the macro `reader!`; a test has readers of its own.

macro_rules! rows {
    ($reader:ident) => { $reader! {
        aio {
            io_submit: direct [io_submit] "descriptors | libaio's" (none);
            io_getevents: direct [io_getevents] "descriptors | libaio's" (none);
            io_pgetevents: direct [io_pgetevents] "descriptors | libaio's" (none);
            io_destroy: direct [io_destroy] "descriptors | libaio's" (none);
            io_queue_run: direct [io_queue_run] "descriptors | libaio's" (none);
        }
        data {
            read: cancel [read __read] "descriptor" (fd READ.moves(2)) @held SYS_read(0, 1, 2);
            write: cancel [write __write] "descriptor" (fd WRITE.moves(2)) @held SYS_write(0, 1, 2);
            pread: cancel [pread pread64 __pread64] "descriptor"
                (fd PREAD.moves(2).from(3)) @held SYS_pread64(0, 1, 2, 3);
            pwrite: cancel [pwrite pwrite64 __pwrite64] "descriptor"
                (fd PWRITE.moves(2).from(3)) @held SYS_pwrite64(0, 1, 2, 3);
            __read_chk: cancel [__read_chk] "descriptor" (fd READ.moves(2));
            __pread_chk: cancel [__pread_chk __pread64_chk] "descriptor" (fd PREAD.moves(2).from(3));
            lseek: plain [lseek lseek64 __lseek llseek] "descriptor"
                (fd LSEEK.from(1).flags(2)) @held SYS_lseek(0, 1, 2);
            overflow: checked [__recvfrom_chk] "descriptor";
        }
        descriptor {
            close: hiding [close __close] "descriptor" (fd CLOSE) @held SYS_close(0);
            dup2: direct [dup2 __dup2] "descriptor" (fd DUP.opens(Opens::Descriptor)) @held SYS_dup2(0, 1);
            dup3: direct [dup3] "descriptor" (fd DUP.opens(Opens::Descriptor)) @held SYS_dup3(0, 1, 2);
            dup: hiding [dup] "descriptor" (fd DUP.opens(Opens::Descriptor)) @held SYS_dup(0);
            close_range: direct [close_range] "descriptors" (none) @held SYS_close_range(0, 1, 2);
            closefrom: direct [closefrom] "descriptors" (none);
        }
        extent {
            ftruncate: direct [ftruncate ftruncate64] "descriptor" (fd TRUNCATE.sized(1)) @held SYS_ftruncate(0, 1);
            truncate: direct [truncate truncate64] "path" (path TRUNCATE.sized(1)) @named SYS_truncate(0, 1);
            fallocate: direct [fallocate fallocate64] "descriptor"
                (fd ALLOCATE.from(2).sized(3).flags(1)) @held SYS_fallocate(0, 1, 2, 3);
            posix_fallocate: direct [posix_fallocate posix_fallocate64] "descriptor"
                (fd ALLOCATE.from(1).sized(2).fails(Fails::Error));
            posix_fadvise: direct [posix_fadvise posix_fadvise64] "descriptor"
                (fd ADVISE.from(1).sized(2).fails(Fails::Error));
            readahead: direct [readahead] "descriptor" (fd ADVISE.from(1).sized(2)) @held SYS_readahead(0, 1, 2);
            sync_file_range: direct [sync_file_range] "descriptor"
                (fd SYNC_RANGE.from(1).sized(2).flags(3)) @held SYS_sync_file_range(0, 1, 2, 3);
        }
        fcntl {
            fcntl: hiding [fcntl fcntl64 __fcntl] "descriptor" (fd FCNTL.command(1)) @held SYS_fcntl(0, 1, 2);
            fcntl: hiding [__libc_fcntl64] "libc's own libraries";
            flock: direct [flock] "descriptor" (fd LOCK) @held SYS_flock(0, 1);
            lockf: direct [lockf lockf64] "descriptor" (fd LOCK);
        }
        ioctl {
            ioctl: direct [ioctl] "descriptor" (fd FCNTL) @held SYS_ioctl(0, 1, 2);
        }
        mapping {
            mmap: direct [mmap mmap64] "descriptor"
                (fd MMAP.by(About::Descriptor(4)).sized(1).from(5).flags(3)) @named SYS_mmap(0, 1, 2, 3, 4, 5);
            mmap: direct [__mmap] "libc's own libraries";
            munmap: direct [munmap] "memory" (inside MUNMAP.sized(1)) @named SYS_munmap(0, 1);
            munmap: direct [__munmap] "libc's own libraries";
            msync: direct [msync] "memory" (inside MSYNC.sized(1)) @named SYS_msync(0, 1, 2);
            mprotect: direct [mprotect] "memory" (none) @named SYS_mprotect(0, 1, 2);
            mprotect: direct [__mprotect] "libc's own libraries";
            mremap: direct [mremap] "memory" (inside MUNMAP.sized(2)) @named SYS_mremap(0, 1, 2, 3, 4);
        }
        metadata {
            chmod: direct [chmod] "path" (path CHMOD.mode(1)) @named SYS_chmod(0, 1);
            lchmod: direct [lchmod] "path" (path CHMOD.mode(1));
            fchmodat: direct [fchmodat] "path, descriptor" (at CHMOD.mode(2).flags(3));
            fchmod: direct [fchmod] "descriptor" (fd CHMOD.mode(1)) @held SYS_fchmod(0, 1);
            chown: direct [chown] "path" (path CHOWN) @named SYS_chown(0, 1, 2);
            lchown: direct [lchown] "path" (path CHOWN) @named SYS_lchown(0, 1, 2);
            fchownat: direct [fchownat] "path, descriptor" (at CHOWN) @named SYS_fchownat(0, 1, 2, 3, 4);
            fchown: direct [fchown] "descriptor" (fd CHOWN) @held SYS_fchown(0, 1, 2);
            utimensat: direct [utimensat] "path, descriptor" (at UTIMES);
            futimens: direct [futimens] "descriptor" (fd UTIMES);
            utimes: direct [utimes] "path" (path UTIMES);
            lutimes: direct [lutimes] "path" (path UTIMES);
            futimes: direct [futimes] "descriptor" (fd UTIMES);
            futimesat: direct [futimesat] "path, descriptor" (at UTIMES);
            utime: direct [utime] "path" (path UTIMES);
            fchmodat2: (at CHMOD.mode(2).flags(3));
            utime_by_number: (path UTIMES) @named SYS_utime(0, 1);
            utimes_by_number: (path UTIMES) @named SYS_utimes(0, 1);
            utimensat_by_number: (at UTIMES) @named SYS_utimensat(0, 1, 2, 3);
            futimesat_by_number: (at UTIMES) @named SYS_futimesat(0, 1, 2);
        }
        name {
            unlink: direct [unlink] "path" (path UNLINK) @named SYS_unlink(0);
            unlinkat: direct [unlinkat] "path, descriptor"
                (at UNLINK.flags(2)) @named SYS_unlinkat(0, 1, 2);
            rmdir: direct [rmdir] "path" (path RMDIR) @named SYS_rmdir(0);
            remove: direct [remove] "path" (path UNLINK);
            mkdir: direct [mkdir] "path" (path MKDIR.mode(1)) @named SYS_mkdir(0, 1);
            mkdirat: direct [mkdirat] "path, descriptor" (at MKDIR.mode(2)) @named SYS_mkdirat(0, 1, 2);
            mknod: direct [mknod] "path" (path MKNOD.mode(1));
            mknodat: direct [mknodat] "path, descriptor" (at MKNOD.mode(2));
            __xmknod: direct [__xmknod] "path" (path MKNOD.by(About::Path(1)).mode(2));
            __xmknodat: direct [__xmknodat] "path, descriptor" (at MKNOD.by(About::At(1, 2)).mode(3));
            mkfifo: direct [mkfifo] "path" (path MKNOD.mode(1));
            mkfifoat: direct [mkfifoat] "path, descriptor" (at MKNOD.mode(2));
            symlink: direct [symlink] "path"
                (path SYMLINK.by(About::Path(1)).to(Other::Path(0))) @named SYS_symlink(0, 1);
            symlinkat: direct [symlinkat] "path, descriptor"
                (at SYMLINK.by(About::At(1, 2)).to(Other::Path(0))) @named SYS_symlinkat(0, 1, 2);
            readlink: direct [readlink] "path" (path READLINK) @named SYS_readlink(0, 1, 2);
            readlinkat: direct [readlinkat] "path, descriptor" (at READLINK) @named SYS_readlinkat(0, 1, 2, 3);
            __readlink_chk: direct [__readlink_chk] "path" (path READLINK);
            __readlinkat_chk: direct [__readlinkat_chk] "path, descriptor" (at READLINK);
            rename: direct [rename] "path" (path RENAME.to(Other::Path(1))) @named SYS_rename(0, 1);
            renameat: direct [renameat] "descriptor" (at RENAME.to(Other::At(2, 3))) @named SYS_renameat(0, 1, 2, 3);
            renameat2: direct [renameat2] "descriptor"
                (at RENAME.to(Other::At(2, 3)).flags(4)) @named SYS_renameat2(0, 1, 2, 3, 4);
            link: direct [link] "path" (path LINK.to(Other::Path(1))) @named SYS_link(0, 1);
            linkat: direct [linkat] "path, descriptor"
                (at LINK.to(Other::At(2, 3)).flags(4)) @named SYS_linkat(0, 1, 2, 3, 4);
            mknod_by_number: (path MKNOD.mode(1)) @named SYS_mknod(0, 1, 2);
            mknodat_by_number: (at MKNOD.mode(2)) @named SYS_mknodat(0, 1, 2, 3);
        }
        open {
            open: direct [open open64 __open __open64] "path"
                (path OPEN.opens(Opens::Descriptor).flags(1).mode(2)) @named SYS_open(0, 1, 2);
            openat: direct [openat openat64] "path, descriptor"
                (at OPEN.opens(Opens::Descriptor).flags(2).mode(3)) @named SYS_openat(0, 1, 2, 3);
            __open_2: direct [__open_2 __open64_2] "path" (path OPEN.opens(Opens::Descriptor).flags(1));
            __openat_2: direct [__openat_2 __openat64_2] "path, descriptor"
                (at OPEN.opens(Opens::Descriptor).flags(2));
            creat: direct [creat creat64] "path"
                (path OPEN.opens(Opens::Descriptor).flagged(CREAT).mode(1)) @named SYS_creat(0, 1);
        }
        openat2 {
            openat2: (at OPEN.opens(Opens::Descriptor).flagged(Flagged::Behind(2)));
        }
        poll {
            poll: list [poll __poll] "descriptors" (none) @held SYS_poll(0, 1, 2);
            __poll_chk: list [__poll_chk] "descriptors" (none);
            ppoll: list [ppoll] "descriptors" (none);
            __ppoll_chk: list [__ppoll_chk] "descriptors" (none);
            select: list [select __select] "descriptors" (none);
            pselect: list [pselect] "descriptors" (none);
            epoll_ctl: direct [epoll_ctl] "descriptor, descriptors" (none) @held SYS_epoll_ctl(0, 1, 2, 3);
            select_by_number: @held SYS_select(0, 1, 2, 3, 4);
            ppoll_by_number: @held SYS_ppoll(0, 1, 2, 3, 4);
        }
        posix_aio {
            aio_read: direct [aio_read aio_read64] "descriptor" (none);
            aio_write: direct [aio_write aio_write64] "descriptor" (none);
            aio_fsync: direct [aio_fsync aio_fsync64] "descriptor" (none);
            lio_listio: direct [lio_listio lio_listio64] "descriptors" (none);
        }
        real {
            chdir: direct [chdir] "path" (path CHDIR) @named SYS_chdir(0);
            fchdir: direct [fchdir] "descriptor" (fd CHDIR) @held SYS_fchdir(0);
            getcwd: direct [getcwd] "the working directory" (none);
            __getcwd_chk: direct [__getcwd_chk] "the working directory" (none);
            getwd: direct [getwd] "the working directory" (none);
            get_current_dir_name: direct [get_current_dir_name] "the working directory" (none);
            __getwd_chk: direct [__getwd_chk] "the working directory" (none);
            realpath: direct [realpath] "path" (path READLINK.fails(Fails::Null));
            __realpath_chk: direct [__realpath_chk] "path" (path READLINK.fails(Fails::Null));
            canonicalize_file_name: direct [canonicalize_file_name] "path" (path READLINK.fails(Fails::Null));
            raw_getcwd: @named SYS_getcwd(0, 1);
        }
        rights {
            sendmsg: message [sendmsg] "descriptor" (none) @held SYS_sendmsg(0, 1, 2);
            sendmmsg: message [sendmmsg] "descriptor" (none) @held SYS_sendmmsg(0, 1, 2, 3);
            recvmsg: message [recvmsg] "descriptor" (none) @held SYS_recvmsg(0, 1, 2);
            recvmmsg: message [recvmmsg] "descriptor" (none) @held SYS_recvmmsg(0, 1, 2, 3, 4);
        }
        splice {
            splice: direct [splice] "descriptor"
                (fd COPY.by(About::Descriptors(0, 2)).moves(4).to(BOTH_AT)) @held SYS_splice(0, 1, 2, 3, 4, 5);
            tee: direct [tee] "descriptor" (none) @held SYS_tee(0, 1, 2, 3);
            vmsplice: direct [vmsplice] "descriptor" (none) @held SYS_vmsplice(0, 1, 2, 3);
        }
        stat {
            stat: direct [stat stat64] "path" (path STAT) @named SYS_stat(0, 1);
            lstat: direct [lstat lstat64] "path" (path STAT) @named SYS_lstat(0, 1);
            fstatat: direct [fstatat fstatat64] "path, descriptor" (at STAT) @named SYS_newfstatat(0, 1, 2, 3);
            fstat: hiding [__fstat64] "libc's own libraries" (fd FSTAT) @held SYS_fstat(0, 1);
            fstat: hiding [fstat fstat64] "descriptor";
            __xstat: direct [__xstat __xstat64] "path" (path STAT.by(About::Path(1)));
            __lxstat: direct [__lxstat __lxstat64] "path" (path STAT.by(About::Path(1)));
            __fxstat: direct [__fxstat __fxstat64] "descriptor" (fd FSTAT.by(About::Descriptor(1)));
            __fxstatat: direct [__fxstatat __fxstatat64] "path, descriptor" (at STAT.by(About::At(1, 2)));
            statx: direct [statx] "path, descriptor" (at STAT) @named SYS_statx(0, 1, 2, 3, 4);
            statfs: direct [statfs statfs64 __statfs] "path" (path STATFS) @named SYS_statfs(0, 1);
            fstatfs: direct [fstatfs fstatfs64] "descriptor" (fd STATFS) @held SYS_fstatfs(0, 1);
            statvfs: direct [statvfs statvfs64] "path" (path STATFS);
            fstatvfs: direct [fstatvfs fstatvfs64] "descriptor" (fd STATFS);
            access: direct [access] "path" (path ACCESS) @named SYS_access(0, 1);
            euidaccess: direct [euidaccess eaccess] "path" (path ACCESS);
            faccessat: direct [faccessat] "path, descriptor" (at ACCESS) @named SYS_faccessat2(0, 1, 2, 3);
            pathconf: direct [pathconf] "path" (none);
            fpathconf: direct [fpathconf] "descriptor" (none);
            ftok: direct [ftok] "path" (none);
        }
        sync {
            fsync: cancel [fsync] "descriptor" (fd FSYNC) @held SYS_fsync(0);
            fdatasync: cancel [fdatasync] "descriptor" (fd FDATASYNC) @held SYS_fdatasync(0);
            syncfs: direct [syncfs] "descriptor" (fd SYNC) @held SYS_syncfs(0);
            sync: direct [sync] "everything" (none);
        }
        transfer {
            copy_file_range: direct [copy_file_range] "descriptor"
                (fd COPY.by(About::Descriptors(0, 2)).moves(4).to(BOTH_AT)) @held SYS_copy_file_range(0, 1, 2, 3, 4, 5);
            sendfile: direct [sendfile sendfile64] "descriptor"
                (fd COPY.by(About::Descriptors(0, 1)).moves(3).to(SENT)) @held SYS_sendfile(0, 1, 2, 3);
        }
        vector {
            readv: cancel [readv] "descriptor" (fd READV.moves(NO)) @held SYS_readv(0, 1, 2);
            writev: cancel [writev] "descriptor" (fd WRITEV.moves(NO)) @held SYS_writev(0, 1, 2);
            preadv: cancel [preadv preadv64] "descriptor" (fd READV.moves(NO).from(3)) @held SYS_preadv(0, 1, 2, 3);
            pwritev: cancel [pwritev pwritev64] "descriptor"
                (fd WRITEV.moves(NO).from(3)) @held SYS_pwritev(0, 1, 2, 3);
            preadv2: cancel [preadv2 preadv64v2] "descriptor"
                (fd READV.moves(NO).from(3)) @held SYS_preadv2(0, 1, 2, 3, 5);
            pwritev2: cancel [pwritev2 pwritev64v2] "descriptor"
                (fd WRITEV.moves(NO).from(3)) @held SYS_pwritev2(0, 1, 2, 3, 5);
        }
        xattr {
            getxattr: direct [getxattr] "path" (path GETXATTR) @named SYS_getxattr(0, 1, 2, 3);
            lgetxattr: direct [lgetxattr] "path" (path GETXATTR) @named SYS_lgetxattr(0, 1, 2, 3);
            setxattr: direct [setxattr] "path" (path SETXATTR) @named SYS_setxattr(0, 1, 2, 3, 4);
            lsetxattr: direct [lsetxattr] "path" (path SETXATTR) @named SYS_lsetxattr(0, 1, 2, 3, 4);
            listxattr: direct [listxattr] "path" (path GETXATTR) @named SYS_listxattr(0, 1, 2);
            llistxattr: direct [llistxattr] "path" (path GETXATTR) @named SYS_llistxattr(0, 1, 2);
            removexattr: direct [removexattr] "path" (path SETXATTR) @named SYS_removexattr(0, 1);
            lremovexattr: direct [lremovexattr] "path" (path SETXATTR) @named SYS_lremovexattr(0, 1);
            fgetxattr: direct [fgetxattr] "path, descriptor" (fd GETXATTR) @held SYS_fgetxattr(0, 1, 2, 3);
            fsetxattr: direct [fsetxattr] "path, descriptor" (fd SETXATTR) @held SYS_fsetxattr(0, 1, 2, 3, 4);
            flistxattr: direct [flistxattr] "descriptor" (fd GETXATTR) @held SYS_flistxattr(0, 1, 2);
            fremovexattr: direct [fremovexattr] "path, descriptor" (fd SETXATTR) @held SYS_fremovexattr(0, 1);
            name_to_handle_at: direct [name_to_handle_at] "path, descriptor"
                (none) @named SYS_name_to_handle_at(0, 1, 2, 3, 4);
            inotify_add_watch: direct [inotify_add_watch] "path, descriptor"
                (none) @named SYS_inotify_add_watch(0, 1, 2);
        }
        identity {
            setuid: direct [setuid] "none: who asks" (none);
            setgid: direct [setgid] "none: who asks" (none);
            seteuid: direct [seteuid] "none: who asks" (none);
            setegid: direct [setegid] "none: who asks" (none);
            setreuid: direct [setreuid] "none: who asks" (none);
            setregid: direct [setregid] "none: who asks" (none);
            setresuid: direct [setresuid] "none: who asks" (none);
            setresgid: direct [setresgid] "none: who asks" (none);
            setgroups: direct [setgroups] "none: who asks" (none);
            initgroups: direct [initgroups] "none: who asks" (none);
        }
        credentials {
            umask: direct [umask] "none: modes of what is made" (none) @named SYS_umask(0);
        }
        limit {
            setrlimit: direct [setrlimit setrlimit64] "none: how large files may be" (none);
            prlimit: direct [prlimit prlimit64] "none: how large files may be" (none);
            ulimit: direct [ulimit] "none: how large files may be" (none);
        }
        refused {
            umount2: direct [umount2] "path" (none) @named SYS_umount2(0, 1);
            chroot: direct [chroot] "path" (none) @named SYS_chroot(0);
            swapon: direct [swapon] "path" (none) @named SYS_swapon(0, 1);
            swapoff: direct [swapoff] "path" (none) @named SYS_swapoff(0);
            acct: direct [acct] "path" (none) @named SYS_acct(0);
            open_tree: direct [open_tree] "path" (none) @named SYS_open_tree(0, 1, 2);
            fspick: direct [fspick] "path" (none) @named SYS_fspick(0, 1, 2);
            mount_setattr: direct [mount_setattr] "path" (none) @named SYS_mount_setattr(0, 1, 2, 3, 4);
            umount: direct [umount] "path" (none);
            mount: direct [mount] "path" (none) @named SYS_mount(0, 1, 2, 3, 4);
            pivot_root: direct [pivot_root] "path" (none) @named SYS_pivot_root(0, 1);
            quotactl: direct [quotactl] "path" (none) @named SYS_quotactl(0, 1, 2, 3);
            move_mount: direct [move_mount] "path, descriptor" (none) @named SYS_move_mount(0, 1, 2, 3, 4);
            fanotify_mark: direct [fanotify_mark] "path" (none) @named SYS_fanotify_mark(0, 1, 2, 3, 4);
        }
        socket {
            bind: direct [bind] "descriptor" (none) @held SYS_bind(0, 1, 2);
            connect: direct [connect] "descriptor" (none) @held SYS_connect(0, 1, 2);
            sendto: address [sendto] "descriptor" (none) @held SYS_sendto(0, 1, 2, 3, 4, 5);
            getsockname: direct [getsockname] "descriptor" (none) @held SYS_getsockname(0, 1, 2);
            getpeername: direct [getpeername] "descriptor" (none) @held SYS_getpeername(0, 1, 2);
        }
        library {
            dlerror: direct [dlerror] "none: names a library by its path" (none);
            dlopen: direct [dlopen] "path";
            dlmopen: direct [dlmopen] "path";
        }
        actions {
            posix_spawn_file_actions_init: direct [posix_spawn_file_actions_init] "none: actions are recorded" (none);
            posix_spawn_file_actions_destroy: direct [posix_spawn_file_actions_destroy] "none: actions are recorded"
                (none);
            posix_spawn_file_actions_addclose: direct [posix_spawn_file_actions_addclose] "descriptor" (none);
            posix_spawn_file_actions_adddup2: direct [posix_spawn_file_actions_adddup2] "descriptor" (none);
            posix_spawn_file_actions_addopen: direct [posix_spawn_file_actions_addopen] "descriptor" (none);
            posix_spawn_file_actions_addchdir_np: direct [posix_spawn_file_actions_addchdir_np] "descriptor" (none);
            posix_spawn_file_actions_addfchdir_np: direct [posix_spawn_file_actions_addfchdir_np] "descriptor" (none);
            posix_spawn_file_actions_addclosefrom_np: direct [posix_spawn_file_actions_addclosefrom_np] "descriptor"
                (none);
            posix_spawn_file_actions_addtcsetpgrp_np: direct [posix_spawn_file_actions_addtcsetpgrp_np] "descriptor"
                (none);
        }
        command {
            system: direct [system] "none: the child has the descriptors" (none);
            popen: direct [popen _IO_popen] "stream" (none);
            pclose: direct [pclose] "stream" (none);
            wordexp: direct [wordexp] "path" (none);
        }
        exec {
            execve: direct [execve] "path" (none) @named SYS_execve(0, 1, 2);
            execv: direct [execv] "path" (none);
            execvp: direct [execvp] "path" (none);
            execvpe: direct [execvpe] "path" (none);
            fexecve: direct [fexecve] "descriptor" (none);
            execveat: direct [execveat] "path, descriptor" (none) @named SYS_execveat(0, 1, 2, 3, 4);
            execl: direct [execl] "path";
            execlp: direct [execlp] "path";
            execle: direct [execle] "path";
        }
        fork {
            vfork: direct [vfork __vfork] "none: the child has the descriptors" (none) @named SYS_vfork();
            _Fork: direct [_Fork] "none: the child has the descriptors" (none);
            clone: direct [clone __clone] "none: the child has the descriptors" (none);
            daemon: direct [daemon] "none: the child has the descriptors" (none);
            login_tty: direct [login_tty] "descriptor" (none);
            forkpty: direct [forkpty] "descriptor" (none);
        }
        life {
            _exit: direct [_exit _Exit] "none: the end writes back" (none);
        }
        signal {
            sigaction: direct [sigaction __sigaction] "none: a handler may make file calls" (none);
            signal: direct [signal bsd_signal ssignal] "none: a handler may make file calls" (none);
            sysv_signal: direct [sysv_signal __sysv_signal] "none: a handler may make file calls" (none);
            left: leaving [longjmp _longjmp siglongjmp __longjmp_chk]
                "none: a handler of a fault may jump out of a call";
        }
        spawn {
            posix_spawn: direct [posix_spawn] "descriptor" (none);
            posix_spawnp: direct [posix_spawnp] "descriptor" (none);
        }
        catalogue {
            catopen: direct [catopen] "path" (none);
            bindtextdomain: direct [bindtextdomain] "path" (none);
        }
        format {
            vdprintf: direct [vdprintf] "descriptor" (none);
            __vdprintf_chk: direct [__vdprintf_chk] "descriptor" (none);
            dprintf: direct [dprintf] "descriptor";
            __dprintf_chk: direct [__dprintf_chk] "descriptor";
        }
        logins {
            utmpname: direct [utmpname utmpxname] "path" (none);
            updwtmp: direct [updwtmp updwtmpx] "path" (none);
        }
        stdio {
            fopen: direct [fopen fopen64] "path" (path OPEN.opens(Opens::Stream).flagged(Flagged::Stream(1)));
            fopen: direct [_IO_fopen] "stream";
            fdopen: direct [fdopen] "descriptor" (none);
            fdopen: direct [_IO_fdopen] "stream";
            freopen: direct [freopen freopen64] "path, stream"
                (path OPEN.opens(Opens::Stream).flagged(Flagged::Stream(1)));
            setmntent: direct [setmntent __setmntent] "path, stream" (none);
            perror: direct [perror] "standard streams" (none);
            backtrace_symbols_fd: direct [backtrace_symbols_fd __backtrace_symbols_fd] "descriptor" (none);
        }
        temporary {
            mkstemp: direct [mkstemp mkstemp64] "path" (none);
            mkostemp: direct [mkostemp mkostemp64] "path" (none);
            mkstemps: direct [mkstemps mkstemps64] "path" (none);
            mkostemps: direct [mkostemps mkostemps64] "path" (none);
            mkdtemp: direct [mkdtemp] "path" (none);
            mktemp: direct [mktemp] "path" (none);
            mktemp: direct [__mktemp] "libc's own libraries";
            tempnam: direct [tempnam] "path" (none);
            tmpnam: direct [tmpnam] "path" (none);
            tmpnam_r: direct [tmpnam_r] "path" (none);
        }
        wide {
            fputwc: direct [fputwc putwc fputwc_unlocked putwc_unlocked] "stream" (none);
            fputws: direct [fputws fputws_unlocked] "stream" (none);
            fgetwc: direct [fgetwc getwc fgetwc_unlocked getwc_unlocked] "stream" (none);
            fgetws: direct [fgetws fgetws_unlocked] "stream" (none);
            ungetwc: direct [ungetwc] "stream" (none);
            fwide: direct [fwide] "stream" (none);
            vfwprintf: direct [vfwprintf] "stream" (none);
            __vfwprintf_chk: direct [__vfwprintf_chk] "stream" (none);
            __fgetws_chk: direct [__fgetws_chk __fgetws_unlocked_chk] "stream" (none);
            __fwprintf_chk: direct [__fwprintf_chk] "stream";
            fwprintf: direct [fwprintf] "stream";
        }
        syscall {
            getdents: (fd READDIR.sized(2));
            syscall: direct [syscall] "any: see the last section" (none);
        }
        thread {
            pthread_create: direct [pthread_create] "none: raw system calls of the thread" (none);
            thrd_create: direct [thrd_create] "none: raw system calls of the thread" (none);
            sigprocmask: direct [sigprocmask] "none: SIGSYS stays open for raw system calls" (none);
            pthread_sigmask: direct [pthread_sigmask] "none: SIGSYS stays open for raw system calls" (none);
        }
        directory {
            opendir: direct [opendir] "path" (path READDIR.opens(Opens::Directory));
            fdopendir: direct [fdopendir] "descriptor" (none);
            closedir: direct [closedir] "directory" (fd CLOSE.by(About::Directory(0)));
            readdir: direct [readdir readdir64] "directory" (fd READDIR.by(About::Directory(0)).fails(Fails::Never));
            readdir_r: direct [readdir_r readdir64_r] "directory"
                (fd READDIR.by(About::Directory(0)).fails(Fails::Error));
            rewinddir: direct [rewinddir] "directory" (fd READDIR.by(About::Directory(0)).fails(Fails::Never));
            telldir: direct [telldir] "directory" (none);
            seekdir: direct [seekdir] "directory" (fd READDIR.by(About::Directory(0)).fails(Fails::Never));
            dirfd: direct [dirfd] "directory" (none);
            getdents64: direct [getdents64] "descriptor" (fd READDIR.sized(2)) @held SYS_getdents64(0, 1, 2);
            getdirentries: direct [getdirentries getdirentries64] "descriptor" (fd READDIR.sized(2));
        }
        fts {
            fts_open: direct [fts_open fts64_open] "path, directory" (none);
            fts_read: direct [fts_read fts64_read] "directory" (none);
            fts_children: direct [fts_children fts64_children] "directory" (none);
            fts_set: direct [fts_set fts64_set] "directory" (none);
            fts_close: direct [fts_close fts64_close] "directory" (none);
        }
        glob {
            glob: direct [glob glob64] "path" (none);
        }
        scan {
            scandir: direct [scandir scandir64] "path" (none);
            scandirat: direct [scandirat scandirat64] "path, descriptor" (none);
            ftw: direct [ftw ftw64] "path" (none);
            nftw: direct [nftw nftw64] "path" (none);
        }
        ring {
            io_uring_setup: direct [io_uring_setup] "none: the kernel has no file of ours | liburing's" (none);
            io_uring_queue_init: direct [io_uring_queue_init]
                "none: the kernel has no file of ours | liburing's" (none);
            io_uring_queue_init_params: direct [io_uring_queue_init_params]
                "none: the kernel has no file of ours | liburing's" (none);
            io_uring_queue_init_mem: direct [io_uring_queue_init_mem]
                "none: the kernel has no file of ours | liburing's" (none);
        }
        terminal {
            stand_in: lent [tcdrain tcflow tcflush tcgetattr tcsetattr tcgetpgrp tcsetpgrp tcgetsid tcsendbreak
                grantpt unlockpt ttyname ptsname ttyname_r __ttyname_r_chk ptsname_r __ptsname_r_chk listen shutdown
                getsockopt setsockopt sockatmark recv send __recv_chk] "descriptor";
            isatty: other [isatty] "descriptor";
            isfdtype: other [isfdtype] "descriptor";
            stand_in: accepting [accept accept4] "descriptor";
            stand_in: receiving [recvfrom] "descriptor";
        }
    } };
}

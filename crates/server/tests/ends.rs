//! What sessions are given of what is behind FIFOs and sockets, and what they may bring.

mod support;

use nvmed_fs::{Follow, OpenFlags};
use nvmed_sys::Nursery;
use nvmed_wire::{Answer, Call, Control, ControlAnswer, Handle, Object};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use support::{Client, Shared, ask, named, serve};

const FIFO: u32 = libc::S_IFIFO;
const SOCKET: u32 = libc::S_IFSOCK;

fn make(client: &Client, path: &str, mode: u32) -> Handle {
    let made = client.call(&Call::Mknod { at: Handle::ROOT, path: path.as_bytes(), mode, rdev: 0 });
    assert_eq!(made, Answer::Done);
    find(client, path)
}

fn find(client: &Client, path: &str) -> Handle {
    match client.call(&Call::Lookup(Object::Path {
        at: Handle::ROOT,
        path: path.as_bytes(),
        follow: Follow::No,
    })) {
        Answer::Held { handle, .. } => handle,
        other => panic!("{other:?}"),
    }
}

fn pipe(client: &Client, handle: Handle, flags: OpenFlags) -> Result<OwnedFd, i32> {
    client.control(&Control::Pipe { handle, flags }).map(|fd| fd.expect("a pipe comes along"))
}

fn connect(client: &Client, handle: Handle) -> Result<OwnedFd, i32> {
    client.control(&Control::Connect { handle }).map(|fd| fd.expect("a socket's name comes along"))
}

fn offer(client: &Client, handle: Handle, fd: Option<&OwnedFd>) -> Result<(), i32> {
    match ask(&client.socket, &Control::Bind { handle }, fd) {
        (ControlAnswer::Done, None) => Ok(()),
        (ControlAnswer::Failed(errno), None) => Err(errno),
        other => panic!("{other:?}"),
    }
}

fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

fn bound_in(directory: BorrowedFd<'_>) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
    let path = format!("/proc/self/fd/{}/s", directory.as_raw_fd());
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// A socket, and the descriptor of the name that it was bound to.
fn bound() -> (OwnedFd, OwnedFd) {
    let nursery = Nursery::make().unwrap();
    let socket = bound_in(nursery.as_fd());
    let end = nursery.take(c"s", Mode::from_raw_mode(0o777)).unwrap();
    (socket, end)
}

/// Whether this process can become somebody else.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: needs to be root to be others");
    }
    root
}

/// A client of another user, in a thread of that user's.
fn as_other(shared: &Shared, act: impl FnOnce(&Client) + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rustix::thread::set_thread_res_uid(
                Uid::from_raw(65_534),
                Uid::from_raw(65_534),
                Uid::from_raw(65_534),
            )
            .unwrap();
            act(&Client::connect(shared));
        });
    });
}

#[test]
fn a_fifo_is_one_pipe_for_all_sessions_until_it_is_gone() {
    let shared = serve();
    let (one, other) = (Client::connect(&shared), Client::connect(&shared));
    let fifo = make(&one, "fifo", FIFO | 0o600);
    let first = pipe(&one, fifo, OpenFlags::READ).unwrap();
    let status = rustix::fs::fstat(&first).unwrap();
    assert_eq!((status.st_mode, status.st_nlink), (FIFO | 0o600, 0), "its inode's mode, and no name");
    let held = find(&other, "fifo");
    assert_eq!(inode(&pipe(&other, held, OpenFlags::READ_WRITE).unwrap()), inode(&first));
    assert_eq!(inode(&pipe(&one, fifo, OpenFlags::WRITE).unwrap()), inode(&first));
    let flags = rustix::fs::fcntl_getfl(&first).unwrap();
    assert!(flags.contains(OFlags::PATH), "it is nobody's end yet: {flags:?}");
    assert_eq!(one.call(&Call::Unlink { at: Handle::ROOT, path: b"fifo" }), Answer::Done);
    for (client, handle) in [(&one, fifo), (&other, held)] {
        assert_eq!(pipe(client, handle, OpenFlags::READ).err(), Some(libc::ENOENT), "it is gone");
    }
    let again = make(&one, "fifo", FIFO | 0o600);
    assert_ne!(inode(&pipe(&one, again, OpenFlags::READ).unwrap()), inode(&first));
}

#[test]
fn what_is_no_fifo_or_not_held_has_no_pipe() {
    let shared = serve();
    let (client, other) = (Client::connect(&shared), Client::connect(&shared));
    let file = client.create("file");
    let socket = make(&client, "socket", SOCKET | 0o600);
    for handle in [Handle::ROOT, file, socket] {
        assert_eq!(pipe(&client, handle, OpenFlags::READ).err(), Some(libc::ENXIO));
    }
    let fifo = make(&client, "fifo", FIFO | 0o600);
    for handle in [fifo, Handle(u64::MAX)] {
        assert_eq!(pipe(&other, handle, OpenFlags::READ).err(), Some(libc::EBADF));
        assert_eq!(connect(&other, handle).err(), Some(libc::EBADF));
        assert_eq!(offer(&other, handle, Some(&bound().1)), Err(libc::EBADF));
    }
    client.close(fifo);
    assert_eq!(pipe(&client, fifo, OpenFlags::READ).err(), Some(libc::EBADF));
    assert_eq!(client.open("fifo", OpenFlags::READ_WRITE), Err(libc::ENXIO), "it is no file");
}

#[test]
fn a_pipe_is_given_to_whom_the_fifo_permits_it() {
    let shared = serve();
    let owner = Client::connect(&shared);
    make(&owner, "fifo", FIFO | 0o622);
    if !is_root() {
        return;
    }
    as_other(&shared, |client| {
        let fifo = find(client, "fifo");
        let cut = OpenFlags::READ.with(OpenFlags::TRUNCATE);
        for flags in [OpenFlags::READ, OpenFlags::READ_WRITE, cut, OpenFlags(3)] {
            assert_eq!(pipe(client, fifo, flags).err(), Some(libc::EACCES), "{flags:?}");
            assert_eq!(client.open("fifo", flags), Err(libc::EACCES), "{flags:?}");
        }
        let stamped = OpenFlags::WRITE.with(OpenFlags::NOATIME);
        assert_eq!(pipe(client, fifo, stamped).err(), Some(libc::EPERM));
        for flags in [OpenFlags::PATH, OpenFlags::PATH.with(OpenFlags::WRITE)] {
            assert_eq!(pipe(client, fifo, flags).err(), Some(libc::EINVAL), "{flags:?}");
        }
        assert!(pipe(client, fifo, OpenFlags::WRITE).is_ok());
    });
}

#[test]
fn past_the_limit_new_pipes_are_refused_and_nothing_else() {
    let now = getrlimit(Resource::Nofile);
    if now.maximum.is_some_and(|most| most < 4096) {
        return eprintln!("SKIPPED: this process may have {:?} descriptors", now.maximum);
    }
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    let shared = serve();
    let client = Client::connect(&shared);
    let fifos: Vec<_> = (0..1024).map(|n| make(&client, &format!("fifo{n}"), FIFO | 0o600)).collect();
    assert!(fifos.iter().all(|&fifo| pipe(&client, fifo, OpenFlags::READ).is_ok()));
    let next = make(&client, "next", FIFO | 0o600);
    assert_eq!(pipe(&client, next, OpenFlags::READ).err(), Some(libc::ENFILE));
    let stale = make(&client, "stale", SOCKET | 0o777);
    assert_eq!(connect(&client, stale).err(), Some(libc::ECONNREFUSED));
    assert!(pipe(&client, fifos[7], OpenFlags::READ).is_ok(), "what is there is given");
    assert_eq!(client.call(&Call::Unlink { at: Handle::ROOT, path: b"fifo9" }), Answer::Done);
    client.close(fifos[9]);
    assert!(pipe(&client, next, OpenFlags::READ).is_ok());
}

/// What one has who got the pipe to write to it: the kernel opens it again by its number.
fn opened_again(pipe: &OwnedFd, flags: OFlags) -> Result<(), i32> {
    let path = format!("/proc/thread-self/fd/{}", pipe.as_raw_fd());
    let opened = rustix::fs::open(path, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    opened.map(drop).map_err(rustix::io::Errno::raw_os_error)
}

#[test]
fn a_pipe_that_was_given_to_a_writer_is_no_readers() {
    let shared = serve();
    let owner = Client::connect(&shared);
    let fifo = make(&owner, "fifo", FIFO | 0o622);
    let chmod = |mode| {
        let call = Call::Chmod { object: Object::Held(fifo), mode };
        assert_eq!(owner.call(&call), Answer::Done);
    };
    if !is_root() {
        return;
    }
    as_other(&shared, |client| {
        // Without it /proc shows the thread's files to root alone.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).unwrap();
        let held = find(client, "fifo");
        let given = pipe(client, held, OpenFlags::WRITE).unwrap();
        assert_eq!(opened_again(&given, OFlags::RDONLY), Err(libc::EACCES));
        assert_eq!(opened_again(&given, OFlags::WRONLY), Err(libc::ENXIO), "it may, and nobody reads");
        chmod(0o600);
        assert_eq!(opened_again(&given, OFlags::WRONLY), Err(libc::EACCES), "what was given is taken back");
        chmod(0o644);
        assert_eq!(opened_again(&given, OFlags::RDONLY), Ok(()));
        assert_eq!(opened_again(&given, OFlags::WRONLY), Err(libc::EACCES));
    });
}

#[test]
fn a_socket_that_was_bound_is_reached_by_its_name() {
    let shared = serve();
    let (server, client) = (Client::connect(&shared), Client::connect(&shared));
    let name = make(&server, "socket", SOCKET | 0o777);
    assert_eq!(connect(&server, name).err(), Some(libc::ECONNREFUSED), "nobody has bound it");
    let (socket, end) = bound();
    assert_eq!(offer(&server, name, Some(&end)), Ok(()));
    assert_eq!(offer(&server, name, Some(&bound().1)), Err(libc::EADDRINUSE));
    let given = connect(&client, find(&client, "socket")).unwrap();
    assert_eq!(inode(&given), inode(&end));
    let path = format!("/proc/self/fd/{}", given.as_raw_fd());
    let sender =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&sender, &SocketAddrUnix::new(path).unwrap()).unwrap();
    assert_eq!(rustix::io::write(&sender, b"through"), Ok(7));
    assert_eq!(rustix::io::read(&socket, &mut [0; 9]), Ok(7));
    for handle in [Handle::ROOT, server.create("file"), make(&server, "fifo", FIFO | 0o777)] {
        assert_eq!(connect(&server, handle).err(), Some(libc::ECONNREFUSED));
        assert_eq!(offer(&server, handle, Some(&bound().1)), Err(libc::EINVAL));
    }
    if !is_root() {
        return;
    }
    make(&server, "closed", SOCKET | 0o755);
    as_other(&shared, |client| {
        let closed = find(client, "closed");
        assert_eq!(connect(client, closed).err(), Some(libc::EACCES));
        assert_eq!(offer(client, closed, Some(&bound().1)), Err(libc::EPERM), "it is another's name");
        assert!(connect(client, find(client, "socket")).is_ok());
    });
}

#[test]
fn nothing_but_the_name_of_a_socket_is_taken() {
    let shared = serve();
    let client = Client::connect(&shared);
    let name = make(&client, "socket", SOCKET | 0o777);
    let named_by =
        |path: &str| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let (socket, end) = bound();
    assert_eq!(offer(&client, name, None), Err(libc::EINVAL));
    for (what, fd) in [
        ("a file", named_by("/proc/self/exe")),
        ("a directory", named_by("/")),
        ("a device", named_by("/dev/null")),
        ("a pipe's name", Nursery::pipe().unwrap()),
        ("a socket itself", socket),
        ("an open file", rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap()),
    ] {
        assert_eq!(offer(&client, name, Some(&fd)), Err(libc::EINVAL), "{what}");
    }
    if is_root() {
        // A file system of the client's own: nobody but the client knows how long its last file takes to close.
        let configured = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        rustix::mount::fsconfig_create(&configured).unwrap();
        let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let own = rustix::mount::fsmount(&configured, flags, attributes).unwrap();
        let _socket = bound_in(own.as_fd());
        let end = rustix::fs::openat(&own, "s", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(offer(&client, name, Some(&end)), Err(libc::EADDRNOTAVAIL));
    }
    assert_eq!(connect(&client, name).err(), Some(libc::ECONNREFUSED), "nothing was kept");
    assert_eq!(offer(&client, name, Some(&end)), Ok(()));
    let other = Client::connect(&shared);
    assert!(matches!(other.call(&Call::Stat(named("socket"))), Answer::Status(_)));
}

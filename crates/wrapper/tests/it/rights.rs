//! Descriptors in messages (SCM_RIGHTS).

use crate::support::Bench;

/// A private mount's descriptor means nothing in another process: sending it fails, loudly, and the host's go.
#[test]
fn a_private_mounts_descriptors_are_not_sent() {
    let Some(bench) = Bench::new("", &["python3"]) else { return };
    let script = "
import array, os, socket, sys
ours = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
host = os.open('/etc/passwd', os.O_RDONLY)
left, right = socket.socketpair()
try:
    socket.send_fds(left, [b'x'], [host, ours])
    assert False
except OSError as error:
    assert error.errno == 9, error
socket.send_fds(left, [b'y'], [host])
data, fds, flags, address = socket.recv_fds(right, 10, 4)
assert data == b'y' and os.fstat(fds[0]).st_ino == os.fstat(host).st_ino, data
assert os.write(ours, b'still here') == 10
";
    let output = bench.run(&["python3", "-c", script, &bench.path("f")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("cannot be sent to another process"), "{errors}");
    assert_eq!(bench.ok(&["cat", &bench.path("f")]), "still here");
}

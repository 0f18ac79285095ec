//! Reads that make no call: never older than what another process has written.

mod support;

use nvmed_client::File;
use nvmed_fs::{Allocate, OpenFlags, Whence};
use proptest::prelude::*;
use rustix::io::Errno;
use std::sync::Arc;
use support::{PAGE, Shared, calls, create, errno, serve, serve_in_memory};

/// Whether `reads` is so in a process that can make no call: a child that nobody made an heir for.
fn without_calls(file: &File, reads: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child takes no lock that another thread could hold, and ends without destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = i32::from(!(file.stat().is_err() && reads()));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable and lives on this stack.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn warm(file: &File, bytes: usize) {
    let mut into = [0; PAGE];
    for _ in 0..3 {
        for offset in (0..bytes).step_by(PAGE) {
            file.pread(&mut into, offset as u64).unwrap();
        }
    }
}

#[test]
fn what_was_read_before_is_read_without_a_call() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    file.pwrite(&[7; 16 * PAGE], 0).unwrap();
    warm(&file, 16 * PAGE);
    let read = || {
        let mut into = [0; PAGE];
        let all = (0..100).all(|round| {
            let read = file.pread(&mut into, (round % 16 * PAGE) as u64);
            read.is_ok_and(|bytes| bytes == PAGE) && into.iter().all(|&byte| byte == 7)
        });
        all && file.seek(0, Whence::End).is_ok_and(|size| size == 16 * PAGE as u64)
    };
    assert!(without_calls(&file, read));
}

#[test]
fn the_end_of_a_file_that_is_sought_often_is_known_without_a_call() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (file, theirs) = (create(session.files(), "file"), create(other.files(), "file"));
    for pages in 1..20 {
        theirs.pwrite(&[7; PAGE], (pages - 1) * PAGE as u64).unwrap();
        assert_eq!(file.seek(-1, Whence::End).unwrap(), pages * PAGE as u64 - 1);
    }
    let end = 19 * PAGE as u64;
    assert!(without_calls(&file, || file.seek(0, Whence::End).is_ok_and(|size| size == end)));
}

#[test]
fn a_sync_that_came_with_its_write_is_answered_without_a_call() {
    let shared = serve();
    let (session, other) = (shared.session(), shared.session());
    let (file, theirs) = (create(session.files(), "file"), create(other.files(), "file"));
    let write = |round: u8| assert_eq!(file.pwrite(&[round; 100], 0).unwrap(), 100);
    for round in 0..5 {
        write(round);
        file.fdatasync().unwrap();
    }
    write(5);
    assert!(without_calls(&file, || file.fdatasync().is_ok() && file.fsync().is_err()));
    theirs.pwrite(&[9], 0).unwrap();
    assert!(without_calls(&file, || file.fdatasync().is_err()), "what another process wrote is not durable");
    file.fdatasync().unwrap();
    write(6);
    shared.board.set_dead();
    assert_eq!(errno(file.fdatasync()), Errno::IO);
}

#[test]
fn another_process_sees_each_write_at_once() {
    let shared = serve();
    let (one, other) = (shared.session(), shared.session());
    let (mine, theirs) = (create(one.files(), "file"), create(other.files(), "file"));
    mine.pwrite(&[0; 4 * PAGE], 0).unwrap();
    warm(&theirs, 4 * PAGE);
    for round in 1..200u8 {
        let page = u64::from(round) % 4 * PAGE as u64;
        mine.pwrite(&[round; PAGE], page).unwrap();
        let mut into = [0; PAGE];
        assert_eq!(theirs.pread(&mut into, page).unwrap(), PAGE);
        assert!(into.iter().all(|&byte| byte == round), "round {round}");
    }
}

#[test]
fn a_file_that_outgrows_its_window_gets_a_larger_one() {
    let shared = serve();
    let session = shared.session();
    let file = create(session.files(), "file");
    file.pwrite(&[1; PAGE], 0).unwrap();
    warm(&file, PAGE);
    let far = 20 << 20;
    file.pwrite(&[2; PAGE], far).unwrap();
    let mut into = [0; PAGE];
    for _ in 0..100 {
        assert_eq!(file.pread(&mut into, far).unwrap(), PAGE);
        assert!(into.iter().all(|&byte| byte == 2));
    }
    assert!(without_calls(&file, || file.pread(&mut into, far).is_ok_and(|read| read == PAGE)));
}

#[test]
fn a_large_file_in_memory_takes_few_calls_the_first_time_too() {
    const MIB: usize = 1 << 20;
    let shared = serve_in_memory();
    let (session, other) = (shared.session(), shared.session());
    let (file, theirs) = (create(session.files(), "file"), create(other.files(), "file"));
    for part in 0..20 {
        theirs.pwrite(&vec![part as u8 + 1; MIB], (part * MIB) as u64).unwrap();
    }
    let reads = || calls(&session, &["read"])[0].1;
    let before = reads();
    let mut into = vec![0; MIB];
    for part in 0..20 {
        assert_eq!(file.read(&mut into).unwrap(), MIB);
        assert!(into.iter().all(|&byte| byte == part as u8 + 1), "MiB {part}");
    }
    let first = reads() - before;
    assert!(first <= 4, "{first} calls for 20 MiB");
    // What is written meanwhile is read without another call.
    theirs.pwrite(&[77; PAGE], 5 * MIB as u64).unwrap();
    let read = || file.pread(&mut into, 5 * MIB as u64 - 10).is_ok_and(|read| read == MIB);
    assert!(without_calls(&file, read));
    assert_eq!(file.pread(&mut into[..20], 5 * MIB as u64 - 10).unwrap(), 20);
    assert_eq!((&into[..10], &into[10..20]), (&[5; 10][..], &[77; 10][..]));
    shared.board.set_dead();
    assert_eq!(
        errno(file.pread(&mut into, 0)),
        Errno::IO,
        "who comes after a dead server stores to the medium"
    );
}

#[test]
fn the_beginning_of_a_large_file_in_memory_is_read_without_a_call() {
    let shared = serve_in_memory();
    let (session, other) = (shared.session(), shared.session());
    create(other.files(), "file").pwrite(&vec![7; 2 << 20], 0).unwrap();
    let root = session.files().root();
    let file = session.files().open(&root, b"file", OpenFlags::READ, 0).unwrap();
    // After the open, of which the shelf knows nothing then.
    support::settle(&session);
    warm(&file, 4 * PAGE);
    let mut into = [0; PAGE];
    assert!(without_calls(&file, || file.pread(&mut into, 0).is_ok_and(|read| read == PAGE)));
}

#[test]
fn a_process_that_had_other_ids_reads_by_another_window() {
    let shared = serve_in_memory();
    let session = shared.session();
    let file = create(session.files(), "file");
    file.pwrite(&vec![7; 2 << 20], 0).unwrap();
    warm(&file, 64 * PAGE);
    let mut into = [0; PAGE];
    assert!(without_calls(&file, || file.pread(&mut into, 0).is_ok_and(|read| read == PAGE)));
    // With the same ids, as a program that takes them back.
    session.again(&shared.address).unwrap();
    assert!(without_calls(&file, || file.pread(&mut into, 0).is_err()), "the mapping is gone");
    warm(&file, 64 * PAGE);
    let reads = || file.pread(&mut into, 0).is_ok_and(|read| read == PAGE) && into == [7; PAGE];
    assert!(without_calls(&file, reads));
}

#[test]
fn a_file_that_is_mapped_to_be_stored_into_is_read_by_calls() {
    mapped_to_be_stored_into(&serve());
    mapped_to_be_stored_into(&serve_in_memory());
}

fn mapped_to_be_stored_into(shared: &Shared) {
    let session = shared.session();
    let file = create(session.files(), "file");
    file.pwrite(&[1; 4 * PAGE], 0).unwrap();
    warm(&file, 4 * PAGE);
    let mapped = file.map(true).unwrap();
    let fd = rustix::fd::AsFd::as_fd(&*mapped.fd);
    let memory = nvmed_sys::Mapping::shared(fd, 0, PAGE, nvmed_sys::Pages::Base).unwrap();
    memory.write(5, b"stored");
    let mut into = [0; 6];
    file.pread(&mut into, 5).unwrap();
    assert_eq!(&into, b"stored");
    drop(memory);
    file.unmap(true).unwrap();
    file.pread(&mut into, 5).unwrap();
    assert_eq!(&into, b"stored");
}

const BYTES: usize = 6 * PAGE;

#[derive(Clone, Debug)]
enum Step {
    Read { offset: usize, len: usize },
    Write { offset: usize, len: usize, byte: u8 },
    Append { len: usize, byte: u8 },
    Truncate(usize),
    Punch { offset: usize, len: usize },
}

fn steps() -> impl Strategy<Value = Vec<(bool, Step)>> {
    let place = || (0..BYTES, 1..2 * PAGE);
    let step = prop_oneof![
        6 => place().prop_map(|(offset, len)| Step::Read { offset, len }),
        3 => (place(), any::<u8>()).prop_map(|((offset, len), byte)| Step::Write { offset, len, byte }),
        1 => (1..PAGE, any::<u8>()).prop_map(|(len, byte)| Step::Append { len, byte }),
        1 => (0..BYTES).prop_map(Step::Truncate),
        1 => place().prop_map(|(offset, len)| Step::Punch { offset, len }),
    ];
    proptest::collection::vec((any::<bool>(), step), 1..60)
}

/// Does a step to the model and by one of the two processes; answers what was read, in both.
fn act(model: &mut Vec<u8>, file: &File, log: &File, step: &Step) -> (Vec<u8>, Vec<u8>) {
    match *step {
        Step::Read { offset, len } => {
            let mut into = vec![0; len];
            let read = file.pread(&mut into, offset as u64).unwrap();
            into.truncate(read);
            let there = model.get(offset..).unwrap_or(&[]);
            return (into, there[..there.len().min(len)].to_vec());
        }
        Step::Write { offset, len, byte } => {
            assert_eq!(file.pwrite(&vec![byte; len], offset as u64).unwrap(), len);
            model.resize(model.len().max(offset + len), 0);
            model[offset..offset + len].fill(byte);
        }
        Step::Append { len, byte } => {
            assert_eq!(log.write(&vec![byte; len]).unwrap(), len);
            model.resize(model.len() + len, byte);
        }
        Step::Truncate(bytes) => {
            file.truncate(bytes as u64).unwrap();
            model.resize(bytes, 0);
        }
        Step::Punch { offset, len } => {
            let how = Allocate { keep_size: true, punch_hole: true, zero_range: false };
            file.fallocate(how, offset as u64, len as u64).unwrap();
            let end = (offset + len).min(model.len());
            if offset < end {
                model[offset..end].fill(0);
            }
        }
    }
    (Vec::new(), Vec::new())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn two_processes_read_what_the_model_has(steps in steps()) {
        two_processes_read(&serve(), &steps)?;
        two_processes_read(&serve_in_memory(), &steps)?;
    }
}

fn two_processes_read(shared: &Shared, steps: &[(bool, Step)]) -> Result<(), TestCaseError> {
    let sessions = [shared.session(), shared.session()];
    let open = |session: &nvmed_client::Session, more| {
        let flags = support::NEW.with(more);
        session.files().open(&session.files().root(), b"file", flags, 0o644).unwrap()
    };
    let files: Vec<Arc<File>> = sessions.iter().map(|session| open(session, OpenFlags::READ)).collect();
    let logs: Vec<Arc<File>> = sessions.iter().map(|session| open(session, OpenFlags::APPEND)).collect();
    let mut model = vec![3; 3 * PAGE];
    files[0].pwrite(&model, 0).unwrap();
    for file in &files {
        warm(file, model.len());
    }
    for (who, step) in steps {
        let who = usize::from(*who);
        let (read, there) = act(&mut model, &files[who], &logs[who], step);
        prop_assert!(read == there, "{step:?} by {who}");
    }
    Ok(())
}

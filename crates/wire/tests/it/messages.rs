//! Messages: what is said is heard, and bytes that are no message are an error.

use core::num::NonZeroU64;
use nvmed_fs::{
    Advice, Allocate, Follow, LockKind, LockRange, OpenFlags, RenameFlags, SetXattr, Time, Whence,
};
use nvmed_wire::{
    Answer, Call, Control, ControlAnswer, Handle, Inherited, LockClass, Mark, Object, Welcome, XattrCall,
    entries,
};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

const OBJECT: Object<'static> = Object::Path { at: Handle(300), path: b"a/b", follow: Follow::No };
const HELD: Object<'static> = Object::Held(Handle(u64::MAX));
const RANGE: LockRange = LockRange { start: 5, end: u64::MAX };

fn calls() -> Vec<Call<'static>> {
    let (at, to, handle, path) = (Handle::ROOT, Handle(2), Handle(1 << 40), &b"name"[..]);
    let how = Allocate { keep_size: true, punch_hole: true, zero_range: false };
    vec![
        Call::Ping,
        Call::Lookup(OBJECT),
        Call::Open { object: HELD, flags: OpenFlags::READ_WRITE, mode: 0o644 },
        Call::Close { handle, last: true, record_locks: false },
        Call::Stat(OBJECT),
        Call::StatFs,
        Call::PathOf(handle),
        Call::Readlink(HELD),
        Call::Access { object: OBJECT, mask: 7, real: true },
        Call::Mkdir { at, path, mode: 0o755 },
        Call::Mknod { at, path, mode: 0o010_644, rdev: 9 },
        Call::Symlink { target: b"t", at, path },
        Call::Link { object: OBJECT, to, new: b"new" },
        Call::Rmdir { at, path },
        Call::Unlink { at, path: b"" },
        Call::Rename { from: at, old: path, to, new: b"new", flags: RenameFlags::Exchange },
        Call::Chmod { object: HELD, mode: 0o7777 },
        Call::Chown { object: OBJECT, uid: Some(1), gid: None },
        Call::Utimens { object: OBJECT, times: [Time::Omit, Time::At(i64::MIN)] },
        Call::Truncate { object: HELD, bytes: u64::MAX },
        Call::Xattr { object: HELD, call: XattrCall::Set(b"user.x", SetXattr::Create), bytes: 4 },
        Call::Xattr { object: OBJECT, call: XattrCall::Get(b"user.x"), bytes: 0 },
        Call::Read { handle, offset: Some(1 << 50), bytes: 4096 },
        Call::Write { handle, offset: None, bytes: 1, sync: true },
        Call::Seek { handle, by: -1, whence: Whence::Hole },
        Call::ReadDir { handle, after: Some(3), bytes: 100 },
        Call::Flags { handle },
        Call::SetFlags { handle, flags: OpenFlags::APPEND },
        Call::Allocate { handle, how, offset: 1, bytes: 2 },
        Call::Advise { handle, advice: Advice::WillNeed, offset: 0, bytes: 0 },
        Call::Sync { handle, data_only: true },
        Call::SyncAll,
        Call::WriteBack { handle, offset: 1, bytes: 0 },
        Call::SyncMap { handle, offset: 0, bytes: 1 },
        Call::Unmap { handle, write: true },
        Call::Lock { handle, class: LockClass::Whole, range: RANGE, kind: None },
        Call::LockTest { handle, class: LockClass::Process, range: RANGE, kind: LockKind::Shared },
    ]
}

fn controls() -> Vec<Control> {
    let handle = Handle(77);
    vec![
        Control::Hello { version: 1, secret: vec![1; 16], tree: b"/t".to_vec(), again: Some([9; 16]) },
        Control::Adopt { version: 1 },
        Control::Lane,
        Control::Heir { held: vec![(3, handle), (-1, Handle(5))], cwd: Some(handle), same_process: true },
        Control::Map { handle, write: true },
        Control::Window { handle },
        Control::Medium,
        Control::Send { handle },
        Control::Receive,
        Control::Statistics,
    ]
}

#[test]
fn each_call_is_heard_as_it_was_said() {
    for call in calls() {
        let bytes = postcard::to_stdvec(&call).unwrap();
        assert_eq!(postcard::from_bytes::<Call<'_>>(&bytes), Ok(call));
    }
    for control in controls() {
        let bytes = postcard::to_stdvec(&control).unwrap();
        assert_eq!(postcard::from_bytes::<Control>(&bytes), Ok(control));
    }
    let mark = Mark { file: NonZeroU64::MAX, names: NonZeroU64::MAX };
    for durable in [None, Some(mark)] {
        let answer = Answer::Written { bytes: u32::MAX, offset: 1 << 60, durable };
        let bytes = postcard::to_stdvec(&answer).unwrap();
        assert_eq!(postcard::from_bytes::<Answer>(&bytes), Ok(answer));
    }
}

/// Bytes that decode say the same when they are said again; others are an error and nothing else.
fn heard<'a, T: Serialize + Deserialize<'a>>(bytes: &'a [u8]) -> Option<Vec<u8>> {
    let message: T = postcard::from_bytes(bytes).ok()?;
    Some(postcard::to_stdvec(&message).unwrap())
}

fn hear(bytes: &[u8]) {
    if let Some(again) = heard::<Call<'_>>(bytes) {
        let call: Call<'_> = postcard::from_bytes(bytes).unwrap();
        assert_eq!(postcard::from_bytes::<Call<'_>>(&again), Ok(call));
    }
    if let Some(again) = heard::<Control>(bytes) {
        let control: Control = postcard::from_bytes(bytes).unwrap();
        assert_eq!(postcard::from_bytes::<Control>(&again), Ok(control));
    }
    for heard in [heard::<Answer>, heard::<ControlAnswer>, heard::<Welcome>, heard::<Inherited>] {
        let _ = heard(bytes);
    }
    let _ = entries(bytes).count();
}

proptest! {
    #[test]
    fn fuzz_any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        hear(&bytes);
    }

    #[test]
    fn fuzz_damaged_messages_are_messages_or_errors(
        which in 0..100usize,
        damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        cut in any::<usize>(),
    ) {
        let (calls, controls) = (calls(), controls());
        let mut bytes = match which % (calls.len() + controls.len()) {
            of if of < calls.len() => postcard::to_stdvec(&calls[of]).unwrap(),
            of => postcard::to_stdvec(&controls[of - calls.len()]).unwrap(),
        };
        for (at, byte) in damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(cut % (2 * bytes.len() + 1));
        hear(&bytes);
    }
}

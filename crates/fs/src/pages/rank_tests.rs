//! How urgently a file is written back, by who waits for it.

use crate::broken_tests::support::Disk;
use crate::bytes::Data;
use crate::{Credentials, MountOptions, OpenFlags};
use nvmed_io::caller::{self, Urgency};
use nvmed_units::Page;

#[test]
fn who_writes_a_file_back_is_as_urgent_as_who_waits_for_it() {
    let disk = Disk::new(16 << 20);
    disk.format();
    let files = disk.mount_with(MountOptions { urgent: true, ..MountOptions::default() }, 4 << 20);
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    let file = files.open(&files.root(), b"file", flags, 0o644, &Credentials::ROOT).unwrap();
    let (pages, inode) = (file.core.placed.pages(), &file.inode);
    for (byte, waits, all_are_urgent) in
        [(1, None, false), (2, Some(Urgency::Urgent), true), (3, Some(Urgency::Normal), false)]
    {
        file.pwrite(&[byte; 300_000], 0).unwrap();
        let quiet = inode.data.quiet();
        let wait = || drop(inode.data.io());
        std::thread::scope(|scope| {
            waits.map(|urgency| scope.spawn(move || caller::with(urgency, wait)));
            while waits == Some(Urgency::Urgent) && !inode.data.is_wanted() {
                std::thread::yield_now();
            }
            let before = disk.counts();
            pages.write_back_some(&quiet, inode, Page::ALL, 1000, Data::Cached).unwrap();
            let now = disk.counts();
            let (urgent, all) = (now.urgent - before.urgent, now.writes - before.writes);
            assert!(all > 0, "there is data to be written");
            assert_eq!(urgent, if all_are_urgent { all } else { 0 }, "while {waits:?} waits, of {all}");
            drop(quiet);
        });
        assert!(!inode.data.is_wanted(), "who has got it waits no more");
    }
}

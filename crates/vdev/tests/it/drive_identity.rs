//! What a drive of dies says of itself: its geometry, the sizes that suit it, and what of it is used.

use crate::host::{DATA, Host};
use nvmed_flash::{ArrayProfile, BlockKind, Medium, Profile, TranslationProfile};
use nvmed_nvme::{DriveIdentity, IdentifyController, IdentifyNamespace, SubmissionEntry};
use nvmed_sys::Pages;
use nvmed_vdev::{Clock, ControllerConfig, DriveName, Media};
use zerocopy::{FromBytes, IntoBytes};

const BYTES: u64 = 8 << 20;

/// Six dies of two planes; programs of two pages of 8 KiB, and of one of 4 KiB.
fn drive(is_in_place: bool) -> ArrayProfile {
    let small = BlockKind { per_plane: 24, ..BlockKind::default() };
    let large = BlockKind { per_plane: 20, page_bytes: 8192, pages_per_program: 2, ..BlockKind::default() };
    ArrayProfile {
        capacity_bytes: BYTES,
        channels: 3,
        chips: 2,
        planes: 2,
        blocks: if is_in_place { vec![large] } else { vec![small, large] },
        translation: (!is_in_place).then(TranslationProfile::default),
        ..ArrayProfile::default()
    }
}

fn host(array: Option<ArrayProfile>, lba_bytes: u32) -> Host {
    let drive = array.map(|array| Profile { commands: 4, medium: Medium::Array(Box::new(array)) });
    let drive_name = DriveName { profile: "six".to_owned(), what: "é".repeat(100) };
    let config = ControllerConfig {
        lba_bytes,
        drive,
        drive_name,
        model: "six diés".to_owned(),
        clock: Clock::Virtual,
        ..ControllerConfig::default()
    };
    Host::new(config, Media::ram(BYTES, Pages::Base).unwrap())
}

fn identify<T: FromBytes + IntoBytes>(host: &mut Host, nsid: u32, cns: u32) -> T {
    let entry = SubmissionEntry {
        opcode: 6,
        nsid,
        cdw10: cns,
        prp1: host.address(DATA + 4096).0,
        ..Default::default()
    };
    assert!(host.admin(entry).status().is_success());
    let mut page = T::new_zeroed();
    host.memory.read(DATA + 4096, page.as_mut_bytes());
    page
}

#[test]
fn a_drive_is_known_by_its_controller() {
    let page: IdentifyController = identify(&mut host(Some(drive(false)), 512), 0, 1);
    assert_eq!(page.mn[..10], *b"six di?s  ");
    assert_eq!((page.tnvmcap, page.unvmcap), ([BYTES, 0], [0, 0]));
    let said = DriveIdentity::of(&page.vendor).unwrap();
    assert_eq!(said.profile[..4], *b"six\0");
    let cut = "é".repeat(63) + "\0\0";
    assert_eq!(said.what, cut.as_bytes(), "cut between characters, with a NUL");
    assert_eq!((said.channels, said.chips, said.dies, said.planes), (3, 2, 1, 2));
    assert_eq!((said.in_place, said.kept, said.buffer_bytes), (0, 0, 4 << 20));
    let large = said.blocks[1];
    assert_eq!((large.per_plane, large.page_bytes, large.pages_per_program), (20, 8192, 2));
    assert_eq!(said.blocks[2].page_bytes, 0);
    let page: IdentifyController = identify(&mut host(None, 512), 0, 1);
    assert!(DriveIdentity::of(&page.vendor).is_none());
    assert_eq!(page.tnvmcap, [BYTES, 0]);
}

#[test]
fn the_sizes_that_suit_a_drive_follow_from_its_geometry() {
    let said = |array, lba_bytes| {
        let page: IdentifyNamespace = identify(&mut host(array, lba_bytes), 1, 0);
        assert_eq!((page.noiob, page.npwa, page.npda, page.nvmcap), (0, page.npwg, page.npdg, [BYTES, 0]));
        let reports = page.nsfeat & IdentifyNamespace::NSFEAT_OPTPERF != 0;
        reports.then(|| [page.npwg, page.npdg, page.nows].map(|blocks| (u32::from(blocks) + 1) * lba_bytes))
    };
    // Units of the map; a program of 16 KiB on both planes of a die.
    assert_eq!(said(Some(drive(false)), 512), Some([4096, 4096, 32768]));
    assert_eq!(said(Some(drive(false)), 4096), Some([4096, 4096, 32768]));
    // Pages, each programmed by itself.
    assert_eq!(said(Some(drive(true)), 512), Some([8192, 4096, 16384]));
    assert_eq!(said(None, 512), None);
}

#[test]
fn what_is_used_is_what_the_drive_maps() {
    let mut host = host(Some(drive(false)), 512);
    let used = |host: &mut Host, opcode, lba, blocks| {
        if opcode > 0 {
            assert!(host.io(host.data(opcode, lba, blocks, 512 * blocks as usize)).status().is_success());
        }
        let page: IdentifyNamespace = identify(host, 1, 0);
        assert_eq!((page.nsze, page.ncap), (BYTES / 512, BYTES / 512));
        page.nuse
    };
    assert_eq!(used(&mut host, 0, 0, 0), 0);
    assert_eq!(used(&mut host, 1, 0, 64), 64);
    assert_eq!(used(&mut host, 1, 0, 64), 64, "written again");
    assert_eq!(used(&mut host, 1, 71, 2), 80, "of two units a part");
    let flush = SubmissionEntry { nsid: 1, ..Default::default() };
    assert!(host.io(flush).status().is_success());
    assert_eq!(used(&mut host, 1, 0, 8), 80, "in flash, and in the buffer");
    assert_eq!(used(&mut host, 8, 0, 20), 64, "whole units are deallocated");
    let plain: IdentifyNamespace = identify(&mut self::host(Some(drive(true)), 512), 1, 0);
    assert_eq!(plain.nuse, BYTES / 512, "without a map all is");
}

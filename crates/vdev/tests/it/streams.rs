//! The streams directive, as a host meets it.

use crate::host::{DATA, Host};
use nvmed_dma::Transport;
use nvmed_nvme::{Status, SubmissionEntry, register};
use nvmed_sys::Pages;
use nvmed_vdev::{ControllerConfig, Media, StreamUse};

fn host() -> Host {
    Host::new(ControllerConfig::default(), Media::ram(1 << 20, Pages::Base).unwrap())
}

/// Directive Send.
fn send(cdw11: u32, cdw12: u32) -> SubmissionEntry {
    SubmissionEntry { opcode: 0x19, nsid: 1, cdw11, cdw12, ..Default::default() }
}

/// Directive Receive, of 64 bytes.
fn receive(host: &Host, cdw11: u32, cdw12: u32) -> SubmissionEntry {
    let prp1 = host.address(DATA).0;
    SubmissionEntry { opcode: 0x1a, nsid: 1, cdw10: 15, cdw11, cdw12, prp1, ..Default::default() }
}

fn answer(host: &mut Host, cdw11: u32) -> [u8; 64] {
    host.memory.fill(DATA, 4096, 0xee);
    assert!(host.admin(receive(host, cdw11, 0)).status().is_success());
    let mut bytes = [0; 64];
    host.memory.read(DATA, &mut bytes);
    bytes
}

fn write(host: &mut Host, stream: u32) -> Status {
    let entry = host.data(1, 0, 8, 4096);
    host.io(SubmissionEntry { cdw12: entry.cdw12 | 1 << 20, cdw13: stream << 16, ..entry }).status()
}

const ENABLE: SubmissionEntry = SubmissionEntry {
    opcode: 0x19,
    nsid: 1,
    cdw11: 1,
    cdw12: 1 | 1 << 8,
    flags: 0,
    cid: 0,
    cdw2: 0,
    cdw3: 0,
    mptr: 0,
    prp1: 0,
    prp2: 0,
    cdw10: 0,
    cdw13: 0,
    cdw14: 0,
    cdw15: 0,
};

#[test]
fn streams_are_enabled_written_listed_and_released() {
    let mut host = host();
    let parameters = answer(&mut host, 1);
    assert_eq!((parameters[0], parameters[32]), (3, 1), "supported, and not enabled");
    assert!(write(&mut host, 5).is(Status::INVALID_FIELD), "not before they are enabled");
    assert!(host.admin(ENABLE).status().is_success());
    assert_eq!(answer(&mut host, 1)[32], 3);
    for stream in [5, 9, 5, 0] {
        assert!(write(&mut host, stream).is_success());
    }
    let streams = answer(&mut host, 1 << 8 | 1);
    assert_eq!((streams[0], streams[2], streams[4], streams[16], streams[24]), (64, 64, 2, 8, 2));
    assert_eq!(answer(&mut host, 1 << 8 | 2)[..6], [2, 0, 5, 0, 9, 0], "the open ones");
    assert!(host.admin(send(1 << 8 | 1 | 5 << 16, 0)).status().is_success());
    assert_eq!(answer(&mut host, 1 << 8 | 2)[..4], [1, 0, 9, 0]);
    assert_eq!(host.admin(receive(&host, 1 << 8 | 3, 100)).result, 64, "as many as there are");
    let used = host.device.controller().streams();
    let of = |writes| StreamUse { writes, bytes: writes * 4096 };
    assert_eq!(used, [(5, of(2)), (9, of(1))]);
}

#[test]
fn a_reset_disables_streams_and_what_is_not_there_is_refused() {
    let mut host = host();
    assert!(host.admin(ENABLE).status().is_success());
    for entry in [
        send(1, 1 | 2 << 8),
        send(1, 1),
        send(7, 0),
        send(1 << 8 | 9, 0),
        send(2 << 8 | 1, 0),
        receive(&host, 2, 0),
        receive(&host, 1 << 8, 0),
        SubmissionEntry { cdw10: u32::MAX, ..receive(&host, 1, 0) },
    ] {
        assert!(host.admin(entry).status().is(Status::INVALID_FIELD), "{entry:?}");
    }
    assert!(host.admin(SubmissionEntry { nsid: 2, ..ENABLE }).status().is(Status::INVALID_NAMESPACE));
    let entry = host.data(1, 0, 8, 4096);
    let other = SubmissionEntry { cdw12: entry.cdw12 | 2 << 20, ..entry };
    assert!(host.io(other).status().is(Status::INVALID_FIELD), "no such directive");
    for stream in 1..=1100 {
        assert!(write(&mut host, stream).is_success());
    }
    assert_eq!(answer(&mut host, 1 << 8 | 2)[0], 64, "the oldest are closed");
    host.device.write32(register::CC, 0);
    host.enable();
    host.create_io();
    assert_eq!(answer(&mut host, 1)[32], 1);
    assert!(write(&mut host, 5).is(Status::INVALID_FIELD));
    assert!(host.device.controller().streams().len() >= 1000);
}

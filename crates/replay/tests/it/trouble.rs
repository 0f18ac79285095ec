//! Devices that fail, go away, or say nothing.

use crate::device::{Device, Wrong};
use nvmed_replay::{ReplayError, ReplayOptions};
use nvmed_trace::{Op, Request};

fn trace(count: u64) -> Vec<Request> {
    (0..count).map(|number| Request::new(Op::Read, number * 4096, 4096, number * 30_000)).collect()
}

#[test]
fn a_request_that_fails_is_counted_and_the_others_go_on() {
    let device = Device::new("fail:status=0x281,lba=80..88", Wrong::Nothing);
    let (done, replayed, error) = device.replay(&trace(100), ReplayOptions::default());
    assert!(error.is_none(), "{error:?}");
    assert_eq!((done.len(), replayed.completed, replayed.failed, replayed.lost), (100, 99, 1, 0));
    assert_eq!((done[10].finish_ns, done[11].finish_ns.is_some()), (None, true));
    assert_eq!(replayed.first_failure.unwrap().lba.0, 80);
    assert_eq!(replayed.response.count(), 99);
}

#[test]
fn a_device_that_is_gone_or_silent_ends_the_replay() {
    for fault in ["die:nth=50", "drop:nth=50", "fatal:nth=50"] {
        let device = Device::new(fault, Wrong::Nothing);
        let (done, replayed, error) = device.replay(&trace(100), ReplayOptions::default());
        assert!(matches!(error, Some(ReplayError::Fault { .. })), "{fault}: {error:?}");
        assert!(replayed.lost > 0, "{fault}: {replayed:?}");
        // What is done is done, and nothing behind what is lost counts as such.
        assert!(done.len() < 50 && done.iter().all(|one| one.finish_ns.is_some()), "{fault}: {}", done.len());
        assert!(replayed.completed + replayed.lost <= 100, "{fault}: {replayed:?}");
    }
}

#[test]
fn a_device_that_is_gone_before_is_an_error() {
    let device = Device::new("die:nth=1", Wrong::Nothing);
    let (.., error) = device.replay(&trace(1), ReplayOptions::default());
    assert!(matches!(error, Some(ReplayError::Fault { .. })), "{error:?}");
    let (.., error) = device.replay(&trace(1), ReplayOptions::default());
    assert!(matches!(error, Some(ReplayError::Engine(_))), "{error:?}");
}

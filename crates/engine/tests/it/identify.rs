//! Controllers that say of themselves what cannot be: an engine that holds to its own word, or an error.

use crate::puppet::{FIRST, Puppet, Vices, good_controller, good_namespace};
use nvmed_dma::Transport;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{
    Engine, InvalidRequest, Operation, QueueOptions, QueuePair, Request, Segment, SubmitError,
};
use nvmed_units::{DeviceAddress, Lba};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::IntoBytes;

const PAGE_BYTES: usize = 4096;
/// Admin commands that opening may take: two of Identify, features, directive, arbitration, memory, event.
const ASKED_MAX: usize = 9;

/// What a controller says: the pages of controller and namespace, and the result of every other command.
#[derive(Clone, Debug)]
struct Words {
    controller: Vec<u8>,
    namespace: Vec<u8>,
    result: u32,
}

/// A page of noise, or `good` with a few bytes changed, most of them within `fields`, which the driver reads.
fn page(good: Vec<u8>, fields: &'static [usize]) -> impl Strategy<Value = Vec<u8>> {
    let at = prop_oneof![4 => prop::sample::select(fields), 1 => 0..PAGE_BYTES];
    let byte = prop_oneof![3 => any::<u8>(), 1 => 0u8..16, 1 => Just(0xff)];
    let changed = prop::collection::vec((at, byte), 0..6).prop_map(move |changes| {
        let mut page = good.clone();
        changes.into_iter().for_each(|(at, byte)| page[at] = byte);
        page
    });
    prop_oneof![1 => prop::collection::vec(any::<u8>(), PAGE_BYTES), 7 => changed]
}

fn words() -> impl Strategy<Value = Words> {
    // SN, MN, FR, MDTS, OACS, HMPRE, HMMIN, HMMINDS, HMMAXD, SQES, CQES, ONCS, VWC (Base 2.0, figure 276).
    const CONTROLLER: &[usize] = &[
        4, 23, 24, 63, 64, 71, 77, 256, 257, 272, 273, 275, 276, 279, 332, 335, 336, 512, 513, 520, 521, 525,
    ];
    // NSZE, NLBAF, FLBAS, DLFEAT, the first two formats (NVM Command Set 1.0, figure 97).
    const NAMESPACE: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7, 25, 26, 33, 128, 129, 130, 131, 132, 133, 134, 135];
    let controller = page(good_controller().as_bytes().to_vec(), CONTROLLER);
    let namespace = page(good_namespace().as_bytes().to_vec(), NAMESPACE);
    (controller, namespace, any::<u32>()).prop_map(|(controller, namespace, result)| Words {
        controller,
        namespace,
        result,
    })
}

/// What the engine says of the device can be computed with.
fn sane(engine: &dyn Engine) {
    let geometry = engine.geometry();
    assert!(
        geometry.lba_bytes.is_power_of_two() && (512..=4096).contains(&geometry.lba_bytes),
        "{geometry:?}"
    );
    assert!(geometry.lba_count > 0, "{geometry:?}");
    assert!(geometry.lba_count.checked_mul(u64::from(geometry.lba_bytes)).is_some(), "{geometry:?}");
    let transfer = geometry.transfer_bytes_max;
    assert!(
        (4096..=1 << 20).contains(&transfer) && transfer.is_multiple_of(geometry.lba_bytes),
        "{geometry:?}"
    );
    assert!((1..=64).contains(&geometry.queues_max) && geometry.queue_depth_max > 0, "{geometry:?}");
    for shown in [&geometry.serial, &geometry.model, &geometry.firmware] {
        assert!(shown.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{shown:?}");
    }
}

/// The last block and no further can be asked for; what the device lacks is refused.
fn ask(puppet: &Puppet, engine: &dyn Engine, pair: &mut dyn QueuePair) {
    let end = engine.lba_count();
    let data = [Segment { address: DeviceAddress(1 << 40), bytes: engine.geometry().lba_bytes }];
    let read = |lba| Request {
        operation: Operation::Read,
        lba: Lba(lba),
        blocks: 1,
        data: &data,
        tag: 1,
        stream: 3,
    };
    if end > 0 {
        pair.submit(&read(end - 1)).expect("the last block");
    }
    let said = pair.submit(&read(end));
    assert!(
        matches!(said, Err(SubmitError::Invalid { reason: InvalidRequest::OutOfRange { .. }, .. })),
        "{said:?}"
    );
    for operation in [Operation::WriteZeroes { fua: true }, Operation::Discard] {
        let said = pair.submit(&Request { operation, data: &[], ..read(0) });
        let refused = [InvalidRequest::Unsupported, InvalidRequest::OutOfRange { blocks: 1, lba_count: 0 }];
        assert!(match said {
            Ok(()) => true,
            Err(SubmitError::Invalid { reason, .. }) => refused.contains(&reason),
            Err(_) => false,
        });
    }
    pair.ring();
    let outstanding = pair.outstanding();
    assert_eq!(puppet.serve(FIRST), outstanding);
    let mut done = Vec::with_capacity(outstanding);
    assert_eq!(pair.poll(&mut done), outstanding);
    assert!(done.iter().all(|one| one.result.is_ok()));
}

fn engine_on(puppet: &Arc<Puppet>) -> Option<NvmeEngine> {
    let transport: Arc<dyn Transport> = Arc::<Puppet>::clone(puppet);
    match NvmeEngine::open(transport) {
        Ok(engine) => Some(engine),
        Err(error) => {
            assert!(error.to_string().lines().count() == 1, "{error}");
            None
        }
    }
}

/// Opens a controller with the first words, changes its mind to the second, tells of that, and resets it.
fn use_it(first: &Words, second: &Words) -> bool {
    let puppet = Puppet::new(Vices::default());
    puppet.pretend(&first.controller, &first.namespace, first.result);
    let engine = engine_on(&puppet);
    assert!(puppet.asked() <= ASKED_MAX, "{} admin commands", puppet.asked());
    assert_eq!(puppet.waited_us.load(Ordering::Relaxed), 0, "all was answered at once");
    let Some(engine) = engine else { return false };
    sane(&engine);
    let mut pair = engine.queue(QueueOptions::depth(4)).expect("a queue");
    ask(&puppet, &engine, &mut *pair);
    puppet.pretend(&second.controller, &second.namespace, second.result);
    puppet.resize(0);
    while engine.take_event().expect("the event was told well").is_some() {}
    ask(&puppet, &engine, &mut *pair);
    let before = puppet.asked();
    let again = engine.reset();
    assert!(puppet.asked() - before <= ASKED_MAX, "{} admin commands", puppet.asked() - before);
    sane(&engine);
    drop(pair);
    if again.is_ok() {
        let mut pair = engine.queue(QueueOptions::depth(4)).expect("a queue after the reset");
        ask(&puppet, &engine, &mut *pair);
    }
    true
}

#[test]
fn fuzz_any_identify_page_is_answered() {
    let mut runner = TestRunner::new(Config::with_source_file(file!()));
    let (taken, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    let tested = runner.run(&(words(), words()), |(first, second)| {
        let count = if use_it(&first, &second) { &taken } else { &refused };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    tested.unwrap();
    let (taken, refused) = (taken.into_inner(), refused.into_inner());
    assert!(taken > 0 && refused > 0, "{taken} were taken and {refused} refused: one side saw nothing");
}

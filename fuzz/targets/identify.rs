//! What a controller says of itself, to the driver: Identify pages with changed bytes, and results of other commands.
#![no_main]

#[path = "../../crates/engine/tests/it/puppet/mod.rs"]
mod puppet;

use libfuzzer_sys::fuzz_target;
use nvmed_dma::Transport;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{Engine, QueueOptions};
use puppet::{Puppet, Vices, good_controller, good_namespace};
use std::sync::Arc;
use zerocopy::IntoBytes;

const PAGE_BYTES: usize = 4096;

// Four bytes of result, then changes: an offset of 13 bits into both pages, and a byte.
fuzz_target!(|input: &[u8]| {
    let Some((result, changes)) = input.split_first_chunk() else { return };
    let mut pages = [good_controller().as_bytes(), good_namespace().as_bytes()].concat();
    for &[low, high, byte] in changes.as_chunks().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % pages.len();
        pages[at] = byte;
    }
    let (controller, namespace) = pages.split_at(PAGE_BYTES);
    let puppet = Puppet::new(Vices::default());
    puppet.pretend(controller, namespace, u32::from_le_bytes(*result));
    let Ok(engine) = NvmeEngine::open(Arc::<Puppet>::clone(&puppet) as Arc<dyn Transport>) else { return };
    let geometry = engine.geometry();
    assert!(geometry.lba_count.checked_mul(u64::from(geometry.lba_bytes)).is_some(), "{geometry:?}");
    engine.queue(QueueOptions::depth(geometry.queue_depth_max)).expect("a queue of the depth that it says");
});

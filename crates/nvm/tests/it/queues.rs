//! The engine view: what is particular to it; what every engine does is checked by the conformance suite.

use crate::ram;
use nvmed_engine::{Engine, Operation, QueueOptions, Request, Segment};
use nvmed_nvm::NvmEngine;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use std::sync::Arc;

/// A request whose memory is not all mapped does nothing, also not its first part.
#[test]
fn memory_that_is_not_there_is_found_before_anything_is_stored() {
    let memory = ram(1 << 20);
    let engine = NvmEngine::over(Arc::clone(&memory), 512);
    let page = Arc::new(Mapping::anonymous(4096, Pages::Base).expect("memory"));
    page.fill(0, 4096, 7);
    let address = engine.map(page).expect("an address");
    let mut pair = engine.queue(QueueOptions::depth(1)).expect("a queue");
    let data = [Segment { address, bytes: 4096 }, Segment { address: address.plus(4096), bytes: 4096 }];
    let operation = Operation::Write { fua: false };
    let request = Request { operation, lba: Lba(8), blocks: 16, data: &data, tag: 1, stream: 0 };
    let mut out = Vec::with_capacity(1);
    pair.execute(&request, &mut out).expect("a slot");
    assert!(out[0].result.is_err());
    let mut bytes = [1; 4096];
    memory.read(4096, &mut bytes).expect("bytes");
    assert!(bytes == [0; 4096]);
}

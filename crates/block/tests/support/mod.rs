//! A disk on a virtual device.
#![allow(dead_code, reason = "each test uses its part")]

use nvmed_block::{Disk, DiskOptions};
use nvmed_engine::nvme::NvmeEngine;
use nvmed_io::{Device, DeviceOptions};
use nvmed_sys::Pages;
use nvmed_vdev::{Clock, Controller, ControllerConfig, FaultPlan, InProcess, Media};
use std::sync::Arc;

pub fn device(bytes: u64, lba_bytes: u32, clock: Clock, faults: FaultPlan) -> Arc<Device> {
    // 64 KiB a command, so that calls of the tests become several.
    let config = ControllerConfig { clock, lba_bytes, mdts: 4, faults, ..ControllerConfig::default() };
    let controller = Controller::new(config, Media::ram(bytes, Pages::Base).unwrap());
    let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
    Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 16 }).unwrap()
}

pub fn disk(bytes: u64, lba_bytes: u32, clock: Clock, options: DiskOptions) -> Arc<Disk> {
    Disk::new(device(bytes, lba_bytes, clock, FaultPlan::default()), options)
}

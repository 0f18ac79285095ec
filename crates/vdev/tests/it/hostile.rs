//! No host brings the controller down, whatever it writes; after a reset it works.

use crate::host::{DATA, Host, MEMORY};
use nvmed_dma::Transport;
use nvmed_flash::{FixedProfile, Profile};
use nvmed_nvme::{SubmissionEntry, register};
use nvmed_sys::Pages;
use nvmed_units::QueueId;
use nvmed_vdev::{Clock, ControllerConfig, FaultPlan, FileOptions, Flush, Media};
use proptest::prelude::*;
use zerocopy::FromBytes;

const BYTES: u64 = 1 << 20;

/// Faults on top; not those that a reset does not cure.
const RULES: [&str; 9] = [
    "drop:every=3",
    "drop:executed,op=read",
    "drop:queue=admin,nth=4",
    "delay:us=3",
    "duplicate:every=2",
    "corrupt:phase,times=3",
    "corrupt:head",
    "stop:nth=9",
    "fatal:nth=5,queue=admin",
];

#[derive(Clone, Debug)]
enum Step {
    Property(u32, u32),
    Doorbell(u16, bool, u32),
    Entry(usize, Box<[u8; 64]>),
    /// Words at random where PRP lists and queues lie.
    Scribble(usize, Vec<u64>),
    Reset,
    /// The namespace gets this many pages.
    Resize(u64),
}

/// Host memory is the first mapping: an address in it, near its end, or anything.
fn address() -> impl Strategy<Value = u64> {
    let base = 1u64 << 40;
    prop_oneof![
        6 => (0..MEMORY as u64 / 4096).prop_map(move |page| base + page * 4096),
        2 => (0..MEMORY as u64 + 8192).prop_map(move |at| base + at),
        1 => (MEMORY as u64 - 64..MEMORY as u64 + 64).prop_map(move |at| base + at),
        1 => any::<u64>(),
    ]
}

fn word() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..16, 1 => (0u32..16).prop_map(|low| 1 << 16 | low), 1 => any::<u32>()]
}

fn entry() -> impl Strategy<Value = Step> {
    // Directive Send and Receive besides the low opcodes.
    let opcode = prop_oneof![12 => 0u8..16, 1 => 0x19u8..0x1b];
    let head = (0usize..2, opcode, prop_oneof![8 => Just(0u8), 1 => any::<u8>()], any::<u16>(), word());
    let words = prop::collection::vec(word(), 6);
    (head, address(), address(), words).prop_map(|((queue, opcode, flags, cid, nsid), prp1, prp2, words)| {
        let mut entry = SubmissionEntry { opcode, flags, cid, nsid, prp1, prp2, ..Default::default() };
        (entry.cdw10, entry.cdw11, entry.cdw12) = (words[0], words[1], words[2]);
        (entry.cdw13, entry.cdw14, entry.cdw15) = (words[3], words[4], words[5]);
        Step::Entry(queue, Box::new(zerocopy::transmute!(entry)))
    })
}

fn step() -> impl Strategy<Value = Step> {
    let properties = vec![0u32, 0x0c, 0x10, 0x14, 0x1c, 0x20, 0x24, 0x28, 0x2c, 0x30, 0x34, 0x777, 0x1001];
    let scribble = (0usize..32, prop::collection::vec(address(), 1..64));
    prop_oneof![
        2 => (prop::sample::select(properties), any::<u32>()).prop_map(|(at, value)| Step::Property(at, value)),
        1 => (prop::sample::select(vec![0x28u32, 0x30]), address())
            .prop_map(|(at, value)| Step::Property(at, value as u32)),
        3 => (0u16..70, any::<bool>(), prop_oneof![0u32..20, any::<u32>()])
            .prop_map(|(queue, head, value)| Step::Doorbell(queue, head, value)),
        12 => entry(),
        2 => scribble.prop_map(|(page, words)| Step::Scribble(page, words)),
        1 => Just(Step::Reset),
        1 => (1u64..600).prop_map(Step::Resize),
    ]
}

fn medium(kind: usize) -> Media {
    match kind {
        0 => Media::ram_with_room(BYTES, 2 * BYTES, Pages::Base).unwrap(),
        1 => Media::null(BYTES).unwrap(),
        2 => Media::volatile(Media::ram(BYTES, Pages::Base).unwrap()),
        _ => {
            let path = std::env::temp_dir().join(format!("nvmed-hostile-{}", std::process::id()));
            let options =
                FileOptions { path: path.clone(), size: Some(BYTES), flush: Flush::Host, lock: false };
            let media = Media::file(options).unwrap();
            std::fs::remove_file(path).unwrap();
            media
        }
    }
}

/// None, one that takes any number of commands, and one that takes two.
fn drives() -> Vec<Option<Profile>> {
    let fixed = Profile::fixed(FixedProfile { read_ns: 3000, ..FixedProfile::default() });
    vec![None, None, Some(fixed.clone()), Some(Profile { commands: 2, ..fixed })]
}

fn apply(host: &mut Host, step: Step, sound: bool) {
    match step {
        Step::Property(at, value) => host.device.write32(at, value),
        Step::Doorbell(queue, head, value) => {
            let queue = QueueId(queue);
            let at = if head { register::cq_doorbell(queue, 0) } else { register::sq_doorbell(queue, 0) };
            host.device.write32(at, value);
        }
        Step::Entry(queue, bytes) => {
            host.place(queue, SubmissionEntry::read_from_bytes(&bytes[..]).unwrap());
            host.ring(queue);
            host.reap(queue);
        }
        Step::Scribble(page, words) => {
            for (index, word) in words.into_iter().enumerate() {
                host.memory.write(DATA + page * 4096 + 8 * index, &word.to_le_bytes());
            }
        }
        Step::Reset if sound => restart(host),
        Step::Resize(pages) => {
            // More than there is room for is refused.
            let _ = host.device.controller().resize(pages * 4096);
        }
        // Faults may hold the commands that make queues.
        Step::Reset => {
            host.device.write32(register::CC, 0);
            host.enable();
        }
    }
}

fn restart(host: &mut Host) {
    host.device.write32(register::CC, 0);
    // Weighted round robin.
    host.enable_with(1 << 11);
    host.create_io();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn fuzz_a_hostile_host_is_survived(
        steps in prop::collection::vec(step(), 1..80),
        kind in 0usize..4,
        clock in prop::sample::select(vec![Clock::Inline, Clock::Inline, Clock::Virtual, Clock::Threaded]),
        rules in prop::collection::vec(prop::sample::select(RULES.to_vec()), 0..4),
        drive in prop::sample::select(drives()),
        large in any::<bool>(),
    ) {
        let faults = FaultPlan::parse(&rules.join(";")).unwrap();
        let lba_bytes = if large { 4096 } else { 512 };
        let plan = faults.clone();
        let config = ControllerConfig { clock, lba_bytes, drive, faults: plan, ..ControllerConfig::default() };
        let mut host = Host::new(config, medium(kind));
        for step in steps {
            apply(&mut host, step, rules.is_empty());
        }
        faults.clear();
        restart(&mut host);
        prop_assert!(host.io(host.data(2, 0, 1, 4096)).status().is_success());
    }
}

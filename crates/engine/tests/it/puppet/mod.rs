//! A controller on strings: it brings itself up as a good one does, and then completes I/O commands
//! exactly as a test says, well or badly.
#![allow(dead_code, reason = "each test binary uses its own part")]

use nvmed_dma::{AddressSpace, DeviceAddress, MapError, Transport, Waited};
use nvmed_engine::{Completion, Operation, QueuePair, Request, Segment};
use nvmed_nvme::{
    AdminOpcode, AsyncEvent, CompletionEntry, DriveIdentity, DsmRange, FeatureId, HmbIoControl,
    HmbIoMetadata, HmbIoPlaces, HmbIoSlots, HostMemoryDescriptor, HostMemoryPlace, IdentifyController,
    IdentifyNamespace, LbaFormat, Status, SubmissionEntry, register,
};
use nvmed_sys::Mapping;
use nvmed_units::Lba;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Blocks of the namespace, of 512 bytes.
pub const LBAS: u64 = 1 << 20;
/// The queue that the first `queue()` call makes.
pub const FIRST: u32 = 1;
/// The memory of a request of one page.
pub const PAGE: [Segment; 1] = [Segment { address: DeviceAddress(1 << 40), bytes: 4096 }];

/// A read of the page with the number `tag`.
pub fn read(tag: u64) -> Request<'static> {
    Request { operation: Operation::Read, lba: Lba(8 * tag), blocks: 8, data: &PAGE, tag, stream: 0 }
}

/// What the queue pair has completed since it was last asked.
pub fn polled(pair: &mut dyn QueuePair) -> Vec<Completion> {
    let mut out = Vec::with_capacity(64);
    pair.poll(&mut out);
    out
}

/// What a puppet does wrong from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vices {
    /// CSTS.RDY never comes.
    pub never_ready: bool,
    /// CSTS.CFS comes in its place.
    pub fails_to_enable: bool,
    /// Admin commands are never completed.
    pub mute: bool,
    /// The namespace has no blocks.
    pub no_namespace: bool,
    /// Its blocks carry metadata.
    pub metadata: bool,
    /// Has an event to tell whenever it is asked.
    pub chatty: bool,
    /// Disabled once, it does not come back.
    pub one_life: bool,
    /// The command set that its namespace is of (CSI), on a controller that knows several.
    pub command_set: Option<u8>,
    /// Interrupt vectors; 0 is as 1.
    pub vectors: u16,
    /// Slots of HMB-I/O that it offers, which is no vice, with a control block of another version if it is told so.
    pub slots: u16,
    pub strange_block: bool,
    /// Its MDTS, where it offers slots.
    pub mdts: u8,
    /// What it grants, whatever it was asked for.
    pub grants: Option<(u16, u16)>,
}

/// What Identify says of a controller that can be driven.
pub fn good_controller() -> IdentifyController {
    let mut page = IdentifyController::new_zeroed();
    (page.sqes, page.cqes, page.mdts, page.oncs, page.vwc) = (0x66, 0x44, 2, 0xffff, 1);
    page.sn = *b"P-1                 ";
    page
}

/// What it says of a namespace of [`LBAS`] blocks.
pub fn good_namespace() -> IdentifyNamespace {
    let mut page = IdentifyNamespace::new_zeroed();
    page.nsze = LBAS;
    page.lbaf[0] = LbaFormat { ms: 0, lbads: 9, rp: 0 };
    page
}

#[derive(Clone, Copy, Default)]
struct Queue {
    sq: u64,
    cq: u64,
    sq_entries: u32,
    cq_entries: u32,
    fetched: u32,
    posted: u32,
    phase: bool,
}

#[derive(Default)]
struct State {
    cc: u32,
    csts: u32,
    aqa: u32,
    bases: [u32; 4],
    queues: HashMap<u32, Queue>,
    tails: HashMap<u32, u32>,
    doorbells: Vec<(u32, u32)>,
    /// Admin commands, all of them.
    admin: Vec<SubmissionEntry>,
    /// Identifier of the Asynchronous Event Request, if there is one.
    event: Option<u16>,
    lbas: Option<u64>,
    /// What Identify answers in place of the truth, by CNS.
    pages: HashMap<u32, Vec<u8>>,
    /// Dword 0 of what completes well.
    result: Option<u32>,
    lives: u32,
    /// The opcode of the admin command that is not answered, and that command when it came.
    held: Option<(u8, Option<SubmissionEntry>)>,
    /// Whether whoever waits sleeps.
    asleep: bool,
    /// Where the memory is that it was lent, and the commands of slots that came.
    lent: u64,
    slot_commands: Vec<SubmissionEntry>,
}

pub struct Puppet {
    vices: Vices,
    space: AddressSpace,
    state: Mutex<State>,
    changed: Condvar,
    pub waited_us: AtomicU64,
}

impl Puppet {
    pub fn new(vices: Vices) -> Arc<Self> {
        let (space, state) = (AddressSpace::default(), Mutex::default());
        Arc::new(Self { vices, space, state, changed: Condvar::new(), waited_us: AtomicU64::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What CSTS reads as from now on.
    pub fn set_csts(&self, csts: u32) {
        self.state().csts = csts;
    }

    /// What Identify answers from now on, a page each, and what all other admin commands answer.
    pub fn pretend(&self, controller: &[u8], namespace: &[u8], result: u32) {
        let mut state = self.state();
        state.pages = HashMap::from([(1, controller.to_vec()), (0, namespace.to_vec())]);
        state.result = Some(result);
    }

    /// How many admin commands there were.
    pub fn asked(&self) -> usize {
        self.state().admin.len()
    }

    /// Admin commands of that opcode so far.
    pub fn admin(&self, opcode: AdminOpcode) -> Vec<SubmissionEntry> {
        let state = self.state();
        state.admin.iter().filter(|entry| entry.opcode == opcode as u8).copied().collect()
    }

    /// Where the metadata of a slot lies, and its data.
    fn places(slot: u16) -> HmbIoPlaces {
        let place = |offset| HostMemoryPlace { segment: 0, offset };
        let data = 2 * 4096 + u32::from(slot) * HmbIoSlots::PAGES_MAX as u32 * 4096;
        HmbIoPlaces { metadata: place(4096 + u32::from(slot) * 64), data: place(data) }
    }

    fn lent(&self, offset: u32, bytes: usize) -> (Arc<Mapping>, usize) {
        let address = DeviceAddress(self.state().lent + u64::from(offset));
        self.space.resolve(address, bytes).expect("it was lent memory")
    }

    /// Commands of slots that came since the last call, with their metadata.
    pub fn slot_commands(&self) -> Vec<(SubmissionEntry, HmbIoMetadata)> {
        let commands = core::mem::take(&mut self.state().slot_commands);
        let told = |command: SubmissionEntry| {
            let mut metadata = HmbIoMetadata::default();
            let (memory, at) = self.lent(Self::places(command.cdw10 as u16).metadata.offset, 64);
            memory.read(at, metadata.as_mut_bytes());
            (command, metadata)
        };
        commands.into_iter().map(told).collect()
    }

    /// The first `bytes` bytes of a slot.
    pub fn slot(&self, slot: u32, bytes: usize) -> (Arc<Mapping>, usize) {
        self.lent(Self::places(slot as u16).data.offset, bytes)
    }

    /// Completes a command of the admin queue.
    pub fn end(&self, cid: u16, status: Status) {
        self.post(0, self.good(0, cid, status));
    }

    /// Notes what a Set Features says of the host's memory, and answers it, if it is of that.
    fn set_host_memory(&self, command: &SubmissionEntry) -> Option<u32> {
        if command.cdw10 == FeatureId::HostMemoryBuffer as u32 && command.cdw11 & 1 != 0 {
            let list = DeviceAddress(u64::from(command.cdw13) | u64::from(command.cdw14) << 32);
            let (memory, at) = self.space.resolve(list, size_of::<HostMemoryDescriptor>()).unwrap();
            self.state().lent = u64::from(memory.u32(at).load(Ordering::Relaxed))
                | u64::from(memory.u32(at + 4).load(Ordering::Relaxed)) << 32;
            return Some(0);
        }
        if command.cdw10 != FeatureId::HmbIo as u32 {
            return None;
        }
        let asked = HmbIoSlots::of(command.cdw11);
        let mut granted = HmbIoSlots { slots: asked.slots.min(self.vices.slots), ..asked };
        if let (Some((slots, pages)), 1..) = (self.vices.grants, asked.slots) {
            granted = HmbIoSlots { slots, pages };
        }
        let mut block = HmbIoControl::new(granted);
        block.version += u32::from(self.vices.strange_block);
        (0..granted.slots).for_each(|slot| block.places[usize::from(slot)] = Self::places(slot));
        let (memory, at) = self.lent(0, size_of_val(&block));
        memory.write(at, block.as_bytes());
        Some(granted.dword())
    }

    /// Does not answer the next admin command of that opcode; whoever waits sleeps until [`Puppet::wake`].
    pub fn hold(&self, opcode: AdminOpcode) {
        let mut state = self.state();
        (state.held, state.asleep) = (Some((opcode as u8, None)), true);
    }

    /// Waits until the command that is held has come.
    pub fn until_held(&self) {
        let has_come = |state: &mut State| !matches!(state.held, Some((_, Some(_))));
        drop(self.changed.wait_while(self.state(), has_come).unwrap());
    }

    /// Answers the command that is held, and tells nobody.
    pub fn answer_held(&self) {
        let Some((_, Some(command))) = self.state().held.take() else { panic!("no command is held") };
        let result = self.execute_admin(&command);
        self.post(0, CompletionEntry { result, ..self.good(0, command.cid, Status::SUCCESS) });
    }

    /// Wakes whoever waits.
    pub fn wake(&self) {
        self.state().asleep = false;
        self.changed.notify_all();
    }

    /// Tells the host that the namespace has another size.
    pub fn resize(&self, lbas: u64) {
        self.state().lbas = Some(lbas);
        let cid = self.state().event.take().expect("the host waits for events");
        let result = AsyncEvent::NAMESPACE_CHANGED.dword0();
        self.post(0, CompletionEntry { result, ..self.good(0, cid, Status::SUCCESS) });
    }

    /// Doorbell writes so far: (offset, value).
    pub fn doorbells(&self) -> Vec<(u32, u32)> {
        self.state().doorbells.clone()
    }

    fn copy_in(&self, address: u64, bytes: &[u8]) {
        let (memory, offset) = self.space.resolve(DeviceAddress(address), bytes.len()).unwrap();
        memory.write(offset, bytes);
    }

    /// Commands that I/O queue `queue` was told of since the last call.
    pub fn fetch(&self, queue: u32) -> Vec<SubmissionEntry> {
        let mut state = self.state();
        let tail = *state.tails.get(&queue).unwrap_or(&0);
        let ring = state.queues.get_mut(&queue).expect("the queue was created");
        let mut found = vec![];
        while ring.fetched != tail {
            let mut bytes = [0; 64];
            let address = DeviceAddress(ring.sq + u64::from(ring.fetched) * 64);
            let (memory, offset) = self.space.resolve(address, 64).unwrap();
            memory.read(offset, &mut bytes);
            found.push(SubmissionEntry::read_from_bytes(&bytes).unwrap());
            ring.fetched = (ring.fetched + 1) % ring.sq_entries;
        }
        found
    }

    /// The range of a Dataset Management command: (blocks, first block).
    pub fn ranges(&self, command: &SubmissionEntry) -> Vec<(u32, u64)> {
        let count = (command.cdw10 as usize & 0xff) + 1;
        let (memory, offset) = self.space.resolve(DeviceAddress(command.prp1), count * 16).unwrap();
        let read = |at: usize| {
            let mut bytes = [0; 16];
            memory.read(offset + at * 16, &mut bytes);
            DsmRange::read_from_bytes(&bytes).unwrap()
        };
        (0..count).map(read).map(|range| (range.blocks, range.lba)).collect()
    }

    /// Posts a completion as it is, but for its phase, which is right.
    pub fn post(&self, queue: u32, entry: CompletionEntry) {
        let mut state = self.state();
        let ring = state.queues.get_mut(&queue).expect("the queue was created");
        let entry = entry.with_status(entry.status(), ring.phase);
        let address = ring.cq + u64::from(ring.posted) * 16;
        ring.posted += 1;
        if ring.posted == ring.cq_entries {
            (ring.posted, ring.phase) = (0, !ring.phase);
        }
        self.copy_in(address, entry.as_bytes());
    }

    /// A completion as a good controller gives it.
    pub fn good(&self, queue: u32, cid: u16, status: Status) -> CompletionEntry {
        let head = self.state().queues[&queue].fetched as u16;
        CompletionEntry { sq_head: head, sq_id: queue as u16, cid, ..Default::default() }
            .with_status(status, false)
    }

    /// Fetches, and completes all well.
    pub fn serve(&self, queue: u32) -> usize {
        let commands = self.fetch(queue);
        for command in &commands {
            self.post(queue, self.good(queue, command.cid, Status::SUCCESS));
        }
        commands.len()
    }

    fn enable(&self, cc: u32) {
        let mut state = self.state();
        state.cc = cc;
        if cc & 1 == 0 {
            state.csts = 0;
            state.queues.clear();
            state.tails.clear();
            state.event = None;
            return;
        }
        let wide = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let admin = Queue {
            sq: wide(state.bases[0], state.bases[1]),
            cq: wide(state.bases[2], state.bases[3]),
            sq_entries: (state.aqa & 0xfff) + 1,
            cq_entries: (state.aqa >> 16) + 1,
            phase: true,
            ..Queue::default()
        };
        state.queues.insert(0, admin);
        state.lives += 1;
        let dead = self.vices.never_ready || (self.vices.one_life && state.lives > 1);
        state.csts = match (dead, self.vices.fails_to_enable, cc >> 14 & 3) {
            (true, _, _) => 0,
            (_, true, _) => 2,
            (_, _, 0) => 1,
            _ => 1 | 2 << 2,
        };
    }

    fn serve_admin(&self) {
        for command in self.fetch(0) {
            self.state().admin.push(command);
            if command.opcode == AdminOpcode::AsyncEventRequest as u8 {
                self.state().event = Some(command.cid);
                if self.vices.chatty {
                    assert!(self.asked() < 1000, "the host listens without end");
                    self.resize(LBAS);
                }
                continue;
            }
            if command.opcode == AdminOpcode::HmbIo as u8 {
                self.state().slot_commands.push(command);
                continue;
            }
            if let Some((opcode, held @ None)) = &mut self.state().held
                && *opcode == command.opcode
            {
                *held = Some(command);
                self.changed.notify_all();
                continue;
            }
            let result = self.execute_admin(&command);
            if !self.vices.mute {
                let entry = CompletionEntry { result, ..self.good(0, command.cid, Status::SUCCESS) };
                self.post(0, entry);
            }
        }
    }

    fn execute_admin(&self, command: &SubmissionEntry) -> u32 {
        const IDENTIFY: u8 = AdminOpcode::Identify as u8;
        const SET_FEATURES: u8 = AdminOpcode::SetFeatures as u8;
        const CREATE_CQ: u8 = AdminOpcode::CreateCq as u8;
        const CREATE_SQ: u8 = AdminOpcode::CreateSq as u8;
        let (queue, entries) = (command.cdw10 & 0xffff, (command.cdw10 >> 16) + 1);
        let pretended = self.state().pages.get(&command.cdw10).cloned();
        match command.opcode {
            IDENTIFY if pretended.is_some() => self.copy_in(command.prp1, &pretended.unwrap_or_default()),
            IDENTIFY if command.cdw10 == 3 => {
                let csi = self.vices.command_set.expect("only controllers with several are asked");
                // An EUI-64, then the command set.
                self.copy_in(command.prp1, &[1, 8, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1, 4, 1, 0, 0, csi, 0]);
            }
            IDENTIFY if command.cdw10 == 1 => {
                let mut page = good_controller();
                if self.vices.slots > 0 {
                    (page.hmpre, page.mdts) = (1024, self.vices.mdts);
                    let mut drive = DriveIdentity::default();
                    (drive.hmb_io_version, drive.hmb_io_slots) =
                        (HmbIoControl::VERSION, self.vices.slots.into());
                    page.vendor.copy_from_slice(drive.as_bytes());
                }
                self.copy_in(command.prp1, page.as_bytes());
            }
            SET_FEATURES => {
                if let Some(result) = self.set_host_memory(command) {
                    return result;
                }
            }
            IDENTIFY => {
                let mut page = good_namespace();
                page.nsze = if self.vices.no_namespace { 0 } else { self.state().lbas.unwrap_or(LBAS) };
                page.lbaf[0].ms = u16::from(self.vices.metadata) * 8;
                self.copy_in(command.prp1, page.as_bytes());
            }
            CREATE_CQ => {
                let ring = Queue { cq: command.prp1, cq_entries: entries, phase: true, ..Queue::default() };
                self.state().queues.insert(queue, ring);
            }
            CREATE_SQ => {
                let mut state = self.state();
                let ring = state.queues.get_mut(&queue).expect("its completion queue comes first");
                (ring.sq, ring.sq_entries) = (command.prp1, entries);
            }
            _ => {}
        }
        self.state().result.unwrap_or(u32::MAX)
    }
}

impl Transport for Puppet {
    fn read32(&self, offset: u32) -> u32 {
        let state = self.state();
        match offset {
            // 1,024 entries; ready within 2 · 500 ms; the NVM command set.
            register::CAP => 1023 | 1 << 16 | 2 << 24,
            0x04 => 1 << 5 | u32::from(self.vices.command_set.is_some()) << 11,
            register::CC => state.cc,
            register::CSTS => state.csts,
            _ => 0,
        }
    }

    fn write32(&self, offset: u32, value: u32) {
        match offset {
            register::CC => return self.enable(value),
            register::AQA => self.state().aqa = value,
            register::ASQ..=0x34 => self.state().bases[(offset - register::ASQ) as usize / 4] = value,
            _ => {}
        }
        if offset < register::DOORBELLS {
            return;
        }
        let index = (offset - register::DOORBELLS) / 4;
        self.state().doorbells.push((offset, value));
        if index.is_multiple_of(2) {
            self.state().tails.insert(index / 2, value);
        }
        if index == 0 {
            self.serve_admin();
        }
    }

    fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError> {
        self.space.map(memory)
    }

    fn unmap(&self, address: DeviceAddress) {
        self.space.unmap(address);
    }

    fn vectors(&self) -> u16 {
        self.vices.vectors.max(1)
    }

    /// Time passes at once; while a command is held, a host that nobody wakes finds its device gone in the end.
    fn wait(&self, _vector: u16, _seen: u32, timeout_us: u32) -> Waited {
        const NEVER: Duration = Duration::from_secs(20);
        let slept = self.changed.wait_timeout_while(self.state(), NEVER, |state| state.asleep).unwrap();
        if slept.1.timed_out() {
            let mut state = slept.0;
            (state.asleep, state.csts) = (false, u32::MAX);
        }
        self.waited_us.fetch_add(u64::from(timeout_us), Ordering::Relaxed);
        Waited::Timeout
    }
}

//! The controller as the engine and its queues share it: bringing it up, resetting it, hearing from it.

use super::NvmeOptions;
use super::admin::{Admin, AdminTurn, Class};
use super::admin_ring::AdminRing;
use super::handshake;
use super::hmb_io::{HmbIo, Shown};
use super::host_memory::HostMemory;
use super::namespace::Namespace;
use super::ring::Shape;
use crate::{EngineError, Geometry, HostMemoryUse, QUEUE_DEPTH_MAX, QueueFault, QueueOptions};
use nvmed_dma::Transport;
use nvmed_nvme::register::{Capabilities, ControllerStatus};
use nvmed_nvme::{AsyncEvent, Cns, FeatureId, IdentifyController, IdentifyNamespace, command_set};
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_units::{DeviceAddress, NamespaceId, QueueId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use zerocopy::FromBytes;

/// I/O queue pairs asked for: more than the cores of most machines, and few enough to count.
const QUEUES_WANTED: u16 = 64;
/// The epoch of a controller that was shut down.
const CLOSED: u32 = u32::MAX;
/// Events kept for [`Controller::take_event`]; of more, the oldest are forgotten: each was acted on.
const EVENTS_KEPT: usize = 16;
/// Feature Arbitration (Base 2.0, 5.27.1.1): bursts of 8 commands; of the weighted classes, high may send 16
/// commands for 4 of medium and 1 of low.
const ARBITRATION: u32 = 3 | 3 << 16 | 15 << 24;
/// OACS bit 5: Directive Send and Receive.
const OACS_DIRECTIVES: u16 = 1 << 5;
/// CAP.CSS bit 6: namespaces may be of other command sets than NVM.
const SEVERAL_COMMAND_SETS: u64 = 1 << 6;

/// A controller behind a transport. Dropped after the last of its queues, it disables the controller, so that
/// the device lets go of all memory.
pub(super) struct Controller {
    pub(super) transport: Arc<dyn Transport>,
    admin: Admin,
    cap: Capabilities,
    nsid: NamespaceId,
    /// Counts resets, so that queues learn of them; [`CLOSED`] once shut down: queues take nothing more.
    epoch: AtomicU32,
    /// Logical blocks of the namespace now.
    lba_count: AtomicU64,
    /// Held while the controller is reset.
    resetting: Mutex<()>,
    /// Events that were acted on and not told.
    events: Mutex<VecDeque<AsyncEvent>>,
    /// Queue numbers not in use.
    free: Mutex<Vec<u16>>,
    /// Memory that the controller has been lent: given back after it was disabled, as the queues' is.
    host_memory: Mutex<Option<HostMemory>>,
    /// Slots of HMB-I/O to be asked for; 0 is none.
    slots_wanted: u16,
    /// The slots that the controller has granted, and in which epoch it was asked.
    hmb_io: Mutex<(u32, Option<Arc<HmbIo>>)>,
    /// Whether a queue pair uses the slots.
    are_slots_used: AtomicBool,
    /// What the device was shown, where slots are asked for.
    pub(super) shown: Shown,
}

impl Controller {
    /// Resets and enables the controller behind `transport`.
    ///
    /// # Errors
    /// It does not answer in its time, cannot be driven, or has no such namespace.
    pub(super) fn open(
        transport: Arc<dyn Transport>,
        NvmeOptions { nsid, hmb_io_slots }: NvmeOptions,
    ) -> Result<(Self, Namespace, Geometry), EngineError> {
        let cap = handshake::capabilities(&*transport)?;
        handshake::disable(&*transport, handshake::timeout_ms(cap))?;
        let admin = Admin::new(&transport, cap.dstrd() as u32)?;
        let controller = Self {
            transport,
            admin,
            cap,
            nsid,
            epoch: AtomicU32::new(0),
            lba_count: AtomicU64::new(0),
            resetting: Mutex::default(),
            events: Mutex::default(),
            free: Mutex::default(),
            host_memory: Mutex::default(),
            slots_wanted: if nsid == HmbIo::NAMESPACE { hmb_io_slots } else { 0 },
            hmb_io: Mutex::default(),
            are_slots_used: AtomicBool::new(false),
            shown: Shown::default(),
        };
        let (namespace, geometry) = controller.bring_up(&mut controller.turn())?;
        *controller.free.lock() = (1..=geometry.queues_max).rev().collect();
        Ok((controller, namespace, geometry))
    }

    /// The right to send synchronous admin commands; nobody resets meanwhile.
    pub(super) fn turn(&self) -> AdminTurn<'_> {
        self.admin.turn()
    }

    /// Asks the controller to give up a command.
    ///
    /// # Errors
    /// It did not take the question.
    pub(super) fn abort(&self, queue: QueueId, cid: u16) -> Result<(), EngineError> {
        self.admin.abort(queue, cid)
    }

    /// Enables the controller, which is disabled, and asks what it is.
    fn bring_up(&self, admin: &mut AdminTurn<'_>) -> Result<(Namespace, Geometry), EngineError> {
        handshake::enable(&*self.transport, self.cap, &admin.rings().queues())?;
        admin.rings().open();
        let (wanted, namespace, geometry) = describe(admin, self.cap, self.nsid)?;
        self.lba_count.store(namespace.lba_count, Ordering::Relaxed);
        if handshake::arbitrates(self.cap) {
            // A controller that keeps its own weights still serves every class.
            let _ = admin.set_feature(FeatureId::Arbitration, ARBITRATION);
        }
        self.lend(admin, &wanted);
        admin.arm();
        Ok((namespace, geometry))
    }

    /// Lends a controller the memory that it would like; after a reset what it had before. Without, it does its work,
    /// too, so that nothing here is an error. Then asks for slots of HMB-I/O there, if they are wanted.
    fn lend(&self, admin: &mut AdminTurn<'_>, wanted: &IdentifyController) {
        let mut memory = self.host_memory.lock();
        let again = memory.is_some();
        if !again {
            *memory = HostMemory::new(&self.transport, wanted);
        }
        let lent = memory.as_ref().map(|memory| memory.lend(admin, again));
        if let Some(Err(EngineError::Command { .. })) = lent {
            // After any other error nobody knows whether the controller uses it.
            *memory = None;
        }
        let lent = memory.as_ref().filter(|_| self.slots_wanted > 0 && matches!(lent, Some(Ok(()))));
        let hmb_io = lent.and_then(|memory| HmbIo::ask(admin, memory, wanted, self.slots_wanted));
        *self.hmb_io.lock() = (self.epoch(), hmb_io.map(Arc::new));
    }

    /// The slots of HMB-I/O, and the epoch in which the controller has granted them, or has not.
    pub(super) fn hmb_io(&self) -> (u32, Option<Arc<HmbIo>>) {
        self.hmb_io.lock().clone()
    }

    /// Whether slots of HMB-I/O are asked for.
    pub(super) fn wants_slots(&self) -> bool {
        self.slots_wanted > 0
    }

    /// Takes the slots for a queue pair; whether they were free.
    pub(super) fn take_slots(&self) -> bool {
        let were_free = !self.are_slots_used.swap(true, Ordering::AcqRel);
        if were_free && !self.rings().has_idle_slots() {
            self.give_slots_back();
            return false;
        }
        were_free
    }

    pub(super) fn give_slots_back(&self) {
        self.are_slots_used.store(false, Ordering::Release);
    }

    /// The rings of the admin queue, for commands that need no turn.
    pub(super) fn rings(&self) -> &AdminRing {
        self.admin.rings()
    }

    /// What the controller has been lent.
    pub(super) fn host_memory(&self) -> HostMemoryUse {
        self.host_memory.lock().as_ref().map(HostMemory::what).unwrap_or_default()
    }

    /// How many resets there were; another number than before tells a queue that its device forgot it.
    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Logical blocks of the namespace now.
    #[inline]
    pub(super) fn lba_count(&self) -> u64 {
        self.lba_count.load(Ordering::Relaxed)
    }

    /// Whether a reset has ended what the device knew in `epoch`. One that is shut down still knows it.
    #[inline]
    pub(super) fn has_forgotten(&self, epoch: u32) -> bool {
        let now = self.epoch();
        now != epoch && now != CLOSED
    }

    pub(super) fn is_closed(&self) -> bool {
        self.epoch() == CLOSED
    }

    /// Whether the controller is there, ready and has not failed. One that is being reset counts as alive.
    ///
    /// # Errors
    /// What it says of itself.
    pub(super) fn check(&self) -> Result<(), QueueFault> {
        match self.resetting.try_lock() {
            Some(_guard) => super::alive(&*self.transport),
            None => Ok(()),
        }
    }

    /// Controller reset (Base 2.0, 3.7.2). The epoch changes when the device has let go of all memory.
    ///
    /// # Errors
    /// It was shut down, is gone, did not stop or did not come back.
    pub(super) fn reset(&self) -> Result<(), EngineError> {
        let _resetting = self.resetting.lock();
        let mut admin = self.turn();
        let failed = |fault| EngineError::Queue { command: "Controller Reset", fault };
        if self.is_closed() {
            return Err(failed(QueueFault::Shutdown));
        }
        let csts = handshake::status(&*self.transport);
        if csts == ControllerStatus::GONE {
            return Err(failed(QueueFault::Gone { csts: csts.0 }));
        }
        let held = admin.rings().hold();
        handshake::disable(&*self.transport, handshake::timeout_ms(self.cap))?;
        // Release: queues that see the new epoch give their memory back, which the device has let go of.
        let before = self.epoch.fetch_add(1, Ordering::Release);
        held.restart(before + 1);
        let up = self.bring_up(&mut admin);
        if up.is_err() {
            let csts = handshake::status(&*self.transport).0;
            admin.rings().fail(QueueFault::Fatal { csts });
        }
        up.map(|_| ())
    }

    /// Tells the device to get ready for the loss of power.
    ///
    /// # Errors
    /// As [`handshake::shutdown`].
    pub(super) fn shutdown(&self) -> Result<(), EngineError> {
        let _resetting = self.resetting.lock();
        let mut admin = self.turn();
        if self.epoch.swap(CLOSED, Ordering::AcqRel) == CLOSED {
            return Ok(());
        }
        if self.host_memory.lock().is_some() {
            // Base 2.0, 8.9: before a shutdown. One that does not do it does so at the shutdown itself.
            let _ = admin.disable_host_memory();
        }
        handshake::shutdown(&*self.transport)
    }

    /// Notes what the device has to tell, and looks at its namespace again if that changed. One that tells
    /// without end is heard in turns: whoever looks also has requests to complete.
    ///
    /// # Errors
    /// The admin queue failed.
    pub(super) fn watch(&self, admin: &mut AdminTurn<'_>) -> Result<(), EngineError> {
        for _ in 0..EVENTS_KEPT {
            let Some(event) = admin.take_event()? else { break };
            if event == AsyncEvent::NAMESPACE_CHANGED {
                let now = identify_namespace(admin, self.nsid)?;
                self.lba_count.store(now.nsze, Ordering::Relaxed);
            }
            let mut events = self.events.lock();
            if events.len() == EVENTS_KEPT {
                events.pop_front();
            }
            events.push_back(event);
        }
        Ok(())
    }

    /// As [`Controller::watch`], unless somebody else talks to the controller just now.
    pub(super) fn glance(&self) {
        if let Some(mut admin) = self.admin.try_turn() {
            // Whoever asks the admin queue next is told of its failure.
            let _ = self.watch(&mut admin);
        }
    }

    pub(super) fn take_event(&self) -> Result<Option<AsyncEvent>, EngineError> {
        self.watch(&mut self.turn())?;
        Ok(self.events.lock().pop_front())
    }

    /// A queue number that nobody uses.
    pub(super) fn number(&self, queues_max: u16) -> Result<QueueId, EngineError> {
        self.free.lock().pop().map(QueueId).ok_or(EngineError::NoQueue { queues_max })
    }

    pub(super) fn give_back(&self, queue: QueueId) {
        self.free.lock().push(queue.0);
    }

    /// The interrupt vector of a queue: those after the admin queue's in turn, or all on one.
    pub(super) fn vector(&self, queue: QueueId) -> u16 {
        match self.transport.vectors() {
            0 | 1 => 0,
            vectors => 1 + (queue.0 - 1) % (vectors - 1),
        }
    }

    /// Makes a queue pair known to the device; answers the epoch in which it is known.
    ///
    /// # Errors
    /// The device refused or failed.
    pub(super) fn create(
        &self,
        shape: &Shape,
        base: DeviceAddress,
        options: &QueueOptions,
        vector: u16,
    ) -> Result<u32, EngineError> {
        let class = Class { priority: options.priority, interrupts: options.interrupts, vector };
        // No reset happens while the lock is held.
        let mut admin = self.turn();
        if self.is_closed() {
            return Err(EngineError::Queue { command: "Create I/O Queue", fault: QueueFault::Shutdown });
        }
        admin.create_queues(shape, base, &class)?;
        Ok(self.epoch())
    }

    /// Ends a queue of `epoch` on the device. Its number is used again only when the device agreed, or has
    /// forgotten it.
    pub(super) fn release(&self, queue: QueueId, epoch: u32) {
        let forgotten = self.has_forgotten(epoch);
        let gone = super::alive(&*self.transport).is_err() || self.is_closed();
        if forgotten || (!gone && self.turn().delete_queues(queue).is_ok()) {
            self.give_back(queue);
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if handshake::status(&*self.transport) != ControllerStatus::GONE {
            // Nobody is left to tell; a controller that does not stop is found at the next open.
            let _ = handshake::disable(&*self.transport, handshake::timeout_ms(self.cap));
        }
    }
}

/// Reads what controller and namespace say of themselves, and settles the number of queues.
fn describe(
    admin: &mut AdminTurn<'_>,
    cap: Capabilities,
    nsid: NamespaceId,
) -> Result<(Box<IdentifyController>, Namespace, Geometry), EngineError> {
    let controller = identify_controller(admin)?;
    if cap.css() & SEVERAL_COMMAND_SETS != 0 {
        check_command_set(admin, nsid)?;
    }
    let format = identify_namespace(admin, nsid)?;
    let mut namespace = Namespace::new(nsid, &controller, &format)?;
    let present = controller.vwc & 1 != 0;
    // A controller that cannot say whether its cache is on is taken to have it on.
    let cached = present && admin.get_feature(FeatureId::VolatileWriteCache).unwrap_or(1) & 1 != 0;
    let wanted = u32::from(QUEUES_WANTED) - 1;
    let granted = admin.set_feature(FeatureId::NumberOfQueues, wanted | wanted << 16)?;
    let queues_max = (granted & 0xffff).min(granted >> 16).min(wanted) as u16 + 1;
    namespace.streams = controller.oacs & OACS_DIRECTIVES != 0 && admin.enable_streams(nsid).is_ok();
    let geometry = Geometry {
        lba_bytes: namespace.lba_bytes(),
        lba_count: namespace.lba_count,
        transfer_bytes_max: namespace.transfer_blocks_max * namespace.lba_bytes(),
        queue_depth_max: (cap.mqes() as u16).min(QUEUE_DEPTH_MAX),
        queues_max,
        volatile_write_cache: cached,
        serial: text(&controller.sn),
        model: text(&controller.mn),
        firmware: text(&controller.fr),
    };
    Ok((controller, namespace, geometry))
}

/// A namespace of another command set has Reads and Writes that mean something else.
fn check_command_set(admin: &mut AdminTurn<'_>, nsid: NamespaceId) -> Result<(), EngineError> {
    match command_set(&admin.identify(Cns::DESCRIPTORS, nsid)?.0) {
        0 => Ok(()),
        1 => Err(EngineError::Unsuitable("its namespace holds keys and values (CSI 01h), and no blocks")),
        2 => Err(EngineError::Unsuitable("its namespace is zoned (CSI 02h), and writes go anywhere here")),
        _ => Err(EngineError::Unsuitable("its namespace is of an unknown command set (CNS 03h, CSI)")),
    }
}

// Out of line, and on the heap: many copies of 4 KiB would be in the frame of who opens a device, on any stack.
#[inline(never)]
fn identify_controller(admin: &mut AdminTurn<'_>) -> Result<Box<IdentifyController>, EngineError> {
    let answer = admin.identify(Cns::CONTROLLER, NamespaceId(0))?;
    Ok(Box::new(IdentifyController::read_from_bytes(&answer.0).expect("4096 bytes are one structure")))
}

#[inline(never)]
fn identify_namespace(
    admin: &mut AdminTurn<'_>,
    nsid: NamespaceId,
) -> Result<Box<IdentifyNamespace>, EngineError> {
    let answer = admin.identify(Cns::NAMESPACE, nsid)?;
    Ok(Box::new(IdentifyNamespace::read_from_bytes(&answer.0).expect("4096 bytes are one structure")))
}

/// A field of padded ASCII; whatever is not printable becomes `?`.
fn text(field: &[u8]) -> String {
    let shown = field.iter().map(|&byte| if (0x20..0x7f).contains(&byte) { byte as char } else { '?' });
    let whole: String = shown.collect();
    whole.trim_matches(|c| c == ' ' || c == '?').to_owned()
}

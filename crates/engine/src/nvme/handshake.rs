//! Enabling, disabling and shutting down a controller (NVMe Base 2.0, 3.5 and 3.6).

use crate::EngineError;
use nvmed_dma::{Transport, Waited};
use nvmed_nvme::register::{self, AdminQueueAttributes, Capabilities, Configuration, ControllerStatus};
use nvmed_nvme::{CompletionEntry, SubmissionEntry};
use nvmed_units::DeviceAddress;

/// CAP.TO counts in this unit.
const TIMEOUT_UNIT_MS: u32 = 500;
/// How long a shutdown may take. RTD3E may name a time; Linux takes 5 s where it does not.
const SHUTDOWN_MS: u32 = 5000;
/// The first wait, short, since most controllers are quick; each further one is twice as long.
const SLICE_US: u32 = 20;
/// The longest single wait: how late a change that raised no event is seen.
const SLICE_US_MAX: u32 = 10_000;

/// Waiting with an end. Time is what the transport's waits add up to, so that a test's transport
/// decides how fast it passes.
pub(super) struct Patience {
    left_us: u64,
    slice_us: u32,
}

impl Patience {
    pub(super) fn new(timeout_ms: u32) -> Self {
        Self { left_us: u64::from(timeout_ms) * 1000, slice_us: SLICE_US }
    }

    /// Waits a little; `false` when the time is over. An event that was not the one hoped for counts
    /// as a microsecond, so that a controller that only makes noise does not hold the host for ever.
    #[must_use]
    pub(super) fn wait(&mut self, transport: &dyn Transport, seen: u32) -> bool {
        if self.left_us == 0 {
            return false;
        }
        let spent = match transport.wait(0, seen, self.slice_us) {
            Waited::Event => 1,
            Waited::Timeout => u64::from(self.slice_us),
        };
        self.slice_us = (self.slice_us * 2).min(SLICE_US_MAX);
        self.left_us = self.left_us.saturating_sub(spent);
        true
    }
}

/// Whether a status register belongs to a controller that is there.
pub(super) fn status(transport: &dyn Transport) -> ControllerStatus {
    ControllerStatus(transport.read32(register::CSTS))
}

/// The controller's capabilities, if this driver can live with them.
///
/// # Errors
/// [`EngineError::Unsuitable`].
pub(super) fn capabilities(transport: &dyn Transport) -> Result<Capabilities, EngineError> {
    let cap = Capabilities(transport.read64(register::CAP));
    if cap.0 == u64::MAX {
        return Err(EngineError::Unsuitable("its registers read as all ones, so nothing is there"));
    }
    if cap.css() & 1 == 0 {
        return Err(EngineError::Unsuitable("it does not offer the NVM command set (CAP.CSS)"));
    }
    if cap.mpsmin() != 0 {
        return Err(EngineError::Unsuitable("it needs memory pages larger than 4 KiB (CAP.MPSMIN)"));
    }
    if cap.mqes() == 0 {
        return Err(EngineError::Unsuitable("its queues hold less than two entries (CAP.MQES)"));
    }
    Ok(cap)
}

/// CAP.TO: how long enabling or disabling may take, at least one unit.
pub(super) fn timeout_ms(cap: Capabilities) -> u32 {
    (cap.to() as u32).max(1) * TIMEOUT_UNIT_MS
}

/// Whether the controller arbitrates by weight, with an urgent class (CAP.AMS bit 0).
pub(super) fn arbitrates(cap: Capabilities) -> bool {
    cap.ams() & 1 != 0
}

/// Waits until `reached` says so of the status.
fn wait_for(
    transport: &dyn Transport,
    timeout_ms: u32,
    goal: &'static str,
    reached: impl Fn(ControllerStatus) -> bool,
) -> Result<(), EngineError> {
    let mut patience = Patience::new(timeout_ms);
    loop {
        let seen = transport.events(0);
        let now = status(transport);
        let failed = EngineError::NotReady { goal, timeout_ms, csts: now.0 };
        if now == ControllerStatus::GONE {
            return Err(failed);
        }
        if reached(now) {
            return Ok(());
        }
        if !patience.wait(transport, seen) {
            return Err(failed);
        }
    }
}

/// Clears CC.EN and waits until the controller has let go of all memory.
///
/// # Errors
/// [`EngineError::NotReady`].
pub(super) fn disable(transport: &dyn Transport, timeout_ms: u32) -> Result<(), EngineError> {
    let cc = Configuration(transport.read32(register::CC));
    if cc.en() == 1 {
        transport.write32(register::CC, cc.with_en(0).with_shn(0).0);
    }
    wait_for(transport, timeout_ms, "stop", |csts| csts.rdy() == 0)
}

/// Where the admin queues lie, and their entries.
pub(super) struct AdminQueues {
    pub(super) submission: DeviceAddress,
    pub(super) completion: DeviceAddress,
    pub(super) entries: u16,
}

/// Sets CC.EN with 4 KiB pages, the NVM command set and, where the controller has it, weighted round robin,
/// and waits for CSTS.RDY.
///
/// # Errors
/// [`EngineError::NotReady`], also when the controller reports a fatal error.
pub(super) fn enable(
    transport: &dyn Transport,
    cap: Capabilities,
    admin: &AdminQueues,
) -> Result<(), EngineError> {
    let timeout_ms = timeout_ms(cap);
    let last = u32::from(admin.entries) - 1;
    let attributes = AdminQueueAttributes::default().with_asqs(last).with_acqs(last);
    transport.write32(register::AQA, attributes.0);
    transport.write64(register::ASQ, admin.submission.0);
    transport.write64(register::ACQ, admin.completion.0);
    let cc = Configuration::default()
        .with_iosqes(SubmissionEntry::SIZE_SHIFT)
        .with_iocqes(CompletionEntry::SIZE_SHIFT)
        .with_ams(u32::from(arbitrates(cap)));
    transport.write32(register::CC, cc.with_en(1).0);
    wait_for(transport, timeout_ms, "become ready", |csts| csts.rdy() == 1 || csts.cfs() == 1)?;
    let csts = status(transport);
    if csts.cfs() == 1 {
        return Err(EngineError::NotReady { goal: "become ready", timeout_ms, csts: csts.0 });
    }
    Ok(())
}

/// A normal shutdown (CC.SHN = 1): caches are on the medium when it returns.
///
/// # Errors
/// [`EngineError::NotReady`].
pub(super) fn shutdown(transport: &dyn Transport) -> Result<(), EngineError> {
    let cc = Configuration(transport.read32(register::CC));
    transport.write32(register::CC, cc.with_shn(1).0);
    wait_for(transport, SHUTDOWN_MS, "shut down", |csts| csts.shst() == 2)
}

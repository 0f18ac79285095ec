//! What a replay does with its device before and after the trace: all blocks written once, and all read back.

use crate::error::ReplayError;
use crate::placement::Run;
use crate::replay::Replay;
use nvmed_trace::{Op, Request};
use std::sync::atomic::{AtomicBool, Ordering};

/// Silence of a device that ends a replay, in looks of this length, microseconds.
const LOOK_US: u32 = 10_000;
const LOOKS: u32 = 3000;
/// Looks without a pause.
const SPINS: u32 = 100;

impl Replay {
    /// Writes all blocks of the device once, so that no read meets what was never there.
    ///
    /// # Errors
    /// The device does not take it, or is gone.
    pub fn fill(&mut self, stop: &AtomicBool) -> Result<(), ReplayError> {
        let (count, most) = (self.engine.lba_count(), self.part_blocks[Op::Write as usize]);
        let mut lba = 0;
        while lba < count && !stop.load(Ordering::Relaxed) {
            let run = Run { lba, blocks: most.min(count - lba) };
            self.at_once(Op::Write, run, "writing all blocks before")?;
            lba += run.blocks;
        }
        Ok(())
    }

    /// Reads all blocks whose content is known, and compares them; false if it was told to stop before the last one.
    pub(crate) fn read_back(&mut self, stop: &AtomicBool) -> Result<bool, ReplayError> {
        let mut lba = 0;
        while let Some(run) = self.payload.next_known(lba) {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let blocks = run.blocks.min(self.part_blocks[Op::Read as usize]);
            let run = Run { blocks, ..run };
            self.at_once(Op::Read, run, "reading back what was written")?;
            self.payload.was_read(0, run, blocks as usize * self.lba_bytes as usize)?;
            lba = run.lba + run.blocks;
        }
        Ok(true)
    }

    /// One command, while no other is under way.
    fn at_once(&mut self, op: Op, run: Run, doing: &'static str) -> Result<(), ReplayError> {
        // Without a command there is no completion to wait for.
        if self.submit(0, 0, run, &Request::new(op, 0, 1, 0))? != Some(true) {
            return Err(ReplayError::NoRoom { doing });
        }
        self.pair.ring();
        let mut looks = 0;
        loop {
            let seen = self.engine.events(self.vector);
            self.completions.clear();
            if self.pair.poll(&mut self.completions) > 0 {
                break;
            }
            looks += 1;
            match looks {
                ..=SPINS => core::hint::spin_loop(),
                _ if looks > SPINS + LOOKS => self.pair.expire(),
                _ => {
                    self.pair.check();
                    _ = self.engine.wait(self.vector, seen, LOOK_US);
                }
            }
        }
        self.parts[0] = None;
        match self.completions[0].result {
            Ok(()) => Ok(()),
            Err(error) if error.fault.is_some() => {
                let fault = error.fault.unwrap_or(nvmed_engine::QueueFault::Timeout);
                Err(ReplayError::Fault { fault })
            }
            Err(error) => Err(ReplayError::Device { doing, error }),
        }
    }
}

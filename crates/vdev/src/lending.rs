//! The host memory buffer in use: Set Features and Get Features, the moves of the drive's model, and all ends
//! (docs/spec/hmb.md).

use crate::controller::Controller;
use crate::drive::DriveState;
use crate::host_memory::{Lent, PAGE_BYTES};
use crate::media::Media;
use crate::recorder::BufferChange;
use nvmed_dma::{AddressSpace, View};
use nvmed_flash::{HostPages, Move, Moved};
use nvmed_mutant::Mutant;
use nvmed_nvme::{ENABLE_HOST_MEMORY, HostMemoryAttributes, Status, SubmissionEntry};
use zerocopy::IntoBytes;

impl DriveState {
    /// Moves what has passed between the drive and the host's memory.
    #[inline]
    pub(crate) fn make_moves(&mut self, media: &Media) {
        if self.host_memory.lent.is_some() {
            self.make_all_moves(media);
        }
    }

    /// Moves what passes until `time_ns`, at which a command arrives.
    #[inline]
    pub(crate) fn make_moves_until(&mut self, media: &Media, time_ns: u64) {
        if self.host_memory.lent.is_some() {
            self.flash.reach(time_ns);
            while self.make_all_moves(media) {
                self.flash.reach(time_ns);
            }
        }
    }

    /// Whether there was anything to move.
    #[cold]
    fn make_all_moves(&mut self, media: &Media) -> bool {
        let mut any = false;
        while let Some(of) = self.flash.next_move() {
            any = true;
            self.host_memory.moves += 1;
            if !self.make_move(media, &of) {
                self.flash.move_failed(&of);
                self.give_up_host_memory(BufferChange::MoveFailed(self.host_memory.moves));
                break;
            }
        }
        any
    }

    fn make_move(&mut self, media: &Media, of: &Move) -> bool {
        let Some(lent) = &mut self.host_memory.lent else { return false };
        if !of.is_put {
            return lent.is_whole(of.slot);
        }
        let mut bytes = [0; PAGE_BYTES as usize];
        match of.what {
            Moved::MapPage(page) => self.flash.map_page(page, &mut bytes),
            Moved::Unit(unit) | Moved::Written(unit) => lent.unit(media, unit, &mut bytes),
        }
        lent.put(of.slot, &bytes)
    }

    /// The drive uses the buffer no more; the host has it enabled.
    fn give_up_host_memory(&mut self, why: BufferChange) {
        self.host_memory.given_up += 1;
        self.host_memory.lent = None;
        self.end_slots(self.flash.now(), why);
    }

    /// The model has slots, which are empty.
    pub(crate) fn give_slots(&mut self, now: u64, pages: HostPages) {
        self.host_memory.moves = 0;
        self.flash.give_host_memory(now, pages);
        self.record_change(BufferChange::Lent(pages));
    }

    /// The model has slots no more.
    pub(crate) fn end_slots(&mut self, now: u64, why: BufferChange) {
        self.flash.end_host_memory(now);
        self.record_change(why);
    }

    fn record_change(&mut self, change: BufferChange) {
        if let Some(recorder) = &mut self.recorder {
            recorder.changed(self.flash.now(), change);
        }
    }

    /// The buffer is not the drive's any more, and disabled: nothing of it is touched after this.
    pub(crate) fn close_host_memory(&mut self) {
        self.close_hmb_io();
        self.host_memory.attributes = None;
        if !Mutant::HmbAfterDisable.is_made() && self.host_memory.lent.take().is_some() {
            self.end_slots(self.flash.now(), BufferChange::Ended);
        }
    }

    /// Gives the buffer up if some of it is not mapped any more.
    fn check_host_memory(&mut self, space: &AddressSpace) {
        if self.host_memory.lent.is_none() && self.hmb_io.is_none() {
            return;
        }
        let view = space.view();
        if self.host_memory.lent.as_ref().is_some_and(|lent| !lent.is_mapped(&view)) {
            self.give_up_host_memory(BufferChange::Ended);
        }
        self.check_hmb_io(&view);
    }

    /// Bytes of the buffer that the drive uses.
    pub(crate) fn host_memory_bytes(&self) -> u64 {
        self.host_memory.lent.as_ref().map_or(0, |lent| u64::from(lent.pages) * PAGE_BYTES)
    }
}

impl Controller {
    /// Slots of a host memory buffer that the drive has at most, by use; `None` of one that wants none.
    #[must_use]
    pub fn host_pages_max(&self) -> Option<HostPages> {
        self.config.host_memory.as_ref().map(|wanted| wanted.share(wanted.pages()))
    }

    /// Sees to the buffer after mappings have gone, or the controller.
    pub(crate) fn settle_host_memory(&self) {
        let Some(drive) = self.drive.as_ref().filter(|_| self.config.host_memory.is_some()) else { return };
        let mut state = drive.state.lock();
        if self.gone() {
            state.close_host_memory();
        } else {
            state.check_host_memory(&self.space);
        }
        drive.due.set(state.next_due());
    }

    /// Set Features, Host Memory Buffer. All that the drive was to do before is done first.
    pub(crate) fn set_host_memory(&self, view: &View, entry: &SubmissionEntry) -> Result<u32, Status> {
        let (Some(drive), Some(config)) = (&self.drive, &self.config.host_memory) else {
            return Err(Status::INVALID_FIELD.do_not_retry());
        };
        if entry.cdw11 & ENABLE_HOST_MEMORY == 0 {
            self.catch_up_drive(drive, |state, _| {
                self.end_all_hmb_io(drive, state);
                state.close_host_memory();
            });
            return Ok(0);
        }
        if drive.state.lock().host_memory.attributes.is_some() {
            return Err(Status::SEQUENCE_ERROR.do_not_retry());
        }
        let (pages, entries) = (entry.cdw12, entry.cdw15);
        let address = u64::from(entry.cdw13) | u64::from(entry.cdw14) << 32;
        let lent = Lent::of_list(config, view, (address, entries), pages)?;
        let share = config.share(lent.slots());
        let attributes = HostMemoryAttributes::new(pages, address, entries);
        self.catch_up_drive(drive, |state, now| {
            state.host_memory.attributes = Some(attributes);
            state.host_memory.lent = Some(lent);
            state.give_slots(now, share);
        });
        Ok(0)
    }

    /// Get Features, Host Memory Buffer: whether it is enabled, and its attributes.
    pub(crate) fn host_memory_feature(&self, is_current: bool) -> (u32, Vec<u8>) {
        let state = self.drive.as_ref().filter(|_| is_current).map(|drive| drive.state.lock());
        let attributes = state.and_then(|state| state.host_memory.attributes);
        (u32::from(attributes.is_some()), attributes.unwrap_or_default().as_bytes().to_vec())
    }
}

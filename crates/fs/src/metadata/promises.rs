//! Blocks promised for pages of files, and charged to whom the file belongs.

use crate::blocks::reservation::Reservation;
use crate::error::FsError;
use crate::inode::Inode;
use crate::metadata::Metadata;
use nvmed_mutant::Mutant;

/// Promised blocks for pages of a file, charged to its account; given back when it is dropped, but for those that were
/// made ahead: they are again.
#[must_use = "what is dropped is given back"]
pub(crate) struct PagePromise<'a> {
    inode: &'a Inode,
    blocks: Reservation<'a>,
    /// How many of them were made ahead, and are not given back.
    ahead: u64,
}

impl<'a> PagePromise<'a> {
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`].
    pub(crate) fn make(of: &'a Metadata, inode: &'a Inode, pages: u64) -> Result<Self, FsError> {
        inode.charge(pages).or_else(|_| {
            // What files have ahead of their ends is charged, too.
            of.drop_rooms();
            inode.charge(pages)
        })?;
        let blocks = of.promise(pages).inspect_err(|_| inode.discharge(pages))?;
        Ok(Self { inode, blocks, ahead: 0 })
    }

    /// One that was made ahead, if there is any.
    pub(crate) fn made_ahead(of: &'a Metadata, inode: &'a Inode) -> Option<Self> {
        let blocks = inode.data.advance.try_take(&of.blocks.ledger, 1)?;
        Some(Self { inode, blocks, ahead: 1 })
    }

    /// For pages that get their blocks at once: of what was made ahead as much as there is, and the rest now.
    ///
    /// # Errors
    /// As [`PagePromise::make`].
    pub(crate) fn made_ahead_or_now(of: &'a Metadata, inode: &'a Inode, pages: u64) -> Result<Self, FsError> {
        let ahead = inode.data.advance.blocks().min(pages);
        let Some(mut blocks) = inode.data.advance.try_take(&of.blocks.ledger, ahead) else {
            return Self::make(of, inode, pages);
        };
        if ahead < pages {
            match Self::make(of, inode, pages - ahead) {
                Ok(mut more) => blocks.join(more.blocks.take()),
                Err(error) => {
                    inode.data.advance.keep(blocks);
                    return Err(error);
                }
            }
        }
        Ok(Self { inode, blocks, ahead })
    }

    /// Gives back what is beyond `pages`.
    pub(crate) fn shrink_to(&mut self, pages: u64) {
        let surplus = self.blocks.blocks().saturating_sub(pages);
        if surplus == 0 {
            return;
        }
        let again = self.blocks.split(surplus.min(self.ahead));
        self.ahead -= again.blocks();
        self.inode.discharge(surplus - again.blocks());
        self.inode.data.advance.keep(again);
        self.blocks.shrink_to(pages);
    }

    /// A change has recorded `pages` of them as used; the record is charged for them.
    pub(crate) fn redeemed(&mut self, pages: u64) {
        self.blocks.redeemed(pages);
    }

    /// Those that were made ahead and not used.
    fn all_made_ahead(of: &'a Metadata, inode: &'a Inode) -> Self {
        Self { inode, blocks: inode.data.advance.take_all(&of.blocks.ledger), ahead: 0 }
    }

    /// Pages will become dirty that have this promise.
    pub(crate) fn keep_ahead(mut self) {
        self.inode.data.advance.keep(self.blocks.take());
    }

    /// The promises of dirty pages that need none any more.
    pub(crate) fn taken_back(of: &'a Metadata, inode: &'a Inode, pages: u64) -> Self {
        let blocks = inode.counted(|| inode.data.purse.take(&of.blocks.ledger, pages));
        Self { inode, blocks, ahead: 0 }
    }

    /// Those of all dirty pages: the inode leaves memory.
    pub(crate) fn all_taken_back(of: &'a Metadata, inode: &'a Inode) -> Self {
        Self { inode, blocks: inode.data.purse.take_all(&of.blocks.ledger), ahead: 0 }
    }

    /// Pages become dirty that have this promise.
    pub(crate) fn keep(mut self) {
        let blocks = self.blocks.take();
        if Mutant::PromiseForgotten.is_made() {
            blocks.withhold();
        } else {
            self.inode.counted(|| self.inode.data.purse.keep(blocks));
        }
    }
}

impl Drop for PagePromise<'_> {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

impl Metadata {
    /// Promises blocks, and room for the records that will tell of them; what is allocated ahead of other files
    /// is called back if need be.
    ///
    /// # Errors
    /// [`FsError::NoSpace`].
    pub(crate) fn promise(&self, blocks: u64) -> Result<Reservation<'_>, FsError> {
        let ledger = &self.blocks.ledger;
        let promise = ledger.reserve(blocks).or_else(|_| {
            for inode in self.inodes.collect(|inode| inode.data.ahead().is_some()) {
                self.drop_prealloc(&inode);
            }
            self.drop_rooms();
            self.drop_spare();
            ledger.reserve(blocks)
        })?;
        // Counted first: whoever asks at the same time leaves room for these records, too.
        self.room_for_promises().map(|()| promise)
    }

    /// Promises pages of a file ahead: up to `pages` that have no block become dirty without another promise.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Quota`].
    pub(crate) fn promise_ahead(&self, inode: &Inode, pages: u64) -> Result<(), FsError> {
        let missing = pages.saturating_sub(inode.data.advance.blocks());
        PagePromise::make(self, inode, missing).map(PagePromise::keep_ahead)
    }

    /// Gives back what was promised ahead and not used.
    pub(crate) fn give_back_ahead(&self, inode: &Inode) {
        drop(PagePromise::all_made_ahead(self, inode));
    }

    /// Data blocks that the inode will need for what is not recorded yet.
    pub(crate) fn blocks_promised(&self, inode: &Inode) -> u64 {
        inode.data.purse.blocks()
    }
}

//! How an urgent command comes to the drive.

/// A way to the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    /// By a queue pair that the load uses, too.
    Normal,
    /// By a queue pair of its own, in round robin with the load's.
    Reserved,
    /// By a queue of the class urgent: weighted round robin.
    Wrr,
    /// By the host memory buffer and the admin queue.
    HmbIo,
}

impl Path {
    pub(super) const ALL: [Self; 4] = [Self::Normal, Self::Reserved, Self::Wrr, Self::HmbIo];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Reserved => "reserved",
            Self::Wrr => "wrr",
            Self::HmbIo => "hmb-io",
        }
    }

    /// Whether queues are arbitrated by class.
    pub(super) fn is_weighted(self) -> bool {
        matches!(self, Self::Wrr | Self::HmbIo)
    }
}

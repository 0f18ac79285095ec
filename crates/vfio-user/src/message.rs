//! A message: 16 bytes of header, then what the command needs ("Protocol Specification", "Header").

use crate::error::ProtocolError;
use rustix::fd::OwnedFd;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Data of one region or DMA access. Registers need 8, configuration space 4096; the rest is for peers that
/// copy memory in larger pieces.
pub const DATA_BYTES_MAX: usize = 64 << 10;
/// A whole message: the largest access with its structure, and nothing in the protocol is larger.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 64 + DATA_BYTES_MAX;
/// Descriptors of one message: what the widely used servers take at once.
pub(crate) const FDS_MAX: usize = 8;

/// What a message asks for or answers ("Commands").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Version negotiation, the first message.
    Version = 1,
    /// Memory for the device.
    DmaMap = 2,
    /// Memory taken back.
    DmaUnmap = 3,
    /// Regions and interrupts in number.
    DeviceGetInfo = 4,
    /// Size and access of one region.
    DeviceGetRegionInfo = 5,
    /// Descriptors in place of register writes.
    DeviceGetRegionIoFds = 6,
    /// Number and kind of one interrupt type.
    DeviceGetIrqInfo = 7,
    /// Descriptors for interrupts.
    DeviceSetIrqs = 8,
    /// Reads a register, or configuration space.
    RegionRead = 9,
    /// Writes a register, or configuration space.
    RegionWrite = 10,
    /// The device reads memory of the client by message.
    DmaRead = 11,
    /// The device writes memory of the client by message.
    DmaWrite = 12,
    /// Resets the device.
    DeviceReset = 13,
    /// Several register writes in one message.
    RegionWriteMulti = 15,
    /// Optional features, migration above all.
    DeviceFeature = 16,
    /// Migration data from the device.
    MigDataRead = 17,
    /// Migration data to the device.
    MigDataWrite = 18,
}

impl Command {
    /// The command with this number.
    #[must_use]
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        use Command as C;
        const ALL: [Command; 17] = [
            C::Version,
            C::DmaMap,
            C::DmaUnmap,
            C::DeviceGetInfo,
            C::DeviceGetRegionInfo,
            C::DeviceGetRegionIoFds,
            C::DeviceGetIrqInfo,
            C::DeviceSetIrqs,
            C::RegionRead,
            C::RegionWrite,
            C::DmaRead,
            C::DmaWrite,
            C::DeviceReset,
            C::RegionWriteMulti,
            C::DeviceFeature,
            C::MigDataRead,
            C::MigDataWrite,
        ];
        ALL.into_iter().find(|&command| command as u16 == number)
    }
}

/// The header, in the byte order of the host as the protocol has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender of a command, repeated in its reply.
    pub id: u16,
    /// [`Command`]; kept as a number, since a peer may send any.
    pub command: u16,
    /// Bytes of the message with its header.
    pub bytes: u32,
    /// Type in bits 0 to 3; bit 4: no reply wanted; bit 5: the command failed.
    pub flags: u32,
    /// An errno, where bit 5 is set; may be 0 even then.
    pub errno: u32,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Header {
    const TYPE: u32 = 0xf;
    /// Type: a reply.
    pub const REPLY: u32 = 1;
    /// Flag: the sender waits for no reply.
    pub const NO_REPLY: u32 = 1 << 4;
    /// Flag: the command failed.
    pub const ERROR: u32 = 1 << 5;

    /// A command with `payload` bytes behind the header.
    #[must_use]
    pub fn command(id: u16, command: Command, payload: usize) -> Self {
        Self { id, command: command as u16, bytes: total(payload), flags: 0, errno: 0 }
    }

    /// The reply to this command with `payload` bytes behind the header.
    #[must_use]
    pub fn reply(&self, payload: usize) -> Self {
        Self { bytes: total(payload), flags: Self::REPLY, errno: 0, ..*self }
    }

    /// The reply that says that this command failed.
    #[must_use]
    pub fn failure(&self, errno: rustix::io::Errno) -> Self {
        let errno = errno.raw_os_error().unsigned_abs();
        Self { bytes: total(0), flags: Self::REPLY | Self::ERROR, errno, ..*self }
    }

    /// Whether it is a command (type 0), not a reply.
    #[must_use]
    pub fn is_command(&self) -> bool {
        self.flags & Self::TYPE == 0
    }

    /// Whether it is a reply (type 1).
    #[must_use]
    pub fn is_reply(&self) -> bool {
        self.flags & Self::TYPE == Self::REPLY
    }

    /// Whether its sender waits for a reply.
    #[must_use]
    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & Self::NO_REPLY == 0
    }

    /// Bytes behind the header.
    ///
    /// # Errors
    /// [`ProtocolError::Size`] for a message shorter than its header, or longer than any may be.
    pub(crate) fn payload_bytes(&self) -> Result<usize, ProtocolError> {
        let bytes = self.bytes as usize;
        if (HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&bytes) {
            Ok(bytes - HEADER_BYTES)
        } else {
            Err(ProtocolError::Size { command: self.command, bytes: self.bytes })
        }
    }
}

fn total(payload: usize) -> u32 {
    (HEADER_BYTES + payload) as u32
}

/// One message as it arrived.
#[derive(Debug)]
pub struct Message {
    /// Its header; the size in it was checked.
    pub header: Header,
    /// What follows the header.
    pub payload: Vec<u8>,
    /// Descriptors that came with it, at most [`FDS_MAX`].
    pub fds: Vec<OwnedFd>,
}

//! Completion status (Base 2.0, 3.3.3.2.1; NVM 1.0, 3.1.2).

use std::fmt;

/// The 15-bit status field: status code, status code type, command retry delay, more, do not retry.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

const DNR: u16 = 1 << 14;
const MORE: u16 = 1 << 13;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $sct:literal, $sc:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self(($sct as u16) << 8 | $sc);)*

            /// What the specification calls it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match (self.code_type(), self.code()) {
                    $(($sct, $sc) => $text,)*
                    _ => "unknown status",
                }
            }
        }
    };
}

statuses! {
    /// Generic 00h.
    SUCCESS = 0, 0x00, "Successful Completion";
    /// Generic 01h.
    INVALID_OPCODE = 0, 0x01, "Invalid Command Opcode";
    /// Generic 02h.
    INVALID_FIELD = 0, 0x02, "Invalid Field in Command";
    /// Generic 03h.
    CID_CONFLICT = 0, 0x03, "Command ID Conflict";
    /// Generic 04h.
    DATA_TRANSFER_ERROR = 0, 0x04, "Data Transfer Error";
    /// Generic 05h.
    POWER_LOSS = 0, 0x05, "Commands Aborted due to Power Loss Notification";
    /// Generic 06h.
    INTERNAL_ERROR = 0, 0x06, "Internal Error";
    /// Generic 07h.
    ABORT_REQUESTED = 0, 0x07, "Command Abort Requested";
    /// Generic 08h.
    SQ_DELETED = 0, 0x08, "Command Aborted due to SQ Deletion";
    /// Generic 0Bh.
    INVALID_NAMESPACE = 0, 0x0b, "Invalid Namespace or Format";
    /// Generic 0Ch.
    SEQUENCE_ERROR = 0, 0x0c, "Command Sequence Error";
    /// Generic 13h.
    PRP_OFFSET_INVALID = 0, 0x13, "PRP Offset Invalid";
    /// Generic 20h.
    WRITE_PROTECTED = 0, 0x20, "Namespace is Write Protected";
    /// Generic 80h.
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA Out of Range";
    /// Generic 81h.
    CAPACITY_EXCEEDED = 0, 0x81, "Capacity Exceeded";
    /// Generic 82h.
    NAMESPACE_NOT_READY = 0, 0x82, "Namespace Not Ready";
    /// Command specific 00h.
    CQ_INVALID = 1, 0x00, "Completion Queue Invalid";
    /// Command specific 01h.
    INVALID_QID = 1, 0x01, "Invalid Queue Identifier";
    /// Command specific 02h.
    INVALID_QUEUE_SIZE = 1, 0x02, "Invalid Queue Size";
    /// Command specific 03h.
    ABORT_LIMIT = 1, 0x03, "Abort Command Limit Exceeded";
    /// Command specific 05h.
    AER_LIMIT = 1, 0x05, "Asynchronous Event Request Limit Exceeded";
    /// Command specific 08h.
    INVALID_VECTOR = 1, 0x08, "Invalid Interrupt Vector";
    /// Command specific 09h.
    INVALID_LOG = 1, 0x09, "Invalid Log Page";
    /// Command specific 0Ch.
    INVALID_QUEUE_DELETION = 1, 0x0c, "Invalid Queue Deletion";
    /// Command specific 0Dh.
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "Feature Identifier Not Saveable";
    /// Command specific 0Eh.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "Feature Not Changeable";
    /// Command specific 0Fh.
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0f, "Feature Not Namespace Specific";
    /// Command specific 81h (NVM).
    INVALID_PROTECTION = 1, 0x81, "Invalid Protection Information";
    /// Command specific 82h (NVM).
    READ_ONLY_RANGE = 1, 0x82, "Attempted Write to Read Only Range";
    /// Media 80h.
    WRITE_FAULT = 2, 0x80, "Write Fault";
    /// Media 81h.
    UNRECOVERED_READ = 2, 0x81, "Unrecovered Read Error";
    /// Media 85h.
    COMPARE_FAILURE = 2, 0x85, "Compare Failure";
    /// Media 86h.
    ACCESS_DENIED = 2, 0x86, "Access Denied";
}

impl Status {
    /// Status code type: 0 generic, 1 command specific, 2 media and data integrity, 3 path, 7 vendor.
    #[must_use]
    pub fn code_type(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Status code within its type.
    #[must_use]
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// With Do Not Retry: the same command would fail again.
    #[must_use]
    pub const fn do_not_retry(self) -> Self {
        Self(self.0 | DNR)
    }

    /// With More: the error log has an entry of the command.
    #[must_use]
    pub const fn more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Whether the command succeeded.
    #[must_use]
    pub fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Whether both name the same condition, whatever their retry and more bits say.
    #[must_use]
    pub fn is(self, other: Self) -> bool {
        (self.0 ^ other.0) & 0x7ff == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SCT {:x}h, SC {:02x}h)", self.name(), self.code_type(), self.code())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_its_name_and_code_whatever_its_flags() {
        let status = Status::INVALID_QUEUE_DELETION.do_not_retry();
        assert_eq!(status.to_string(), "Invalid Queue Deletion (SCT 1h, SC 0ch)");
        assert!(status.is(Status::INVALID_QUEUE_DELETION) && !status.is_success());
        assert!(Status(1 << 13).is_success(), "More alone is no failure");
        assert!(!Status(0x17f).is_success());
        assert_eq!(Status(0x77f).name(), "unknown status");
    }
}

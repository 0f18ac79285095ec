//! Fault rules as text: `ACTION[:key=value,…][;…]`.

use crate::fault::{Corrupt, FAULT_RULES_MAX, FaultAction, FaultPlan, FaultQueue, FaultRule};
use nvmed_nvme::{AdminOpcode, IoOpcode, Status};
use std::ops::Range;
use std::str::FromStr;

/// Actions, for messages.
const ACTIONS: &str = "drop, delay:us=N, duplicate, corrupt:cid|status|phase|sqid|head, fail:status=0x281, \
                       stop, die, fatal, not-ready";
/// Keys, for messages.
const KEYS: &str = "queue=N|io|admin, op=read|write|flush|…|0xNN, lba=FIRST..END, nth=N, every=N, times=N, \
                    sticky, executed, us=N, status=0xNNN";

/// A fault rule that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// No such action.
    #[error("fault rule `{rule}`: `{action}` is no action; actions are {ACTIONS}")]
    Action {
        /// The rule.
        rule: String,
        /// What was taken for its action.
        action: String,
    },
    /// No such key, or not such a value.
    #[error("fault rule `{rule}`: `{part}` is not understood; after the action come {KEYS}")]
    Part {
        /// The rule.
        rule: String,
        /// The part of it.
        part: String,
    },
    /// Something is missing.
    #[error("fault rule `{rule}` needs `{needs}`")]
    Missing {
        /// The rule.
        rule: String,
        /// What to add.
        needs: &'static str,
    },
    /// Too many.
    #[error("{rules} fault rules; a plan has at most {FAULT_RULES_MAX}")]
    TooMany {
        /// Their number.
        rules: usize,
    },
}

impl FaultPlan {
    /// Reads rules, separated by `;`. A rule is an action, and behind a `:` what it meets, separated by `,` or,
    /// inside a device string whose options are separated so, by `+`.
    ///
    /// # Errors
    /// [`FaultError`] says which rule is not understood, and what would be.
    pub fn parse(text: &str) -> Result<Self, FaultError> {
        let rules: Vec<&str> = text.split(';').map(str::trim).filter(|rule| !rule.is_empty()).collect();
        let plan = Self::default();
        for rule in &rules {
            plan.add(rule.parse()?).ok_or(FaultError::TooMany { rules: rules.len() })?;
        }
        Ok(plan)
    }
}

impl FromStr for FaultRule {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut rule = Self::new(action(name, text)?);
        let mut told = false;
        let parts = || {
            let parts = rest.split([',', '+']).map(str::trim).filter(|part| !part.is_empty());
            parts.map(|part| (part, part.split_once('=').unwrap_or((part, ""))))
        };
        for (part, (key, value)) in parts() {
            let done = rule.set_action(key, value).inspect(|()| told = true).or_else(|| rule.set(key, value));
            done.ok_or_else(|| FaultError::Part { rule: text.to_owned(), part: part.to_owned() })?;
        }
        // The n-th alone, unless the rule says how it goes on.
        let says = |wanted| parts().any(|(_, (key, _))| key == wanted);
        if says("nth") && !says("every") && !says("times") {
            rule.times = Some(1);
        }
        let needs = match rule.action {
            FaultAction::Delay { .. } => Some("us=N"),
            FaultAction::Corrupt(_) => Some("cid, status, phase, sqid or head"),
            _ => None,
        };
        match needs.filter(|_| !told) {
            Some(needs) => Err(FaultError::Missing { rule: text.to_owned(), needs }),
            None => Ok(rule),
        }
    }
}

fn action(name: &str, rule: &str) -> Result<FaultAction, FaultError> {
    Ok(match name.trim() {
        "drop" => FaultAction::Drop { executed: false },
        "delay" => FaultAction::Delay { ns: 0 },
        "duplicate" => FaultAction::Duplicate,
        "corrupt" => FaultAction::Corrupt(Corrupt::Cid),
        "fail" => FaultAction::Fail(Status::UNRECOVERED_READ),
        "stop" => FaultAction::Stop,
        "die" => FaultAction::Die,
        "fatal" => FaultAction::Fatal,
        "not-ready" => FaultAction::NotReady,
        _ => return Err(FaultError::Action { rule: rule.to_owned(), action: name.to_owned() }),
    })
}

impl FaultRule {
    /// Sets what belongs to the action.
    fn set_action(&mut self, key: &str, value: &str) -> Option<()> {
        self.action = match (self.action, key) {
            (FaultAction::Drop { .. }, "executed") if value.is_empty() => {
                FaultAction::Drop { executed: true }
            }
            (FaultAction::Delay { .. }, "us") => FaultAction::Delay { ns: number(value)?.checked_mul(1000)? },
            (FaultAction::Corrupt(_), part) if value.is_empty() => FaultAction::Corrupt(corrupt(part)?),
            (FaultAction::Fail(_), "status") => {
                let status = u16::try_from(number(value)?).ok().map(Status)?;
                FaultAction::Fail(Some(status).filter(|status| status.0 < 1 << 15 && !status.is_success())?)
            }
            _ => return None,
        };
        Some(())
    }

    /// Sets what the rule meets.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "queue" => {
                self.queue = match value {
                    "io" => FaultQueue::Io,
                    "admin" => FaultQueue::One(0),
                    _ => FaultQueue::One(u16::try_from(number(value)?).ok()?),
                }
            }
            "op" => {
                let (opcode, admin) = opcode(value)?;
                self.opcode = Some(opcode);
                if admin {
                    self.queue = FaultQueue::One(0);
                }
            }
            "lba" => self.lba = Some(range(value)?),
            "nth" => self.nth = number(value).filter(|&nth| nth > 0)?,
            "every" => self.every = number(value).filter(|&every| every > 0)?,
            "times" => self.times = Some(number(value)?),
            "sticky" if value.is_empty() => self.sticky = true,
            _ => return None,
        }
        Some(())
    }
}

fn corrupt(part: &str) -> Option<Corrupt> {
    Some(match part {
        "cid" => Corrupt::Cid,
        "status" => Corrupt::Status,
        "phase" => Corrupt::Phase,
        "sqid" => Corrupt::SqId,
        "head" => Corrupt::Head,
        _ => return None,
    })
}

/// An opcode, and whether its name is an admin command's.
fn opcode(name: &str) -> Option<(u8, bool)> {
    let io = |opcode: IoOpcode| Some((opcode as u8, false));
    let admin = |opcode: AdminOpcode| Some((opcode as u8, true));
    match name {
        "read" => io(IoOpcode::Read),
        "write" => io(IoOpcode::Write),
        "flush" => io(IoOpcode::Flush),
        "compare" => io(IoOpcode::Compare),
        "write-zeroes" => io(IoOpcode::WriteZeroes),
        "discard" => io(IoOpcode::DatasetManagement),
        "identify" => admin(AdminOpcode::Identify),
        "abort" => admin(AdminOpcode::Abort),
        "get-log-page" => admin(AdminOpcode::GetLogPage),
        "get-features" => admin(AdminOpcode::GetFeatures),
        "set-features" => admin(AdminOpcode::SetFeatures),
        "create-cq" => admin(AdminOpcode::CreateCq),
        "create-sq" => admin(AdminOpcode::CreateSq),
        "delete-cq" => admin(AdminOpcode::DeleteCq),
        "delete-sq" => admin(AdminOpcode::DeleteSq),
        "hmb-io" => admin(AdminOpcode::HmbIo),
        "async-event-request" => admin(AdminOpcode::AsyncEventRequest),
        _ => Some((u8::try_from(number(name)?).ok()?, false)),
    }
}

/// `FIRST..END`, the end excluded, or one block.
fn range(text: &str) -> Option<Range<u64>> {
    let (first, end) = match text.split_once("..") {
        Some((first, end)) => (number(first)?, number(end)?),
        None => (number(text)?, number(text)?.checked_add(1)?),
    };
    (first < end).then_some(first..end)
}

/// A decimal number, or a hexadecimal one after `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        let rule = |text: &str| text.parse::<FaultRule>();
        let read = rule("drop:op=read,lba=100..200,nth=3,times=1").unwrap();
        let expected = FaultRule {
            opcode: Some(2),
            lba: Some(100..200),
            nth: 3,
            times: Some(1),
            ..FaultRule::new(FaultAction::Drop { executed: false })
        };
        assert_eq!(read, expected);
        assert_eq!(rule("drop:nth=3").unwrap().times, Some(1), "the third alone");
        assert_eq!(rule("drop:nth=3,every=1").unwrap().times, None, "the third and all that follow");
        assert_eq!(rule("delay:us=500").unwrap().action, FaultAction::Delay { ns: 500_000 });
        assert_eq!(rule("corrupt:head+queue=2").unwrap().queue, FaultQueue::One(2));
        assert_eq!(rule("fail:status=0x281,lba=10").unwrap().lba, Some(10..11));
        assert_eq!(rule("drop:executed,op=abort").unwrap().queue, FaultQueue::One(0));
        let stop = rule("stop:sticky").unwrap();
        assert_eq!((stop.times, stop.sticky), (Some(1), true));
        assert!(FaultPlan::parse("duplicate; die:nth=9 ;not-ready;").is_ok());
        assert!(!FaultPlan::parse("").unwrap().armed());
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, names) in [
            ("explode", "`explode` is no action"),
            ("drop:lba=9..9", "`lba=9..9` is not understood"),
            ("drop:sometimes", "`sometimes`"),
            ("fail:status=0", "`status=0`"),
            ("fail:status=0x10281", "`status=0x10281`"),
            ("delay", "needs `us=N`"),
            ("corrupt:nth=1", "needs `cid"),
            ("duplicate:cid", "`cid`"),
            ("drop:nth=0", "`nth=0`"),
            ("drop:op=0x100", "`op=0x100`"),
        ] {
            let error = FaultPlan::parse(text).unwrap_err().to_string();
            assert!(error.contains(names), "{text}: {error}");
        }
        let many = "drop;".repeat(FAULT_RULES_MAX + 1);
        assert_eq!(FaultPlan::parse(&many).unwrap_err(), FaultError::TooMany { rules: FAULT_RULES_MAX + 1 });
    }
}

//! Urgent requests on a busy drive: HMB-I/O (Kim, Kim and Kim, Appl. Sci. 2020, 10, 4341). docs/lab.md says how.

mod cost;
mod device;
mod host;
mod latency;
mod launch;
mod matrix;
mod oracle;
mod path;
mod queue_pair;
mod queueing;
mod real_time;
mod tail;
mod workload;

pub(super) use cost::BackgroundCost;
pub(super) use latency::{AverageLatency, PerRequest};
pub(super) use launch::ProgramStart;
pub(super) use queueing::{Queueing, SqWaiting};
pub(super) use real_time::RealTime;
pub(super) use tail::{Flat, Tail};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Effort;

    #[test]
    fn what_waits_in_a_queue_is_what_the_host_sees() {
        let outcome = crate::run(&SqWaiting, &Effort { quick: true });
        assert!(outcome.met, "{}", outcome.line());
    }
}

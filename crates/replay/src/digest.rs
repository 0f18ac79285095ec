//! Digests: what two things have in common only if they are the same, as far as chance allows (64 bits).

use nvmed_trace::{Op, Request};

/// An odd number whose bits are of no pattern: 2^64 over the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// A digest that grows. It protects against mistakes, not against somebody who looks for two things with the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    /// Takes a number. Each step can be undone, so numbers that differ in one place never give the same digest.
    pub fn number(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(FACTOR);
        self.0 = (mixed ^ (mixed >> 32)).wrapping_add(1);
    }

    /// Takes a text.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        for part in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.number(u64::from_le_bytes(word));
        }
    }

    /// Takes what a drive is told of a request; the times of other drives, devices and processes are not.
    pub(crate) fn request(&mut self, request: &Request) {
        let op = match request.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Discard => 2,
            Op::Flush => 3,
        };
        self.number(op << 32 | u64::from(request.flags.0));
        self.number(request.offset);
        self.number(request.bytes);
        self.number(request.arrival_ns);
    }

    /// Takes a time that may be absent.
    pub(crate) fn time(&mut self, ns: Option<u64>) {
        self.number(u64::from(ns.is_some()));
        self.number(ns.unwrap_or(0));
    }

    /// The digest of all of it.
    #[must_use]
    pub fn value(self) -> u64 {
        self.0
    }
}

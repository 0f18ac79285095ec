//! Who reads in order, and who has said that he will: how far frames come ahead of each.
//!
//! Places are bytes of a space, the medium or an object. A stream is *told* by a hint, or *seen*: a second use that
//! goes on where a request before it ended, or the first byte of an object. A stream that was seen is never further
//! ahead than it has come, so what it brings in vain is no more than what it has read. Who stores is not seen.

use super::hints::Hint;
use core::ops::Range;

/// Ranges that were told and are remembered at once; of more the oldest is forgotten.
const TOLD_MAX: usize = 64;
/// Readers that are remembered at once; of more the one that was away for longest is forgotten.
const SEEN_MAX: usize = 64;
/// Bytes that come when the first byte of an object is read: most programs read on.
const FIRST_BYTES: u64 = 64 << 10;
/// Bytes that come ahead of one reader, at most: several times what the fastest profile moves while a frame comes.
const WINDOW_BYTES: u64 = 4 << 20;
/// Bytes of what is needed soon that begin to come at once, at most: whoever hints holds up others for no longer. The
/// rest comes as these are used.
const NEEDED_BYTES: u64 = 16 << 20;
/// A reader that was not seen for as many uses as readers have frames, or so many, has no share in these any more.
const LIVE_USES: u64 = 512;

/// In what places are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// Bytes of the medium.
    Medium,
    /// Bytes of an object, by its number.
    Object(u64),
}

/// How a frame is met by who uses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    /// Neither there nor on its way.
    pub(super) missed: bool,
    /// To be stored to. Who stores is no reader: what follows is stored to next, and what comes of it is of no use, or
    /// is of use for a part.
    pub(super) stores: bool,
}

/// A frame is used for which somebody waits, or which came ahead: the first use of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) space: Space,
    /// The first byte that is asked for of the frame.
    pub(super) at: u64,
    /// Where the request ends, or the extent in which the byte lies, if that is earlier.
    pub(super) end: u64,
    /// Where the frame ends that has the request's last byte, or the extent.
    pub(super) reach: u64,
    pub(super) met: Met,
}

/// How far frames may come ahead, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Of a frame.
    pub(super) frame: u64,
    /// Of all who read in order.
    pub(super) seen: u64,
    /// Of all, with what is needed soon.
    pub(super) told: u64,
}

/// Why frames come ahead of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Seen,
    Told(Hint),
}

#[derive(Clone, Debug)]
struct Stream {
    space: Space,
    why: Why,
    /// What was told of; of one that was seen, from where it began.
    range: Range<u64>,
    /// Where the last request began and ended, and where the next use of somebody who goes on may begin.
    request: u64,
    read_to: u64,
    reach: u64,
    /// Up to where frames have begun to come.
    ahead_to: u64,
    /// Frames come ahead of it.
    is_followed: bool,
    /// It began with the first byte of an object.
    is_first: bool,
    /// Frames of it had no place when they were to come.
    is_held_up: bool,
    /// The number of its last use.
    last_use: u64,
}

impl Stream {
    fn is_needed(&self) -> bool {
        self.why == Why::Told(Hint::WillNeed)
    }
}

/// What follows from a use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    /// Of which stream frames come ahead.
    pub(super) stream: Option<usize>,
    /// Places that readers have left behind.
    pub(super) passed: Vec<(Space, Range<u64>)>,
}

/// The readers that are known.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: Vec<Stream>,
    /// What was read last of ranges that are read to their end: left behind with the next use of something else.
    ends: Vec<(Space, Range<u64>)>,
    uses: u64,
    /// The last use: of what was on its way it is told twice, when somebody waits and when it has come.
    last: Option<(Space, u64)>,
}

impl Streams {
    /// First uses that there were.
    pub(super) fn uses(&self) -> u64 {
        self.uses
    }

    /// A range will be used so; what was told of places of it before does not count any more. Answers the stream of
    /// which frames come at once, if they do.
    pub(super) fn tell(&mut self, space: Space, range: Range<u64>, hint: Hint) -> Option<usize> {
        let is_apart = |other: &Range<u64>| other.end <= range.start || range.end <= other.start;
        self.all.retain(|stream| stream.space != space || stream.why == Why::Seen || is_apart(&stream.range));
        if matches!(hint, Hint::Normal | Hint::DontNeed) {
            return None;
        }
        if self.all.iter().filter(|stream| stream.why != Why::Seen).count() == TOLD_MAX
            && let Some(oldest) = self.all.iter().position(|stream| stream.why != Why::Seen)
        {
            self.all.remove(oldest);
        }
        let begin = range.start;
        self.all.push(Stream {
            space,
            why: Why::Told(hint),
            range,
            request: begin,
            read_to: begin,
            reach: begin,
            ahead_to: begin,
            is_followed: hint != Hint::Random,
            is_first: false,
            is_held_up: false,
            last_use: self.uses,
        });
        (hint == Hint::WillNeed).then(|| self.all.len() - 1)
    }

    /// Nothing is known of a space any more.
    pub(super) fn forget(&mut self, space: Space) {
        self.all.retain(|stream| stream.space != space);
    }

    /// Something is used for the first time, in a space of `space_bytes` bytes.
    pub(super) fn used(&mut self, now: &Use, space_bytes: u64) -> Followed {
        let is_new = self.last.replace((now.space, now.at)) != Some((now.space, now.at));
        self.uses += u64::from(is_new);
        let is_over =
            |(space, range): &mut (Space, Range<u64>)| *space != now.space || !range.contains(&now.at);
        let mut passed: Vec<_> = self.ends.extract_if(.., is_over).collect();
        let reader = || if now.met.stores { None } else { self.seen(now) };
        let Some(index) = self.told(now).or_else(reader) else {
            let stream = if now.met.stores { None } else { self.begin(now) };
            return Followed { stream, passed };
        };
        let stream = &mut self.all[index];
        if stream.why == Why::Told(Hint::Random) {
            return Followed { stream: None, passed };
        }
        stream.last_use = self.uses;
        if now.at >= stream.reach && stream.read_to > stream.request {
            passed.push((stream.space, stream.request..stream.reach.min(stream.range.end)));
        }
        let goes_on = now.at >= stream.request && now.end > stream.read_to;
        if goes_on || stream.why != Why::Seen && !(stream.request..stream.read_to).contains(&now.at) {
            stream.is_followed |= now.at > stream.request;
            (stream.request, stream.read_to, stream.reach) = (now.at, now.end, now.reach);
            if now.end >= stream.range.end.min(space_bytes) && self.ends.len() < SEEN_MAX {
                self.ends.push((stream.space, now.at..now.reach.min(stream.range.end)));
            }
        }
        if now.met.missed && now.at < stream.ahead_to {
            // What came has left again.
            stream.ahead_to = now.end;
        }
        Followed { stream: stream.is_followed.then_some(index), passed }
    }

    /// What was told of a place, last.
    fn told(&self, now: &Use) -> Option<usize> {
        self.all.iter().rposition(|stream| {
            stream.space == now.space && stream.why != Why::Seen && stream.range.contains(&now.at)
        })
    }

    /// Who goes on at a place.
    fn seen(&self, now: &Use) -> Option<usize> {
        self.all.iter().position(|stream| {
            let until = if stream.is_followed { stream.reach.max(stream.ahead_to) } else { stream.reach };
            stream.space == now.space && stream.why == Why::Seen && (stream.request..=until).contains(&now.at)
        })
    }

    /// Somebody reads who may go on.
    fn begin(&mut self, now: &Use) -> Option<usize> {
        let is_first = now.space != Space::Medium && now.at == 0;
        let stream = Stream {
            space: now.space,
            why: Why::Seen,
            range: now.at..u64::MAX,
            request: now.at,
            read_to: now.end,
            reach: now.reach,
            ahead_to: now.end,
            is_followed: is_first,
            is_first,
            is_held_up: false,
            last_use: self.uses,
        };
        let seen = self.all.iter().enumerate().filter(|(_, stream)| stream.why == Why::Seen);
        let index = if seen.clone().count() < SEEN_MAX {
            self.all.push(stream);
            self.all.len() - 1
        } else {
            let (index, _) = seen.min_by_key(|(_, stream)| stream.last_use)?;
            self.all[index] = stream;
            index
        };
        is_first.then_some(index)
    }

    /// Where a stream is.
    pub(super) fn space(&self, index: usize) -> Space {
        self.all[index].space
    }

    /// The places of a stream that come now: from where frames have begun to come, as far as it may be ahead in a space
    /// of `space_bytes` bytes.
    pub(super) fn ahead(&self, index: usize, space_bytes: u64, limits: Limits) -> Range<u64> {
        let stream = &self.all[index];
        let uses = (limits.seen / limits.frame).min(LIVE_USES);
        let share = |all: u64| (all / self.live(uses)).min(WINDOW_BYTES);
        let window = match stream.why {
            Why::Seen => {
                // By chance two uses follow each other, too: what comes in vain is little then.
                let first = if stream.is_first { FIRST_BYTES.max(2 * limits.frame) } else { limits.frame };
                (stream.read_to - stream.range.start).max(first).min(share(limits.seen))
            }
            Why::Told(Hint::WillNeed) => limits.told.min(NEEDED_BYTES),
            Why::Told(_) => share(limits.seen),
        };
        let begin = stream.ahead_to.max(stream.read_to);
        let end = stream.read_to.saturating_add(window).min(stream.range.end).min(space_bytes);
        begin..end.max(begin)
    }

    /// Of how many bytes frames may come ahead of a stream, of others' among them.
    pub(super) fn budget(&self, index: usize, limits: Limits) -> u64 {
        if self.all[index].why == Why::Told(Hint::WillNeed) { limits.told } else { limits.seen }
    }

    /// Frames up to a place have begun to come.
    pub(super) fn brought(&mut self, index: usize, to: u64) {
        let stream = &mut self.all[index];
        stream.ahead_to = stream.ahead_to.max(to);
    }

    /// Whether frames of a stream could not come now, for want of a place.
    pub(super) fn set_held_up(&mut self, index: usize, is_held_up: bool) {
        self.all[index].is_held_up = is_held_up;
    }

    /// The first of those who need something soon and were held up.
    pub(super) fn held_up(&self) -> Option<usize> {
        self.all.iter().position(|stream| stream.is_held_up && stream.is_needed())
    }

    /// Whether something of a range is still to be read, as somebody has said who has read of it, or said so, in the
    /// last `uses` uses.
    pub(super) fn needs(&self, space: Space, range: &Range<u64>, uses: u64) -> bool {
        self.all.iter().any(|stream| {
            // Who reads now has not come to the later frames of his request yet.
            let is_to_come = stream.last_use == self.uses && range.start > stream.request;
            let read_to = if is_to_come { range.start } else { stream.read_to.max(range.start) };
            stream.is_needed()
                && stream.space == space
                && read_to < stream.range.end.min(range.end)
                && self.uses - stream.last_use < uses
        })
    }

    /// Whether anybody has said that he needs something soon.
    pub(super) fn has_needs(&self) -> bool {
        self.all.iter().any(Stream::is_needed)
    }

    /// Readers that share the frames: who was seen in the last so many uses.
    fn live(&self, uses: u64) -> u64 {
        let is_live = |stream: &&Stream| {
            let has_window = matches!(stream.why, Why::Seen | Why::Told(Hint::Sequential));
            has_window && stream.is_followed && self.uses - stream.last_use < uses
        };
        (self.all.iter().filter(is_live).count() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 16 << 10;
    const READ: Met = Met { missed: false, stores: false };
    const LIMITS: Limits = Limits { frame: FRAME, seen: 1 << 20, told: 2 << 20 };

    /// A read of a frame's first use.
    fn reads(streams: &mut Streams, space: Space, at: u64, bytes: u64) -> Option<Range<u64>> {
        let end = at + bytes;
        let reach = end.next_multiple_of(FRAME);
        let stream = streams.used(&Use { space, at, end, reach, met: READ }, u64::MAX).stream?;
        let ahead = streams.ahead(stream, u64::MAX, LIMITS);
        streams.brought(stream, ahead.end);
        Some(ahead)
    }

    #[test]
    fn who_goes_on_is_followed_as_far_as_he_has_come() {
        let mut streams = Streams::default();
        let mut read = |at| reads(&mut streams, Space::Medium, at, 8192);
        assert_eq!(read(5 * FRAME), None);
        assert_eq!(read(6 * FRAME), Some(6 * FRAME + 8192..8 * FRAME), "as much as was read");
        let mut come = 8 * FRAME;
        for frame in 7..200 {
            let ahead = read(frame * FRAME).unwrap();
            assert_eq!(ahead.start, come);
            come = ahead.end;
            let behind = (frame - 5) * FRAME + 8192;
            assert_eq!(come - (frame * FRAME + 8192), behind.min(1 << 20));
        }
    }

    #[test]
    fn who_reads_at_random_is_not_followed() {
        let mut streams = Streams::default();
        for at in [90, 3, 77, 3, 50, 48, 52, 10, 8, 6, 88].map(|frame| frame * FRAME) {
            assert_eq!(reads(&mut streams, Space::Medium, at, 4096), None, "at {at}");
        }
    }

    #[test]
    fn several_are_followed_and_share_the_frames() {
        let mut streams = Streams::default();
        let begins = [0_u64, 1 << 30, 2 << 30, 3 << 30];
        let mut farthest = 0;
        for frame in 0..500 {
            for begin in begins {
                let at = begin + frame * FRAME;
                if let Some(ahead) = reads(&mut streams, Space::Medium, at, FRAME) {
                    assert!(frame > 0 && ahead.end > at);
                    farthest = ahead.end - at - FRAME;
                }
            }
        }
        assert_eq!(farthest, (1 << 20) / 4);
        for one in 0..200 {
            reads(&mut streams, Space::Medium, (10 << 30) + one * 7 * FRAME, 4096);
        }
        assert!(streams.all.len() <= SEEN_MAX);
    }

    #[test]
    fn the_first_byte_of_an_object_is_followed_and_others_are_apart() {
        let mut streams = Streams::default();
        assert_eq!(reads(&mut streams, Space::Object(1), 0, 4096), Some(4096..4096 + FIRST_BYTES));
        assert_eq!(reads(&mut streams, Space::Object(2), FRAME, 4096), None);
        assert_eq!(reads(&mut streams, Space::Medium, 2 * FRAME, 4096), None);
        streams.forget(Space::Object(2));
        assert_eq!(reads(&mut streams, Space::Object(2), 2 * FRAME, 4096), None, "it was forgotten");
    }

    #[test]
    fn what_was_told_counts_and_is_replaced() {
        let mut streams = Streams::default();
        let space = Space::Object(7);
        let all = 0..u64::MAX;
        assert_eq!(streams.tell(space, all.clone(), Hint::Sequential), None);
        assert_eq!(reads(&mut streams, space, 9 * FRAME, FRAME), Some(10 * FRAME..10 * FRAME + (1 << 20)));
        assert_eq!(streams.tell(space, all.clone(), Hint::Random), None);
        assert_eq!(reads(&mut streams, space, 0, FRAME), None);
        assert_eq!(reads(&mut streams, space, FRAME, FRAME), None);
        let needed = streams.tell(space, FRAME..5 * FRAME, Hint::WillNeed).unwrap();
        assert_eq!(
            (streams.space(needed), streams.ahead(needed, u64::MAX, LIMITS)),
            (space, FRAME..5 * FRAME)
        );
        assert_eq!(streams.ahead(needed, 3 * FRAME, LIMITS), FRAME..3 * FRAME, "the object's end");
        assert_eq!(streams.tell(space, all, Hint::Normal), None);
        assert_eq!(reads(&mut streams, space, 0, FRAME), Some(FRAME..FRAME + FIRST_BYTES));
        for range in 0..100 {
            streams.tell(Space::Medium, range * FRAME..(range + 1) * FRAME, Hint::Random);
        }
        assert!(streams.all.len() <= TOLD_MAX + SEEN_MAX);
    }

    #[test]
    fn what_a_reader_has_left_behind_is_told_once() {
        let mut streams = Streams::default();
        let space = Space::Object(1);
        let mut passed = Vec::new();
        for at in (0..8).map(|turn| turn * 8192).filter(|at| at % FRAME == 0) {
            // Half a frame a call: every second one is a frame's first use.
            let now = Use { space, at, end: at + 8192, reach: at + FRAME, met: READ };
            passed.extend(streams.used(&now, 4 * FRAME - 8192).passed);
        }
        let range = |begin, end| (space, begin * FRAME..end * FRAME);
        assert_eq!(passed, [range(0, 1), range(1, 2), range(2, 3)]);
        let other =
            Use { space: Space::Medium, at: 0, end: 1, reach: FRAME, met: Met { missed: true, ..READ } };
        assert_eq!(
            streams.used(&other, u64::MAX).passed,
            [range(3, 4)],
            "the end, when something else is read"
        );
        assert_eq!(streams.used(&other, u64::MAX).passed, []);
    }
}

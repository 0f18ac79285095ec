//! What a drive can do, in closed form: from its profile's numbers alone, without a simulation (docs/flash.md).
//!
//! An idle, new drive: no collection, no sleep, all planes used alike. At saturation one of link, buses and dies is
//! busy all the time, and limits the drive.

use nvmed_flash::{ArrayProfile, BlockKind, Medium, Profile, Rate, UNIT_BYTES};

/// Bytes of a command of a sequential stream.
pub(crate) const STREAM_BYTES: u64 = 128 << 10;

/// What is done to a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads of 4 KiB anywhere.
    RandomRead,
    /// Writes of 4 KiB anywhere.
    RandomWrite,
    /// Reads one after another, 128 KiB each.
    StreamRead,
    /// Writes one after another, 128 KiB each.
    StreamWrite,
}

impl Work {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RandomRead, Self::RandomWrite, Self::StreamRead, Self::StreamWrite];

    fn is_read(self) -> bool {
        matches!(self, Self::RandomRead | Self::StreamRead)
    }

    /// Bytes of one command.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::RandomRead | Self::RandomWrite => UNIT_BYTES,
            Self::StreamRead | Self::StreamWrite => STREAM_BYTES,
        }
    }
}

/// What a drive can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Nanoseconds of a 4 KiB read by itself.
    pub read_ns: f64,
    /// Nanoseconds of a 4 KiB write by itself; into the buffer, where there is one.
    pub write_ns: f64,
    /// Bytes a second at saturation, in the order of [`Work::ALL`].
    pub bytes_per_s: [f64; 4],
}

impl Figures {
    /// Those of a drive; none of a medium without dies.
    #[must_use]
    pub fn of(profile: &Profile) -> Option<Self> {
        let Medium::Array(array) = &profile.medium else { return None };
        let (read_ns, write_ns) = (alone(array, true), alone(array, false));
        let bytes_per_s = Work::ALL.map(|work| saturated(array, profile.commands, work));
        Some(Self { read_ns, write_ns, bytes_per_s })
    }

    /// Bytes a second at saturation.
    #[must_use]
    pub fn rate(&self, work: Work) -> f64 {
        self.bytes_per_s[work as usize]
    }
}

fn time(rate: Rate, bytes: u64) -> f64 {
    if rate.is_unlimited() { 0.0 } else { bytes as f64 * rate.ns as f64 / rate.bytes as f64 }
}

fn mean(times: &[u64]) -> f64 {
    times.iter().map(|&ns| ns as f64).sum::<f64>() / times.len().max(1) as f64
}

/// Pages of the map that a read of so many bytes waits for: at random, the part of the map that the cache lacks; of a
/// stream over more than the cache has the map of, each once.
fn map_reads(array: &ArrayProfile, work: Work) -> f64 {
    let Some(cache) = array.translation.as_ref().and_then(|translation| translation.map_cache) else {
        return 0.0;
    };
    let cached = (cache.pages() as f64 / array.map_pages().max(1) as f64).min(1.0);
    match work {
        Work::RandomRead => 1.0 - cached,
        Work::StreamRead if cached < 1.0 => work.bytes() as f64 / (cache.entries() * UNIT_BYTES) as f64,
        _ => 0.0,
    }
}

/// A page of the map on an idle drive.
fn map_read(array: &ArrayProfile) -> f64 {
    let kind = array.blocks.first();
    kind.map_or(0.0, |kind| mean(&kind.read_ns)) + time(array.bus_out, UNIT_BYTES)
}

/// A command of 4 KiB on an idle drive.
fn alone(array: &ArrayProfile, is_read: bool) -> f64 {
    let Some(kind) = array.blocks.first() else { return 0.0 };
    let command = array.command_ns as f64;
    if is_read {
        return command
            + mean(&kind.read_ns)
            + time(array.bus_out, UNIT_BYTES)
            + time(array.link_out, UNIT_BYTES)
            + map_reads(array, Work::RandomRead) * map_read(array);
    }
    let received = command + time(array.link_in, UNIT_BYTES);
    let is_buffered = array.translation.as_ref().is_some_and(|translation| translation.buffer_bytes > 0);
    if is_buffered { received } else { received + time(array.bus_in, UNIT_BYTES) + mean(&kind.program_ns) }
}

/// What planes, dies and buses do again and again.
struct Turn {
    /// Nanoseconds in the cells, of all planes of a die together.
    cells_ns: f64,
    /// Nanoseconds of one plane's transfer.
    transfer_ns: f64,
    /// Bytes of the host's in one plane's operation.
    bytes: u64,
    /// Planes of a die that take part.
    planes: u32,
}

/// The kind of blocks that commands of a size go to.
fn kind_for(array: &ArrayProfile, bytes: u64) -> Option<&BlockKind> {
    array.blocks.iter().rfind(|kind| kind.page_bytes <= bytes).or(array.blocks.first())
}

fn turn(array: &ArrayProfile, work: Work) -> Option<Turn> {
    let kind = kind_for(array, work.bytes())?;
    let together = |planes: u32| f64::from(planes - 1) * array.multi_plane_ns as f64;
    let planes = array.planes;
    let in_page = work.bytes().min(kind.page_bytes);
    if work.is_read() {
        let cells_ns = mean(&kind.read_ns) + together(planes);
        return Some(Turn { cells_ns, transfer_ns: time(array.bus_out, in_page), bytes: in_page, planes });
    }
    let (bytes, planes) = match &array.translation {
        // Programs are gathered over the planes of a die.
        Some(translation) if translation.buffer_bytes > 0 => {
            (kind.page_bytes * u64::from(kind.pages_per_program), planes)
        }
        // Each command is programmed by itself: as far as its pages reach.
        Some(_) => {
            let pages = work.bytes().div_ceil(kind.page_bytes).min(planes.into());
            let rows = kind.page_bytes * u64::from(kind.pages_per_program);
            (rows.min(work.bytes().div_ceil(pages)), pages as u32)
        }
        None => (in_page, planes),
    };
    let cells_ns = mean(&kind.program_ns) + together(planes);
    Some(Turn { cells_ns, transfer_ns: time(array.bus_in, bytes), bytes, planes })
}

/// Bytes a second with so many commands as the drive takes.
fn saturated(array: &ArrayProfile, commands: u32, work: Work) -> f64 {
    let Some(turn) = turn(array, work) else { return 0.0 };
    let dies = f64::from(array.chips * array.dies);
    let planes = f64::from(turn.planes);
    // With one register a plane does nothing while it is transferred; with more, that goes on beside the cells.
    let die_ns = if array.registers == 1 { turn.cells_ns + planes * turn.transfer_ns } else { turn.cells_ns };
    let bus_ns = dies * planes * turn.transfer_ns;
    let inside = f64::from(array.channels) * dies * planes * turn.bytes as f64 / die_ns.max(bus_ns) * 1e9;
    // A page of the map takes what another page does.
    let pieces = work.bytes().div_ceil(turn.bytes) as f64;
    let inside = inside * pieces / (pieces + map_reads(array, work));
    let link = time(if work.is_read() { array.link_out } else { array.link_in }, work.bytes());
    let outside = if link > 0.0 { work.bytes() as f64 / link * 1e9 } else { f64::INFINITY };
    let by_commands = f64::from(commands) * work.bytes() as f64 / one(array, work, &turn) * 1e9;
    inside.min(outside).min(by_commands)
}

/// Nanoseconds of one command by itself, spread over the planes.
fn one(array: &ArrayProfile, work: Work, turn: &Turn) -> f64 {
    if work.bytes() == UNIT_BYTES {
        return alone(array, work.is_read());
    }
    let pieces = work.bytes().div_ceil(turn.bytes);
    let (planes, dies) = (f64::from(turn.planes), f64::from(array.chips * array.dies));
    let on_a_channel = pieces.div_ceil(array.channels.into()) as f64;
    let rounds = pieces.div_ceil((array.dies_total() * array.planes).into()) as f64;
    let command = array.command_ns as f64;
    let is_buffered = array.translation.as_ref().is_some_and(|translation| translation.buffer_bytes > 0);
    if work.is_read() {
        // The last pieces of all channels are there together, and go to the host one by one.
        let last = f64::from(array.channels) * time(array.link_out, turn.bytes);
        let busy = (on_a_channel * turn.transfer_ns).max((rounds - 1.0) * turn.cells_ns);
        command + map_reads(array, work) * map_read(array) + turn.cells_ns + busy + last
    } else if is_buffered {
        command + time(array.link_in, work.bytes())
    } else {
        // The last die begins when all of its channel were served once. Then each round is a program, and with one
        // register the transfer before it, which another die's delays once.
        let first = dies * planes * turn.transfer_ns + turn.cells_ns;
        let between = if array.registers == 1 { planes * turn.transfer_ns } else { 0.0 };
        let delay = if rounds > 1.0 { (dies - 1.0) * (planes - 1.0) * turn.transfer_ns } else { 0.0 };
        let busy = (first + (rounds - 1.0) * (turn.cells_ns + between) + delay)
            .max(on_a_channel * turn.transfer_ns + turn.cells_ns);
        command + time(array.link_in, work.bytes()) + busy
    }
}

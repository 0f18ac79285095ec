//! The journals of a drive's state: groups of records one after the other (docs/spec/flash.md, "Records").

use crate::drive_layout::LIFE_COUNTERS;
use nvmed_sys::Mapping;
use zerocopy::IntoBytes;

/// Words of a group before its records: how many, lap, checksum, place.
const GROUP_WORDS: usize = 4;
/// First words of records that are alone in their group: of counters, and of a journal that another one goes on in.
const LIFE: u32 = 5 << 24;
const GOES_ON: u32 = 6 << 24;

/// Both journals.
#[derive(Debug)]
pub(crate) struct Journals {
    mapping: Mapping,
    /// Bytes of each.
    bytes: usize,
}

/// What was found in a journal, and in the one that goes on with it.
#[derive(Default)]
pub(crate) struct Found {
    /// All records of the drive.
    pub records: Vec<u32>,
    /// The counters that were kept last, if any were.
    pub life: Option<[u64; LIFE_COUNTERS]>,
}

/// Bytes of a group of so many words of records.
pub(crate) fn group_bytes(words: usize) -> usize {
    (GROUP_WORDS + words) * 4
}

/// The record of counters.
pub(crate) fn life_record(life: [u64; LIFE_COUNTERS]) -> [u32; 1 + 2 * LIFE_COUNTERS] {
    let mut words = [0; 1 + 2 * LIFE_COUNTERS];
    words[0] = LIFE;
    words[1..].as_mut_bytes().copy_from_slice(life.as_bytes());
    words
}

impl Journals {
    /// The journals in a mapping that has both, of so many bytes each.
    pub fn new(mapping: Mapping, bytes: usize) -> Self {
        Self { mapping, bytes }
    }

    /// Whether the mapping is still the file's: whoever cuts the file takes it away.
    pub fn is_cut(&self) -> bool {
        self.mapping.is_cut()
    }

    /// Where the journal of a lap begins.
    fn begin(&self, lap: u32) -> usize {
        (lap % 2) as usize * self.bytes
    }

    /// Writes a group at a place where it fits.
    pub fn write(&self, lap: u32, place: usize, records: &[u32]) {
        assert!(place + group_bytes(records.len()) <= self.bytes, "a group that does not fit at {place}");
        let checksum = group_checksum(lap, place as u32, records);
        let at = self.begin(lap) + place;
        let head = [records.len() as u32, lap, checksum, place as u32];
        self.mapping.write(at + GROUP_WORDS * 4, records.as_bytes());
        // Last: a process that is killed before has written no group.
        self.mapping.write(at, head.as_bytes());
    }

    /// Begins the journal of a lap, which goes on with the one before, of which so many bytes are used. Answers how
    /// many are used now.
    pub fn go_on(&self, lap: u32, used: usize) -> usize {
        let record = [GOES_ON, used as u32];
        self.write(lap, 0, &record);
        group_bytes(record.len())
    }

    /// Reads the journal of a lap from a place on, and the next one's if that goes on with it.
    pub fn read(&self, lap: u32, place: usize) -> Found {
        let mut found = Found::default();
        let end = self.read_one(lap, place, &mut found);
        let next = lap.wrapping_add(1);
        let mut first = Vec::new();
        // Where a power cut has torn the one before, what came after that does not count.
        if self.group(next, 0, &mut first).is_some() && first == [GOES_ON, end as u32] {
            self.read_one(next, 0, &mut found);
        }
        found
    }

    /// Reads up to the first group that is none; where that is.
    fn read_one(&self, lap: u32, mut place: usize, found: &mut Found) -> usize {
        let mut group = Vec::new();
        while let Some(behind) = self.group(lap, place, &mut group) {
            place = behind;
            match group[0] {
                GOES_ON => {}
                LIFE if group.len() == 1 + 2 * LIFE_COUNTERS => {
                    let mut life = [0; LIFE_COUNTERS];
                    life.as_mut_bytes().copy_from_slice(group[1..].as_bytes());
                    found.life = Some(life);
                }
                _ => found.records.extend_from_slice(&group),
            }
        }
        place
    }

    /// Reads the group of a lap at a place, and answers what is behind it; `None` if there is none.
    fn group(&self, lap: u32, place: usize, into: &mut Vec<u32>) -> Option<usize> {
        if place + group_bytes(0) > self.bytes {
            return None;
        }
        let mut head = [0_u32; GROUP_WORDS];
        self.mapping.read(self.begin(lap) + place, head.as_mut_bytes());
        let [count, of_lap, checksum, at] = head;
        let behind = place + group_bytes(count as usize);
        if of_lap != lap || at as usize != place || count == 0 || behind > self.bytes {
            return None;
        }
        into.resize(count as usize, 0);
        self.mapping.read(self.begin(lap) + place + group_bytes(0), into.as_mut_bytes());
        (group_checksum(lap, at, into) == checksum).then_some(behind)
    }
}

fn group_checksum(lap: u32, place: u32, records: &[u32]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c([lap, place].as_bytes()), records.as_bytes())
}

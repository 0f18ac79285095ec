//! Reads of a file beside copies of the same bytes from a mapping of the image that it lies in.

use crate::{Dice, SEED, failed, fill, number, open, pread};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Bytes of a call.
const CALL: usize = 8192;
const PAGE: usize = 4096;

/// An image, mapped to be read, with all its pages present.
struct Image(*const u8, usize);

impl Image {
    fn mapped(path: &str) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| format!("{path}: {error}"))?;
        let bytes = file.metadata().map_err(|error| format!("{path}: {error}"))?.len() as usize;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: no address is asked for, so that nothing that is mapped is touched.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(failed(path)) } else { Ok(Self(at.cast(), bytes)) }
    }

    /// Copies bytes out.
    fn copy(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.1, "a copy leaves the image");
        // SAFETY: inside the mapping, which is never unmapped; `into` is elsewhere, since it can be written.
        unsafe { std::ptr::copy_nonoverlapping(self.0.add(at), into.as_mut_ptr(), into.len()) }
    }

    /// Where a file of `bytes` bytes lies, in one piece, that begins with `first` and ends with `last`.
    fn find(&self, bytes: usize, first: &[u8], last: &[u8]) -> Option<usize> {
        let mut page = vec![0; PAGE];
        let mut is_at = |at: usize, wanted: &[u8]| {
            self.copy(at, &mut page);
            page == wanted
        };
        let end = self.1.checked_sub(bytes)?;
        (0..=end).step_by(PAGE).find(|&at| is_at(at, first) && is_at(at + bytes - PAGE, last))
    }
}

/// For each slice a line: nanoseconds of a read of 8 KiB at random, and of a copy of the same bytes.
pub fn beside(image: &str, file: &str, bytes: &str, slices: &str, ops: &str) -> Result<(), String> {
    let (bytes, slices, ops) = (number(bytes)?, number(slices)?, number(ops)?);
    let fd = open(file, libc::O_RDWR | libc::O_CREAT)?;
    fill(fd, bytes / PAGE, &crate::Mode::Read)?;
    let image = Image::mapped(image)?;
    let (mut read, mut copied) = ([0; CALL], [0; CALL]);
    let ends = [0, bytes - PAGE].map(|at| {
        let mut page = [0; PAGE];
        pread(fd, &mut page, at).map(|()| page)
    });
    let [first, last] = ends;
    let base = image.find(bytes, &first?, &last?).ok_or("the file does not lie in one piece")?;
    let mut dice = Dice::new(SEED);
    for slice in 0..=slices {
        let places: Vec<usize> = (0..ops).map(|_| dice.index(bytes / CALL) * CALL).collect();
        let begin = Instant::now();
        places.iter().try_for_each(|&at| pread(fd, &mut read, at))?;
        let ours = begin.elapsed();
        // Others than were just read, of which some would be in the processor's caches.
        let places: Vec<usize> = (0..ops).map(|_| dice.index(bytes / CALL) * CALL).collect();
        let begin = Instant::now();
        places.iter().for_each(|&at| image.copy(base + at, &mut copied));
        let floor = begin.elapsed();
        let at = places.last().copied().unwrap_or_default();
        pread(fd, &mut read, at)?;
        if read != copied {
            return Err(format!("bytes at {at} of the file are not those of the image"));
        }
        if slice > 0 {
            let each = |time: std::time::Duration| time.as_nanos() as f64 / ops as f64;
            println!("{:.2} {:.2}", each(ours), each(floor));
        }
    }
    Ok(())
}

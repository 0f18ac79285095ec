//! What a side holds in memory, as far as that can be told of it alone.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Proportional resident bytes of a run's own processes: the holder, which the memory of the run belongs to, and the
/// server with cache, windows and shelves. What programs of the run have mapped of these counts in part as theirs.
pub(super) fn of_run(holder: u32) -> Result<u64, String> {
    let servers = children(holder).into_iter().filter(|pid| is_server(*pid));
    servers.chain([holder]).map(resident).sum()
}

fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn is_server(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).any(|word| word == b"--serve")
}

fn resident(pid: u32) -> Result<u64, String> {
    let file = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let pss =
        text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok());
    pss.map(|kib: u64| kib << 10).ok_or_else(|| format!("{file}: no Pss"))
}

/// Bytes of all files below `dir` that are in the host's page cache. What the kernel has of their names and inodes, and
/// of the file system's own blocks, is not in it.
pub(super) fn of_files(dir: &Path) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            bytes += of_files(&entry.path())?;
        } else if kind.is_file() {
            bytes += of_file(&entry.path()).map_err(failed)?;
        }
    }
    Ok(bytes)
}

const PAGE: usize = 4096;

fn of_file(path: &Path) -> std::io::Result<u64> {
    let file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    if len == 0 {
        return Ok(0);
    }
    let mut pages = vec![0u8; len.div_ceil(PAGE)];
    // SAFETY: a new mapping of `len` bytes of an open file, which nobody touches, and which ends here; `pages` has a
    // byte for each of its pages.
    let told = unsafe {
        let fd = file.as_raw_fd();
        let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let told = libc::mincore(at, len, pages.as_mut_ptr());
        libc::munmap(at, len);
        told
    };
    if told != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(pages.iter().filter(|page| **page & 1 != 0).count() as u64 * PAGE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_just_written_is_in_the_page_cache_and_this_process_is_resident() {
        let dir = std::env::temp_dir().join(format!("nvmed-bench-{}-memory", std::process::id()));
        std::fs::create_dir_all(dir.join("deeper")).unwrap();
        std::fs::write(dir.join("deeper/file"), vec![7; 3 * PAGE + 1]).unwrap();
        std::fs::write(dir.join("empty"), b"").unwrap();
        let cached = of_files(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(cached, Ok(4 * PAGE as u64));
        assert!(resident(std::process::id()).unwrap() > 1 << 20);
    }
}

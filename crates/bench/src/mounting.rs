//! Rows of what a mount reads.

use crate::row::{Contender, Goal, Row};
use nvmed_fs::{Credentials, FileSystem, FormatOptions, OpenFlags};
use nvmed_lab::samples::Samples;
use nvmed_stack::{Config, DeviceSpec, Mount, Open, Surroundings, open_device};

/// Files a directory.
const PER_DIRECTORY: usize = 10_000;
/// Bytes of the device: its metadata region, an eighth, holds a million files.
const DEVICE_BYTES: u64 = 16 << 30;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn open(spec: &DeviceSpec) -> Result<Mount, String> {
    let config = Config::new("/unused".into(), spec.clone());
    nvmed_stack::mount(&config, Surroundings::default()).map_err(text)
}

/// Makes `files` empty files on a fresh device, unmounts, mounts, and says how many 4 KiB blocks that read.
fn blocks_read(files: usize) -> Result<f64, String> {
    let path = std::env::temp_dir().join(format!("nvmed-bench-{}-mount.img", std::process::id()));
    let spec = DeviceSpec::parse(&path.display().to_string()).map_err(text)?;
    let measured = fill(&spec, files).and_then(|()| {
        let mount = open(&spec)?;
        let blocks = mount.mount_blocks_read();
        mount.unmount().map_err(text)?;
        Ok(blocks as f64)
    });
    let _ = std::fs::remove_file(&path);
    measured
}

fn fill(spec: &DeviceSpec, files: usize) -> Result<(), String> {
    let device = open_device(spec, Open::Create { bytes: DEVICE_BYTES }).map_err(text)?;
    FileSystem::format(&device, &FormatOptions::default()).map_err(text)?;
    device.shutdown().map_err(text)?;
    drop(device);
    let mount = open(spec)?;
    let (root, who) = (mount.root(), Credentials { uid: 0, gid: 0, groups: &[], permitted: false });
    for index in 0..files {
        let dir = format!("d{:04}", index / PER_DIRECTORY);
        if index % PER_DIRECTORY == 0 {
            mount.mkdir(&root, dir.as_bytes(), 0o755, &who).map_err(text)?;
        }
        let name = format!("{dir}/file{index:07}");
        let flags = OpenFlags((libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY).cast_unsigned());
        mount.open(&root, name.as_bytes(), flags, 0o644, &who).map_err(text)?;
    }
    mount.unmount().map_err(text)
}

/// 4 KiB blocks that a mount reads after a clean unmount, by number of files.
pub fn blocks() -> Result<Vec<Row>, String> {
    [(1_000, "fs.mount_blocks.1k"), (1_000_000, "fs.mount_blocks.1m")]
        .into_iter()
        .map(|(files, name)| {
            let samples: Samples = [blocks_read(files)?].into_iter().collect();
            Ok(Row {
                name: name.to_owned(),
                unit: "blocks",
                ours: Contender { name: format!("mount after a clean unmount, {files} files"), samples },
                rival: None,
                goal: Goal::Figure(64.0),
                flushes_per_op: None,
                conditions: format!(
                    "{files} empty files in directories of {PER_DIRECTORY}; one run: a count"
                ),
            })
        })
        .collect()
}

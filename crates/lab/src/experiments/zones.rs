//! What the zone bound of the file system costs and saves.

use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::machine::now_ns;
use crate::samples::Samples;
use nvmed_dice::mix;
use nvmed_fs::{Credentials, FileSystem, Follow, FormatOptions, FsError, OpenFlags, RenameFlags};
use nvmed_stack::{Config, DeviceSpec, Mount, Open, StackError, Surroundings, open_device};
use std::ops::ControlFlow;

/// Lookups, listings, renames and creations by zone bound.
pub(crate) struct Zones;

/// The bounds; the first is the default that is judged.
const BOUNDS: [u32; 4] = [64, 0, 1024, u32::MAX];
const WHO: &Credentials<'static> = &Credentials::ROOT;
/// Directories of each of two levels, and files of one.
const TOPS: u64 = 20;
const SUBS: u64 = 25;
const RENAMES: u64 = 20;
/// Small, so that little of the metadata stays in it.
const CACHE_BYTES: u64 = 16 << 20;

/// A figure of one bound: its name, its unit, how much was done in a second or for one block read.
type Figures = Vec<(&'static str, &'static str, f64)>;

fn failed(error: FsError) -> LabError {
    LabError::Program { shown: "the file system".into(), reason: error.to_string() }
}

fn stack(error: StackError) -> LabError {
    LabError::Stack(error)
}

fn bound_text(bound: u32) -> String {
    if bound == u32::MAX { "no bound".to_owned() } else { format!("zone bound {bound}") }
}

/// A file system with one bound.
struct Tree {
    spec: DeviceSpec,
    path: std::path::PathBuf,
    files: u64,
}

impl Tree {
    fn new(bound: u32, effort: &Effort) -> Result<Self, LabError> {
        let path = std::env::temp_dir().join(format!("nvmed-lab-{}-zones.img", std::process::id()));
        crate::undo::made(&crate::undo::HostResource::File(path.clone()));
        let text = path.display().to_string();
        let spec = DeviceSpec::parse(&text).map_err(|error| StackError::Spec { device: text, error })?;
        let device = open_device(&spec, Open::Create { bytes: 1 << 30 }).map_err(stack)?;
        let options = FormatOptions { zone_bound: bound, ..FormatOptions::default() };
        FileSystem::format(&device, &options).map_err(failed)?;
        device.shutdown()?;
        Ok(Self { spec, path, files: if effort.quick { 10 } else { 100 } })
    }

    fn mount(&self) -> Result<Mount, LabError> {
        let mut config = Config::new("/unused".into(), self.spec.clone());
        (config.cache_bytes, config.dirty_limit_bytes) = (CACHE_BYTES, CACHE_BYTES / 2);
        nvmed_stack::mount(&config, Surroundings::default()).map_err(stack)
    }

    fn total(&self) -> u64 {
        TOPS * SUBS * self.files
    }

    fn path(&self, number: u64) -> String {
        let (top, rest) = (number % TOPS, number / TOPS);
        format!("top-directory{top:03}/sub-directory{:03}/file{:05}", rest % SUBS, rest / SUBS)
    }

    fn create(&self, mount: &Mount) -> Result<f64, LabError> {
        let root = mount.root();
        for top in 0..TOPS {
            mount.mkdir(&root, format!("top-directory{top:03}").as_bytes(), 0o755, WHO).map_err(failed)?;
            for sub in 0..SUBS {
                let path = format!("top-directory{top:03}/sub-directory{sub:03}");
                mount.mkdir(&root, path.as_bytes(), 0o755, WHO).map_err(failed)?;
            }
        }
        let flags = OpenFlags((libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY).cast_unsigned());
        let begin = now_ns();
        for number in 0..self.total() {
            mount.open(&root, self.path(number).as_bytes(), flags, 0o644, WHO).map_err(failed)?;
        }
        Ok(rate(self.total(), begin))
    }

    /// Lookups a second, and for each block of metadata read.
    fn lookups(&self, mount: &Mount) -> Result<(f64, f64), LabError> {
        let root = mount.root();
        let before = mount.store_stats().blocks_read;
        let begin = now_ns();
        for number in 0..self.total() {
            let path = self.path(mix(number) % self.total());
            mount.stat(&root, path.as_bytes(), Follow::Yes, WHO).map_err(failed)?;
        }
        let blocks = mount.store_stats().blocks_read - before;
        Ok((rate(self.total(), begin), self.total() as f64 / blocks.max(1) as f64))
    }

    /// Entries listed a second.
    fn listings(&self, mount: &Mount) -> Result<f64, LabError> {
        let flags = OpenFlags((libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOATIME).cast_unsigned());
        let mut entries = 0;
        let begin = now_ns();
        for directory in 0..TOPS * SUBS {
            let path = format!("top-directory{:03}/sub-directory{:03}", directory % TOPS, directory / TOPS);
            let open = mount.open(&mount.root(), path.as_bytes(), flags, 0, WHO).map_err(failed)?;
            open.read_dir(&mut |_| {
                entries += 1;
                ControlFlow::Continue(())
            })
            .map_err(failed)?;
        }
        Ok(rate(entries, begin))
    }

    /// Renames a second of directories of the upper level, and of the lower one.
    fn renames(&self, mount: &Mount) -> Result<(f64, f64), LabError> {
        let root = mount.root();
        let rename = |from: &str, to: &str| {
            mount
                .rename(&root, from.as_bytes(), &root, to.as_bytes(), RenameFlags::Replace, WHO)
                .map_err(failed)
        };
        let begin = now_ns();
        for _ in 0..RENAMES {
            rename("top-directory000/sub-directory000", "top-directory001/moved")?;
            rename("top-directory001/moved", "top-directory000/sub-directory000")?;
        }
        let lower = rate(2 * RENAMES, begin);
        let begin = now_ns();
        for _ in 0..RENAMES {
            rename("top-directory000", "moved")?;
            rename("moved", "top-directory000")?;
        }
        Ok((rate(2 * RENAMES, begin), lower))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        crate::undo::undo(&crate::undo::HostResource::File(self.path.clone()));
    }
}

fn rate(count: u64, begin_ns: u64) -> f64 {
    count as f64 * 1e9 / (now_ns() - begin_ns).max(1) as f64
}

fn figures(bound: u32, effort: &Effort) -> Result<Figures, LabError> {
    let tree = Tree::new(bound, effort)?;
    let mount = tree.mount()?;
    let create = tree.create(&mount)?;
    mount.unmount().map_err(failed)?;
    drop(mount);
    let mount = tree.mount()?;
    let (cold, per_block) = tree.lookups(&mount)?;
    let (warm, _) = tree.lookups(&mount)?;
    mount.unmount().map_err(failed)?;
    drop(mount);
    let mount = tree.mount()?;
    let (cold_list, warm_list) = (tree.listings(&mount)?, tree.listings(&mount)?);
    let (upper, lower) = tree.renames(&mount)?;
    mount.unmount().map_err(failed)?;
    Ok(vec![
        ("create", "files/s", create),
        ("lookup, cold", "paths/s", cold),
        ("lookup, cold", "paths a block read", per_block),
        ("lookup, warm", "paths/s", warm),
        ("list, cold", "entries/s", cold_list),
        ("list, warm", "entries/s", warm_list),
        ("rename of a directory with subdirectories", "renames/s", upper),
        ("rename of a directory of files", "renames/s", lower),
    ])
}

impl Experiment for Zones {
    fn id(&self) -> &'static str {
        "fs.zone_bound"
    }

    fn what(&self) -> &'static str {
        "the default zone bound over the best of the others (0, 1024, none), for each operation"
    }

    /// A default need not win everywhere; it must not lose by much anywhere.
    fn goal(&self) -> Goal {
        Goal::AtLeast(0.5)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let rounds = effort.rounds().min(3);
        let mut all: Vec<Vec<Figures>> = vec![Vec::new(); BOUNDS.len()];
        for _ in 0..rounds {
            for (bound, into) in BOUNDS.iter().zip(&mut all) {
                into.push(figures(*bound, effort)?);
            }
        }
        let operations = all[0][0].clone();
        let series = operations.iter().enumerate().map(|(index, (label, unit, _))| {
            let measured = |bound: usize| Measured {
                name: bound_text(BOUNDS[bound]),
                runs: all[bound].iter().map(|figures| figures[index].2).collect::<Samples>(),
            };
            Series {
                label: (*label).to_owned(),
                unit: (*unit).to_owned(),
                ours: measured(0),
                rivals: (1..BOUNDS.len()).map(measured).collect(),
            }
        });
        let files = TOPS * SUBS * if effort.quick { 10 } else { 100 };
        Ok(Finding {
            cells: Vec::new(),
            series: series.collect(),
            method: format!(
                "{files} empty files in {TOPS} directories of {SUBS} each, through the library on an image; as many \
                 lookups at random after a mount (cold) and again (warm), all directories listed, one of each level \
                 renamed to and fro; {rounds} rounds in turns"
            ),
            limits: vec!["cold means nothing in our memory; the image itself stays in the host's".to_owned()],
        })
    }
}

//! A workload from a seed, run once on a healthy device while every command is recorded.

use crate::dice::Dice;
use crate::disk::{Death, Disk, memory};
use crate::media::{Event, Image, Trace, Volatile};
use crate::model::Model;
use crate::operation::{Chooser, Done, Op, Step};
use crate::runner::{Runner, Wrong, clock, wind_clock};
use crate::survey::{Ended, Survey};
use nvmed_fs::{Durability, FileSystem, FormatOptions, MountOptions};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// Operations of the recorded part.
const STEPS: u64 = 70;
/// Operations before it at most: enough to fill half a log, so that a checkpoint comes.
const WARM_UP_MAX: u64 = 4000;
/// Half of the log of the smallest metadata region, where a checkpoint is due.
const LOG_BYTES_DUE: u64 = 64 * 4072;
/// Bytes that are left of it when recording begins, at most.
const LOG_BYTES_LEFT: u64 = 10_000;

/// Attributes that fill a metadata region at most, and tree blocks that they leave before it grows.
const BALLAST_MAX: u64 = 150;
const BALLAST_LEFT: u64 = 12;

/// What a seed makes of the file system.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Blocks of the device.
    pub blocks: u64,
    /// How it is mounted.
    pub options: MountOptions,
    /// A directory with more in its subtree is a zone.
    zone_bound: u32,
    /// Operations before recording begins, at most; it begins earlier when a checkpoint is near.
    warm_up: u64,
    /// Whether the file system is unmounted and mounted before recording begins.
    remount: bool,
    /// Whether the metadata region is nearly full, so that it grows.
    grows: bool,
    /// Deaths of the process to be taken.
    deaths: u64,
}

impl Setting {
    /// The setting of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::of(&[seed, 0x5e7]);
        let through = dice.chance(12);
        let default = MountOptions::default();
        let options = MountOptions {
            prealloc_bytes: if dice.chance(25) { 64 << 10 } else { 0 },
            dirty_limit_bytes: if dice.chance(25) { 32 << 10 } else { 0 },
            durability: if through { Durability::Device } else { Durability::Process },
            discard: dice.chance(40),
            inline_bytes: *dice.pick(&[0, 200, default.inline_bytes]).unwrap_or(&0),
            clock,
            ..default
        };
        Self {
            blocks: if dice.chance(25) { 2048 } else { 4096 },
            options,
            zone_bound: *dice.pick(&[0, 3, 8, 64]).unwrap_or(&0),
            warm_up: if dice.chance(30) { dice.roll(60) } else { WARM_UP_MAX },
            remount: dice.chance(30),
            grows: dice.chance(4),
            deaths: dice.roll(4),
        }
    }

    /// The device as formatted, durably.
    ///
    /// # Errors
    /// The format failed.
    pub fn formatted(&self) -> Result<Image, String> {
        let disk = Disk::new(Image::junk(self.blocks));
        let options = FormatOptions {
            uuid: Some([7; 16]),
            uid: 0,
            gid: 0,
            zone_bound: self.zone_bound,
            clock,
            ..FormatOptions::default()
        };
        let device = disk.open().map_err(|error| error.to_string())?;
        FileSystem::format(&device, &options).map_err(|error| format!("format: {error}"))?;
        Ok(disk.media().durable().clone().settled())
    }
}

/// A recorded workload.
pub struct Recording {
    /// How it was made.
    pub setting: Setting,
    /// The device when recording began.
    pub media: Volatile,
    /// What was promised then.
    pub model: Model,
    /// What was done.
    pub steps: Vec<Step>,
    /// The commands that it caused, and what became of them.
    pub trace: Trace,
    /// Blocks of metadata at its end.
    pub meta: Vec<Range<u64>>,
    /// Memories of the process at some of them.
    pub deaths: Vec<Death>,
}

/// A workload under way.
pub struct Session {
    /// The device.
    pub disk: Arc<Disk>,
    /// The file system.
    pub runner: Runner,
    /// What is promised.
    pub model: Model,
    /// After an error not even reading told what is there: the model knows no more.
    pub lost: bool,
    chooser: Chooser,
    dice: Dice,
}

impl Session {
    /// A freshly formatted file system, mounted; with copies of its memory when `deaths` are wanted.
    ///
    /// # Errors
    /// Format or mount failed.
    pub fn begin(seed: u64, setting: &Setting) -> Result<Self, String> {
        wind_clock();
        let media = Volatile::new(setting.formatted()?);
        let disk = Disk::with(media, &mut Dice::of(&[seed, 0xd15c]));
        let files = disk.mount(setting.options.clone()).map_err(|error| format!("mount: {error}"))?;
        let through = setting.options.durability == Durability::Device;
        Ok(Self {
            disk,
            runner: Runner::new(files),
            model: Model::new(through),
            lost: false,
            chooser: Chooser::new(seed),
            dice: Dice::of(&[seed, 0x0b5]),
        })
    }

    /// One operation; a refusal that `bears` accepts is one that may have happened in part.
    ///
    /// # Errors
    /// The file system did something wrong.
    pub fn step(&mut self, bears: &dyn Fn(Errno) -> bool) -> Result<Step, String> {
        let op = self.chooser.next(&self.model, &mut self.dice);
        self.perform(op, bears)
    }

    /// Fills the tree until the metadata region is about to grow: long attributes.
    fn fill_metadata(&mut self) -> Result<(), String> {
        let above = crate::operation::BALLAST.to_owned();
        self.perform(Op::Mkdir { path: above.clone() }, &full)?;
        for number in 0..BALLAST_MAX {
            let stats = self.runner.files.store_stats();
            if stats.tree_blocks_used + BALLAST_LEFT > stats.tree_blocks * 7 / 8 {
                break;
            }
            let path = format!("{above}/{}", number / 4);
            if number % 4 == 0 {
                self.perform(Op::Create { path: path.clone() }, &full)?;
            }
            let value = vec![b'b'; 30_000];
            self.perform(Op::SetXattr { path, name: format!("user.{}", number % 4), value }, &full)?;
            self.perform(Op::Sync, &full)?;
        }
        Ok(())
    }

    fn perform(&mut self, op: Op, bears: &dyn Fn(Errno) -> bool) -> Result<Step, String> {
        let found = op.path().and_then(|path| self.model.shape().at(path));
        let ino = found.map_or(0, |(ino, _)| ino);
        let row = op.row(&self.model);
        let before = self.disk.recorded();
        let (made, done) = match self.runner.run(&op, &self.model) {
            Ok(made) => (made, Done::Well),
            Err(Wrong::Refused(error)) if bears(error.errno()) => (0, Done::Failed),
            Err(wrong) => return Err(format!("{op:?}: {wrong}")),
        };
        let events = (before, self.disk.recorded());
        let mut step = Step { op, ino, made, row, events, done, left: None };
        let makes = matches!(step.op, Op::Create { .. } | Op::Mkdir { .. } | Op::Symlink { .. });
        if done == Done::Well || !makes {
            self.model.begin(&step);
        }
        if done == Done::Failed {
            // What it did before it failed is seen from what is there.
            match Survey::of(&self.runner.files) {
                Ok(survey) => step.left = Some(Box::new(survey)),
                Err(Ended::Error(..)) if bears(Errno::IO) => self.lost = true,
                Err(ended) => return Err(format!("{:?} failed; then: {ended}", step.op)),
            }
        }
        self.model.end(&step);
        Ok(step)
    }

    /// Closes everything and unmounts.
    ///
    /// # Errors
    /// It could not be written.
    pub fn unmount(&mut self) -> Result<(), String> {
        self.runner.close_all().map_err(|error| format!("unmap: {error}"))?;
        self.runner.files.unmount().map_err(|error| format!("unmount: {error}"))?;
        self.model.remounted();
        self.chooser.remounted();
        Ok(())
    }
}

fn full(errno: Errno) -> bool {
    errno == Errno::NOSPC
}

impl Recording {
    /// The steps as text, each with the events that came while it ran.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!("{:?}", self.setting);
        for (index, step) in self.steps.iter().enumerate() {
            let (from, to) = step.events;
            let (ino, made, from) = (step.ino, step.made, from as usize);
            text += &format!(
                "\nstep {index}: events {}..={to}, inode {ino}, made {made}: {:?} {:?}",
                from + 1,
                step.op,
                step.done
            );
            for (number, event) in (1..).zip(&self.trace.events).skip(from).take(to as usize - from) {
                let command = &self.trace.commands[event.command()];
                let magic =
                    command.blocks.first().map(|block| String::from_utf8_lossy(&block[..4]).into_owned());
                let magic =
                    magic.filter(|magic| magic.chars().all(|c| c.is_ascii_uppercase())).unwrap_or_default();
                let (what, first, blocks) = (command.what, command.first, command.blocks.len());
                text += &match event {
                    Event::Sent(_) => {
                        format!("\n    {number}: {event:?} {what:?} block {first} +{blocks} {magic}")
                    }
                    _ => format!("\n    {number}: {event:?}"),
                };
            }
        }
        text
    }

    /// Runs the workload of a seed.
    ///
    /// # Errors
    /// The file system did something wrong without any cut.
    pub fn of(seed: u64) -> Result<Self, String> {
        let setting = Setting::of(seed);
        let mut session = Session::begin(seed, &setting)?;
        if setting.grows {
            session.fill_metadata()?;
        }
        let enough = LOG_BYTES_DUE - session.dice.roll(LOG_BYTES_LEFT);
        for _ in 0..setting.warm_up {
            session.step(&full)?;
            if session.runner.files.store_stats().log_bytes > enough {
                break;
            }
        }
        if setting.remount {
            session.unmount()?;
            let memory = memory().map_err(|error| error.to_string())?;
            let wanted = session.dice.roll(setting.deaths + 1);
            let deaths = (0..wanted).map(|_| 1 + session.dice.roll(120)).collect();
            session.disk.die_at(memory.clone(), deaths);
            let files = session.disk.mount_in(memory, setting.options.clone());
            session.runner = Runner::new(files.map_err(|error| format!("mount: {error}"))?);
        }
        session.disk.record();
        let (media, model) = (session.disk.media(), session.model.clone());
        let steps = (0..STEPS).map(|_| session.step(&full)).collect::<Result<Vec<_>, _>>()?;
        let deaths = session.disk.take_deaths();
        let meta = session.runner.files.superblock().meta_runs.clone();
        let trace = session.disk.take_trace();
        // The rest of this life is of no interest; what it still holds is memory.
        drop(session);
        Ok(Self { setting, media, model, steps, trace, meta, deaths })
    }
}

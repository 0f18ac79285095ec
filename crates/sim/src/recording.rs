//! A workload from a seed, run once on a healthy device while every command is recorded.

use crate::chooser::Chooser;
use crate::model::Model;
use crate::mount::{memory, mount, parts};
use crate::operation::{Done, Op, Step};
use crate::rare::{Marks, Rare, Watch};
use crate::runner::{Runner, Wrong, clock, now, wind_clock};
use crate::survey::{Ended, Survey};
use crate::times::Touched;
use nvmed_dice::Dice;
use nvmed_disk::{Death, Disk, Event, Image, Kind, Trace, Volatile};
use nvmed_fs::{Durability, FileSystem, FormatOptions, MountOptions};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// The least that one commit may do of a checkpoint: more than one step for a tree of some size.
const COMMIT_BLOCKS_MIN: u64 = 128;
/// Operations of the recorded part.
const STEPS: u64 = 70;
/// Operations before it at most: enough to fill half a log, so that a checkpoint comes.
const WARM_UP_MAX: u64 = 4000;
/// Half of the log of the smallest metadata region, where a checkpoint is due.
const LOG_BYTES_DUE: u64 = 64 * 4072;
/// Bytes that are left of it when recording begins, at most.
const LOG_BYTES_LEFT: u64 = 10_000;

/// Of the steps of a recording, every so many push a rare thing on, until it has come.
const PUSH_EVERY: u64 = 3;

/// Seeds from here on are of workloads on memory, which is stored to; the others are of blocks. A multiple of all by
/// which seeds are told apart: the same things are rare in the same seeds.
pub const MEMORY: u64 = 3 << 40;
/// One in so many of those has a small buffer in front of it, of which the power leaves nothing. No divisor of the
/// others by which seeds are told apart: behind it anything may be rare.
const BUFFERED_EVERY: u64 = 9;

/// What a seed makes of the file system.
#[derive(Clone, Debug)]
pub struct Setting {
    /// What the device is.
    pub kind: Kind,
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
    /// What is rare in it.
    pub rare: Rare,
    /// Deaths of the process to be taken.
    deaths: u64,
}

impl Setting {
    /// The setting of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::of(&[seed, 0x5e7]);
        let rare = Rare::of(seed);
        let through = dice.chance(12);
        let default = MountOptions::default();
        let options = MountOptions {
            prealloc_bytes: if dice.chance(25) { 64 << 10 } else { 0 },
            dirty_limit_bytes: if dice.chance(25) { 32 << 10 } else { 0 },
            durability: if through { Durability::Device } else { Durability::Process },
            discard: dice.chance(40),
            inline_bytes: *dice.pick(&[0, 200, default.inline_bytes]).unwrap_or(&0),
            commit_blocks_max: if rare == Rare::Steps {
                COMMIT_BLOCKS_MIN
            } else {
                default.commit_blocks_max
            },
            urgent: Dice::of(&[seed, 0x0a9e]).chance(25),
            // By time: a seed would not be the same run twice.
            readahead_grows: false,
            clock,
            ..default
        };
        let small = rare == Rare::Full || dice.chance(25);
        Self {
            kind: match seed.checked_sub(MEMORY) {
                None => Kind::Blocks,
                Some(seed) if seed % BUFFERED_EVERY == 1 => Kind::Buffered,
                Some(_) => Kind::Memory,
            },
            blocks: if small { 2048 } else { 4096 },
            options,
            zone_bound: *dice.pick(&[0, 3, 8, 64]).unwrap_or(&0),
            warm_up: if rare != Rare::Nothing {
                dice.roll(20)
            } else if dice.chance(30) {
                dice.roll(60)
            } else {
                WARM_UP_MAX
            },
            // Nodes that must be read again make a step of a checkpoint longer.
            remount: dice.chance(30) || rare == Rare::Steps,
            rare,
            deaths: dice.roll(4),
        }
    }

    /// The device as formatted, durably.
    ///
    /// # Errors
    /// The format failed.
    pub fn formatted(&self) -> Result<Image, String> {
        let disk = Disk::new(Image::junk(self.blocks).of_kind(self.kind));
        let options = FormatOptions {
            uuid: Some([7; 16]),
            uid: 0,
            gid: 0,
            zone_bound: self.zone_bound,
            clock,
            ..FormatOptions::default()
        };
        let device = disk.open(1).map_err(|error| error.to_string())?;
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
    /// What was going on during each of them.
    pub marks: Vec<Marks>,
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
        let files = mount(&disk, setting.options.clone()).map_err(|error| format!("mount: {error}"))?;
        let through = setting.options.durability == Durability::Device;
        Ok(Self {
            disk,
            runner: Runner::new(files),
            model: Model::new(through, setting.kind),
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

    /// Of the next write.
    pub(crate) fn serial(&mut self) -> u64 {
        self.chooser.serial()
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.dice.roll(sides)
    }

    /// Goes on until a checkpoint is near.
    fn fill_log(&mut self, most: u64) -> Result<(), String> {
        let enough = LOG_BYTES_DUE - self.dice.roll(LOG_BYTES_LEFT);
        for _ in 0..most {
            self.step(&full)?;
            if self.runner.files.store_stats().log_bytes > enough {
                break;
            }
        }
        Ok(())
    }

    /// Unmounts, and mounts with memory that is copied at the deaths to come.
    fn remount(&mut self, setting: &Setting) -> Result<(), String> {
        self.unmount()?;
        let memory = memory().map_err(|error| error.to_string())?;
        let wanted = self.dice.roll(setting.deaths + 1);
        let deaths = (0..wanted).map(|_| 1 + self.dice.roll(300)).collect();
        self.disk.die_at(Arc::clone(&memory.mapping), deaths);
        let files = parts(&self.disk, memory, setting.options.clone()).and_then(FileSystem::mount);
        self.runner = Runner::new(files.map_err(|error| format!("mount: {error}"))?);
        Ok(())
    }

    /// One operation as [`Session::step`], or one that the rare thing wants.
    fn step_towards(&mut self, rare: Rare, number: u64) -> Result<Step, String> {
        let due = match rare {
            Rare::Dry => true,
            Rare::Tails => !number.is_multiple_of(PUSH_EVERY),
            _ => number.is_multiple_of(PUSH_EVERY),
        };
        match self.push(rare).filter(|_| due) {
            Some(op) => self.perform(op, &full),
            None => self.step(&full),
        }
    }

    /// Does it; a refusal that `bears` accepts is one that may have happened in part.
    ///
    /// # Errors
    /// The file system did something wrong.
    pub fn perform(&mut self, op: Op, bears: &dyn Fn(Errno) -> bool) -> Result<Step, String> {
        let found = op.path().and_then(|path| self.model.shape().at(path));
        let ino = found.map_or(0, |(ino, _)| ino);
        let row = op.row(&self.model);
        let (before, from) = (self.disk.recorded(), now());
        let (made, done) = match self.runner.run(&op, &self.model) {
            Ok(made) => (made, Done::Well),
            Err(Wrong::Refused(error)) if bears(error.errno()) => (0, Done::Failed),
            Err(wrong) => return Err(format!("{op:?}: {wrong}")),
        };
        let events = (before, self.disk.recorded());
        let mut step = Step { op, ino, made, row, events, done, left: None, touched: Touched::default() };
        let makes =
            matches!(step.op, Op::Create { .. } | Op::Mkdir { .. } | Op::Symlink { .. } | Op::Mknod { .. });
        if done == Done::Well || !makes {
            self.model.begin(&step);
        }
        if done == Done::Failed {
            if matches!(step.op, Op::MapStore { .. }) {
                self.chooser.refused(ino);
            }
            // What it did before it failed is seen from what is there.
            match Survey::of(&self.runner.files) {
                Ok(survey) => step.left = Some(Box::new(survey)),
                Err(Ended::Error(..)) if bears(Errno::IO) => self.lost = true,
                Err(ended) => return Err(format!("{:?} failed; then: {ended}", step.op)),
            }
        }
        step.touched = self.model.touched(&step, &self.runner.files, (from, now()));
        self.model.end(&step);
        Ok(step)
    }

    /// Closes everything and unmounts.
    ///
    /// # Errors
    /// It could not be written.
    pub fn unmount(&mut self) -> Result<(), String> {
        let from = now();
        self.runner.close_all().map_err(|error| format!("unmap: {error}"))?;
        self.model.retime(&self.runner.files, (from, now()));
        self.runner.files.unmount().map_err(|error| format!("unmount: {error}"))?;
        self.model.remounted();
        self.chooser.remounted();
        Ok(())
    }
}

/// There is no room.
pub fn full(errno: Errno) -> bool {
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
        session.fill_log(setting.warm_up)?;
        session.prepare(setting.rare)?;
        if setting.remount {
            session.remount(&setting)?;
        }
        session.approach(setting.rare)?;
        session.disk.record();
        let (media, model) = (session.disk.media().rebased(), session.model.clone());
        let mut watch = Watch::new(&session);
        let (mut steps, mut marks) = (Vec::new(), Vec::new());
        for number in 0..STEPS {
            let step = session.step_towards(setting.rare, number)?;
            marks.push(watch.after(&session, step.done == Done::Failed));
            steps.push(step);
        }
        let deaths = session.disk.take_deaths();
        let meta = session.runner.files.superblock().meta_runs.clone();
        let trace = session.disk.take_trace();
        // The rest of this life is of no interest; what it still holds is memory.
        drop(session);
        Ok(Self { setting, media, model, steps, marks, trace, meta, deaths })
    }
}

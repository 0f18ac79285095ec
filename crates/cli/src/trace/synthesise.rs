//! `nvmed trace synthesise`: a trace like a description.

use super::analyse;
use super::arguments::{Reading, Synthesise};
use super::files::{self, counted};
use crate::failure::{Failure, Status};
use crate::paths::Paths;
use nvmed_trace::{
    Analysis, Catalogue, Cell, DeviceModel, Model, Part, Row, Several, Sink, SynthError, Written, shown,
};
use std::path::Path;

/// How far a cell may be off without being told, as a share of it.
const TOLERANCE: f64 = 0.02;
/// How far the working set may be off.
const WORKING_SET_TOLERANCE: f64 = 0.05;

/// What a trace is to be like.
struct Wish {
    /// A row of the paper, or a trace, as it is called.
    name: String,
    devices: Vec<Wanted>,
    names: Catalogue,
}

/// What a device of it is to be like.
struct Wanted {
    /// The same as the trace, or the trace and the device.
    name: String,
    row: Row,
    touched_kib: Option<u64>,
    like: DeviceModel,
}

/// Writes a trace, and says how far it is off its description.
///
/// # Errors
/// There is no such row, the trace cannot be read, there can be no such trace, or it cannot be written.
pub fn run(arguments: &Synthesise) -> Result<(), Failure> {
    let paths = arguments.like.iter().fold(Paths::default(), |paths, file| paths.reads_trace(file));
    paths.writes(Some(&arguments.output), "-o").check("trace synthesise")?;
    let wish = match (&arguments.row, &arguments.like) {
        (_, Some(file)) => like(file, &arguments.reading)?,
        (name, None) => published(name.as_deref().unwrap_or_default())?,
    };
    let wish = wish.scaled(arguments.rate, arguments.footprint);
    let models: Vec<DeviceModel> = wish.devices.iter().map(|device| device.like.clone()).collect();
    let several = Several::of(&models, arguments.seed)
        .map_err(|(at, error)| failure(&wish.devices[at].name, &error))?;
    let mut sink = Sink::create(&arguments.output, arguments.to_format).map_err(files::failure)?;
    let mut analysis = Analysis::default();
    for request in several {
        analysis.push(&request);
        sink.write(&request, &wish.names).map_err(files::failure)?;
    }
    let written = sink.finish(&wish.names).map_err(files::failure)?;
    let found = analysis.finish();
    tell(arguments, &wish, &written, found.all.row.get(Cell::Requests));
    for device in &wish.devices {
        if let Some(part) = found.devices.iter().find(|part| part.number == device.like.device) {
            device.tell_missed(&arguments.output, part, arguments.footprint);
        }
    }
    Ok(())
}

/// Says what was written.
fn tell(arguments: &Synthesise, wish: &Wish, written: &Written, requests: Option<f64>) {
    let output = shown(&arguments.output.display().to_string());
    let requests = counted(requests.unwrap_or(0.0) as u64 - written.left_out, "request");
    let of = match wish.devices.len() {
        1 => String::new(),
        devices => format!(" of {devices} devices"),
    };
    eprintln!("nvmed: {output}: {requests}{of} like {}", shown(&wish.name));
    files::tell(&arguments.output, arguments.to_format, written);
}

impl Wish {
    /// The same with so many times the requests a second and the range of offsets.
    fn scaled(self, rate: f64, footprint: f64) -> Self {
        let scaled = |device: Wanted| {
            let DeviceModel { device: number, begin_ns, model } = device.like;
            let (model, begin_ns) = (model.scaled(rate, footprint), (begin_ns as f64 / rate) as u64);
            // Scaled, it cannot be what it is like; but it can be what it was to be.
            let row = if rate == 1.0 { device.row } else { model.row(&device.row.name) };
            Wanted { row, like: DeviceModel { device: number, begin_ns, model }, ..device }
        };
        Self { devices: self.devices.into_iter().map(scaled).collect(), ..self }
    }
}

impl Wanted {
    /// Says how far a device is off what it was to be.
    fn tell_missed(&self, output: &Path, found: &Part, footprint: f64) {
        let (output, name) = (shown(&output.display().to_string()), shown(&self.name));
        let missed = self.row.missed_by(&found.row, TOLERANCE);
        for (cell, told, found) in missed.into_iter().filter(|(cell, ..)| cell.is_of_tables()) {
            let found = found.map_or_else(|| "not known".to_owned(), |found| format!("{found:.4}"));
            eprintln!("nvmed: {output}: {} is {found}, and {told:.4} in {name}", cell.name());
        }
        // A smaller range may have no room for it.
        let told = self.touched_kib.filter(|_| footprint >= 1.0);
        if let (Some(told), Some(found)) = (told, touched_kib(found))
            && told.abs_diff(found) as f64 > WORKING_SET_TOLERANCE * told as f64
        {
            eprintln!("nvmed: {output}: touched KiB are {found}, and {told} in {name}");
        }
    }
}

/// A row of the paper.
fn published(name: &str) -> Result<Wish, Failure> {
    let row = Row::published_as(name).ok_or_else(|| {
        let names: Vec<String> = Row::published().into_iter().map(|row| row.name).collect();
        Failure::usage(format!("no row is called {name}; there are {}", names.join(", ")))
    })?;
    let model = Model::of(&row).map_err(|error| failure(&row.name, &error))?;
    let (name, like) = (row.name.clone(), DeviceModel { device: 0, begin_ns: 0, model });
    let device = Wanted { name: name.clone(), row, touched_kib: None, like };
    Ok(Wish { name, devices: vec![device], names: Catalogue::default() })
}

/// The devices of a trace, as they are called there.
fn like(file: &Path, reading: &Reading) -> Result<Wish, Failure> {
    let name = file.display().to_string();
    let mut analysis = Analysis::default().with_reuse_of_devices();
    let source = analyse::read(file, reading, &mut analysis, |_| {})?;
    let names = &source.names().devices;
    let parts = analysis.finish().devices;
    let begin_ns = parts.iter().map(|part| part.first_arrival_ns).min().unwrap_or(0);
    let mut wish = Wish { name: name.clone(), devices: Vec::new(), names: Catalogue::default() };
    let mut without = None;
    for part in &parts {
        let of_device = match names.name(part.number) {
            _ if parts.len() == 1 => name.clone(),
            "" => format!("the device without a name of {name}"),
            device => format!("device {device} of {name}"),
        };
        let mut model = match Model::like(part) {
            Ok(model) => model,
            Err(error) => {
                without.get_or_insert((of_device, error));
                continue;
            }
        };
        if let Some(distances) = &part.reuse {
            model = model.with_reuse(distances);
        }
        let device = wish.names.devices.number(names.name(part.number)).unwrap_or(0);
        let like = DeviceModel { device, begin_ns: part.first_arrival_ns - begin_ns, model };
        let mut row = part.row.clone();
        row.name.clone_from(&of_device);
        wish.devices.push(Wanted { name: of_device, row, touched_kib: touched_kib(part), like });
    }
    let left_out = (parts.len() - wish.devices.len()) as u64;
    match without {
        _ if parts.is_empty() => Err(failure(&name, &SynthError::Missing(Cell::Requests.name()))),
        Some((device, error)) if wish.devices.is_empty() => Err(failure(&device, &error)),
        Some((device, error)) => {
            let counted = counted(left_out, "device");
            eprintln!("nvmed: {}: {counted} left out; {}: {error}", shown(&name), shown(&device));
            Ok(wish)
        }
        None => Ok(wish),
    }
}

/// The working set, where all of it was counted.
fn touched_kib(part: &Part) -> Option<u64> {
    part.working_set.as_ref().filter(|set| set.not_counted_kib == 0).map(|set| set.distinct_kib)
}

fn failure(name: &str, error: &SynthError) -> Failure {
    Failure::new(Status::Failed, format!("{name}: {error}"))
}

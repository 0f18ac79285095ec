//! The file of a sweep: a base, axes, and the drives that they make (docs/trace.md, "Sweep").

use crate::failure::{Failure, Status};
use crate::trace::spare;
use nvmed_flash::Profile;
use nvmed_stack::DriveProfile;
use serde::Deserialize;
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Cells, at most: days of work, and a table that nobody reads.
pub const CELLS_MAX: usize = 10_000;
/// No file of a sweep is longer: a mistaken name of a large file is not read to its end.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    base: String,
    #[serde(default)]
    traces: Vec<String>,
    #[serde(default)]
    used: bool,
    size: Option<String>,
    #[serde(default, rename = "axis")]
    axes: Vec<AxisText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AxisText {
    name: Option<String>,
    field: Option<String>,
    values: Option<Vec<Value>>,
    variants: Option<Vec<VariantText>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VariantText {
    name: String,
    base: Option<String>,
    #[serde(default)]
    set: Table,
}

/// A way along which drives differ.
#[derive(Debug)]
struct Axis {
    name: String,
    steps: Vec<Step>,
}

/// A place on an axis.
#[derive(Debug)]
struct Step {
    name: String,
    base: Option<String>,
    changes: Vec<(String, Value)>,
}

/// A drive of the grid.
#[derive(Debug)]
pub struct Drive {
    /// Its place on each axis.
    pub places: Vec<String>,
    /// What it is like.
    pub profile: Profile,
    /// How much of its flash is spare since `size` is small, in percent.
    pub spare_percent: Option<f64>,
}

/// All that a file of a sweep says.
#[derive(Debug)]
pub struct Grid {
    /// Names of the axes.
    pub axes: Vec<String>,
    /// The drives: the last axis goes fastest.
    pub drives: Vec<Drive>,
    /// Traces that it names.
    pub traces: Vec<String>,
    /// Where their files begin.
    pub dir: PathBuf,
    /// Whether drives are preconditioned.
    pub is_used: bool,
}

/// What is wrong with a file.
struct Fault<'a>(&'a Path);

impl Fault<'_> {
    fn say(&self, what: impl std::fmt::Display) -> Failure {
        let line: String =
            what.to_string().chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        Failure::new(Status::Failed, format!("{}: {line}", self.0.display()))
    }
}

impl Grid {
    /// Reads a file, and makes all its drives.
    ///
    /// # Errors
    /// It cannot be read, or a drive of it makes no sense: what, and where.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let fault = Fault(path);
        let text = text(path)?;
        let document: Document = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map(|before| format!("line {}: ", before.matches('\n').count() + 1));
            fault.say(format!("{}{}", line.unwrap_or_default(), error.message()))
        })?;
        let size = match &document.size {
            Some(size) => Some(
                nvmed_units::parse_bytes(size)
                    .map_err(|_| fault.say(format!("`size` is {size:?}, which is no size such as 8G")))?,
            ),
            None => None,
        };
        let axes = document.axes.into_iter().enumerate();
        let axes = axes.map(|(at, axis)| Axis::of(at, axis).map_err(|what| fault.say(what)));
        let axes = axes.collect::<Result<Vec<Axis>, Failure>>()?;
        check(&axes).map_err(|what| fault.say(what))?;
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        let maker = Maker { fault, dir: &dir, base: &document.base, size, axes: &axes };
        let drives = (0..count(&axes)).map(|number| maker.drive(number)).collect::<Result<_, _>>()?;
        let axes = axes.into_iter().map(|axis| axis.name).collect();
        Ok(Self { axes, drives, traces: document.traces, dir, is_used: document.used })
    }
}

fn text(path: &Path) -> Result<String, Failure> {
    let fault = Fault(path);
    let refused = |error: std::io::Error| {
        let text = error.to_string();
        fault.say(text.split(" (os error").next().unwrap_or(&text))
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(refused)?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => fault.say("is no text; a sweep is a TOML file"),
        _ => refused(error),
    })?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(fault.say("is longer than any sweep; a sweep is a TOML file of at most 1 MiB"));
    }
    Ok(text)
}

impl Axis {
    fn of(at: usize, text: AxisText) -> Result<Self, String> {
        let AxisText { name, field, values, variants } = text;
        let called = name
            .as_deref()
            .or(field.as_deref())
            .map_or(format!("axis {}", at + 1), |name| format!("axis {} (`{name}`)", at + 1));
        let (name, steps): (String, Vec<Step>) = match (field, values, variants) {
            (Some(field), Some(values), None) => {
                let short = field.rsplit('.').next().unwrap_or(&field).to_owned();
                let step = |value: Value| Step {
                    name: shown(&value),
                    base: None,
                    changes: vec![(field.clone(), value)],
                };
                (name.unwrap_or(short), values.into_iter().map(step).collect())
            }
            (None, None, Some(variants)) => {
                let name = name.ok_or_else(|| format!("{called} has variants and no `name`"))?;
                (name, variants.into_iter().map(Step::of).collect())
            }
            _ => {
                return Err(format!(
                    "{called} has neither `field` and `values` nor `name` and `variants`; give two of them"
                ));
            }
        };
        if steps.is_empty() {
            return Err(format!("{called} has no values; give one, or leave the axis out"));
        }
        let mut names = HashSet::new();
        match steps.iter().find(|step| !names.insert(&step.name)) {
            Some(twice) => Err(format!("{called} has {} twice; each drive needs a name", twice.name)),
            None => Ok(Self { name, steps }),
        }
    }
}

impl Step {
    fn of(text: VariantText) -> Self {
        let mut changes = Vec::new();
        flat("", text.set, &mut changes);
        Self { name: text.name, base: text.base, changes }
    }
}

/// Fields with the keys that lead to them: `a.b = 1` is a table in a table.
fn flat(above: &str, table: Table, changes: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        let field = if above.is_empty() { key } else { format!("{above}.{key}") };
        match value {
            Value::Table(table) => flat(&field, table, changes),
            value => changes.push((field, value)),
        }
    }
}

/// A value as a name: what it says, if that is short.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    if text.chars().count() <= 40 { text } else { text.chars().take(39).chain(['…']).collect() }
}

/// How many drives there are; more than that many are as many.
fn count(axes: &[Axis]) -> usize {
    axes.iter().fold(1, |count: usize, axis| count.saturating_mul(axis.steps.len()))
}

/// What axes must be together.
fn check(axes: &[Axis]) -> Result<(), String> {
    if count(axes) > CELLS_MAX {
        let sizes: Vec<String> = axes.iter().map(|axis| axis.steps.len().to_string()).collect();
        return Err(format!(
            "{} drives are too many; at most {CELLS_MAX} cells are simulated",
            sizes.join(" x ")
        ));
    }
    let mut names = HashSet::new();
    if let Some(twice) = axes.iter().find(|axis| !names.insert(&axis.name)) {
        return Err(format!("two axes are called `{}`; give one another `name`", twice.name));
    }
    let with_base = |axis: &&Axis| axis.steps.iter().any(|step| step.base.is_some());
    match axes.iter().filter(with_base).nth(1) {
        Some(second) => {
            Err(format!("`{}` is the second axis with a `base`; only one chooses it", second.name))
        }
        None => Ok(()),
    }
}

/// Makes the drives of a grid.
struct Maker<'a> {
    fault: Fault<'a>,
    dir: &'a Path,
    base: &'a str,
    size: Option<u64>,
    axes: &'a [Axis],
}

impl Maker<'_> {
    /// The drive of a number: the last axis is its last digit.
    fn drive(&self, number: usize) -> Result<Drive, Failure> {
        let mut steps = Vec::new();
        let mut left = number;
        for axis in self.axes.iter().rev() {
            steps.push(&axis.steps[left % axis.steps.len()]);
            left /= axis.steps.len();
        }
        steps.reverse();
        let base = steps.iter().find_map(|step| step.base.as_deref()).unwrap_or(self.base);
        let fault = |fault: nvmed_stack::ProfileFault| self.fault.say(fault);
        let base = if DriveProfile::is_file(base) {
            DriveProfile::named(&self.dir.join(base).to_string_lossy())
        } else {
            DriveProfile::named(base)
        };
        let base = base.map_err(fault)?;
        let places: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
        let named = self.axes.iter().zip(&places).map(|(axis, place)| format!("{} {place}", axis.name));
        let name = std::iter::once(base.name().to_owned()).chain(named).collect::<Vec<_>>().join(", ");
        let changes: Vec<(String, Value)> = steps.iter().flat_map(|step| step.changes.clone()).collect();
        let profile = if changes.is_empty() { base } else { base.changed(&name, &changes).map_err(fault)? };
        let drive = profile.drive(self.size.unwrap_or_else(|| profile.usual_bytes())).map_err(fault)?;
        Ok(Drive { places, spare_percent: spare::percent(&profile, &drive), profile: drive })
    }
}

//! `nvmed df`: how full devices are, in the columns of df(1).

use crate::arguments::Df;
use crate::failure::Failure;
use crate::inspect::size;
use crate::location::Location;
use crate::output::Output;
use crate::volume::{Use, Volumes};
use nvmed_fs::{StatFs, Superblock};
use serde_json::json;

/// The type of file system that is shown.
const TYPE: &str = "nvmedfs";

/// Shows how full each device is.
///
/// # Errors
/// A device cannot be mounted.
pub fn df(arguments: &Df) -> Result<(), Failure> {
    let mut volumes = Volumes::default();
    let mut out = Output::new();
    let mut table = vec![arguments.head()];
    let mut gaps = Vec::new();
    let mut total = Usage::default();
    let mut first = None;
    for argument in &arguments.devices {
        let location = Location::parse_device(argument)?;
        let Location::Device { name, .. } = &location else { continue };
        let files = match volumes.at(&location, Use::Read) {
            Ok(volume) => volume.files(),
            // The others are shown all the same.
            Err(failure) => {
                first.get_or_insert(failure);
                continue;
            }
        };
        let status = files.statfs();
        if arguments.json {
            out.text(&facts(name, &status))?;
            continue;
        }
        let usage = Usage::of(arguments, &status);
        total = total.plus(&usage);
        table.push(arguments.line((name, TYPE), &usage));
        gaps.push(gap(name, &files.superblock()));
    }
    if !arguments.json {
        if arguments.total {
            table.push(arguments.line(("total", "-"), &total));
        }
        out.text(&columns(&table))?;
        let told = if arguments.portability || arguments.inodes { "" } else { &gaps.concat() };
        out.text(told)?;
    }
    out.finish()?;
    volumes.unmount()?;
    first.map_or(Ok(()), Err)
}

/// What there is and what of it is taken: bytes, or inodes.
#[derive(Clone, Copy, Default)]
struct Usage {
    all: u64,
    free: u64,
}

impl Usage {
    fn of(arguments: &Df, status: &StatFs) -> Self {
        if arguments.inodes {
            // How many fit is estimated from the room for metadata.
            return Self { all: status.files, free: status.files_free };
        }
        let bytes = |blocks: u64| blocks * u64::from(status.block_bytes);
        Self { all: bytes(status.blocks), free: bytes(status.blocks_free) }
    }

    fn plus(self, other: &Self) -> Self {
        Self { all: self.all + other.all, free: self.free + other.free }
    }
}

impl Df {
    fn head(&self) -> Vec<String> {
        let sizes = match (self.inodes, self.is_short(), self.unit()) {
            (true, ..) => return self.titles(["Inodes", "IUsed", "IFree", "IUse%"]),
            (_, true, _) => "Size".to_owned(),
            (_, _, unit) if self.portability => format!("{unit}-blocks"),
            (_, _, 1024) => "1K-blocks".to_owned(),
            (_, _, unit) => format!("{}-blocks", exact(unit)),
        };
        let (available, share) = match (self.portability, self.is_short()) {
            (_, true) => ("Avail", "Use%"),
            (true, _) => ("Available", "Capacity"),
            _ => ("Available", "Use%"),
        };
        self.titles([&sizes, "Used", available, share])
    }

    fn titles(&self, titles: [&str; 4]) -> Vec<String> {
        self.row(("Filesystem", "Type"), titles.map(str::to_owned), "Mounted on")
    }

    fn line(&self, name: (&str, &str), usage: &Usage) -> Vec<String> {
        let used = usage.all - usage.free;
        // Rounded up, as df does: 100 % is full and 0 % is empty.
        let share = (used * 100).div_ceil(usage.all.max(1));
        let amounts = [usage.all, used, usage.free].map(|amount| self.amount(amount));
        let [all, used, free] = amounts;
        self.row(name, [all, used, free, format!("{share}%")], "-")
    }

    fn row(&self, (name, kind): (&str, &str), amounts: [String; 4], mounted: &str) -> Vec<String> {
        let kind = self.print_type.then(|| kind.to_owned());
        [name.to_owned()].into_iter().chain(kind).chain(amounts).chain([mounted.to_owned()]).collect()
    }

    fn amount(&self, amount: u64) -> String {
        let scale = if self.si { 1000 } else { 1024 };
        match (self.is_short(), self.inodes) {
            (true, _) => short(amount, scale),
            (_, true) => amount.to_string(),
            _ => amount.div_ceil(self.unit()).to_string(),
        }
    }

    /// Whether amounts have at most three digits and a letter.
    fn is_short(&self) -> bool {
        self.human_readable || self.si
    }

    fn unit(&self) -> u64 {
        self.block_size.unwrap_or(1024)
    }
}

/// A block size as a title: `1M`, or bytes.
fn exact(bytes: u64) -> String {
    let units = [(1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    let found = units.iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
    found.map_or_else(|| format!("{bytes}B"), |(unit, letter)| format!("{}{letter}", bytes / unit))
}

/// As `df -h`: at most three digits and a letter, rounded up.
fn short(amount: u64, scale: u64) -> String {
    let (amount, scale) = (u128::from(amount), u128::from(scale));
    let letters = if scale == 1000 { "kMGTPE" } else { "KMGTPE" };
    let mut unit = 1;
    for letter in letters.chars().filter(|_| amount >= scale) {
        unit *= scale;
        let (whole, tenths) = (amount.div_ceil(unit), (amount * 10).div_ceil(unit));
        match (tenths < 100, whole < scale) {
            (true, _) => return format!("{}.{}{letter}", tenths / 10, tenths % 10),
            (_, true) => return format!("{whole}{letter}"),
            _ => {}
        }
    }
    amount.to_string()
}

/// Names to the left, numbers to the right, as wide as they need.
fn columns(table: &[Vec<String>]) -> String {
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let last = table[0].len() - 1;
    let named = last - 4;
    let widths: Vec<_> = (0..=last).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            column if column == last => cell.clone(),
            column if column < named => format!("{cell:<width$} "),
            _ => format!("{cell:>width$} "),
        });
        cells.chain(["\n".to_owned()]).collect::<String>()
    };
    table.iter().map(line).collect()
}

/// Why a device shows less than it has.
fn gap(name: &str, superblock: &Superblock) -> String {
    let bytes = |blocks: u64| size(blocks * nvmed_units::BLOCK_BYTES as u64);
    format!(
        "{name}: {} in all; {} are set aside for metadata (format --metadata-share) and superblocks\n",
        bytes(superblock.blocks),
        bytes(superblock.blocks - superblock.data_blocks)
    )
}

fn facts(name: &str, status: &StatFs) -> String {
    let bytes = |blocks: u64| blocks * u64::from(status.block_bytes);
    let facts = json!({
        "device": name,
        "size": bytes(status.blocks),
        "used": bytes(status.blocks - status.blocks_free),
        "free": bytes(status.blocks_free),
        "files": status.files,
        "files_free": status.files_free,
    });
    format!("{facts}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_as_short_as_df_makes_them() {
        for (amount, want) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 * 1024, "10K"),
            (10 * 1024 - 1, "10K"),
            (1 << 20, "1.0M"),
            ((1 << 20) - 1, "1.0M"),
            (57_336 << 10, "56M"),
            (3 << 40, "3.0T"),
        ] {
            assert_eq!(short(amount, 1024), want, "{amount}");
        }
        assert_eq!(short(1_500_000, 1000), "1.5M");
    }
}

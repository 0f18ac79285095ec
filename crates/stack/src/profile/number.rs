//! Numbers of a profile, each with its range: what does not fit is said where it stands.

use nvmed_flash::Rate;
use serde::de::{Deserialize, Deserializer, Error};
use toml::Value;

/// Longer than any operation of a medium, in microseconds: an hour.
const MICROSECONDS_MAX: f64 = 3.6e9;

/// A whole number within a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole<const LEAST: u32, const MOST: u32>(pub u32);

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for Whole<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| (LEAST..=MOST).contains(number)).map(Self).ok_or_else(|| {
            D::Error::custom(format!("{} is not a whole number from {LEAST} to {MOST}", shown(&value)))
        })
    }
}

/// A number, with or without a fraction, from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number<const LEAST: u32, const MOST: u32>(pub f64);

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for Number<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let number = float(&value).filter(|number| (f64::from(LEAST)..=f64::from(MOST)).contains(number));
        number.map(Self).ok_or_else(|| {
            D::Error::custom(format!("{} is not a number from {LEAST} to {MOST}", shown(&value)))
        })
    }
}

/// Megabytes a second, 10^6 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MegabytesPerSecond(pub Rate);

impl<'de> Deserialize<'de> for MegabytesPerSecond {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let number = float(&value).filter(|number| (0.001..=1e6).contains(number));
        number.map(|number| Self(Rate::per_second((number * 1e6).round() as u64))).ok_or_else(|| {
            let what = "is not a rate in MB/s, from 0.001 to 1000000; without this line there is no limit";
            D::Error::custom(format!("{} {what}", shown(&value)))
        })
    }
}

/// A time that is written in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Microseconds {
    pub ns: u64,
}

impl Microseconds {
    /// # Errors
    /// What is wrong with it.
    fn of(value: &Value) -> Result<Self, String> {
        let number = float(value).filter(|number| (0.0..=MICROSECONDS_MAX).contains(number));
        let ns = number.map(|number| (number * 1e3).round() as u64);
        ns.map(|ns| Self { ns })
            .ok_or_else(|| format!("{} is not a time in microseconds, from 0 to an hour", shown(value)))
    }
}

impl<'de> Deserialize<'de> for Microseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A time that is written in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Milliseconds {
    pub ns: u64,
}

impl<'de> Deserialize<'de> for Milliseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let number = float(&value).filter(|number| (0.0..=MICROSECONDS_MAX / 1e3).contains(number));
        number.map(|number| Self { ns: (number * 1e6).round() as u64 }).ok_or_else(|| {
            D::Error::custom(format!("{} is not a time in milliseconds, from 0 to an hour", shown(&value)))
        })
    }
}

/// A time in microseconds, or a list of them that repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Times(pub Vec<u64>);

impl<'de> Deserialize<'de> for Times {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let times = match &value {
            Value::Array(values) if !values.is_empty() => values.iter().map(Microseconds::of).collect(),
            Value::Array(_) => Err("an empty list has no time; give one, or several that repeat".to_owned()),
            value => Microseconds::of(value).map(|time| vec![time]),
        };
        let times: Vec<Microseconds> = times.map_err(D::Error::custom)?;
        Ok(Self(times.into_iter().map(|time| time.ns).collect()))
    }
}

/// A line of text, as it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line(pub String);

/// Longer than a line of a terminal is wide.
const LINE_MAX: usize = 200;

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let fits = |text: &&str| {
            !text.is_empty() && text.chars().count() <= LINE_MAX && !text.contains(char::is_control)
        };
        let text = value.as_str().filter(fits).map(|text| Self(text.to_owned()));
        text.ok_or_else(|| {
            D::Error::custom(format!("{} is not a line of 1 to {LINE_MAX} characters", shown(&value)))
        })
    }
}

fn float(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|number| number as f64))
}

/// A value, short enough for a line.
fn shown(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(is) => is.to_string(),
        Value::String(text) if text.chars().count() <= 32 => format!("{text:?}"),
        Value::String(_) => "a long text".to_owned(),
        Value::Datetime(_) => "a date".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    }
}

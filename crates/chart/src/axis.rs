//! Axes: where a value lies, and the values that are marked. `chart.js` marks an axis again when it zooms.

use crate::unit::Unit;

/// Marks that an axis has at most, since each is as wide as its text.
const MARKS_MAX: f64 = 6.0;
/// What is marked is inside by this part of the axis, so that rounding loses no end.
const ROUNDING: f64 = 1e-9;

/// How values lie on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps add.
    Linear,
    /// Equal steps multiply; what is not above 0 has no place.
    Log,
    /// As [`Scale::Linear`], and what is below 0 is written without its sign: it is drawn downwards to be told apart.
    Mirrored,
}

/// What an axis shows, and how.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// What it shows.
    pub name: &'a str,
    /// What its values count.
    pub unit: Unit,
    /// How they lie.
    pub scale: Scale,
}

impl<'a> Axis<'a> {
    /// An axis whose equal steps add.
    #[must_use]
    pub fn linear(name: &'a str, unit: Unit) -> Self {
        Self { name, unit, scale: Scale::Linear }
    }

    /// An axis whose equal steps multiply.
    #[must_use]
    pub fn log(name: &'a str, unit: Unit) -> Self {
        Self { name, unit, scale: Scale::Log }
    }

    /// Whether a value has a place on it.
    pub(crate) fn takes(self, value: f64) -> bool {
        value.is_finite() && (self.scale != Scale::Log || value > 0.0)
    }
}

/// An axis with its ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub axis: Axis<'a>,
    low: f64,
    high: f64,
}

impl<'a> Span<'a> {
    /// An axis from end to end; of ends that are one, something around it.
    pub(crate) fn new(axis: Axis<'a>, low: f64, high: f64) -> Self {
        let (low, high) = match axis.scale {
            _ if high > low => (low, high),
            Scale::Log => (low / 2.0, low * 2.0),
            _ => (low - low.abs().max(1.0) / 2.0, low + low.abs().max(1.0) / 2.0),
        };
        Self { axis, low, high }
    }

    /// The horizontal axis of values: as long as they are.
    pub(crate) fn along(axis: Axis<'a>, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values);
        Self::new(axis, low, high)
    }

    /// An axis of values that leaves some room at either end, so that none lies on the edge; of one value, some more.
    pub(crate) fn around(axis: Axis<'a>, values: impl Iterator<Item = f64>) -> Self {
        const ROOM: f64 = 0.05;
        let (low, high) = ends(values);
        match axis.scale {
            Scale::Log => {
                let room = if high > low { (high / low).powf(ROOM) } else { 1.0 + ROOM };
                Self::new(axis, low / room, high * room)
            }
            _ => {
                let room = if high > low { high - low } else { low.abs().max(1.0) } * ROOM;
                Self::new(axis, low - room, high + room)
            }
        }
    }

    /// The vertical axis of values: it begins at 0, or below the least where there is no 0, and has some room above.
    pub(crate) fn up(axis: Axis<'a>, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values);
        match axis.scale {
            Scale::Log => Self::new(axis, low / 1.5, high * 1.5),
            _ => {
                let room = (high.max(0.0) - low.min(0.0)) * 0.05;
                let top = if high > 0.0 { high + room } else { 0.0 };
                let top = if axis.unit == Unit::Percent && high <= 100.0 { top.min(100.0) } else { top };
                let bottom = if low < 0.0 { low - room } else { 0.0 };
                Self::new(axis, bottom, if top > bottom { top } else { 1.0 })
            }
        }
    }

    /// Where a value lies, 0 to 1, or at an end if it is beyond.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let part = match self.axis.scale {
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            _ => (value - self.low) / (self.high - self.low),
        };
        if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) }
    }

    /// Where filled shapes begin: at 0, or at the bottom where there is no 0.
    pub(crate) fn base(&self) -> f64 {
        if self.axis.scale == Scale::Log { 0.0 } else { self.place(0.0) }
    }

    /// The values that are marked, each with its text.
    pub(crate) fn marks(&self) -> Vec<(f64, String)> {
        let values = match self.axis.scale {
            Scale::Log => self.powers().unwrap_or_else(|| self.steps()),
            _ => self.steps(),
        };
        let sign = |value: f64| if self.axis.scale == Scale::Mirrored { value.abs() } else { value };
        values.into_iter().map(|value| (value, self.axis.unit.mark(sign(value)))).collect()
    }

    /// Round values at equal distances.
    fn steps(&self) -> Vec<f64> {
        let least = (self.high - self.low) / (MARKS_MAX - 1.0);
        let step = match self.axis.unit.is_binary() {
            true => least.log2().ceil().exp2(),
            false => {
                let power = 10f64.powf(least.log10().floor());
                let round =
                    [1.0, 2.0, 5.0].into_iter().find(|times| power * times >= least * (1.0 - ROUNDING));
                power * round.unwrap_or(10.0)
            }
        };
        if !step.is_normal() {
            return vec![self.low];
        }
        let first = (self.low / step - ROUNDING).ceil();
        let last = (self.high / step + ROUNDING).floor();
        let count = (last - first).clamp(0.0, MARKS_MAX) as u32;
        (0..=count).map(|index| (first + f64::from(index)) * step).collect()
    }

    /// Powers of ten, or of two; those of ten with what lies between, when they are few. None if there are not two.
    fn powers(&self) -> Option<Vec<f64>> {
        let base: f64 = if self.axis.unit.is_binary() { 2.0 } else { 10.0 };
        let power = |value: f64| value.ln() / base.ln();
        let (first, last) = ((power(self.low) + ROUNDING).floor(), (power(self.high) - ROUNDING).ceil());
        if !(first.is_finite() && last.is_finite()) {
            return None;
        }
        let between: &[f64] =
            if base == 10.0 && power(self.high / self.low) <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let exponents = (first as i32..=last as i32).map(|exponent| base.powi(exponent));
        let inside =
            |value: &f64| *value >= self.low * (1.0 - ROUNDING) && *value <= self.high * (1.0 + ROUNDING);
        let all: Vec<f64> = exponents
            .flat_map(|power| between.iter().map(move |times| power * times))
            .filter(inside)
            .collect();
        let stride = (all.len() as f64 / MARKS_MAX).ceil().max(1.0) as usize;
        (all.len() > 1).then(|| all.into_iter().step_by(stride).collect())
    }

    /// What `chart.js` must know of it.
    pub(crate) fn data(&self) -> String {
        let scale = match self.axis.scale {
            Scale::Linear => "linear",
            Scale::Log => "log",
            Scale::Mirrored => "mirrored",
        };
        format!("{scale} {} {} {}", self.axis.unit.name(), self.low, self.high)
    }
}

/// Least and largest, or 0 and 1 of nothing.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values
        .fold(None, |ends: Option<(f64, f64)>, value| match ends {
            Some((low, high)) => Some((low.min(value), high.max(value))),
            None => Some((value, value)),
        })
        .unwrap_or((0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: Axis<'_>, low: f64, high: f64) -> Vec<String> {
        Span::new(axis, low, high).marks().into_iter().map(|mark| mark.1).collect()
    }

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!(texts(Axis::linear("", Unit::Count), 0.0, 10.3), ["0", "5", "10"]);
        assert_eq!(
            texts(Axis::linear("", Unit::Percent), 0.0, 100.0),
            ["0", "20 %", "40 %", "60 %", "80 %", "100 %"]
        );
        assert_eq!(texts(Axis::log("", Unit::Time), 1e3, 1e9).len(), 4);
        assert_eq!(texts(Axis::log("", Unit::Time), 1e6, 3e7), ["1 ms", "2 ms", "5 ms", "10 ms", "20 ms"]);
        assert_eq!(texts(Axis::log("", Unit::Bytes), 4096.0, 16384.0), ["4 KiB", "8 KiB", "16 KiB"]);
        assert_eq!(texts(Axis::log("", Unit::Count), 41.0, 48.0), ["42", "44", "46", "48"]);
        let mirrored = Axis { scale: Scale::Mirrored, ..Axis::linear("", Unit::Count) };
        assert_eq!(texts(mirrored, -20.0, 20.0), ["20", "10", "0", "10", "20"]);
    }

    #[test]
    fn odd_ends_give_places_between_0_and_1() {
        let odd = [f64::MIN_POSITIVE, 1e-300, 0.3, 1.0, 1e18, 1e300];
        for scale in [Scale::Linear, Scale::Log, Scale::Mirrored] {
            for (low, high) in odd.iter().flat_map(|low| odd.iter().map(move |high| (*low, *high))) {
                let span = Span::new(Axis { name: "", unit: Unit::Count, scale }, low, high);
                let marks = span.marks();
                assert!(marks.len() <= 1 + MARKS_MAX as usize, "{low} {high}: {marks:?}");
                for value in odd.into_iter().chain(marks.iter().map(|mark| mark.0)) {
                    assert!((0.0..=1.0).contains(&span.place(value)), "{scale:?} {low} {high} {value}");
                }
            }
        }
    }

    #[test]
    fn a_vertical_axis_begins_at_0_and_leaves_room() {
        let span = Span::up(Axis::linear("", Unit::Count), [3.0, 100.0].into_iter());
        assert_eq!((span.low, span.high), (0.0, 105.0));
        let percent = Span::up(Axis::linear("", Unit::Percent), [3.0, 99.0].into_iter());
        assert_eq!(percent.high, 100.0);
        let nothing = Span::up(Axis::linear("", Unit::Count), [0.0].into_iter());
        assert_eq!((nothing.low, nothing.high), (0.0, 1.0));
    }
}

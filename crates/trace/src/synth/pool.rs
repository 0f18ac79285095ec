//! Values that are drawn until none is left.

use crate::fenwick::Fenwick;
use nvmed_dice::Dice;

/// Values in ascending order, and how often each may still be drawn.
#[derive(Clone, Debug)]
pub(super) struct Pool<T> {
    values: Vec<T>,
    left: Fenwick,
}

impl<T: Copy + Ord> Pool<T> {
    /// A pool of values with their numbers.
    pub fn of(mut values: Vec<(T, u64)>) -> Self {
        values.retain(|&(_, count)| count > 0);
        values.sort_unstable();
        let counts: Vec<u64> = values.iter().map(|&(_, count)| count).collect();
        Self { values: values.into_iter().map(|(value, _)| value).collect(), left: Fenwick::of(&counts) }
    }

    /// Draws one, each with the same chance.
    pub fn draw(&mut self, dice: &mut Dice) -> Option<T> {
        let total = self.left.total();
        if total == 0 {
            return None;
        }
        let at = self.left.find(dice.roll(total));
        self.left.take(at);
        Some(self.values[at])
    }

    /// Draws two, and takes the larger one, or the smaller one.
    pub(crate) fn draw_end(&mut self, large: bool, dice: &mut Dice) -> Option<T> {
        let total = self.left.total();
        if total == 0 {
            return None;
        }
        let (one, two) = (dice.roll(total), dice.roll(total));
        let at = self.left.find(if large { one.max(two) } else { one.min(two) });
        self.left.take(at);
        Some(self.values[at])
    }

    /// Draws this one, if there is one left.
    pub fn take(&mut self, value: T) -> Option<T> {
        let at = self.values.binary_search(&value).ok()?;
        (self.left.before(at + 1) > self.left.before(at)).then(|| self.left.take(at))?;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_drawn_as_often_as_it_is_there() {
        let mut pool = Pool::of(vec![(7, 2), (3, 5), (9, 0), (1, 1)]);
        assert_eq!((pool.take(1), pool.take(1), pool.take(9), pool.take(4)), (Some(1), None, None, None));
        let mut dice = Dice::new(1);
        let mut drawn: Vec<i32> = std::iter::from_fn(|| pool.draw(&mut dice)).collect();
        drawn.sort_unstable();
        assert_eq!(drawn, [3, 3, 3, 3, 3, 7, 7]);
    }
}

//! A given number of values with a given sum, spread over those that are allowed.

/// Halvings of the interval of the exponent: as many as a `f64` tells apart.
const HALVINGS: u32 = 100;

/// How often each of the ascending `values` occurs among `count` ones that add up to `sum`. Of the distributions with
/// this mean it is the one that is nearest to the `prior` weights (of least relative entropy): each weight times an
/// exponential. The counts are those of equally spaced quantiles, the first of which is at `phase` (0 to 1); then
/// single values move to their neighbours until the sum is met, as nearly as the steps between the values allow.
pub(super) fn spread(values: &[u64], prior: &[f64], (count, sum): (u64, u64), phase: f64) -> Vec<u64> {
    let mut counts = vec![0; values.len()];
    let (Some(&first), Some(&last)) = (values.first(), values.last()) else { return counts };
    if count == 0 {
        return counts;
    }
    let mean = (sum as f64 / count as f64).clamp(first as f64, last as f64);
    let weights = tilted(values, prior, mean);
    let whole: f64 = weights.iter().sum();
    let (mut before, mut taken) = (0.0, 0);
    for (slot, weight) in counts.iter_mut().zip(&weights) {
        before += weight;
        let until = ((before / whole * count as f64 + phase).floor() as u64).min(count);
        *slot = until - taken.min(until);
        taken = taken.max(until);
    }
    counts[values.len() - 1] += count - taken;
    settle(values, &mut counts, sum);
    counts
}

/// The prior times the exponential with which it has the mean.
fn tilted(values: &[u64], prior: &[f64], mean: f64) -> Vec<f64> {
    let scale = values[values.len() - 1] as f64;
    let weights = |exponent: f64| -> Vec<f64> {
        let logs: Vec<f64> = values
            .iter()
            .zip(prior)
            .map(|(&value, weight)| weight.ln() - exponent * (value as f64 / scale))
            .collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logs.iter().map(|log| (log - most).exp()).collect()
    };
    let mean_of = |weights: &[f64]| {
        let sum: f64 = values.iter().zip(weights).map(|(&value, weight)| value as f64 * weight).sum();
        sum / weights.iter().sum::<f64>()
    };
    // The mean falls as the exponent grows; at the ends only the largest, or the smallest, value is left.
    let (mut low, mut high) = (-1e9, 1e9);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if mean_of(&weights(middle)) > mean { low = middle } else { high = middle }
    }
    weights(f64::midpoint(low, high))
}

/// Moves values to their neighbours until they add up to `sum`, the largest first: of these a step is the smallest
/// part.
fn settle(values: &[u64], counts: &mut [u64], sum: u64) {
    let now: u128 =
        values.iter().zip(counts.iter()).map(|(&value, &count)| u128::from(value) * u128::from(count)).sum();
    let mut off = i128::from(sum) - now as i128;
    loop {
        let before = off;
        // Down when moving up, so that a value moves one step in each round, and up when moving down.
        let up = off > 0;
        for at in 1..values.len() {
            let (from, to) = if up { (values.len() - 1 - at, values.len() - at) } else { (at, at - 1) };
            let step = i128::from(values[from].abs_diff(values[to]));
            let moves = (off.abs() / step.max(1)).min(i128::from(counts[from])) as u64;
            counts[from] -= moves;
            counts[to] += moves;
            off -= if up { step } else { -step } * i128::from(moves);
        }
        if off == before || off == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;

    #[test]
    fn counts_and_sums_are_met_exactly() {
        let mut dice = Dice::new(4);
        for _ in 0..300 {
            let values: Vec<u64> = (1..=2 + dice.roll(200)).collect();
            let prior: Vec<f64> = values.iter().map(|&value| 1.0 / value as f64).collect();
            let count = 1 + dice.roll(300);
            let sum = count + dice.roll(count * (values.len() as u64 - 1) + 1);
            let counts = spread(&values, &prior, (count, sum), dice.roll(1000) as f64 / 1000.0);
            assert_eq!(counts.iter().sum::<u64>(), count);
            assert_eq!(values.iter().zip(&counts).map(|(value, count)| value * count).sum::<u64>(), sum);
        }
        assert_eq!(spread(&[], &[], (5, 5), 0.5), []);
    }

    #[test]
    fn the_prior_shows_through() {
        let values: Vec<u64> = (1..=64).collect();
        let prior: Vec<f64> = values.iter().map(|&value| if value > 32 { 0.0 } else { 1.0 }).collect();
        // The mean of 1 to 32 is 16.5: nothing is tilted.
        let counts = spread(&values, &prior, (3_200, 52_800), 0.5);
        assert!(counts[..32].iter().all(|count| (95..=105).contains(count)), "{counts:?}");
        assert!(counts[32..].iter().all(|&count| count == 0), "{counts:?}");
    }
}

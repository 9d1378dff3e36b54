//! Statistical bounds for test assertions: by how much chance alone may change a count of samples.
//!
//! Input: a number of samples and an expected share. Output: the bound that chance exceeds once in
//! [`FALSE_ALARMS`] runs. Tests of shares use it instead of a fixed tolerance. A busy machine gives
//! fewer samples, which widens the bound, so the test still passes.

/// Number of runs in which chance exceeds a bound of this module once.
pub const FALSE_ALARMS: f64 = 1e9;

/// Maximum deviation of the number of hits in `samples` independent samples from `samples * share`.
///
/// Bernstein's inequality, which holds for every sample size: with `L = ln(2 * FALSE_ALARMS)` and
/// the variance `v = n p (1 - p)`, `P(|X - np| > L/3 + sqrt(L²/9 + 2 L v)) <= 1 / FALSE_ALARMS`.
/// Samples taken at a steady rate vary less than independent ones.
pub fn deviation(samples: f64, share: f64) -> f64 {
    let l = (2.0 * FALSE_ALARMS).ln();
    let variance = samples * share * (1.0 - share).max(0.0);
    l / 3.0 + (l * l / 9.0 + 2.0 * l * variance).sqrt()
}

/// Maximum deviation of a share, in percentage points.
pub fn percentage_points(samples: f64, share: f64) -> f64 {
    deviation(samples, share) * 100.0 / samples
}

/// Maximum deviation of a count of rare, independent events from `expected`.
pub fn deviation_of_count(expected: f64) -> f64 {
    deviation(expected, 0.0).max(deviation(2.0 * expected, 0.5))
}

/// Asserts that `hits / samples` is `share`, within the bound of chance.
///
/// # Panics
/// When they are not; `what` begins the message.
pub fn assert_share(what: &str, hits: f64, samples: f64, share: f64) {
    let (off, allowed) = ((hits - samples * share).abs(), deviation(samples, share));
    let percent = hits * 100.0 / samples;
    println!(
        "{what}: {percent:.2} % of {samples}, expected {:.2} %",
        share * 100.0
    );
    assert!(
        off <= allowed,
        "{what}: {percent:.2} % of {samples} samples, expected {:.2} %: chance allows {:.2} points",
        share * 100.0,
        allowed * 100.0 / samples
    );
}

/// Asserts that `hits / samples` is at most `share`, plus the bound of chance.
///
/// # Panics
/// When there are more; `what` begins the message.
pub fn assert_at_most(what: &str, hits: f64, samples: f64, share: f64) {
    let most = samples * share + deviation(samples, share);
    assert!(
        hits <= most,
        "{what}: {hits} of {samples} samples, at most {most:.1} are {} %",
        share * 100.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_the_normal_distribution_for_many_samples() {
        // Six standard deviations are exceeded 2 times in 1e9; Bernstein's bound is a little wider.
        for (samples, share) in [(40_000.0, 0.5), (10_000.0, 0.2), (1e6f64, 0.01)] {
            let sigma = (samples * share * (1.0 - share)).sqrt();
            let times = deviation(samples, share) / sigma;
            assert!((6.0..7.0).contains(&times), "{samples} {share}: {times}");
        }
    }

    #[test]
    fn few_samples_allow_nearly_everything_and_many_allow_little() {
        assert!(deviation(10.0, 0.5) > 10.0);
        assert!(percentage_points(1e6, 0.5) < 0.4);
        assert_share("half", 5_100.0, 10_000.0, 0.5);
        assert_at_most("none", 14.0, 1e6, 0.0);
    }

    #[test]
    #[should_panic(expected = "chance allows")]
    fn a_share_that_is_off_is_seen() {
        assert_share("half", 5_500.0, 10_000.0, 0.5);
    }

    #[test]
    #[should_panic(expected = "at most")]
    fn too_many_are_seen() {
        assert_at_most("one in a thousand", 60.0, 10_000.0, 0.001);
    }
}

//! Chance: how many children a worker wants, and how long things take.

use serde::{Deserialize, Serialize};

use crate::rng::Stream;

/// How many children a worker wants in its life.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offspring {
    /// As many as it can get.
    Unlimited,
    /// Always so many.
    Fixed(u32),
    /// Poisson with this mean.
    Poisson(f64),
    /// Negative binomial: overdispersed, most have none and few have many.
    NegativeBinomial {
        /// The mean.
        mean: f64,
        /// The dispersion; the smaller, the more unequal.
        k: f64,
    },
}

impl Offspring {
    /// Draws a number.
    pub fn draw(&self, stream: &mut Stream) -> u32 {
        match *self {
            Self::Unlimited => u32::MAX,
            Self::Fixed(number) => number,
            Self::Poisson(mean) => poisson(mean, stream),
            // A Poisson number whose mean is itself drawn from a gamma law.
            Self::NegativeBinomial { mean, k } => poisson(gamma(k, stream) * mean / k, stream),
        }
    }
}

/// How long something takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// Until somebody else ends it.
    Forever,
    /// Always so many seconds.
    Fixed(f64),
    /// Exponential with this mean, in seconds.
    Exponential(f64),
}

impl Span {
    /// Draws a time, in nanoseconds.
    pub fn draw(&self, stream: &mut Stream) -> u64 {
        match *self {
            Self::Forever => u64::MAX,
            Self::Fixed(seconds) => nanoseconds(seconds),
            Self::Exponential(mean) => nanoseconds(mean * exponential(stream)),
        }
    }
}

/// Seconds as nanoseconds; what is too long is for ever.
#[must_use]
pub fn nanoseconds(seconds: f64) -> u64 {
    // The cast saturates.
    (seconds * 1e9).round().max(0.0) as u64
}

fn exponential(stream: &mut Stream) -> f64 {
    // 1 - u is never 0.
    -(1.0 - stream.uniform()).ln()
}

/// By multiplying uniforms; a large mean is the sum of small ones.
fn poisson(mean: f64, stream: &mut Stream) -> u32 {
    const PIECE: f64 = 16.0;
    let mut left = mean.clamp(0.0, 1e6);
    let mut count = 0u32;
    while left > 0.0 {
        let piece = left.min(PIECE);
        left -= piece;
        let bound = (-piece).exp();
        let mut product = stream.uniform();
        while product > bound {
            count = count.saturating_add(1);
            product *= stream.uniform();
        }
    }
    count
}

/// Marsaglia and Tsang 2000; a shape below one is raised and brought down again.
fn gamma(shape: f64, stream: &mut Stream) -> f64 {
    if shape < 1.0 {
        let power = (1.0 - stream.uniform()).powf(1.0 / shape);
        return gamma(shape + 1.0, stream) * power;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let normal = normal(stream);
        let v = (1.0 + c * normal).powi(3);
        if v > 0.0 && (1.0 - stream.uniform()).ln() < 0.5 * normal * normal + d - d * v + d * v.ln()
        {
            return d * v;
        }
    }
}

fn normal(stream: &mut Stream) -> f64 {
    let radius = (2.0 * exponential(stream)).sqrt();
    radius * (std::f64::consts::TAU * stream.uniform()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and variance of many draws.
    fn moments(law: Offspring) -> (f64, f64) {
        let mut stream = Stream::of_run(3, 0, 0);
        let draws: Vec<f64> = (0..40_000)
            .map(|_| f64::from(law.draw(&mut stream)))
            .collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        (mean, variance)
    }

    #[test]
    fn laws_have_their_moments() {
        for (law, mean, variance) in [
            (Offspring::Fixed(3), 3.0, 0.0_f64),
            (Offspring::Poisson(1.5), 1.5, 1.5),
            (Offspring::Poisson(40.0), 40.0, 40.0),
            (Offspring::NegativeBinomial { mean: 2.0, k: 1.0 }, 2.0, 6.0),
            (Offspring::NegativeBinomial { mean: 2.0, k: 10.0 }, 2.0, 2.4),
            (Offspring::NegativeBinomial { mean: 2.0, k: 0.1 }, 2.0, 42.0),
        ] {
            let (m, v) = moments(law);
            // Five standard errors of the mean; the variance within a tenth. The seed is fixed.
            assert!(
                (m - mean).abs() <= 5.0 * (variance / 40_000.0).sqrt(),
                "{law:?}: {m}"
            );
            assert!((v - variance).abs() <= 0.1 * variance, "{law:?}: {v}");
        }
    }

    #[test]
    fn times_are_in_nanoseconds_and_never_wrap() {
        let mut stream = Stream::keyed(1);
        assert_eq!(Span::Fixed(1.5).draw(&mut stream), 1_500_000_000);
        assert_eq!(Span::Forever.draw(&mut stream), u64::MAX);
        assert_eq!(nanoseconds(1e300), u64::MAX);
        let mean = (0..20_000)
            .map(|_| Span::Exponential(2.0).draw(&mut stream) as f64)
            .sum::<f64>()
            / 20_000.0;
        assert!((mean / 2e9 - 1.0).abs() < 0.03, "{mean}");
    }
}

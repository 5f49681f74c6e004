//! Tests that the duration of an API key lookup does not depend on the known keys. It compares two classes of
//! guessed keys with Welch's t-test, as dudect does (Reparaz, Balasch and Verbauwhede, 2017).

use super::{KEY, tenant};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use std::hint::black_box;
use std::time::Instant;
use tokenweir_request::access::{ApiKeys, KeyDigest, KeyFile};

/// Mean number of measurements for each class of guessed keys.
const SAMPLES: usize = 1_000_000;
const LOOKUPS_PER_MEASUREMENT: u32 = 4;
/// The test fails only if all of this number of repetitions show a difference. If the duration depends on the
/// keys, each repetition shows it; a change of the machine's speed affects only one.
const MAX_REPETITIONS: usize = 3;
/// If |t| is above this threshold, dudect considers the two classes different.
const MAX_ABS_T: f64 = 4.5;

fn welch(classes: [Vec<f64>; 2]) -> f64 {
    let [a, b] = classes.map(|times| {
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
        (mean, squares / (count - 1.0) / count)
    });
    (a.0 - b.0) / (a.1 + b.1).sqrt()
}

fn guess(text: &str) -> HeaderMap {
    let value = HeaderValue::try_from(format!("Bearer {text}")).unwrap();
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

/// Returns Welch's t of the durations of two classes of guesses. The slowest tenth of the durations is left
/// out as noise of the machine.
fn measure(classes: [&[String]; 2], lookup: impl Fn(&HeaderMap) -> bool) -> f64 {
    let mut random = fastrand::Rng::with_seed(7);
    let mut times: Vec<(usize, f64)> = Vec::with_capacity(2 * SAMPLES);
    for _ in 0..2 * SAMPLES {
        // The order of the classes is random, so that periodic noise does not affect one class more than the
        // other.
        let class = usize::from(random.bool());
        // Each guess is written to the same memory location. If the guesses stayed in memory, their locations
        // could influence the duration.
        let headers = guess(&classes[class][random.usize(..classes[class].len())]);
        let start = Instant::now();
        for _ in 0..LOOKUPS_PER_MEASUREMENT {
            black_box(lookup(black_box(&headers)));
        }
        times.push((class, start.elapsed().as_secs_f64()));
    }
    let mut sorted: Vec<f64> = times.iter().map(|(_, time)| *time).collect();
    sorted.sort_by(f64::total_cmp);
    let most = sorted[sorted.len() * 9 / 10];
    let mut classes = [Vec::new(), Vec::new()];
    for (class, time) in times.into_iter().filter(|(_, time)| *time <= most) {
        classes[class].push(time);
    }
    welch(classes)
}

#[test]
#[ignore = "takes a minute of a quiet machine: cargo test --release -- --ignored --nocapture timing"]
fn lookup_time_is_independent_of_known_keys() {
    let keys = ApiKeys::new(
        &KeyFile {
            tenants: vec![tenant()],
        },
        &ApiKeys::default(),
    );
    let mut random = fastrand::Rng::with_seed(1);
    let mut letters = |count: usize| {
        std::iter::repeat_with(|| random.alphanumeric())
            .take(count)
            .collect::<String>()
    };
    // Two classes: guesses that differ from a key only in the last characters, and guesses that share no
    // prefix with a key.
    let near: Vec<String> = (0..1_000)
        .map(|_| format!("{}{}", &KEY[..KEY.len() - 4], letters(4)))
        .collect();
    let far: Vec<String> = (0..1_000).map(|_| letters(KEY.len())).collect();
    let measure_lookup = || {
        measure([&near, &far], |headers| {
            keys.authenticate(headers).is_some()
        })
    };
    let mut results = std::iter::repeat_with(measure_lookup).take(MAX_REPETITIONS);
    let t = results.find(|t| t.abs() < MAX_ABS_T);
    // Positive control: this lookup compares the guess with the key character by character. The measurement
    // must detect the difference.
    let naive = |headers: &HeaderMap| {
        let sent = &headers[AUTHORIZATION].as_bytes()[7..];
        (0..64).all(|_| {
            sent.iter()
                .zip(KEY.as_bytes())
                .all(|(a, b)| black_box(a) == black_box(b))
        })
    };
    let leaky = measure([&near, &far], naive);
    println!("t = {t:.2?} for the lookup, {leaky:.2} for a comparison that stops early");
    assert!(
        leaky.abs() > MAX_ABS_T,
        "the measurement detects no early exit: {leaky}"
    );
    assert!(
        t.is_some(),
        "the duration depends on the keys in {MAX_REPETITIONS} measurements"
    );
    assert!(
        keys.authenticate(&guess(KEY)).is_some()
            && !KeyDigest::from_key(b"a").is_same(&KeyDigest::from_key(b"b"))
    );
}

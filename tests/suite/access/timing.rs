//! Whether the time that a look at a key takes tells anything of the keys that are known: Welch's t
//! over two classes of guesses, as dudect does (Reparaz, Balasch and Verbauwhede, 2017).

use super::{KEY, tenant};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use std::hint::black_box;
use std::time::Instant;
use tokenweir_core::access::{KeyDigest, Keys, Roster};

/// Measurements of each class.
const SAMPLES: usize = 1_000_000;
/// Looks in one measurement.
const LOOKS: u32 = 4;
/// Beyond it, dudect takes two classes for different.
const DIFFERENT: f64 = 4.5;

/// Mean and variance as they grow (Welford).
#[derive(Default, Clone, Copy)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }
}

fn welch([a, b]: [Moments; 2]) -> f64 {
    let error = |it: Moments| it.squares / (it.count - 1.0) / it.count;
    (a.mean - b.mean) / (error(a) + error(b)).sqrt()
}

fn guess(text: &str) -> HeaderMap {
    let value = HeaderValue::try_from(format!("Bearer {text}")).unwrap();
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

/// The t of two classes of guesses, over what is quicker than most: the rest is the machine's.
fn measure(classes: [&[String]; 2], look: impl Fn(&HeaderMap) -> bool) -> f64 {
    let mut random = fastrand::Rng::with_seed(7);
    let mut times: Vec<(usize, f64)> = Vec::with_capacity(2 * SAMPLES);
    for _ in 0..2 * SAMPLES {
        // In no order, so that no rhythm of the machine falls on one of them.
        let class = usize::from(random.bool());
        // Made anew, where the one before was: guesses that stay tell by the places where they lie.
        let headers = guess(&classes[class][random.usize(..classes[class].len())]);
        let start = Instant::now();
        for _ in 0..LOOKS {
            black_box(look(black_box(&headers)));
        }
        times.push((class, start.elapsed().as_secs_f64()));
    }
    let mut sorted: Vec<f64> = times.iter().map(|(_, time)| *time).collect();
    sorted.sort_by(f64::total_cmp);
    let most = sorted[sorted.len() * 9 / 10];
    let mut moments = [Moments::default(); 2];
    for (class, time) in times.into_iter().filter(|(_, time)| *time <= most) {
        moments[class].add(time);
    }
    welch(moments)
}

#[test]
#[ignore = "takes a minute of a quiet machine: cargo test --release -- --ignored --nocapture timing"]
fn the_time_of_a_look_tells_nothing_of_the_keys() {
    let keys = Keys::new(&Roster { tenants: vec![tenant()] }, &Keys::default());
    let mut random = fastrand::Rng::with_seed(1);
    let mut letters = |count: usize| {
        std::iter::repeat_with(|| random.alphanumeric()).take(count).collect::<String>()
    };
    // Guesses with all of the key but its end, and guesses with nothing of it.
    let near: Vec<String> =
        (0..1_000).map(|_| format!("{}{}", &KEY[..KEY.len() - 4], letters(4))).collect();
    let far: Vec<String> = (0..1_000).map(|_| letters(KEY.len())).collect();
    let t = measure([&near, &far], |headers| keys.of(headers).is_some());
    // What a comparison of the key itself would show, letter by letter: the measure can see it.
    let naive = |headers: &HeaderMap| {
        let sent = &headers[AUTHORIZATION].as_bytes()[7..];
        (0..64).all(|_| sent.iter().zip(KEY.as_bytes()).all(|(a, b)| black_box(a) == black_box(b)))
    };
    let leaky = measure([&near, &far], naive);
    println!("t = {t:.2} for the look, {leaky:.2} for a comparison that stops early");
    assert!(leaky.abs() > DIFFERENT, "the measure sees nothing: {leaky}");
    assert!(t.abs() < DIFFERENT, "{t}");
    assert!(keys.of(&guess(KEY)).is_some() && !KeyDigest::of(b"a").is_same(&KeyDigest::of(b"b")));
}

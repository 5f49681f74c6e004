//! Keeps a verdict from flickering: it enters when two of the last three looks found it, and leaves
//! when none has for two minutes.

use std::time::{Duration, Instant};

/// How one rule stands with one replica.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Steady {
    /// The last three looks, the newest in the lowest bit.
    looks: u8,
    /// When it was found first and last, while it holds.
    span: Option<(Instant, Instant)>,
}

/// How long nothing must be found.
pub(super) const QUIET: Duration = Duration::from_mins(2);
const LOOKS: u8 = 0b111;

impl Steady {
    /// A look at `now`.
    pub(super) fn on_look(&mut self, is_found: bool, now: Instant) {
        self.looks = (self.looks << 1 | u8::from(is_found)) & LOOKS;
        if let Some((_, last)) = &mut self.span {
            if is_found {
                *last = now;
            } else if now.saturating_duration_since(*last) >= QUIET {
                self.span = None;
            }
        } else if is_found && self.looks.count_ones() >= 2 {
            self.span = Some((now, now));
        }
    }

    /// Whether it holds, or was found in the last looks.
    pub(super) fn is_near(&self) -> bool {
        self.span.is_some() || self.looks != 0
    }

    /// Since when it holds. `None`: it does not.
    pub(super) fn since(&self) -> Option<Instant> {
        self.span.map(|(first, _)| first)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::some_moment;
    use super::*;

    #[test]
    fn a_verdict_takes_two_of_three_looks_and_leaves_after_quiet() {
        let start = some_moment();
        let mut steady = Steady::default();
        let mut look = |is_found, seconds| {
            steady.on_look(is_found, start + Duration::from_secs(seconds));
            steady.since().is_some()
        };
        assert!(!look(true, 0) && !look(false, 5) && !look(false, 10), "one look is no verdict");
        assert!(!look(true, 15) && !look(false, 20) && look(true, 25));
        assert!(look(false, 30) && look(false, 140), "it stays for a while");
        assert!(!look(false, 145) && !look(true, 150));
    }
}

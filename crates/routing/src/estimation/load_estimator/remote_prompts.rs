//! For one backend: the times to first output of requests whose prompt another backend computed.

use tokenweir_protocol::atomic::AtomicF64;

/// The mean time from sending such a request (its prompt was computed by another backend) to its first output,
/// and the time of the last observation.
#[derive(Debug, Default)]
pub(super) struct RemotePrompts {
    seconds: AtomicF64,
    learned_at: AtomicF64,
}

/// Weight of a new value in the moving average.
const EMA_WEIGHT: f64 = 0.3;
/// The time in which the learned difference from the prediction halves. Without decode legs, nothing else would
/// correct the difference.
const HALF_LIFE_SECONDS: f64 = 60.0;

impl RemotePrompts {
    /// Records that a first output came after `seconds`.
    pub(super) fn learn(&self, seconds: f64, now: f64) {
        let before = if self.learned_at.get() == 0.0 {
            seconds
        } else {
            self.seconds.get()
        };
        self.seconds.set(before + EMA_WEIGHT * (seconds - before));
        self.learned_at.set(now);
    }

    /// Expected seconds to the first output. `least`: the prediction, without anything learned from earlier
    /// requests.
    pub(super) fn expected(&self, least: f64, now: f64) -> f64 {
        let age = (now - self.learned_at.get()).max(0.0);
        least + (self.seconds.get() - least).max(0.0) * (-age / HALF_LIFE_SECONDS).exp2()
    }
}

//! The used memory of the GPUs of a backend over the last hours, to detect slow growth.
//!
//! An engine allocates its KV cache at its start, so its GPU memory is constant afterwards. Growth
//! over hours ends in an error for lack of memory.

use super::gpu_condition::GpuCondition;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokenweir_protocol::limits::push_bounded;

/// The used memory of the GPUs of a backend: one value for each five minutes of the last six hours.
#[derive(Debug, Default)]
pub(crate) struct GpuMemoryTrend {
    /// The lowest used memory of each interval, in bytes, the oldest first. It is the lowest value, so
    /// that peaks of single requests do not count as growth.
    intervals: VecDeque<f64>,
    /// Start of the current interval, and its lowest used memory so far. `None`: no sample yet.
    current: Option<(Instant, f64)>,
    /// Size of the memory of all GPUs of the backend in the last sample, in bytes.
    total_bytes: f64,
}

/// A growth of the used memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GpuMemoryGrowth {
    /// The growth in bytes per hour.
    pub(crate) bytes_per_hour: f64,
    /// Hours until no GPU memory is free, if the memory grows at this rate.
    pub(crate) hours_until_full: f64,
    /// Length of the observed time in which the used GPU memory grew, in seconds.
    pub(crate) seconds: f64,
}

const INTERVAL: Duration = Duration::from_mins(5);
/// Number of intervals: six hours.
const MAX_INTERVALS: usize = 72;
/// Minimum number of intervals for a growth: half an hour.
const MIN_INTERVALS: usize = 6;
/// Minimum growth as a share of the whole GPU memory. The growth that allocators and CUDA graphs cause is
/// smaller.
const MIN_GROWTH_SHARE: f64 = 0.02;
/// Minimum share of the growth that must be in the second half of the observed time. A single early rise of
/// the used memory is thus not a growth.
const MIN_LATE_SHARE: f64 = 0.25;

impl GpuMemoryTrend {
    /// Maximum memory that the stored values occupy, in bytes.
    pub(crate) const fn max_bytes() -> usize {
        MAX_INTERVALS * size_of::<f64>()
    }

    /// Adds a sample of the GPU memory. A sample without the memory sizes is ignored.
    pub(crate) fn push(&mut self, gpus: &GpuCondition, now: Instant) {
        let (Some(used), Some(total)) = (gpus.memory_used_bytes, gpus.memory_bytes) else { return };
        // If the size of the memory has changed, the backend uses other GPUs than before: its process
        // has moved, or the assignment of GPUs has changed.
        if (total - self.total_bytes).abs() > 0.01 * total {
            *self = Self { intervals: VecDeque::with_capacity(MAX_INTERVALS), ..Self::default() };
        }
        self.total_bytes = total;
        let (start, lowest) = *self.current.get_or_insert((now, used));
        if now.saturating_duration_since(start) < INTERVAL {
            self.current = Some((start, lowest.min(used)));
            return;
        }
        push_bounded(&mut self.intervals, lowest, MAX_INTERVALS);
        self.current = Some((now, used));
    }

    /// Whether the GPU memory has been observed for at least half an hour.
    pub(crate) fn is_known(&self) -> bool {
        self.intervals.len() >= MIN_INTERVALS
    }

    /// The growth of the used memory. `None`: the used memory does not grow steadily, or it has been
    /// observed for less than half an hour.
    pub(crate) fn growth(&self) -> Option<GpuMemoryGrowth> {
        let first = *self.intervals.front()?;
        let last = *self.intervals.back()?;
        let growth = last - first;
        let middle = self.intervals[self.intervals.len() / 2];
        let mut neighbours = self.intervals.iter().zip(self.intervals.iter().skip(1));
        let is_steady = neighbours
            .all(|(before, after)| after - before > -0.25 * MIN_GROWTH_SHARE * self.total_bytes);
        let is_growth = self.is_known()
            && is_steady
            && growth >= MIN_GROWTH_SHARE * self.total_bytes
            && last - middle >= MIN_LATE_SHARE * growth;
        if !is_growth {
            return None;
        }
        let seconds = (self.intervals.len() - 1) as f64 * INTERVAL.as_secs_f64();
        let bytes_per_hour = growth / seconds * 3_600.0;
        let free = (self.total_bytes - last).max(0.0);
        Some(GpuMemoryGrowth { bytes_per_hour, hours_until_full: free / bytes_per_hour, seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    const GIB: f64 = 1_073_741_824.0;

    /// The growth of the used memory of a GPU with 80 GiB. `used(minute)`: used memory in GiB.
    fn growth_after(minutes: u64, used: impl Fn(u64) -> f64) -> Option<GpuMemoryGrowth> {
        let mut trend = GpuMemoryTrend::default();
        let start = clock::epoch();
        for minute in 0..minutes {
            let gpus = GpuCondition {
                memory_used_bytes: Some(used(minute) * GIB),
                memory_bytes: Some(80.0 * GIB),
                ..GpuCondition::default()
            };
            trend.push(&gpus, start + Duration::from_mins(minute));
        }
        assert!(trend.intervals.len() <= MAX_INTERVALS);
        trend.growth()
    }

    #[test]
    fn steady_growth_has_a_rate_and_an_end() {
        let growth = growth_after(121, |minute| 70.0 + minute as f64 / 60.0 * 2.0).unwrap();
        assert!((growth.bytes_per_hour / GIB - 2.0).abs() < 0.01, "{growth:?}");
        assert!((growth.hours_until_full - 3.04).abs() < 0.1, "{growth:?}");
        assert!(growth_after(1_000, |minute| 60.0 + minute as f64 / 60.0).is_some());
    }

    #[test]
    fn a_rise_or_a_peak_is_no_growth() {
        assert_eq!(growth_after(600, |_| 72.0), None);
        assert_eq!(growth_after(600, |minute| if minute < 100 { 70.0 } else { 75.0 }), None);
        assert_eq!(growth_after(600, |minute| if minute % 7 == 0 { 78.0 } else { 70.0 }), None);
        assert_eq!(growth_after(600, |minute| 70.0 + (minute / 60 % 2) as f64 * 4.0), None);
        assert_eq!(growth_after(25, |minute| 60.0 + minute as f64), None);
    }
}

//! The latencies of the last hour as a heat map: for each minute, the number of latencies in each of a few
//! buckets.

use super::stats_window::{RequestStatsWindow, WINDOW_DURATION, WindowHistogram};
use std::collections::VecDeque;
use std::time::Duration;
use tokenweir_api::HeatMap;

/// The minutes of the last hour in which requests ended, oldest first. The ring takes at most 9 KiB of memory.
#[derive(Debug, Default)]
pub(super) struct HeatRing(VecDeque<HeatMinute>);

#[derive(Debug, Clone, Default)]
struct HeatMinute {
    /// Number of minutes between the start of the gateway and this minute.
    index: u64,
    ttft: Counts,
    itl: Counts,
}

/// Number of latencies in each bucket. The last bucket has the latencies above all bounds.
type Counts = [u32; BOUNDS.len() + 1];

/// The upper bounds of the buckets in seconds: three for each factor of ten.
const BOUNDS: [f64; 15] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0,
];
const MINUTE: Duration = Duration::from_mins(1);
/// Number of minutes in the ring: one hour.
const MINUTES: u64 = 60;

impl HeatRing {
    pub(super) fn add(&mut self, window: &RequestStatsWindow) {
        let index = minute_of(window.index);
        if self.0.back().is_none_or(|minute| minute.index < index) {
            self.0.push_back(HeatMinute {
                index,
                ..HeatMinute::default()
            });
            self.0.retain(|minute| minute.index + MINUTES > index);
        }
        if let Some(minute) = self.0.back_mut() {
            add(&mut minute.ttft, &window.ttft);
            add(&mut minute.itl, &window.itl);
        }
    }

    /// Returns the last hour in the form of the admin listener. `open`: the window that is not complete yet.
    /// `current`: the index of the current window.
    pub(super) fn to_document(&self, open: Option<&RequestStatsWindow>, current: u64) -> HeatMap {
        let mut ring = Self(self.0.clone());
        if let Some(window) = open {
            ring.add(window);
        }
        let last = minute_of(current);
        let first = (last + 1).saturating_sub(MINUTES);
        let minute = |index: u64| {
            let known = ring.0.iter().find(|minute| minute.index == index);
            known.cloned().unwrap_or_default()
        };
        let minutes: Vec<HeatMinute> = (first..=last).map(minute).collect();
        HeatMap {
            interval_seconds: MINUTE.as_secs_f64(),
            bounds: BOUNDS.to_vec(),
            ttft: minutes.iter().map(|minute| minute.ttft.to_vec()).collect(),
            itl: minutes.iter().map(|minute| minute.itl.to_vec()).collect(),
        }
    }
}

fn add(counts: &mut Counts, latencies: &WindowHistogram) {
    for (seconds, count) in latencies.buckets() {
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        counts[bucket] = counts[bucket].saturating_add(count);
    }
}

fn minute_of(window: u64) -> u64 {
    window * WINDOW_DURATION.as_secs() / MINUTE.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(index: u64, ttft: f64) -> RequestStatsWindow {
        let mut window = RequestStatsWindow::new(index);
        window.ttft.record_seconds(ttft);
        window
    }

    #[test]
    fn each_minute_has_its_latencies() {
        let mut ring = HeatRing::default();
        ring.add(&window(0, 0.03));
        ring.add(&window(11, 0.04));
        ring.add(&window(12, 700.0));
        let map = ring.to_document(Some(&window(13, 0.000_1)), 40);
        assert_eq!((map.ttft.len(), map.itl.len()), (4, 4));
        let bucket = |minute: usize, bucket: usize| map.ttft[minute][bucket];
        assert_eq!((bucket(0, 5), bucket(1, 15), bucket(1, 0)), (2, 1, 1));
        assert_eq!(map.ttft[2].iter().sum::<u32>(), 0);
    }

    #[test]
    fn the_ring_keeps_one_hour() {
        let mut ring = HeatRing::default();
        (0..10_000).for_each(|index| ring.add(&window(12 * index, 0.1)));
        assert_eq!(ring.0.len(), MINUTES as usize);
        assert_eq!(ring.to_document(None, 12 * 9_999).ttft.len(), 60);
        let idle = ring.to_document(None, 1_000_000);
        assert_eq!(idle.ttft.iter().flatten().sum::<u32>(), 0);
    }
}

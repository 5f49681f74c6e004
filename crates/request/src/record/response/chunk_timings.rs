//! The times of the chunks of a stream in a fixed amount of memory, without allocation: chunks at regular
//! intervals, and the longest gaps.

use std::time::{Duration, Instant};

/// The times of the chunks with output of one stream. This value takes at most 256 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkTimings {
    /// Milliseconds from the request head to every [`ChunkTimings::stride`]-th chunk.
    samples: [u32; SAMPLES],
    sampled: u8,
    /// Binary logarithm of the stride.
    stride_log2: u8,
    chunks: u32,
    /// The longest gaps, longest first.
    gaps: [ChunkGap; GAPS],
}

/// A pause between two chunks of a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChunkGap {
    /// Chunks with output before the gap.
    pub after_chunks: u32,
    /// Milliseconds from the request head to the end of the gap.
    pub ended_ms: u32,
    /// Length of the gap in milliseconds.
    pub gap_ms: u32,
}

/// Maximum number of sampled chunks. When it is exceeded, every second sample is removed.
const SAMPLES: usize = 32;
/// Maximum number of recorded gaps.
const GAPS: usize = 8;
/// Minimum length of a recorded gap. The histogram of gaps counts shorter gaps, which are normal.
const MIN_GAP: Duration = Duration::from_millis(100);

impl Default for ChunkTimings {
    fn default() -> Self {
        let gaps = [ChunkGap::default(); GAPS];
        Self {
            samples: [0; SAMPLES],
            sampled: 0,
            stride_log2: 0,
            chunks: 0,
            gaps,
        }
    }
}

impl ChunkTimings {
    /// Records a chunk with output at `now`. `accepted`: the instant of the request head. `gap`: the time since
    /// the previous output of the same choice. `None`: no previous output, or the client did not read in this
    /// time. Zero: the output belongs to the previous chunk.
    #[inline]
    pub fn record(&mut self, accepted: Instant, now: Instant, gap: Option<Duration>) {
        if gap == Some(Duration::ZERO) && self.chunks > 0 {
            return;
        }
        let before = self.chunks;
        self.chunks = before.saturating_add(1);
        if before & (self.stride() - 1) == 0 {
            self.sample(before, now.saturating_duration_since(accepted));
        }
        if let Some(gap) = gap.filter(|gap| *gap >= MIN_GAP) {
            self.record_gap(before, now.saturating_duration_since(accepted), gap);
        }
    }

    /// Chunks with output so far.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Number of chunks from one sample to the next.
    pub fn stride(&self) -> u32 {
        1 << self.stride_log2
    }

    /// Milliseconds from the request head to every [`ChunkTimings::stride`]-th chunk, beginning with
    /// the first one.
    pub fn samples_ms(&self) -> &[u32] {
        &self.samples[..usize::from(self.sampled)]
    }

    /// The longest gaps of at least 100 ms, longest first.
    pub fn longest_gaps(&self) -> impl Iterator<Item = &ChunkGap> {
        self.gaps.iter().take_while(|gap| gap.gap_ms > 0)
    }

    #[cold]
    fn sample(&mut self, before: u32, passed: Duration) {
        if usize::from(self.sampled) == SAMPLES {
            for index in 0..SAMPLES / 2 {
                self.samples[index] = self.samples[index * 2];
            }
            self.sampled /= 2;
            self.stride_log2 += 1;
            if before & (self.stride() - 1) != 0 {
                return;
            }
        }
        self.samples[usize::from(self.sampled)] = millis(passed);
        self.sampled += 1;
    }

    #[cold]
    fn record_gap(&mut self, before: u32, passed: Duration, gap: Duration) {
        let gap = ChunkGap {
            after_chunks: before,
            ended_ms: millis(passed),
            gap_ms: millis(gap),
        };
        let position = self.gaps.iter().position(|other| other.gap_ms < gap.gap_ms);
        if let Some(position) = position {
            self.gaps[position..].rotate_right(1);
            self.gaps[position] = gap;
        }
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fixtures::streamed;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn samples_cover_the_stream_at_regular_strides() {
        let (mut timings, accepted) = (ChunkTimings::default(), streamed().timings.accepted);
        for chunk in 0..1_000 {
            timings.record(accepted, accepted + MS(50 + chunk * 10), Some(MS(10)));
            let samples = timings.samples_ms();
            let expected = (0..=chunk)
                .step_by(timings.stride() as usize)
                .map(|it| 50 + it * 10);
            assert!(
                samples.iter().map(|it| u64::from(*it)).eq(expected),
                "{chunk}: {samples:?}"
            );
        }
        assert_eq!((timings.stride(), timings.chunks()), (32, 1_000));
        assert_eq!(timings.longest_gaps().count(), 0, "short gaps are normal");
        assert!(size_of::<ChunkTimings>() <= 256);
    }

    #[test]
    fn the_longest_gaps_keep_their_positions() {
        let (mut timings, accepted) = (ChunkTimings::default(), streamed().timings.accepted);
        let mut passed = 0;
        for gap in [150, 20, 900, 110, 300, 120, 130, 140, 160, 170, 2_000] {
            passed += gap;
            timings.record(accepted, accepted + MS(passed), Some(MS(gap)));
        }
        let gaps: Vec<u32> = timings.longest_gaps().map(|gap| gap.gap_ms).collect();
        assert_eq!(gaps, [2_000, 900, 300, 170, 160, 150, 140, 130]);
        let longest = *timings.longest_gaps().next().unwrap();
        assert_eq!(
            longest,
            ChunkGap {
                after_chunks: 10,
                ended_ms: 4_200,
                gap_ms: 2_000
            }
        );
    }
}

//! The bytes of a response that readers at different positions may still need.

use std::collections::VecDeque;
use tokenweir_protocol::limits::memory_charge::{Charge, ExceededLimit, MemoryLimits};

/// The bytes of a response between two positions, in segments of equal size. The memory grows by one segment at
/// a time, so a short response takes one segment.
#[derive(Debug)]
pub(super) struct Buffer {
    segments: VecDeque<Vec<u8>>,
    /// Position of the first byte of the first segment.
    start: u64,
    /// Position after the last byte.
    pub(super) end: u64,
    charge: Charge,
}

pub(super) const SEGMENT_BYTES: usize = 4 << 10;

impl Buffer {
    /// An empty buffer, whose memory `charge` counts.
    pub(super) fn new(charge: Charge) -> Self {
        Self {
            segments: VecDeque::new(),
            start: 0,
            end: 0,
            charge,
        }
    }

    /// Appends bytes if the memory limits allow it. If not, appends nothing and returns the exceeded limit.
    pub(super) fn append(
        &mut self,
        data: &[u8],
        limits: &MemoryLimits,
    ) -> Result<(), ExceededLimit> {
        self.charge.add(self.growth(data.len()), limits)?;
        self.write(data);
        Ok(())
    }

    /// Appends bytes that are kept only until all present readers have read them. A client that returns later
    /// does not get them.
    pub(super) fn append_passing(&mut self, data: &[u8]) {
        self.charge.add_passing(self.growth(data.len()));
        self.write(data);
    }

    /// The bytes from `position` to the end of its segment. Empty at the end of the buffer.
    pub(super) fn read(&self, position: u64) -> &[u8] {
        let offset = position.saturating_sub(self.start) as usize;
        let segment = self.segments.get(offset / SEGMENT_BYTES);
        segment
            .and_then(|segment| segment.get(offset % SEGMENT_BYTES..))
            .unwrap_or_default()
    }

    /// Releases the segments that end at or before `position`.
    pub(super) fn release_before(&mut self, position: u64) {
        while let Some(segment) = self.segments.front() {
            let end = self.start + segment.len() as u64;
            if end > position {
                return;
            }
            self.start = end;
            self.segments.pop_front();
            self.charge.release(SEGMENT_BYTES);
        }
    }

    /// The memory that `length` further bytes take, in bytes: a multiple of [`SEGMENT_BYTES`].
    fn growth(&self, length: usize) -> usize {
        let free = self
            .segments
            .back()
            .map_or(0, |segment| SEGMENT_BYTES - segment.len());
        length.saturating_sub(free).div_ceil(SEGMENT_BYTES) * SEGMENT_BYTES
    }

    fn write(&mut self, mut data: &[u8]) {
        self.end += data.len() as u64;
        while !data.is_empty() {
            if self
                .segments
                .back()
                .is_none_or(|segment| segment.len() == SEGMENT_BYTES)
            {
                self.segments.push_back(Vec::with_capacity(SEGMENT_BYTES));
            }
            let Some(segment) = self.segments.back_mut() else {
                return;
            };
            let (now, rest) = data.split_at(data.len().min(SEGMENT_BYTES - segment.len()));
            segment.extend_from_slice(now);
            data = rest;
        }
    }
}

//! Turns events into socket writes: HTTP chunks, whole or split at any byte. A write contains the
//! events that it completes, so its time is the time of these events.

use super::dialect::{Event, FrontEnd};
use fastrand::Rng;
use std::time::Duration;

/// Bytes that are written at once.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    /// The time to wait before the write.
    pub(crate) pause: Duration,
    pub(crate) bytes: Vec<u8>,
    /// The events whose last byte is in the write.
    pub(crate) events: Vec<Event>,
    /// Omitted from a response whose request did not request usage.
    pub(crate) is_usage: bool,
}

/// The framing of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// One event per chunk and one chunk per write, like the Python front end.
    Apart,
    /// Events that are available at once are chunks of one write, like the Rust front end.
    Together,
    /// Chunks and writes end anywhere: inside an event, a character or a chunk size.
    Cut,
}

impl Write {
    /// Bytes outside of events: headers and the last chunk.
    pub(crate) fn bare(pause: Duration, bytes: &[u8]) -> Self {
        Self { pause, bytes: bytes.to_vec(), events: Vec::new(), is_usage: false }
    }
}

/// The writes of events that are available at once, after `pause`.
pub(crate) fn frame(
    events: Vec<Event>,
    pause: Duration,
    (framing, front_end): (Framing, FrontEnd),
    rng: &mut Rng,
) -> Vec<Write> {
    let length = |event: &Event| event.bytes.len();
    let mut writes: Vec<Write> = match framing {
        Framing::Apart => events
            .into_iter()
            .flat_map(|event| {
                let sizes = [length(&event)];
                assemble(vec![event], &sizes, &[], front_end)
            })
            .collect(),
        Framing::Together => {
            let sizes: Vec<usize> = events.iter().map(length).collect();
            assemble(events, &sizes, &[], front_end)
        }
        Framing::Cut => {
            let total = events.iter().map(length).sum();
            let sizes = parts(total, 3, rng);
            let cuts: Vec<usize> = (0..rng.usize(1..5)).map(|_| rng.usize(..total)).collect();
            assemble(events, &sizes, &cuts, front_end)
        }
    };
    for write in writes.iter_mut().skip(1).filter(|_| framing == Framing::Cut) {
        write.pause = Duration::from_millis(rng.u64(0..3));
    }
    if let Some(first) = writes.first_mut() {
        first.pause = pause;
    }
    writes
}

/// Splits `total` into up to `most` lengths.
fn parts(total: usize, most: usize, rng: &mut Rng) -> Vec<usize> {
    let mut rest = total;
    let mut sizes = Vec::new();
    while rest > 0 {
        let size = if sizes.len() + 1 == most { rest } else { rng.usize(1..=rest) };
        sizes.push(size);
        rest -= size;
    }
    sizes
}

/// The events as chunks of these sizes, in writes that end at the positions `cuts` of the framed
/// bytes.
fn assemble(
    events: Vec<Event>,
    sizes: &[usize],
    cuts: &[usize],
    front_end: FrontEnd,
) -> Vec<Write> {
    let body: Vec<u8> = events.iter().flat_map(|event| event.bytes.iter().copied()).collect();
    let mut framed = Vec::new();
    // The position of each body byte in the framed bytes.
    let mut places = Vec::with_capacity(body.len());
    let mut rest = &body[..];
    for &size in sizes {
        let (chunk, after) = rest.split_at(size);
        framed.extend_from_slice(&chunk_head(size, front_end));
        places.extend(framed.len()..framed.len() + size);
        framed.extend_from_slice(chunk);
        framed.extend_from_slice(b"\r\n");
        rest = after;
    }
    let mut ends: Vec<usize> = cuts.iter().copied().filter(|cut| *cut > 0).collect();
    ends.push(framed.len());
    ends.sort_unstable();
    ends.dedup();
    let mut events = events.into_iter().peekable();
    let (mut begin, mut body_end) = (0, 0);
    let mut writes = Vec::new();
    for end in ends {
        let mut write = Write::bare(Duration::ZERO, &framed[begin..end]);
        let place = |body_end: usize| places[body_end - 1];
        while let Some(event) = events.next_if(|event| place(body_end + event.bytes.len()) < end) {
            body_end += event.bytes.len();
            write.events.push(event);
        }
        writes.push(write);
        begin = end;
    }
    writes
}

/// The chunk size line. The front ends differ in the case of hexadecimal digits.
pub(crate) fn chunk_head(size: usize, front_end: FrontEnd) -> Vec<u8> {
    match front_end {
        FrontEnd::Python => format!("{size:x}\r\n"),
        FrontEnd::Rust => format!("{size:X}\r\n"),
    }
    .into_bytes()
}

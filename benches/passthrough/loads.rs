//! The loads that each subject gets, and what is measured under each.

use super::clients::{self, Seen};
use super::subject::Subject;
use std::time::Duration;
use tokenweir::clock;
use tokio::task::JoinSet;

/// How large the loads are.
pub(crate) struct Sizes {
    /// Streams at once, chunks of each and microseconds between two, when they are paced.
    paced: (usize, usize, usize),
    /// Streams at once and chunks of each, as fast as they go.
    flat_out: (usize, usize),
    /// Connections and seconds of small requests.
    small: (usize, Duration),
    /// Streams that are open and silent.
    open: usize,
}

/// What one subject cost in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    /// CPU of a chunk, paced, in µs.
    pub(crate) paced: f64,
    /// CPU of a chunk, as fast as they go, in µs.
    pub(crate) flat_out: f64,
    /// CPU of a small request, in µs.
    pub(crate) small: f64,
    /// Small requests a second.
    pub(crate) rate: f64,
    /// Time to first chunk and transit of a chunk, each p50 and p99, in µs.
    pub(crate) ttft: [f64; 2],
    pub(crate) transit: [f64; 2],
    /// Memory of a stream that is open, in KiB.
    pub(crate) stream: f64,
    /// Memory at the start, in MiB.
    pub(crate) fresh: f64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            paced: (200, 200, 20_000),
            flat_out: (8, 10_000),
            small: (16, Duration::from_secs(2)),
            open: 1_000,
        }
    }
}

/// All loads in turn.
pub(crate) async fn measure(subject: &Subject, sizes: &Sizes) -> Figures {
    let fresh = subject.resident() / 1_024.0;
    // What is done once is not part of what each costs.
    clients::repeat(subject.address, &clients::whole(0), soon(Duration::from_millis(300))).await;
    let stream = open(subject, sizes.open).await;
    let (small, rate) = requests(subject, sizes.small).await;
    let (streams, chunks, every) = sizes.paced;
    let (paced, mut seen) = streams_of(subject, streams, chunks, every).await;
    let mut ttfts: Vec<f64> = seen.iter().map(|seen| seen.ttft).collect();
    let mut transits: Vec<f64> = seen.iter_mut().flat_map(|seen| seen.transit.drain(..)).collect();
    let (streams, chunks) = sizes.flat_out;
    let (flat_out, _) = streams_of(subject, streams, chunks, 0).await;
    Figures {
        paced,
        flat_out,
        small,
        rate,
        ttft: [0.5, 0.99].map(|share| quantile(&mut ttfts, share)),
        transit: [0.5, 0.99].map(|share| quantile(&mut transits, share)),
        stream,
        fresh,
    }
}

/// CPU of a small request in µs, and how many there were in a second.
async fn requests(subject: &Subject, (connections, took): (usize, Duration)) -> (f64, f64) {
    let (before, until) = (subject.cpu(), soon(took));
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        let to = subject.address;
        clients.spawn(async move { clients::repeat(to, &clients::whole(0), until).await });
    }
    let count: usize = clients.join_all().await.into_iter().sum();
    let cpu = subject.cpu().checked_sub(before).unwrap();
    (cpu.as_secs_f64() * 1e6 / count as f64, count as f64 / took.as_secs_f64())
}

/// CPU of a chunk in µs, and what the clients saw. Streams begin spread over one pause.
async fn streams_of(
    subject: &Subject,
    streams: usize,
    chunks: usize,
    every_us: usize,
) -> (f64, Vec<Seen>) {
    let before = subject.cpu();
    let mut clients = JoinSet::new();
    for number in 0..streams {
        let (to, request) = (subject.address, clients::stream(chunks, every_us, 0));
        let late = Duration::from_micros((every_us * number / streams) as u64);
        clients.spawn(async move {
            tokio::time::sleep(late).await;
            clients::watch(to, request).await
        });
    }
    let seen = clients.join_all().await;
    for one in &seen {
        // The framing of a chunk may fall into the mark of a moment, which is then not seen.
        assert!(one.chunks + chunks / 100 >= chunks, "{} of {chunks} arrived", one.chunks);
    }
    let cpu = subject.cpu().checked_sub(before).unwrap();
    (cpu.as_secs_f64() * 1e6 / (streams * chunks) as f64, seen)
}

/// Memory of a stream that has had its first chunk and waits for the next, in KiB.
async fn open(subject: &Subject, streams: usize) -> f64 {
    let before = subject.resident();
    let request = clients::stream(2, 0, 600_000_000);
    let mut connections = Vec::with_capacity(streams);
    for _ in 0..streams {
        let stream = clients::send(subject.address, &request).await;
        stream.readable().await.unwrap();
        connections.push(stream);
    }
    (subject.resident() - before) / streams as f64
}

fn soon(after: Duration) -> std::time::Instant {
    clock::now() + after
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

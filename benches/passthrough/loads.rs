//! The loads that clients put on a subject (a measured proxy), and the quantities measured under each load.

use super::clients::{self, Seen};
use super::subject::Subject;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::histogram::sample_quantile;
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::sleep;

/// Keeps the thread of clients and backends from sleeping, until it is dropped.
///
/// On loopback, a process that sends to a sleeping process pays for the wake-up: an interrupt to another
/// core, which takes some µs in a virtual machine. A slower proxy finds its clients and backends asleep more
/// often, so their wake-ups would count as its own work. In production, clients and backends are on other
/// machines.
struct Awake(JoinHandle<()>);

/// Load with pauses: number of concurrent streams, chunks per stream, and microseconds between two chunks.
const PACED: (usize, usize, usize) = (200, 200, 20_000);
/// Full speed: number of streams and chunks per stream. The backend writes each chunk separately, or it
/// writes [`AHEAD`] bytes at once, so that it is always faster than the subject.
const FLAT_OUT: (usize, usize) = (8, 10_000);
const AHEAD: usize = 8 << 10;
/// Number of connections that send small requests, and for how long.
pub(crate) const SMALL: (usize, Duration) = (16, Duration::from_secs(2));
/// Load of a latency measurement: number of streams, chunks per stream, microseconds between two chunks, and
/// microseconds between the starts of two streams. 50 streams are open at the same time. The two periods
/// differ, so that streams do not synchronize.
const SHORT: (usize, usize, usize, usize) = (200, 10, 20_000, 4_100);
/// Duration of the small requests of a latency measurement, which are sent one after the other.
const WHOLE: Duration = Duration::from_millis(200);
/// Number of latency measurements (turns) per subject.
const TURNS: usize = 12;
/// The sizes of long prompts in bytes; then the number of connections that send requests with such prompts,
/// and for how long.
const PROMPTS: [usize; 2] = [220_000, 2_000_000];
const LARGE: (usize, Duration) = (4, Duration::from_millis(1_500));
/// Streams with such prompts, chunks per stream, and microseconds between two chunks: 100 are open when half
/// of them have begun.
const PROMPTED: (usize, usize, usize) = (200, 100, 20_000);

impl Awake {
    fn begin() -> Self {
        Self(tokio::spawn(async {
            loop {
                yield_now().await;
            }
        }))
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// CPU time of a chunk in µs: with pauses, at full speed, and at full speed with several chunks in each
/// write.
pub(crate) async fn chunks(subject: &Subject) -> [f64; 3] {
    warm(subject).await;
    let paced = clients::stream(PACED.1, PACED.2, 0);
    let flat_out = clients::stream(FLAT_OUT.1, 0, 0);
    let ahead = clients::streamed(&format!("chunks {} ahead {AHEAD}", FLAT_OUT.1), 0);
    let pause = Duration::from_micros(PACED.2 as u64);
    [
        streamed(subject, (PACED.0, PACED.1), pause, &paced).await,
        streamed(subject, FLAT_OUT, Duration::ZERO, &flat_out).await,
        streamed(subject, FLAT_OUT, Duration::ZERO, &ahead).await,
    ]
}

/// CPU time of a chunk in µs. `streams` streams with `chunks` chunks each begin within `pause`.
async fn streamed(
    subject: &Subject,
    (streams, chunks): (usize, usize),
    pause: Duration,
    request: &str,
) -> f64 {
    let _awake = Awake::begin();
    let before = subject.cpu();
    for seen in watch(subject.address, streams, pause / streams as u32, request).await {
        // Chunked framing can split the digits of a write time. Then the client does not count the chunk.
        assert!(
            seen.chunks + chunks / 100 >= chunks,
            "{} of {chunks} arrived",
            seen.chunks
        );
    }
    spent(subject, before, streams * chunks)
}

/// CPU time of a small request in µs, and requests per second.
pub(crate) async fn requests(subject: &Subject) -> [f64; 2] {
    warm(subject).await;
    let (cpu, count) = repeated(subject, SMALL, 0).await;
    [cpu, count as f64 / SMALL.1.as_secs_f64()]
}

/// The latency in µs that each subject adds: p50 and p99 of the time to the first chunk, of the transit of a
/// chunk and of a small whole request, and p99 of the time by which a gap between two chunks is longer for
/// the client than for the backend. Each figure is the median over all measurements, because one with a busy
/// neighbour would determine the p99 of all. All clients connect to the same subject, or directly, and change
/// together: proxies that share a core would wait for each other.
pub(crate) async fn latency(subjects: &[Subject], backend: SocketAddr) -> Vec<[f64; 7]> {
    for subject in subjects {
        warm(subject).await;
    }
    let mut added = vec![[const { Vec::new() }; 7]; subjects.len()];
    for _ in 0..TURNS {
        let direct = second(backend).await;
        for (subject, added) in subjects.iter().zip(&mut added) {
            let through = second(subject.address).await;
            for (index, added) in added.iter_mut().enumerate() {
                added.push(through[index] - direct[index]);
            }
        }
    }
    let medians = |added: [Vec<f64>; 7]| added.map(|mut turns| quantile(&mut turns, 0.5));
    added.into_iter().map(medians).collect()
}

/// The figures of one latency measurement at this address, in the order of [`latency`].
async fn second(to: SocketAddr) -> [f64; 7] {
    let (streams, chunks, every_us, apart_us) = SHORT;
    let request = clients::stream(chunks, every_us, 0);
    let seen = watch(
        to,
        streams,
        Duration::from_micros(apart_us as u64),
        &request,
    )
    .await;
    let longer = |seen: &Seen| {
        seen.transit
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .collect()
    };
    let mut gaps = seen
        .iter()
        .flat_map(|seen| -> Vec<f64> { longer(seen) })
        .collect::<Vec<_>>();
    let mut whole = clients::repeat(to, &clients::whole(0), clock::now() + WHOLE).await;
    let [ttft_p50, ttft_p99, transit_p50, transit_p99] = quantiles(seen);
    let [p50, p99] = [0.5, 0.99].map(|share| quantile(&mut whole, share));
    [
        ttft_p50,
        ttft_p99,
        transit_p50,
        transit_p99,
        p50,
        p99,
        quantile(&mut gaps, 0.99),
    ]
}

/// CPU time of a prompt byte in ns and the median time to the first chunk in µs, for the first and then the
/// second prompt size.
pub(crate) async fn prompts(subject: &Subject) -> [f64; 4] {
    warm(subject).await;
    let mut figures = [0.0; 4];
    for (index, prompt) in PROMPTS.into_iter().enumerate() {
        let (cpu, _) = repeated(subject, LARGE, prompt).await;
        figures[index] = cpu * 1e3 / prompt as f64;
        let (streams, chunks, every_us) = PROMPTED;
        let script = format!("chunks {chunks} every_us {every_us}");
        let request = clients::streamed(&script, prompt);
        let apart = Duration::from_micros(every_us as u64);
        figures[2 + index] = quantiles(watch(subject.address, streams, apart, &request).await)[0];
    }
    figures
}

/// Sends requests for 0.3 s, so that one-time work of the subject is not measured.
pub(crate) async fn warm(subject: &Subject) {
    repeated(subject, (4, Duration::from_millis(300)), 0).await;
}

/// Sends requests with a prompt of `prompt` bytes on `connections` connections for `time`. Returns the CPU
/// time per request in µs, and the number of requests.
pub(crate) async fn repeated(
    subject: &Subject,
    (connections, time): (usize, Duration),
    prompt: usize,
) -> (f64, usize) {
    let _awake = Awake::begin();
    let (before, until) = (subject.cpu(), clock::now() + time);
    let (to, mut clients) = (subject.address, JoinSet::new());
    for _ in 0..connections {
        clients.spawn(async move { clients::repeat(to, &clients::whole(prompt), until).await });
    }
    let count = clients.join_all().await.iter().map(Vec::len).sum();
    (spent(subject, before, count), count)
}

/// Starts `streams` streams, one every `apart`, and reads them to their end. Returns the client's
/// measurements of each.
async fn watch(to: SocketAddr, streams: usize, apart: Duration, request: &str) -> Vec<Seen> {
    let mut clients = JoinSet::new();
    for number in 0..streams {
        let request = request.to_owned();
        clients.spawn(async move {
            sleep(apart * number as u32).await;
            clients::watch(to, request).await
        });
    }
    clients.join_all().await
}

/// Returns the CPU time in µs that the subject has used since `before`, divided by `count` items.
fn spent(subject: &Subject, before: Duration, count: usize) -> f64 {
    subject.cpu().checked_sub(before).unwrap().as_secs_f64() * 1e6 / count as f64
}

/// p50 and p99 of the time to the first chunk, then of the transit of a chunk, in µs.
fn quantiles(mut seen: Vec<Seen>) -> [f64; 4] {
    let mut ttfts: Vec<f64> = seen.iter().map(|seen| seen.ttft).collect();
    let mut transits: Vec<f64> = seen
        .iter_mut()
        .flat_map(|seen| seen.transit.drain(..))
        .collect();
    let [a, b] = [0.5, 0.99].map(|share| quantile(&mut ttfts, share));
    let [c, d] = [0.5, 0.99].map(|share| quantile(&mut transits, share));
    [a, b, c, d]
}

/// The quantile `share` of the values, from 0 to 1. NaN if there are no values.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    sample_quantile(values, share).unwrap_or(f64::NAN)
}

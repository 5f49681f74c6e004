//! The network of the simulation, with the backends behind it. Its connections have no sockets. A seed
//! decides which reads and writes wait, are short, or fail.

use super::engine::{Received, chunk};
use super::request_reader::read_request;
use bytes::BytesMut;
use futures_util::FutureExt;
use http::Uri;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokenweir_net::tls::{Dial, SimulatedStream};
use tokenweir_protocol::clock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::Notify;

/// The state of a simulation: the random numbers of the seed, the list of dead backends, and the log.
pub(super) struct World {
    random: Mutex<fastrand::Rng>,
    /// Share of the requests to a backend that fail in some way, from 0 to 1.
    faults: f64,
    /// The longest time between two parts of a response.
    part_time: Duration,
    /// For each backend, whether it is dead, so that it accepts no connection.
    down: Mutex<Vec<bool>>,
    /// For each backend, the notification that makes it reset its connections.
    deaths: Vec<Notify>,
    /// How often each request, by its number, reached an engine.
    pub reached: Mutex<HashMap<usize, usize>>,
    /// The log of the history: one line for each event, with the time since the beginning.
    pub told: Arc<Mutex<String>>,
    begun: Instant,
    /// Whether a backend received a request that no gateway may send.
    pub has_failed: AtomicBool,
    /// Whether [`World::calm`] has ended all faults.
    is_calm: AtomicBool,
}

/// How a backend mishandles a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Closes the connection at once, without a response.
    CloseAtOnce,
    /// Answers the request with this error status.
    Status(&'static str),
    /// Reads the request and sends nothing.
    Hang,
    /// Sends a part of the response. Then it closes or resets the connection, or is silent.
    Cut(Ending),
    /// Sends this event in the middle of the stream. The event is an abort or an error.
    Event(&'static str),
    /// Ignores the token ids in a chat request, so it does not continue an answer from them.
    IgnoresIds,
    WritesNoIds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Close,
    Reset,
    Silence,
}

const METRICS: &str = "vllm:num_requests_running{engine=\"0\"} 1.0\n\
    vllm:num_requests_waiting{engine=\"0\"} 0.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n";
const ABORT: &str = r#"{"id":"a","created":1,"choices":[{"index":0,"delta":{},"text":"","finish_reason":"abort"}]}"#;
const ERROR: &str =
    r#"{"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}"#;

impl World {
    pub(super) fn new(seed: u64, backends: usize, told: Arc<Mutex<String>>) -> Arc<Self> {
        let faults = fastrand::Rng::with_seed(seed).f64() * 0.8;
        Self::with_faults(seed, backends, told, faults, Duration::from_millis(150))
    }

    pub(super) fn with_faults(
        seed: u64,
        backends: usize,
        told: Arc<Mutex<String>>,
        faults: f64,
        part_time: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            faults,
            part_time,
            down: Mutex::new(vec![false; backends]),
            deaths: (0..backends).map(|_| Notify::new()).collect(),
            reached: Mutex::default(),
            told,
            begun: clock::now(),
            has_failed: AtomicBool::new(false),
            is_calm: AtomicBool::new(false),
        })
    }

    /// Writes an event of the history to the log.
    pub(super) fn log(&self, what: std::fmt::Arguments<'_>) {
        let at = clock::now() - self.begun;
        // Each log line includes the state of the random numbers, which shows where two runs of the same seed
        // begin to differ.
        let random = self.random(|random| random.get_seed() % 10_000);
        writeln!(self.told.lock().unwrap(), "{at:?} [{random}] {what}").unwrap();
    }

    pub(super) fn random<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.random.lock().unwrap())
    }

    pub(super) fn chance(&self, share: f64) -> bool {
        self.random(fastrand::Rng::f64) < share
    }

    pub(super) fn below(&self, limit: usize) -> usize {
        self.random(|random| random.usize(..limit))
    }

    /// Waits for a random time of at most `max` with probability 0.3. Otherwise yields once with probability
    /// 0.5.
    pub(super) async fn pause(&self, max: Duration) {
        if self.chance(0.3) {
            let share = self.random(fastrand::Rng::f64);
            tokio::time::sleep(max.mul_f64(share)).await;
        } else if self.chance(0.5) {
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn calm(&self) {
        self.is_calm.store(true, Ordering::Relaxed);
        self.down.lock().unwrap().fill(false);
    }

    /// Lets a backend die: it resets its connections and accepts no new ones. No effect after
    /// [`World::calm`].
    pub(super) fn die(&self, backend: usize) {
        if !self.is_calm.load(Ordering::Relaxed) {
            self.down.lock().unwrap()[backend] = true;
            self.deaths[backend].notify_waiters();
        }
    }

    pub(super) fn come_back(&self, backend: usize) {
        self.down.lock().unwrap()[backend] = false;
    }

    fn fault(&self) -> Fault {
        if self.is_calm.load(Ordering::Relaxed) || !self.chance(self.faults) {
            return Fault::None;
        }
        match self.below(20) {
            0 => Fault::CloseAtOnce,
            1 => Fault::Status("500 Internal Server Error"),
            2 => Fault::Status("503 Service Unavailable"),
            3 => Fault::Status("429 Too Many Requests"),
            4 => Fault::Status("400 Bad Request"),
            5 => Fault::Hang,
            6..=8 => Fault::Cut(Ending::Close),
            9..=12 => Fault::Cut(Ending::Reset),
            13..=14 => Fault::Cut(Ending::Silence),
            15..=16 => Fault::Event(ABORT),
            17 => Fault::Event(ERROR),
            18 => Fault::IgnoresIds,
            _ => Fault::WritesNoIds,
        }
    }

    /// Returns the function with which the gateway opens a connection to a backend. The port of a backend is
    /// its number plus 1.
    pub(super) fn dial(self: &Arc<Self>) -> Dial {
        let world = self.clone();
        Arc::new(move |uri: &Uri| {
            let (world, backend) = (world.clone(), usize::from(uri.port_u16().unwrap()) - 1);
            Box::pin(async move {
                world.log(format_args!("connection to {backend}"));
                world.pause(Duration::from_millis(20)).await;
                if world.down.lock().unwrap()[backend] {
                    return Err(ErrorKind::ConnectionRefused.into());
                }
                if !world.is_calm.load(Ordering::Relaxed) && world.chance(world.faults / 30.0) {
                    std::future::pending::<()>().await;
                }
                let capacity = 1 + world.below(4_000);
                let (gateway, server) = tokio::io::duplex(capacity);
                let is_reset = Arc::new(AtomicBool::new(false));
                let serving = serve(server, world.clone(), backend, is_reset.clone());
                let serving = AssertUnwindSafe(serving).catch_unwind();
                let (of_backend, resets) = (world.clone(), is_reset.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        biased;
                        result = serving => {
                            of_backend.has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
                        }
                        () = of_backend.deaths[backend].notified() => {
                            resets.store(true, Ordering::Relaxed);
                        }
                    }
                });
                let stream = FaultyStream {
                    inner: gateway,
                    world,
                    is_reset,
                };
                Ok(Box::new(stream) as Box<dyn SimulatedStream>)
            })
        })
    }
}

/// The gateway's end of a connection to a backend.
struct FaultyStream {
    inner: DuplexStream,
    world: Arc<World>,
    is_reset: Arc<AtomicBool>,
}

impl FaultyStream {
    /// Whether the seed decides that this operation must wait. If it waits, the task is woken at once.
    fn waits(&self, cx: &Context<'_>) -> bool {
        let waits = self.world.chance(0.15);
        if waits {
            cx.waker().wake_by_ref();
        }
        waits
    }
}

impl AsyncRead for FaultyStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.waits(cx) {
            return Poll::Pending;
        }
        let most = 1 + self
            .world
            .below(if self.world.chance(0.3) { 20 } else { 2_000 });
        let mut part = buffer.take(most);
        let result = Pin::new(&mut self.inner).poll_read(cx, &mut part);
        let read = part.filled().len();
        if result.is_ready() && read == 0 && self.is_reset.load(Ordering::Relaxed) {
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        // The bytes of `part` are initialized, because `DuplexStream` copies into it.
        let bytes = part.filled().to_vec();
        buffer.put_slice(&bytes);
        result
    }
}

impl AsyncWrite for FaultyStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.waits(cx) {
            return Poll::Pending;
        }
        let most = (1 + self.world.below(1_000)).min(bytes.len());
        Pin::new(&mut self.inner).poll_write(cx, &bytes[..most])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Builds a whole HTTP response with this status and body.
pub(super) fn response(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into()
}

async fn serve(
    mut stream: DuplexStream,
    world: Arc<World>,
    backend: usize,
    is_reset: Arc<AtomicBool>,
) {
    let mut buffer = BytesMut::new();
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await {
        let path = head.split(' ').nth(1).unwrap_or_default();
        world.log(format_args!("{backend} gets {path}"));
        let page = match path {
            "/health" => response("200 OK", "{}"),
            "/version" => response("200 OK", r#"{"version":"0.33.0"}"#),
            "/v1/models" => response(
                "200 OK",
                r#"{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm"}]}"#,
            ),
            "/metrics" => response("200 OK", METRICS),
            _ if path.starts_with("/v1/") => {
                if answer(&mut stream, &world, backend, path, &body, &is_reset)
                    .await
                    .is_none()
                {
                    return;
                }
                continue;
            }
            _ => response("404 Not Found", "{}"),
        };
        if stream.write_all(&page).await.is_err() {
            return;
        }
    }
}

/// Answers an inference request. Returns `None` if the connection has ended.
async fn answer(
    stream: &mut DuplexStream,
    world: &World,
    backend: usize,
    path: &str,
    body: &[u8],
    is_reset: &AtomicBool,
) -> Option<()> {
    let fault = world.fault();
    let received = Received::read(
        path,
        body,
        fault != Fault::IgnoresIds,
        fault != Fault::WritesNoIds,
    );
    world.log(format_args!(
        "{backend} answers {}: {fault:?}",
        received.asked.number
    ));
    *world
        .reached
        .lock()
        .unwrap()
        .entry(received.asked.number)
        .or_default() += 1;
    world.pause(Duration::from_millis(300)).await;
    let name = format!("{}{}", "engine".repeat(backend + 1), received.asked.number);
    let mut parts = if received.asked.is_stream {
        received.events(&name, world)
    } else {
        vec![received.whole()]
    };
    let mut ending = None;
    match fault {
        Fault::None | Fault::IgnoresIds | Fault::WritesNoIds => {}
        Fault::CloseAtOnce => return None,
        Fault::Status(status) => {
            parts = vec![response(status, r#"{"error":{"message":"no","code":0}}"#)];
        }
        Fault::Hang => ending = Some((0, Ending::Silence)),
        Fault::Cut(how) => {
            let length: usize = parts.iter().map(Vec::len).sum();
            ending = Some((world.below(length), how));
        }
        Fault::Event(_) if !received.asked.is_stream => return None,
        Fault::Event(event) => {
            // Puts the event at a random place between the response head and `[DONE]`.
            let at = 1 + world.below(parts.len() - 2);
            parts.truncate(at);
            parts.extend([chunk(event), chunk("[DONE]"), b"0\r\n\r\n".to_vec()]);
        }
    }
    let mut left = ending.map_or(usize::MAX, |(bytes, _)| bytes);
    for part in parts {
        let sent = &part[..part.len().min(left)];
        stream.write_all(sent).await.ok()?;
        left -= sent.len();
        if left == 0 {
            break;
        }
        world.pause(world.part_time).await;
    }
    match ending {
        None => return Some(()),
        Some((_, Ending::Close)) => {}
        Some((_, Ending::Reset)) => is_reset.store(true, Ordering::Relaxed),
        Some((_, Ending::Silence)) => while matches!(stream.read(&mut [0; 64]).await, Ok(1..)) {},
    }
    None
}

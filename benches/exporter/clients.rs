//! The clients: each sends one streaming request after the other. The delay of an event is computed
//! from its text.

use super::backend::nanos;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

pub(crate) const CLIENTS: u64 = 500;
/// The clients start one after the other within this time, which is the duration of a stream.
const START_INTERVAL: Duration = Duration::from_secs(1);

/// All clients.
pub(crate) struct Clients {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    /// Event delays in milliseconds.
    late: Mutex<Vec<f64>>,
    requests: AtomicU64,
    is_over: AtomicBool,
}

const BODY: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;

// === impl Clients ===

impl Clients {
    pub(crate) fn start(gateway: SocketAddr) -> Self {
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        for index in 0..CLIENTS {
            let shared = shared.clone();
            tasks.spawn(async move {
                tokio::time::sleep(START_INTERVAL.mul_f64(index as f64 / CLIENTS as f64)).await;
                let mut stream = TcpStream::connect(gateway).await.unwrap();
                stream.set_nodelay(true).unwrap();
                while !shared.is_over.load(Ordering::Relaxed) {
                    ask(&mut stream, &shared).await;
                }
            });
        }
        Self { shared, tasks }
    }

    /// The event delays since the last call.
    pub(crate) fn take(&self) -> Vec<f64> {
        std::mem::take(&mut self.shared.late.lock().unwrap())
    }

    /// Lets each client finish its stream. Returns the total number of requests.
    pub(crate) async fn stop(self) -> u64 {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
        self.shared.requests.load(Ordering::Relaxed)
    }
}

/// Sends one request. The chunked framing is not parsed: an event is a line, and the end of the
/// response is a known text.
async fn ask(stream: &mut TcpStream, shared: &Shared) {
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    shared.requests.fetch_add(1, Ordering::Relaxed);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::with_capacity(8 << 10);
    let mut at = 0;
    while !answer.ends_with(b"\r\n0\r\n\r\n") {
        let count = stream.read_buf(&mut answer).await.unwrap();
        assert!(count > 0, "a truncated response");
        let now = nanos();
        while let Some(end) = memchr::memchr(b'\n', &answer[at..]) {
            let line = &answer[at..at + end];
            at += end + 1;
            if let Some(place) = memchr::memmem::find(line, b"\"at ") {
                let digits = line[place + 4..].split(|byte| *byte == b' ').next().unwrap();
                let written: u64 = std::str::from_utf8(digits).unwrap().parse().unwrap();
                shared.late.lock().unwrap().push((now - written) as f64 / 1e6);
            }
        }
    }
}

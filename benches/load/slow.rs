//! Clients that take their time, and honest ones beside them.

use super::gateway::Gateway;
use super::since;
use super::{clients, cpu};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokenweir_core::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// How long honest clients are looked at.
pub(crate) const TURN: Duration = Duration::from_secs(15);
/// Honest clients at once, and the pause between two requests of one.
const HONEST: usize = 20;
const PAUSE: Duration = Duration::from_millis(40);
/// Longest wait until everything is full.
const MOST_FILLING: Duration = Duration::from_secs(90);
/// Least work of a gateway in two seconds that is not at rest.
const AT_REST: Duration = Duration::from_millis(100);
/// The system makes more of it, but not much.
const SMALL_BUFFER: u32 = 4 << 10;

/// The slow ones, until they are told to end.
pub(crate) struct Slow {
    tasks: JoinSet<()>,
    open: Arc<AtomicUsize>,
}

impl Slow {
    /// Ends them. How many connections the gateway had not closed.
    pub(crate) async fn end(mut self) -> usize {
        let open = self.open.load(Ordering::Relaxed);
        self.tasks.shutdown().await;
        open
    }
}

/// So many readers of a byte a second, whose streams would go as fast as they can, and so many
/// uploads that stand still.
pub(crate) async fn begin(gateway: &Gateway, count: usize) -> Slow {
    let mut slow = Slow { tasks: JoinSet::new(), open: Arc::default() };
    for _ in 0..count {
        for is_reader in [true, false] {
            let (to, open) = (gateway.clients, slow.open.clone());
            open.fetch_add(1, Ordering::Relaxed);
            let stream = connect(to).await;
            slow.tasks.spawn(async move {
                if is_reader {
                    read(stream).await;
                } else {
                    upload(stream).await;
                }
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    until_full(gateway).await;
    slow
}

/// Waits until the replica's floods have filled what there is to be filled: then the gateway rests.
async fn until_full(gateway: &Gateway) {
    let worked = || cpu::of(gateway.process());
    let (mut before, deadline) = (worked(), clock::now() + MOST_FILLING);
    while clock::now() < deadline {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = worked();
        if now.saturating_sub(before) < AT_REST {
            return;
        }
        before = now;
    }
}

async fn connect(to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(SMALL_BUFFER).unwrap();
    socket.connect(to).await.unwrap()
}

/// Ends when the gateway closes.
async fn read(mut stream: TcpStream) {
    let request = clients::stream(1_000_000, 0, 0);
    if stream.write_all(request.as_bytes()).await.is_err() {
        return;
    }
    let mut byte = [0];
    while matches!(stream.read(&mut byte).await, Ok(1)) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Ends when the gateway answers or closes.
async fn upload(mut stream: TcpStream) {
    let request = clients::whole(1_000);
    if stream.write_all(&request.as_bytes()[..300]).await.is_ok() {
        // An error is an end, too.
        let _ = stream.read(&mut [0]).await;
    }
}

/// Milliseconds to the first chunk of each honest stream.
pub(crate) async fn honest(gateway: &Gateway, turn: Duration) -> Vec<f64> {
    let until = clock::now() + turn;
    let mut all = JoinSet::new();
    for index in 0..HONEST {
        let to = gateway.clients;
        all.spawn(async move {
            tokio::time::sleep(PAUSE * index as u32 / HONEST as u32).await;
            let mut first = Vec::new();
            while clock::now() < until {
                let begun = clock::now();
                let mut stream = clients::send(to, &clients::stream(1, 0, 0)).await;
                let mut answer = Vec::with_capacity(4 << 10);
                while memchr::memmem::find(&answer, b" word").is_none() {
                    assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "a stream was cut");
                }
                first.push(since(begun));
                while !answer.ends_with(b"0\r\n\r\n") {
                    assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "a stream was cut");
                }
                tokio::time::sleep(PAUSE).await;
            }
            first
        });
    }
    all.join_all().await.into_iter().flatten().collect()
}

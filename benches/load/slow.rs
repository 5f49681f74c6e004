//! Slow clients, and normal clients that run at the same time.

use super::gateway::Gateway;
use super::{clients, cpu};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Duration of one measurement of the normal clients.
pub(crate) const TURN: Duration = Duration::from_secs(15);
/// Number of concurrent normal clients, and the pause between two requests of the same client.
const NORMAL_CLIENTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(40);
/// Maximum time until all buffers between the backend and the slow readers are full.
const FILL_TIMEOUT: Duration = Duration::from_secs(90);
/// If the gateway uses less CPU time than this in two seconds, it counts as idle.
const AT_REST: Duration = Duration::from_millis(100);
/// Size of the receive buffer of a slow client in bytes. The kernel allocates somewhat more.
const SMALL_BUFFER: u32 = 4 << 10;

/// The slow clients: readers and uploads. They run until [`Slow::end`].
pub(crate) struct Slow {
    tasks: JoinSet<()>,
    open: Arc<AtomicUsize>,
}

impl Slow {
    /// Stops the slow clients. Returns the number of their connections that the gateway had not closed.
    pub(crate) async fn end(mut self) -> usize {
        let open = self.open.load(Ordering::Relaxed);
        self.tasks.shutdown().await;
        open
    }
}

/// Starts `count` slow readers and `count` slow uploads. A reader reads one byte per second of a stream that
/// the backend sends at full speed. An upload pauses in its request body.
pub(crate) async fn begin(gateway: &Gateway, count: usize) -> Slow {
    let mut slow = Slow {
        tasks: JoinSet::new(),
        open: Arc::default(),
    };
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

/// Waits until the streams have filled all buffers between the backend and the slow readers. Then the gateway
/// is idle.
async fn until_full(gateway: &Gateway) {
    let worked = || cpu::of(gateway.process());
    let (mut before, deadline) = (worked(), clock::now() + FILL_TIMEOUT);
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

/// Requests a fast stream and reads one byte per second, until the gateway closes the connection.
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

/// Sends a part of a request and waits, until the gateway responds or closes the connection.
async fn upload(mut stream: TcpStream) {
    let request = clients::whole(1_000);
    if stream.write_all(&request.as_bytes()[..300]).await.is_ok() {
        // An error also means that the connection is closed.
        let _ = stream.read(&mut [0]).await;
    }
}

/// Runs the normal clients (those that read at full speed) for `turn`. Returns the time to the first chunk of
/// each of their streams, in milliseconds.
pub(crate) async fn honest(gateway: &Gateway, turn: Duration) -> Vec<f64> {
    let until = clock::now() + turn;
    let mut all = JoinSet::new();
    for index in 0..NORMAL_CLIENTS {
        let to = gateway.clients;
        all.spawn(async move {
            tokio::time::sleep(PAUSE * index as u32 / NORMAL_CLIENTS as u32).await;
            let mut first = Vec::new();
            while clock::now() < until {
                // The time includes the connection, which the slow clients could delay.
                let begun = clock::now();
                drop(clients::open(to, &clients::stream(1, 0, 0)).await);
                first.push((clock::now() - begun).as_secs_f64() * 1e3);
                tokio::time::sleep(PAUSE).await;
            }
            first
        });
    }
    all.join_all().await.into_iter().flatten().collect()
}

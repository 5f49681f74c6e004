//! A proxy in front of a backend. It injects faults that a seed selects: responses that hang, are truncated,
//! reset or slow, bytes that are not HTTP, and 429, 500 or 503 responses. Health checks and scrapes pass
//! unchanged.

use super::scripted_backend::json;
use super::tcp_server::TcpServer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The proxy.
pub(crate) struct FaultInjectionProxy {
    /// Address of the proxy.
    pub addr: SocketAddr,
    schedule: Arc<FaultSchedule>,
    _server: TcpServer,
}

struct FaultSchedule {
    seed: u64,
    connection_count: AtomicU64,
    is_disabled: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
enum InjectedFault {
    /// The response passes unchanged.
    PassThrough,
    /// No byte of the response passes.
    Hangs,
    /// This many response bytes pass. Then the proxy closes or resets the connection.
    Truncate { after: usize, by_reset: bool },
    /// The response passes in small chunks.
    SlowTrickle,
    /// The gateway gets this error status instead of the backend's response.
    ErrorStatus(&'static str),
    /// The gateway gets bytes that are not HTTP.
    InvalidHttp,
}

impl FaultInjectionProxy {
    /// Starts a proxy in front of this backend.
    pub(crate) async fn before(backend: SocketAddr, seed: u64) -> Self {
        let schedule = Arc::new(FaultSchedule {
            seed,
            connection_count: AtomicU64::new(0),
            is_disabled: AtomicBool::new(false),
        });
        let followed = schedule.clone();
        let server =
            TcpServer::start(move |gateway| proxy_connection(gateway, backend, followed.clone()))
                .await;
        Self { addr: server.addr, schedule, _server: server }
    }

    /// From now on, the proxy injects no fault on a connection that has none yet.
    pub(crate) fn tame(&self) {
        self.schedule.is_disabled.store(true, Ordering::SeqCst);
    }
}

impl FaultSchedule {
    fn next(&self) -> InjectedFault {
        let number = self.connection_count.fetch_add(1, Ordering::SeqCst);
        let mut random = fastrand::Rng::with_seed(self.seed ^ (number << 8));
        if self.is_disabled.load(Ordering::SeqCst) {
            return InjectedFault::PassThrough;
        }
        match random.u8(..20) {
            0 => InjectedFault::Hangs,
            1..=3 => {
                InjectedFault::Truncate { after: random.usize(..3_000), by_reset: random.bool() }
            }
            4 => InjectedFault::SlowTrickle,
            5 => InjectedFault::ErrorStatus("429 Too Many Requests"),
            6 => InjectedFault::ErrorStatus("500 Internal Server Error"),
            7 => InjectedFault::ErrorStatus("503 Service Unavailable"),
            8 => InjectedFault::InvalidHttp,
            _ => InjectedFault::PassThrough,
        }
    }
}

async fn proxy_connection(
    mut gateway: TcpStream,
    backend: SocketAddr,
    schedule: Arc<FaultSchedule>,
) {
    let Ok(mut backend) = TcpStream::connect(backend).await else { return };
    let (mut request_buffer, mut response_buffer) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    let (mut fault, mut forwarded) = (None, 0);
    loop {
        tokio::select! {
            read = gateway.read(&mut request_buffer) => {
                let bytes = &request_buffer[..read.unwrap_or(0)];
                if bytes.is_empty() || backend.write_all(bytes).await.is_err() { return }
                if bytes.starts_with(b"POST") {
                    fault.get_or_insert_with(|| schedule.next());
                }
            }
            read = backend.read(&mut response_buffer) => {
                let bytes = &response_buffer[..read.unwrap_or(0)];
                if bytes.is_empty() || !forward_response(bytes, fault, forwarded, &mut gateway).await { return }
                forwarded += bytes.len();
            }
        }
    }
}

/// Forwards a part of a response as the fault requires. `forwarded` is the number of response bytes before
/// this part. Returns whether the connection stays open.
async fn forward_response(
    bytes: &[u8],
    fault: Option<InjectedFault>,
    forwarded: usize,
    gateway: &mut TcpStream,
) -> bool {
    match fault.unwrap_or(InjectedFault::PassThrough) {
        InjectedFault::PassThrough => gateway.write_all(bytes).await.is_ok(),
        InjectedFault::Hangs => true,
        InjectedFault::Truncate { after, by_reset } => {
            let rest = after.saturating_sub(forwarded);
            if gateway.write_all(&bytes[..rest.min(bytes.len())]).await.is_err() {
                return false;
            }
            if rest < bytes.len() && by_reset {
                gateway.set_zero_linger().unwrap();
            }
            rest >= bytes.len()
        }
        InjectedFault::SlowTrickle => {
            for piece in bytes.chunks(7) {
                if gateway.write_all(piece).await.is_err() {
                    return false;
                }
                tokio::task::yield_now().await;
            }
            true
        }
        InjectedFault::ErrorStatus(status) => {
            // The gateway may have closed the connection.
            let _ = gateway.write_all(&json(status, "{}")).await;
            false
        }
        InjectedFault::InvalidHttp => {
            let _ = gateway.write_all(b"\x16\x03\x01 what is this\r\n\r\n").await;
            false
        }
    }
}

//! A proxy in front of a scripted backend. It crashes when a request has reached a chosen byte: its port
//! closes and it cuts every connection, as if the process had been killed. The test can restart it.

use super::tcp_server::TcpServer;
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// The byte of an inference request or of its response at which the proxy crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CrashPoint {
    /// The crash follows after this number of request bytes on a connection.
    Asked(usize),
    /// The crash follows after this number of response bytes on a connection.
    Answered(usize),
}

/// A proxy in front of a scripted backend. For the gateway, it is a backend that can crash.
pub(crate) struct CrashableBackend {
    /// The address of the proxy, which is the backend for the gateway. It stays the same after a restart.
    pub addr: SocketAddr,
    backend_addr: SocketAddr,
    trigger: Arc<CrashTrigger>,
    server: TcpServer,
    /// A socket that is bound to the address but never listens. So while the backend is down, no other
    /// program gets the port, and connections to it are refused.
    _reserved_port: Socket,
}

#[derive(Default)]
struct CrashTrigger {
    crash_point: Mutex<Option<CrashPoint>>,
    /// The handle that ends the proxy.
    server: OnceLock<AbortHandle>,
}

impl CrashableBackend {
    /// Starts a proxy in front of this backend.
    pub(crate) fn in_front_of(backend: SocketAddr) -> Self {
        let reserved_port = bind_shared(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let addr = reserved_port.local_addr().unwrap().as_socket().unwrap();
        let (server, trigger) = start_proxy(addr, backend);
        Self {
            addr,
            backend_addr: backend,
            trigger,
            server,
            _reserved_port: reserved_port,
        }
    }

    /// Sets the point of a request at which the backend crashes. It crashes there once.
    pub(crate) fn set_crash_point(&self, crash_point: CrashPoint) {
        *self.trigger.crash_point.lock().unwrap() = Some(crash_point);
    }

    /// Crashes the backend now, unless a request has already reached the crash point.
    pub(crate) async fn crash(&mut self) {
        self.server.stop().await;
    }

    /// Restarts the backend: it listens again at the same address, and has no crash point.
    pub(crate) fn restart(&mut self) {
        (self.server, self.trigger) = start_proxy(self.addr, self.backend_addr);
    }
}

/// A listener at an address that [`bind_shared`] has reserved.
pub(crate) fn listen(addr: SocketAddr) -> TcpListener {
    let socket = bind_shared(addr);
    socket.set_nonblocking(true).unwrap();
    socket.listen(128).unwrap();
    TcpListener::from_std(socket.into()).unwrap()
}

/// Binds a socket to `addr`. Other sockets of this user may share the address, if they permit it, too.
pub(crate) fn bind_shared(addr: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&addr.into()).unwrap();
    socket
}

fn start_proxy(addr: SocketAddr, backend: SocketAddr) -> (TcpServer, Arc<CrashTrigger>) {
    let trigger = Arc::<CrashTrigger>::default();
    let watched = trigger.clone();
    let serve = move |gateway| proxy_connection(gateway, backend, watched.clone());
    let server = TcpServer::on(listen(addr), serve);
    trigger.server.set(server.abort_handle()).unwrap();
    (server, trigger)
}

async fn proxy_connection(mut gateway: TcpStream, backend: SocketAddr, trigger: Arc<CrashTrigger>) {
    let Ok(mut backend) = TcpStream::connect(backend).await else {
        return;
    };
    let (mut request_bytes, mut response_bytes, mut is_inference) = (0, 0, false);
    let (mut request_buffer, mut response_buffer) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        let (is_request, read) = tokio::select! {
            read = gateway.read(&mut request_buffer) => (true, read),
            read = backend.read(&mut response_buffer) => (false, read),
        };
        let (buffer, passed, to) = if is_request {
            (&request_buffer, &mut request_bytes, &mut backend)
        } else {
            (&response_buffer, &mut response_bytes, &mut gateway)
        };
        let bytes = &buffer[..read.unwrap_or(0)];
        is_inference |= is_request && bytes.starts_with(b"POST");
        let until_crash = trigger.bytes_until_crash(is_request, *passed);
        *passed += bytes.len();
        if !forward(bytes, until_crash.filter(|_| is_inference), to, &trigger).await {
            return;
        }
    }
}

/// Forwards the bytes before the crash point. If the crash point is reached, crashes the backend. Returns
/// whether the connection stays open.
async fn forward(
    bytes: &[u8],
    bytes_until_crash: Option<usize>,
    to: &mut TcpStream,
    trigger: &CrashTrigger,
) -> bool {
    let last = bytes_until_crash.filter(|at| *at <= bytes.len());
    let is_passed = to
        .write_all(&bytes[..last.unwrap_or(bytes.len())])
        .await
        .is_ok();
    if last.is_some() && trigger.crash_point.lock().unwrap().take().is_some() {
        trigger.server.get().unwrap().abort();
        // The end of the proxy also drops this connection.
        std::future::pending::<()>().await;
    }
    is_passed && !bytes.is_empty()
}

impl CrashTrigger {
    /// Returns the number of bytes until the crash, after `passed` bytes of the requests or of the responses
    /// of a connection. `None`: no crash is set, or these bytes cannot reach the crash point.
    fn bytes_until_crash(&self, is_request: bool, passed: usize) -> Option<usize> {
        let crash_point = *self.crash_point.lock().unwrap();
        match crash_point? {
            CrashPoint::Asked(at) if is_request => at.checked_sub(passed),
            CrashPoint::Answered(at) if !is_request => at.checked_sub(passed),
            _ => None,
        }
    }
}

//! A proxy in front of a scripted backend. It crashes when a request has reached a chosen byte: its port
//! closes and it cuts every connection, as if the process had been killed. The test can restart it.

use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// The point of an inference request at which the proxy crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CrashPoint {
    /// After this many request bytes on a connection.
    Asked(usize),
    /// After this many response bytes on a connection.
    Answered(usize),
}

/// A proxy in front of a scripted backend. For the gateway, it is a backend that can crash.
pub(crate) struct CrashableBackend {
    /// The address of the proxy, which is the backend for the gateway. It stays the same after a restart.
    pub addr: SocketAddr,
    backend_addr: SocketAddr,
    trigger: Arc<CrashTrigger>,
    accept_task: Option<JoinHandle<()>>,
    /// A socket that is bound to the address but never listens. So while the backend is down, no other
    /// program gets the port, and connections to it are refused.
    _reserved_port: Socket,
}

#[derive(Default)]
struct CrashTrigger {
    crash_point: Mutex<Option<CrashPoint>>,
    crashed: Notify,
}

impl CrashableBackend {
    /// Starts a proxy in front of this backend.
    pub(crate) fn in_front_of(backend: SocketAddr) -> Self {
        let reserved_port = bind_shared(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let addr = reserved_port.local_addr().unwrap().as_socket().unwrap();
        let listener = listen(addr);
        let trigger = Arc::<CrashTrigger>::default();
        let accept_task =
            Some(tokio::spawn(accept_connections(listener, backend, trigger.clone())));
        Self { addr, backend_addr: backend, trigger, accept_task, _reserved_port: reserved_port }
    }

    /// Sets the point of a request at which the backend crashes. It crashes there once.
    pub(crate) fn set_crash_point(&self, crash_point: CrashPoint) {
        *self.trigger.crash_point.lock().unwrap() = Some(crash_point);
    }

    /// Crashes the backend now, unless a request has already reached the crash point. Returns whether one
    /// had.
    pub(crate) async fn crash(&mut self) -> bool {
        let had_crashed = self.trigger.crash_point.lock().unwrap().take().is_none();
        self.trigger.crashed.notify_one();
        if let Some(accept_task) = self.accept_task.take() {
            accept_task.await.unwrap();
        }
        had_crashed
    }

    /// Restarts the backend: it listens again at the same address, and has no crash point.
    pub(crate) fn restart(&mut self) {
        self.trigger = Arc::default();
        let listener = listen(self.addr);
        self.accept_task = Some(tokio::spawn(accept_connections(
            listener,
            self.backend_addr,
            self.trigger.clone(),
        )));
    }
}

fn listen(addr: SocketAddr) -> TcpListener {
    let socket = bind_shared(addr);
    socket.set_nonblocking(true).unwrap();
    socket.listen(128).unwrap();
    TcpListener::from_std(socket.into()).unwrap()
}

/// A socket on `addr` that other sockets of this user may share, if they permit it, too.
pub(crate) fn bind_shared(addr: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&addr.into()).unwrap();
    socket
}

async fn accept_connections(
    listener: TcpListener,
    backend: SocketAddr,
    trigger: Arc<CrashTrigger>,
) {
    // Dropping the set with this task closes both ends of every proxied connection.
    let mut proxied_connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = trigger.crashed.notified() => return,
            accepted = listener.accept() => {
                proxied_connections.spawn(proxy_connection(accepted.unwrap().0, backend, trigger.clone()));
            }
        }
    }
}

async fn proxy_connection(mut gateway: TcpStream, backend: SocketAddr, trigger: Arc<CrashTrigger>) {
    let Ok(mut backend) = TcpStream::connect(backend).await else { return };
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

/// Forwards the bytes before the crash point. At the crash point, crashes the backend. Returns whether the
/// connection stays open.
async fn forward(
    bytes: &[u8],
    bytes_until_crash: Option<usize>,
    to: &mut TcpStream,
    trigger: &CrashTrigger,
) -> bool {
    let last = bytes_until_crash.filter(|at| *at <= bytes.len());
    let is_passed = to.write_all(&bytes[..last.unwrap_or(bytes.len())]).await.is_ok();
    if last.is_some() && trigger.crash_point.lock().unwrap().take().is_some() {
        trigger.crashed.notify_one();
        // The crash ends the accept task, which drops this connection.
        std::future::pending::<()>().await;
    }
    is_passed && !bytes.is_empty()
}

impl CrashTrigger {
    /// Number of bytes until the crash, after `passed` bytes of the requests or of the responses of a
    /// connection. `None`: no crash is set, or these bytes cannot reach it.
    fn bytes_until_crash(&self, is_request: bool, passed: usize) -> Option<usize> {
        let crash_point = *self.crash_point.lock().unwrap();
        match crash_point? {
            CrashPoint::Asked(at) if is_request => at.checked_sub(passed),
            CrashPoint::Answered(at) if !is_request => at.checked_sub(passed),
            _ => None,
        }
    }
}

impl Drop for CrashableBackend {
    fn drop(&mut self) {
        if let Some(accept_task) = &self.accept_task {
            accept_task.abort();
        }
    }
}

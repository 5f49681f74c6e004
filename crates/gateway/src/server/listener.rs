//! Binds listening sockets, sets their TCP options and accepts connections.

use super::connection::limiter::ConnectionLimiter;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokio::net::{TcpListener, TcpStream};

/// The error when the gateway cannot bind an address or listen on it. The text names the address and the
/// listener. For common causes, it also names a remedy.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({purpose}): {cause}{}", hint(cause))]
pub struct BindError {
    address: SocketAddr,
    purpose: &'static str,
    cause: io::Error,
}

/// Maximum number of connections in the kernel's accept queue: established connections that the
/// gateway has not accepted yet.
const LISTEN_BACKLOG: i32 = 4_096;
/// Pause after an `accept()` that failed for lack of a resource, such as file descriptors.
const ACCEPT_ERROR_BACKOFF: Duration = Duration::from_millis(50);

/// Maximum number of unsent bytes that the kernel buffers for one client connection (`TCP_NOTSENT_LOWAT`).
/// Without this bound, a slow client takes megabytes of the socket memory that all connections share.
#[cfg(target_os = "linux")]
const NOTSENT_LOWAT_BYTES: u32 = 64 << 10;

/// Time without data on a connection after which the kernel sends keep-alive probes to the client.
const TCP_KEEPALIVE_TIME: Duration = Duration::from_mins(1);
/// Time by which `TCP_USER_TIMEOUT` exceeds the write timeout. So the gateway closes the connection of a client
/// that does not read before the kernel does, and can record the reason.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT_MARGIN: Duration = Duration::from_secs(15);

/// A socket that is bound to its address and does not listen yet.
#[derive(Debug)]
pub struct BoundSocket {
    socket: Socket,
    address: SocketAddr,
    purpose: &'static str,
}

/// Binds an address and listens on it. `purpose` names the listener in the error text.
pub fn bind_listener(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, BindError> {
    bind_socket(address, purpose, false)?.listen()
}

/// Binds an address without listening on it. `is_shared` sets `SO_REUSEPORT`: other processes of the same user
/// that set it can bind the same address, and the kernel distributes new connections among the listening
/// processes.
pub fn bind_socket(
    address: SocketAddr,
    purpose: &'static str,
    is_shared: bool,
) -> Result<BoundSocket, BindError> {
    let bind = |address: SocketAddr| {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        if is_all_interfaces(address) {
            // On some systems, `[::]` accepts only IPv6 by default (`net.ipv6.bindv6only`).
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(is_shared)?;
        socket.set_nonblocking(true)?;
        // Accepted connections inherit this option.
        #[cfg(target_os = "linux")]
        socket.set_tcp_notsent_lowat(NOTSENT_LOWAT_BYTES)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    let bound = match bind(address) {
        // The machine has no IPv6.
        Err(error) if is_all_interfaces(address) && is_unsupported(&error) => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        bound => bound,
    };
    match bound {
        Ok(socket) => Ok(BoundSocket {
            socket,
            address,
            purpose,
        }),
        Err(cause) => Err(BindError {
            address,
            purpose,
            cause,
        }),
    }
}

/// Whether an address is `[::]`, on which the gateway accepts both IPv6 and IPv4.
fn is_all_interfaces(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

/// The address of a client. A listener on `[::]` sees an IPv4 client with an IPv6 address that contains the
/// IPv4 address. This function extracts the IPv4 address.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

fn is_unsupported(error: &io::Error) -> bool {
    // The error "Address family not supported by protocol" on Linux, which `io::ErrorKind` lacks.
    const EAFNOSUPPORT: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

impl BoundSocket {
    /// The bound address. If the configured port is 0, it contains the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        let bound = self
            .socket
            .local_addr()
            .ok()
            .and_then(|address| address.as_socket());
        bound.unwrap_or(self.address)
    }

    /// Starts to listen on the socket. Must be called inside a Tokio runtime.
    pub fn listen(self) -> Result<TcpListener, BindError> {
        let Self {
            socket,
            address,
            purpose,
        } = self;
        let listening = socket
            .listen(LISTEN_BACKLOG)
            .and_then(|()| TcpListener::from_std(socket.into()));
        listening.map_err(|cause| BindError {
            address,
            purpose,
            cause,
        })
    }
}

/// On a shared port (`SO_REUSEPORT`), drops the SYN packets of new connections.
///
/// A client whose SYN was dropped sends it again after one second. By then this listener is closed, and the
/// kernel gives the connection to another process. TCP handshakes that have begun continue. Without this
/// filter, new connections would keep entering the accept queue of this listener, and the kernel would reset
/// the queued connections at the close.
pub(super) fn drop_new_syns(listener: &TcpListener) {
    let socket = SockRef::from(listener);
    if !socket.reuse_port().unwrap_or(false) {
        return;
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = socket.attach_filter(&syn_filter::DROP_SYN) {
        tracing::warn!(
            %error,
            "cannot filter SYN packets: connections that arrive during the close may be reset"
        );
    }
}

/// A classic BPF packet filter for a listening socket.
#[cfg(target_os = "linux")]
mod syn_filter {
    use socket2::SockFilter;

    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// Offset of the flags in a TCP header, in bytes.
    const TCP_FLAGS_OFFSET: u32 = 13;
    const SYN_FLAG: u32 = 0x02;
    const ACK_FLAG: u32 = 0x10;

    /// The filter program. It drops packets with the SYN flag but without the ACK flag, and accepts all others
    /// unchanged.
    pub(super) const DROP_SYN: [SockFilter; 5] = [
        SockFilter::new(LOAD_BYTE, 0, 0, TCP_FLAGS_OFFSET),
        SockFilter::new(AND, 0, 0, SYN_FLAG | ACK_FLAG),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN_FLAG),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ];
}

/// Accepts the next connection and sets `TCP_NODELAY` on it. If `accept()` fails for lack of a resource, logs
/// and counts the error and tries again after [`ACCEPT_ERROR_BACKOFF`], because file descriptors become free
/// again.
pub(super) async fn accept(
    listener: &TcpListener,
    limiter: &ConnectionLimiter,
) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "cannot set TCP_NODELAY on a connection");
                }
                return (stream, canonical(peer));
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                limiter.record_accept_error();
                tracing::error!(%error, "cannot accept connections: trying again");
                let deadline = tokio::time::Instant::from_std(clock::now() + ACCEPT_ERROR_BACKOFF);
                tokio::time::sleep_until(deadline).await;
            }
        }
    }
}

/// Enables TCP keep-alive, and on Linux `TCP_USER_TIMEOUT`. With these options the kernel closes a connection
/// whose client does not respond to keep-alive probes, or does not acknowledge data. Accepted connections
/// inherit the options.
pub(super) fn configure_keepalive(listener: &TcpListener, write_timeout: Duration) {
    let socket = SockRef::from(listener);
    let keepalive = TcpKeepalive::new()
        .with_time(TCP_KEEPALIVE_TIME)
        .with_interval(TCP_KEEPALIVE_TIME / 4);
    let result = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    let result =
        result.and(socket.set_tcp_user_timeout(Some(write_timeout + TCP_USER_TIMEOUT_MARGIN)));
    #[cfg(not(target_os = "linux"))]
    let _ = write_timeout;
    if let Err(error) = result {
        tracing::warn!(%error, "cannot set TCP keep-alive: lost clients are detected late");
    }
}

/// Whether an `accept()` failed because the client closed its connection before the gateway
/// accepted it.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::ConnectionRefused | K::ConnectionAborted | K::ConnectionReset
    )
}

/// The remedy or explanation for the end of the error text. Empty for uncommon causes.
fn hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => "; another process uses the port: stop it or change the port",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need CAP_NET_BIND_SERVICE or root",
        io::ErrorKind::AddrNotAvailable => "; no interface of this machine has the address",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failed_bind_names_its_address() {
        let first = bind_listener(SocketAddr::from(([127, 0, 0, 1], 0)), "clients").unwrap();
        let address = first.local_addr().unwrap();
        let error = bind_listener(address, "clients").unwrap_err().to_string();
        assert!(
            error.contains(&address.to_string()) && error.contains("another process"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn ipv4_clients_keep_their_address() {
        let all = SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0));
        let listener = bind_listener(all, "clients").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let (connected, accepted) = tokio::join!(connect, listener.accept());
        let (client, (_, peer)) = (connected.unwrap(), accepted.unwrap());
        assert_eq!(canonical(peer), client.local_addr().unwrap());
    }

    #[test]
    fn a_machine_without_ipv6_is_recognized() {
        for error in [
            io::Error::from_raw_os_error(97),
            io::ErrorKind::AddrNotAvailable.into(),
        ] {
            assert!(is_unsupported(&error), "{error}");
        }
        assert!(!is_unsupported(&io::ErrorKind::AddrInUse.into()));
        assert!(!is_all_interfaces("0.0.0.0:1".parse().unwrap()));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_send_buffer_is_bounded() {
        let listener = bind_listener(SocketAddr::from(([127, 0, 0, 1], 0)), "clients").unwrap();
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        client.set_recv_buffer_size(4 << 10).unwrap();
        client
            .connect(&listener.local_addr().unwrap().into())
            .unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        accepted.writable().await.unwrap();
        let (chunk, mut written) = ([0; 4 << 10], 0);
        while let Ok(bytes) = accepted.try_write(&chunk) {
            written += bytes;
        }
        // The written bytes include the receive buffer of the client. Without the bound they are 2.8 MB.
        assert!(written < 512 << 10, "{written} bytes");
    }
}

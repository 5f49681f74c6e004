//! Bound sockets and accepted connections.

use super::Connections;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_core::clock;
use tokio::net::{TcpListener, TcpStream};

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({purpose}): {cause}{}", hint(cause))]
pub struct BindError {
    address: SocketAddr,
    purpose: &'static str,
    cause: io::Error,
}

/// Pending connections that the kernel holds for us.
const BACKLOG: i32 = 4_096;
/// Pause after an accept that failed for want of something, such as file descriptors.
const RELIEF: Duration = Duration::from_millis(50);

/// Bytes that the kernel takes from us for a client before it has sent them. Without a bound, one who
/// reads slowly gets megabytes of the memory that all connections of the machine share.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 64 << 10;

/// Silence after which a client is probed.
const KEEPALIVE: Duration = Duration::from_mins(1);
/// What the system waits longer than the gateway: whoever is there and takes nothing is the
/// gateway's to cut, which tells why.
#[cfg(target_os = "linux")]
const GRACE: Duration = Duration::from_secs(15);

/// An address that is ours, and takes no connections yet.
#[derive(Debug)]
pub struct Reserved {
    socket: Socket,
    address: SocketAddr,
    purpose: &'static str,
}

/// Binds an address; `purpose` names it in the error.
pub fn bind(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, BindError> {
    reserve(address, purpose, false)?.listen()
}

/// Binds an address before there is anybody to serve there. If it is shared, other processes of the
/// same user may have it too, if they bind it so: the kernel gives each new connection to one of
/// those that listen.
pub fn reserve(
    address: SocketAddr,
    purpose: &'static str,
    is_shared: bool,
) -> Result<Reserved, BindError> {
    let bound = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(is_shared)?;
        socket.set_nonblocking(true)?;
        // What is accepted here has it from here.
        #[cfg(target_os = "linux")]
        socket.set_tcp_notsent_lowat(UNSENT)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    match bound() {
        Ok(socket) => Ok(Reserved { socket, address, purpose }),
        Err(cause) => Err(BindError { address, purpose, cause }),
    }
}

impl Reserved {
    /// The address, with the port that was found if any would do.
    pub fn address(&self) -> SocketAddr {
        let bound = self.socket.local_addr().ok().and_then(|address| address.as_socket());
        bound.unwrap_or(self.address)
    }

    /// Takes connections from now on. Must be called inside a runtime.
    pub fn listen(self) -> Result<TcpListener, BindError> {
        let Self { socket, address, purpose } = self;
        let listening = socket.listen(BACKLOG).and_then(|()| TcpListener::from_std(socket.into()));
        listening.map_err(|cause| BindError { address, purpose, cause })
    }
}

/// Takes no more newcomers if other processes may have the port too: their first packets are
/// dropped here, so their clients send them again after a second and come to another process by
/// then. Who has begun to connect goes on. Without this, the kernel would reset whoever it has given
/// to a listener that is closed before he was accepted.
pub(super) fn leave_to_others(listener: &TcpListener) {
    let socket = SockRef::from(listener);
    if !socket.reuse_port().unwrap_or(false) {
        return;
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = socket.attach_filter(&newcomers::DROPPED) {
        tracing::warn!(%error, "connections that come while the port is closed may be reset");
    }
}

/// A filter of packets for a socket that listens, in the kernel's classic language.
#[cfg(target_os = "linux")]
mod newcomers {
    use socket2::SockFilter;

    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// Where the flags stand in a TCP header, and two of them.
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;

    /// The first packet of a connection is dropped, all others pass whole.
    pub(super) const DROPPED: [SockFilter; 5] = [
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ];
}

/// The next connection, without Nagle's delay. Errors are waited out: a full table of file
/// descriptors empties again.
pub(super) async fn accept(
    listener: &TcpListener,
    connections: &Connections,
) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY");
                }
                return (stream, peer);
            }
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                connections.accept_failed();
                tracing::error!(%error, "cannot accept connections");
                let deadline = tokio::time::Instant::from_std(clock::now() + RELIEF);
                tokio::time::sleep_until(deadline).await;
            }
        }
    }
}

/// Lets the system find out about clients that are gone without a word: those that answer no probe,
/// and those that acknowledge nothing of what they were sent. Connections inherit it.
pub(super) fn find_the_gone(listener: &TcpListener, write_timeout: Duration) {
    let socket = SockRef::from(listener);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
    let result = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    let result = result.and(socket.set_tcp_user_timeout(Some(write_timeout + GRACE)));
    #[cfg(not(target_os = "linux"))]
    let _ = write_timeout;
    if let Err(error) = result {
        tracing::warn!(%error, "TCP keep-alive");
    }
}

/// The peer was gone before we got to it.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::ConnectionRefused | K::ConnectionAborted | K::ConnectionReset)
}

fn hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => "; another process has the port: stop it or choose another",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege",
        io::ErrorKind::AddrNotAvailable => "; this machine does not have the address",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_says_which() {
        let first = bind(SocketAddr::from(([127, 0, 0, 1], 0)), "clients").unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address, "clients").unwrap_err().to_string();
        assert!(
            error.contains(&address.to_string()) && error.contains("another process"),
            "{error}"
        );
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn one_who_reads_nothing_gets_little_of_the_memory_that_all_share() {
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0)), "clients").unwrap();
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        client.set_recv_buffer_size(4 << 10).unwrap();
        client.connect(&listener.local_addr().unwrap().into()).unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        accepted.writable().await.unwrap();
        let (piece, mut taken) = ([0; 4 << 10], 0);
        while let Ok(bytes) = accepted.try_write(&piece) {
            taken += bytes;
        }
        // What was not sent, and what the client's buffer has; it is 2.8 MB without a bound.
        assert!(taken < 512 << 10, "{taken} bytes");
    }
}

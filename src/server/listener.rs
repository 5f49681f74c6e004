//! Bound sockets and accepted connections.

use crate::clock;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
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

/// Binds an address; `purpose` names it in the error.
pub fn bind(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, BindError> {
    let bound = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    bound().map_err(|cause| BindError { address, purpose, cause })
}

/// The next connection, without Nagle's delay. Errors are waited out: a full table of file
/// descriptors empties again.
pub(super) async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
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
                tracing::error!(%error, "cannot accept connections");
                let deadline = tokio::time::Instant::from_std(clock::now() + RELIEF);
                tokio::time::sleep_until(deadline).await;
            }
        }
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
}

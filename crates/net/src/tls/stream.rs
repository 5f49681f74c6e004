//! A TCP stream with or without TLS.

use hyper_util::client::legacy::connect::{Connected, Connection};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// A TCP stream with or without TLS.
pub enum MaybeTlsStream {
    /// An unencrypted connection.
    Plain(TcpStream),
    /// An encrypted connection. Boxed, because its state is large.
    Tls(Box<TlsStream<TcpStream>>),
    /// A connection of a simulation, without a socket.
    #[cfg(feature = "testing")]
    Simulated(Box<dyn SimulatedStream>),
}

/// A connection of a simulation, which has no socket.
#[cfg(feature = "testing")]
pub trait SimulatedStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

#[cfg(feature = "testing")]
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> SimulatedStream for T {}

impl MaybeTlsStream {
    /// The address of the other end of the connection.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.peer_addr(),
            Self::Tls(stream) => stream.get_ref().0.peer_addr(),
            #[cfg(feature = "testing")]
            Self::Simulated(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Evaluates an expression with the stream of any variant of [`MaybeTlsStream`].
macro_rules! either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            MaybeTlsStream::Plain($stream) => $call,
            MaybeTlsStream::Tls($stream) => $call,
            #[cfg(feature = "testing")]
            MaybeTlsStream::Simulated($stream) => $call,
        }
    };
}

/// The code that creates a connection selects the HTTP version, so hyper-util gets no connection properties.
impl Connection for MaybeTlsStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for MaybeTlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for MaybeTlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            #[cfg(feature = "testing")]
            Self::Simulated(_) => false,
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write_vectored(cx, slices))
    }
}

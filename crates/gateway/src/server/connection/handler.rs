//! Admits client connections, performs the TLS handshake, detects the HTTP version and serves each
//! connection until it ends.

use super::http1_connection::SharedHttp1Connection;
use super::limiter::ConnectionPermit;
use super::request::ConnectionContext;
use super::shutdown::{CloseReason, ShutdownSignal};
use super::state::ServerState;
use super::{http1, http2};
use crate::server::client_stream::ClientStream;
use http::Version;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokenweir_net::tls::{Acceptor, MaybeTlsStream};
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::ResponseAbortHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Admits or rejects client connections, and serves the admitted connections.
pub(crate) struct ConnectionHandler {
    state: Arc<ServerState>,
    /// The TLS acceptor. `None`: clients connect without TLS.
    acceptor: Option<Acceptor>,
    /// Limits the number of concurrent error responses to rejected connections.
    rejection_permits: Arc<Semaphore>,
}

/// Maximum time from the start of the error response to a rejected connection until the client has closed its
/// side.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);

impl ConnectionHandler {
    pub(crate) fn new(state: Arc<ServerState>, acceptor: Option<Acceptor>) -> Arc<Self> {
        let max_rejections = state.limits.load().max_concurrent_rejections;
        let rejection_permits = Arc::new(Semaphore::new(max_rejections));
        Arc::new(Self {
            state,
            acceptor,
            rejection_permits,
        })
    }

    /// Admits a connection and returns its permit. `None`: a limit is reached, and the connection was rejected.
    /// Without TLS, the rejected client gets an error response.
    pub(crate) fn admit(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<(TcpStream, ConnectionPermit)> {
        let limiter = &self.state.connection_limiter;
        // Closing an idle backend connection frees its file descriptor.
        let free_descriptor = || self.state.proxy.pool.close_idle_connection();
        let error = match limiter.try_acquire(peer.ip(), free_descriptor) {
            Ok(permit) => return Some((stream, permit)),
            Err(error) => error,
        };
        tracing::debug!(%peer, %error, "client connection rejected");
        limiter.warn_refused(&error);
        // With TLS, the connection is closed without a response, because the handshake would cost more than
        // serving the connection.
        if self.acceptor.is_none() {
            match self.rejection_permits.clone().try_acquire_owned() {
                Ok(permit) => drop(tokio::spawn(reject_connection(stream, error, permit))),
                Err(_) => drop(reject_at_once(stream, &error)),
            }
        }
        None
    }

    /// Serves an admitted connection until it ends: TLS handshake, protocol detection, requests.
    pub(crate) async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        permit: ConnectionPermit,
        mut shutdown: ShutdownSignal,
    ) {
        let Some(stream) = self.tls_handshake(stream, peer, &mut shutdown).await else {
            return;
        };
        let limits = **self.state.limits.load();
        let abort_handle = ResponseAbortHandle::default();
        let stream = ClientStream::new(stream, limits.write_timeout, abort_handle.clone());
        let state = self.state.clone();
        let connection = ConnectionContext {
            state,
            ip: peer.ip(),
            permit,
            abort_handle,
        };
        let shared = SharedHttp1Connection::new(stream);
        let served = match detect_protocol(&shared, &mut shutdown, limits.head_timeout).await {
            Ok(Some(Version::HTTP_2)) => {
                let Some(stream) = shared.into_stream() else {
                    return;
                };
                // Boxed, so that the futures of HTTP/1.1 connections do not reserve memory for the larger
                // HTTP/2 future.
                let serving = Box::pin(http2::serve(&connection, stream, &limits, shutdown));
                serving.await.map_err(io::Error::other)
            }
            Ok(Some(_)) => http1::serve(&connection, shared, &limits, shutdown).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "client connection failed");
        }
    }

    /// Performs the TLS handshake. `None`: the handshake failed, or a new connection replaces this one.
    async fn tls_handshake(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        shutdown: &mut ShutdownSignal,
    ) -> Option<MaybeTlsStream> {
        let Some(acceptor) = &self.acceptor else {
            return Some(MaybeTlsStream::Plain(stream));
        };
        // Boxed, so that the memory of the handshake is not reserved until the connection ends.
        let timeout = self.state.limits.load().head_timeout;
        let mut accepting = Box::pin(acceptor.accept(stream, timeout));
        let accepted = poll_fn(|cx| match accepting.as_mut().poll(cx) {
            Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
            Poll::Pending if shutdown.poll(cx) == Poll::Ready(CloseReason::Replaced) => {
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        });
        match accepted.await? {
            Ok(stream) => Some(stream),
            Err(error) => {
                self.state.connection_limiter.record_handshake_failure();
                tracing::debug!(%peer, %error, "TLS handshake with a client failed");
                None
            }
        }
    }
}

/// Detects the HTTP version of a new connection. Fails after `timeout`. `None` in three cases: the client
/// closed the connection, the gateway shut down before the client sent anything, or a new connection replaces
/// this one.
async fn detect_protocol(
    shared: &SharedHttp1Connection,
    shutdown: &mut ShutdownSignal,
    timeout: Duration,
) -> io::Result<Option<Version>> {
    let reading = poll_fn(|cx| {
        let stream = &mut shared.lock().stream;
        if let Poll::Ready(version) = stream.poll_version(cx) {
            return Poll::Ready(version);
        }
        match shutdown.poll(cx) {
            Poll::Ready(CloseReason::Shutdown) if !stream.read_ahead.is_empty() => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(Ok(None)),
            Poll::Pending => Poll::Pending,
        }
    });
    let version = tokio::time::timeout(timeout, reading).await;
    version.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Sends a small error response on a rejected connection without waiting for the client. Input that has arrived
/// is read and discarded.
fn reject_at_once(stream: TcpStream, error: &GatewayError) -> io::Result<()> {
    let mut stream = stream.into_std()?;
    stream.write_all(&http1::encode_error_response(error))?;
    stream.shutdown(Shutdown::Write)?;
    let mut discarded = [0; 16 << 10];
    // The socket is non-blocking, so the read ends with an error when there is no more input.
    while stream.read(&mut discarded)? == discarded.len() {}
    Ok(())
}

/// Sends an error response on a rejected connection, whose request was not read, and closes the connection.
/// Reads and discards the client's input, because unread input would make the kernel reset the connection and
/// drop the response.
async fn reject_connection(
    mut stream: TcpStream,
    error: GatewayError,
    _permit: OwnedSemaphorePermit,
) {
    let responding = async {
        stream
            .write_all(&http1::encode_error_response(&error))
            .await?;
        stream.shutdown().await?;
        let mut discarded = [0; 1_024];
        while stream.read(&mut discarded).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // After the timeout, the connection is closed even if the client has not read the response.
    let _ = tokio::time::timeout(REJECTION_TIMEOUT, responding).await;
}

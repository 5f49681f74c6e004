//! The HTTP/1.1 client for backends, with pooled connections and `TCP_NODELAY`.
//!
//! [`SendError`] distinguishes three failures. The backend accepts no connection. The backend closed a pooled
//! connection before any byte of the response ([`SendError::StaleConnection`]). The backend closed a connection
//! that it had accepted for the request, or closed it within the response.

pub mod receiver;

use crate::backend_body::BackendResponse;
use crate::connection::Connection;
pub use crate::connection::HttpClientTimeouts;
use crate::file_descriptors::{FileDescriptorPermit, FileDescriptorPool};
use crate::idle_pool::IdlePool;
use crate::request_stream::{RequestStream, UploadProgress};
use crate::resource_exhaustion::{describe_exhaustion, is_timeout};
pub use crate::send_error::SendError;
use crate::tls::{Alpn, Connector, MaybeTlsStream, OutboundTls};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::Either;
use http::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use std::error::Error as StdError;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::{clock, headers};
use tokio::time::error::Elapsed;
use tower::ServiceExt;

/// The HTTP client for backends. Clones share the TLS contexts and the pool of file descriptors.
#[derive(Debug, Clone)]
pub struct HttpClient {
    connector: Connector,
    /// The timeouts of requests. [`HttpClient::with_timeouts`] changes them, and also the timeout of the
    /// connector.
    pub timeouts: HttpClientTimeouts,
    /// The pool of file descriptors for connections. The client listener can share it.
    pub descriptors: FileDescriptorPool,
}

/// The source of the connection on which a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionSource {
    /// A pooled connection, or a new connection if the pool has no reusable connection.
    Pool,
    /// A new connection, for the second attempt after a pooled connection was closed: the backend may also have
    /// closed the other pooled connections.
    New,
}

impl HttpClient {
    /// Creates a client that trusts the certificate authorities of this machine and has no limit of file
    /// descriptors.
    pub fn new(timeouts: HttpClientTimeouts) -> Self {
        Self::with_tls(timeouts, OutboundTls::with_native_roots(Alpn::Http1))
    }

    /// Creates a client with the trusted authorities and client certificates of `outbound`, and without a limit
    /// of file descriptors.
    pub fn with_tls(timeouts: HttpClientTimeouts, outbound: Arc<OutboundTls>) -> Self {
        let connector = Connector::new(outbound, timeouts.connect);
        let descriptors = FileDescriptorPool::default();
        Self {
            connector,
            timeouts,
            descriptors,
        }
    }

    /// Replaces the timeouts, and keeps the TLS contexts and the pool of file descriptors.
    #[must_use]
    pub fn with_timeouts(self, timeouts: HttpClientTimeouts) -> Self {
        let outbound = self.outbound_tls().clone();
        Self {
            descriptors: self.descriptors,
            ..Self::with_tls(timeouts, outbound)
        }
    }

    /// Replaces the sockets of new connections by streams that `dial` opens, so that a simulation needs no
    /// network.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_dial(mut self, dial: crate::tls::Dial) -> Self {
        self.connector.dial = Some(dial);
        self
    }

    /// The TLS contexts of the connections to backends.
    pub fn outbound_tls(&self) -> &Arc<OutboundTls> {
        &self.connector.outbound
    }

    /// Acquires a file descriptor for a health-check connection. Fails with
    /// [`SendError::Exhausted`] if no descriptor becomes free within `timeout`.
    pub async fn acquire_probe_descriptor(
        &self,
        timeout: Duration,
    ) -> Result<FileDescriptorPermit, SendError> {
        let descriptor = self.descriptors.acquire_for_probe(timeout).await;
        descriptor.ok_or_else(|| exhausted_error(&NO_DESCRIPTOR_MESSAGE))
    }

    /// Opens a new connection outside the idle pool, without a permit for its file descriptor.
    pub async fn connect(&self, uri: Uri) -> Result<TokioIo<MaybeTlsStream>, SendError> {
        let connection = self.connector.clone().oneshot(uri);
        connection.await.map_err(|error| {
            let cause = root_cause(&error);
            match describe_exhaustion(cause) {
                Some(problem) => exhausted_error(&problem),
                None if is_timeout(cause) => SendError::Connect(CONNECT_TIMEOUT_MEANING.to_owned()),
                None => SendError::Connect(lasting_text(&cause.to_string()).to_owned()),
            }
        })
    }

    /// Sends a request as [`send_via`](Self::send_via) does. If the server has closed the pooled connection,
    /// sends the request again over a new connection. The server can then receive the request twice.
    pub async fn send(
        &self,
        idle: &IdlePool,
        request: Request<Bytes>,
    ) -> Result<BackendResponse, SendError> {
        let send = |via| self.send_via(via, None, idle, request.clone(), None);
        match send(ConnectionSource::Pool).await {
            Err(SendError::StaleConnection { .. }) => send(ConnectionSource::New).await,
            result => result,
        }
    }

    /// Sends a request with an absolute URI over a connection from the source `via` and waits for the response
    /// head. Dropping the future closes the connection. The body of the request is in its [`RequestStream`], if
    /// it has one.
    ///
    /// `timeout` limits the time until the response head, including the time to open a new connection. For a
    /// body that is no event stream, it also limits the time until each part. `None`: the timeout of this
    /// client. The timeout does not run while the gateway waits for the client to send the next part of the
    /// request.
    pub fn send_via(
        &self,
        via: ConnectionSource,
        timeout: Option<Duration>,
        idle: &IdlePool,
        request: Request<Bytes>,
        stream: Option<RequestStream>,
    ) -> impl Future<Output = Result<BackendResponse, SendError>> {
        let timeout = timeout.unwrap_or(self.timeouts.response_headers);
        let upload = stream.as_ref().and_then(RequestStream::upload);
        // Only this future holds the request. An `async fn` would reserve the memory of the request twice.
        let response = async move {
            let began = clock::now();
            let pooled = match via {
                ConnectionSource::Pool => idle.take(&self.timeouts, began),
                ConnectionSource::New => None,
            };
            let is_new = pooled.is_none();
            let connection = if let Some(connection) = pooled {
                connection
            } else {
                let descriptor = self.descriptors.try_acquire();
                let descriptor =
                    descriptor.ok_or_else(|| exhausted_error(&NO_DESCRIPTOR_MESSAGE))?;
                let stream = self.connect(request.uri().clone()).await;
                idle.on_connect(clock::now().saturating_duration_since(began));
                let stream = stream?;
                Connection::new(stream.into_inner(), descriptor)
            };
            let mut response = connection.send(request, stream, idle).await?;
            if is_new {
                idle.on_first_head(clock::now().saturating_duration_since(began));
            }
            let is_tunnel = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            if !is_tunnel && !headers::is_event_stream(response.headers()) {
                response.body_mut().max_silence = Some(timeout);
            }
            Ok(response)
        };
        match upload {
            None => Either::Left(tokio::time::timeout(timeout, response)),
            Some(upload) => Either::Right(Box::pin(within_upload(timeout, upload, response))),
        }
        .map(move |result| result.unwrap_or(Err(SendError::Timeout(timeout))))
    }
}

/// Waits for a response while the client still sends the request body. Fails if the backend does not respond
/// within `timeout` after the last part of the body.
async fn within_upload<T>(
    timeout: Duration,
    upload: Arc<UploadProgress>,
    response: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    let mut response = pin!(response);
    let started = clock::now();
    loop {
        let now = clock::now();
        let deadline = upload.last_part_at(now).max(started).checked_add(timeout);
        let Some(deadline) = deadline else {
            return Ok(response.await);
        };
        let is_late = deadline <= now;
        let result = tokio::time::timeout_at(deadline.into(), response.as_mut()).await;
        if is_late || result.is_ok() {
            return result;
        }
    }
}

/// The error text for a pool of file descriptors without a free descriptor.
const NO_DESCRIPTOR_MESSAGE: &str = "all file descriptors for connections are in use; raise the \
                                     limit of open files (LimitNOFILE, ulimit -n)";

fn exhausted_error(problem: &impl ToString) -> SendError {
    SendError::Exhausted(problem.to_string())
}

/// The explanation, for operators, of a connection attempt that timed out.
const CONNECT_TIMEOUT_MEANING: &str = "timeout: the backend does not respond to connections: its \
                                       process is stopped, or its machine cannot be reached";

/// Whether a failed connection timed out, as its error text `reason` shows, in contrast to a refused
/// connection.
pub fn is_connect_timeout(reason: &str) -> bool {
    reason.contains(CONNECT_TIMEOUT_MEANING)
}

/// The part of an error text that stays the same while the cause lasts. The text about an expired certificate
/// ends with the time of the check, which changes.
fn lasting_text(error: &str) -> &str {
    error
        .split_once(": verification time")
        .map_or(error, |(cause, _)| cause)
}

/// The innermost source of an error. The outer errors only state that the connection failed.
pub fn root_cause<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[test]
    fn only_slow_connections_time_out() {
        assert!(is_timeout(&Error::new(
            ErrorKind::TimedOut,
            "deadline has elapsed"
        )));
        assert!(!is_timeout(&Error::from(ErrorKind::ConnectionRefused)));
    }

    #[test]
    fn an_expired_certificates_error_text_is_constant() {
        let error = "invalid peer certificate: certificate expired: verification time 7 (UNIX), but \
                     certificate is not valid after 5 (2 seconds ago)";
        assert_eq!(
            lasting_text(error),
            "invalid peer certificate: certificate expired"
        );
        assert_eq!(lasting_text("connection refused"), "connection refused");
    }

    #[tokio::test]
    async fn a_request_on_a_closed_connection_is_repeated() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let serving = async {
            let (mut first, _) = listener.accept().await.unwrap();
            assert!(first.read(&mut [0; 4_096]).await.unwrap() > 0);
            first.write_all(response).await.unwrap();
            // The second request is longer than the socket buffers, so the backend closes the connection before
            // it is written.
            first.read_u8().await.unwrap();
            drop(first);
            let (mut second, _) = listener.accept().await.unwrap();
            second.write_all(response).await.unwrap();
            second
        };
        let sending = async {
            let client = HttpClient::new(HttpClientTimeouts::default());
            let idle = IdlePool::default();
            for length in [0, 64 << 20] {
                let request = Request::post(&url).body(vec![b'x'; length].into()).unwrap();
                let response = client.send(&idle, request).await.unwrap();
                assert_eq!(response.status(), StatusCode::OK, "{length}");
            }
        };
        tokio::join!(sending, serving);
    }

    #[tokio::test(start_paused = true)]
    async fn the_response_timeout_waits_for_uploads() {
        const TIMEOUT: Duration = Duration::from_secs(3);
        let upload = Arc::new(UploadProgress::default());
        upload.record(true, false);
        let response = async {
            tokio::time::sleep(TIMEOUT * 10).await;
            upload.record(false, true);
            tokio::time::sleep(TIMEOUT / 3 * 2).await;
        };
        assert!(
            within_upload(TIMEOUT, upload.clone(), response)
                .await
                .is_ok()
        );
        let started = clock::now();
        let late = within_upload(TIMEOUT, upload, std::future::pending::<()>()).await;
        assert!(late.is_err() && clock::now() - started < TIMEOUT * 2);
    }
}

//! Opens outbound connections to backends and collectors, with TLS for `https` URLs.
//!
//! All outbound clients use this connector, so that servers are authenticated in one place.

#[cfg(feature = "testing")]
use super::SimulatedStream;
use super::file_backed::Reloadable;
use super::{Alpn, MaybeTlsStream, TlsClientContext, TlsError};
use arc_swap::ArcSwap;
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, TlsStream};
use tower::Service;

/// The TLS contexts of outbound connections: a default context, and contexts for individual hosts.
pub struct OutboundTls {
    default_context: Arc<TlsClientContext>,
    /// Contexts of individual hosts. The key is the host and port of the URL, in lower case.
    host_contexts: ArcSwap<HashMap<Box<str>, Arc<TlsClientContext>>>,
}

/// Opens outbound TCP connections, with TLS for `https` URLs. Clones share the TLS contexts.
#[derive(Clone)]
pub struct Connector {
    tcp: HttpConnector,
    /// The TLS contexts of the connections that this connector opens.
    pub(crate) outbound: Arc<OutboundTls>,
    /// Timeout for the TCP connection. The TLS handshake gets this time in addition.
    timeout: Duration,
    /// Opens the connections of a simulation, which have no sockets. `None`: connections have sockets.
    #[cfg(feature = "testing")]
    pub(crate) dial: Option<Dial>,
}

/// A function that opens a connection of a simulation.
#[cfg(feature = "testing")]
pub type Dial = Arc<
    dyn Fn(&Uri) -> futures_util::future::BoxFuture<'static, io::Result<Box<dyn SimulatedStream>>>
        + Send
        + Sync,
>;

/// Why an outbound connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The TCP connection failed.
    #[error(transparent)]
    Tcp(<HttpConnector as Service<Uri>>::Error),
    /// The TLS configuration of the gateway is invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The TLS handshake failed.
    #[error("TLS handshake failed: {0}")]
    Handshake(io::Error),
    /// The connection of a simulation failed.
    #[cfg(feature = "testing")]
    #[error(transparent)]
    Simulated(io::Error),
    /// The TLS handshake did not complete within the timeout.
    #[error("TLS handshake not completed within {0:?}")]
    Timeout(Duration),
}

impl OutboundTls {
    /// Creates the TLS contexts, with `default_context` for all hosts.
    pub fn new(default_context: TlsClientContext) -> Arc<Self> {
        Arc::new(Self {
            default_context: Arc::new(default_context),
            host_contexts: ArcSwap::default(),
        })
    }

    /// Creates contexts that trust the certificate authorities of this machine for all hosts.
    pub fn with_native_roots(alpn: Alpn) -> Arc<Self> {
        Self::new(TlsClientContext::with_native_roots(alpn))
    }

    /// Replaces the contexts of individual hosts, which are given as host and port of their URLs. Open
    /// connections keep their context.
    pub fn set_host_contexts(
        &self,
        contexts: impl IntoIterator<Item = (String, Arc<TlsClientContext>)>,
    ) {
        self.host_contexts.store(Arc::new(by_host(contexts)));
    }

    /// Like [`Self::set_host_contexts`], but other hosts keep their contexts.
    pub fn add_host_contexts(
        &self,
        contexts: impl IntoIterator<Item = (String, Arc<TlsClientContext>)>,
    ) {
        let mut all = HashMap::clone(&self.host_contexts.load());
        all.extend(by_host(contexts));
        self.host_contexts.store(Arc::new(all));
    }

    fn context_for(&self, uri: &Uri) -> Arc<TlsClientContext> {
        let host_contexts = self.host_contexts.load();
        if host_contexts.is_empty() {
            return self.default_context.clone();
        }
        let host = uri
            .authority()
            .map(|authority| authority.as_str().to_ascii_lowercase());
        let context = host.and_then(|host| host_contexts.get(host.as_str()).cloned());
        context.unwrap_or_else(|| self.default_context.clone())
    }

    /// The loaded TLS configurations, of all backends and of single hosts. They are reloaded when their files change.
    pub(super) fn reloadables(&self) -> Vec<Arc<dyn Reloadable>> {
        let host_contexts = self.host_contexts.load();
        let contexts = host_contexts.values().chain([&self.default_context]);
        contexts
            .filter_map(|context| context.reloadable())
            .collect()
    }
}

impl std::fmt::Debug for OutboundTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboundTls").finish_non_exhaustive()
    }
}

/// Contexts by the keys of their hosts.
fn by_host(
    contexts: impl IntoIterator<Item = (String, Arc<TlsClientContext>)>,
) -> HashMap<Box<str>, Arc<TlsClientContext>> {
    let with_key = |(host, context): (String, _)| (host.to_ascii_lowercase().into(), context);
    contexts.into_iter().map(with_key).collect()
}

impl Connector {
    /// Creates a connector. `timeout` limits the TCP connection, and in addition the TLS handshake. Connections
    /// have `TCP_NODELAY` and TCP keep-alive.
    pub fn new(outbound: Arc<OutboundTls>, timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        Self {
            tcp,
            outbound,
            timeout,
            #[cfg(feature = "testing")]
            dial: None,
        }
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<MaybeTlsStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.tcp.poll_ready(cx).map_err(ConnectError::Tcp)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        #[cfg(feature = "testing")]
        if let Some(dial) = &self.dial {
            let dialing = tokio::time::timeout(self.timeout, dial(&uri));
            return Box::pin(async move {
                let stream = dialing
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                let stream = stream.map_err(ConnectError::Simulated)?;
                Ok(TokioIo::new(MaybeTlsStream::Simulated(stream)))
            });
        }
        let context =
            (uri.scheme() == Some(&Scheme::HTTPS)).then(|| self.outbound.context_for(&uri));
        let host = context
            .is_some()
            .then(|| uri.host().unwrap_or_default().to_owned());
        let tcp_connection = self.tcp.call(uri);
        let timeout = self.timeout;
        Box::pin(async move {
            let stream = tcp_connection
                .await
                .map_err(ConnectError::Tcp)?
                .into_inner();
            let Some((context, host)) = context.zip(host) else {
                return Ok(TokioIo::new(MaybeTlsStream::Plain(stream)));
            };
            let name = context
                .server_name
                .clone()
                .map_or_else(|| parse_server_name(&host), Ok)?;
            let handshake = TlsConnector::from(context.config()?).connect(name, stream);
            let result = tokio::time::timeout(timeout, handshake).await;
            let stream = result.map_err(|_| ConnectError::Timeout(timeout))?;
            let stream = stream.map_err(ConnectError::Handshake)?;
            Ok(TokioIo::new(MaybeTlsStream::Tls(Box::new(
                TlsStream::Client(stream),
            ))))
        })
    }
}

/// Parses the host of a URL as the name that the server certificate must have. Removes the brackets
/// around an IPv6 address.
fn parse_server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::InvalidServerName(host.to_owned()))
}

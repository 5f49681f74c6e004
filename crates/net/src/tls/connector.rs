//! Connections to others, with TLS where the URL says so. Clients of replicas and of collectors
//! are built on it, so that there is one place where a server is believed.

use super::fresh::Reload;
use super::{Alpn, Identity, Stream, TlsError};
use arc_swap::ArcSwap;
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_rustls::{TlsConnector, TlsStream};
use tower::Service;

/// Whom the gateway is, and believes, where.
pub struct Outbound {
    default: Arc<Identity>,
    /// By host and port, as in the URL and in lower case.
    own: ArcSwap<HashMap<Box<str>, Arc<Identity>>>,
}

/// Makes connections. Clones share what they know.
#[derive(Clone)]
pub struct Connector {
    tcp: HttpConnector,
    outbound: Arc<Outbound>,
    /// Longest time for the connection, and again for the handshake.
    limit: Duration,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not even without TLS.
    #[error(transparent)]
    Tcp(<HttpConnector as Service<Uri>>::Error),
    /// The gateway itself is not able to.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The two sides do not agree.
    #[error("TLS: {0}")]
    Handshake(io::Error),
    /// The other side said nothing.
    #[error("TLS: no handshake within {0:?}")]
    Timeout(Duration),
}

// === impl Outbound ===

impl Outbound {
    /// The same for all.
    pub fn new(default: Identity) -> Arc<Self> {
        Arc::new(Self { default: Arc::new(default), own: ArcSwap::default() })
    }

    /// The authorities of this machine, for all.
    pub fn of_machine(alpn: Alpn) -> Arc<Self> {
        Self::new(Identity::of_machine(alpn))
    }

    /// What differs for some hosts, by host and port as in their URLs, in place of what differed
    /// before. Connections that are open stay.
    pub fn set_own(&self, own: impl IntoIterator<Item = (String, Arc<Identity>)>) {
        let lower = |(host, identity): (String, _)| (host.to_ascii_lowercase().into(), identity);
        self.own.store(Arc::new(own.into_iter().map(lower).collect()));
    }

    fn of(&self, uri: &Uri) -> Arc<Identity> {
        let own = self.own.load();
        if own.is_empty() {
            return self.default.clone();
        }
        let host = uri.authority().map(|authority| authority.as_str().to_ascii_lowercase());
        let found = host.and_then(|host| own.get(host.as_str()).cloned());
        found.unwrap_or_else(|| self.default.clone())
    }

    pub(super) fn reloading(&self) -> Vec<Arc<dyn Reload>> {
        let own = self.own.load();
        let all = own.values().chain([&self.default]);
        all.filter_map(|identity| identity.reloading()).collect()
    }
}

impl std::fmt::Debug for Outbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbound").finish_non_exhaustive()
    }
}

// === impl Connector ===

impl Connector {
    /// Connects within `limit`, without Nagle's delay.
    pub fn new(outbound: Arc<Outbound>, limit: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(limit));
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        Self { tcp, outbound, limit }
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.tcp.poll_ready(cx).map_err(ConnectError::Tcp)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let identity = (uri.scheme() == Some(&Scheme::HTTPS)).then(|| self.outbound.of(&uri));
        let host = identity.is_some().then(|| uri.host().unwrap_or_default().to_owned());
        let (connecting, limit) = (self.tcp.call(uri), self.limit);
        Box::pin(async move {
            let stream = connecting.await.map_err(ConnectError::Tcp)?.into_inner();
            let Some((identity, host)) = identity.zip(host) else {
                return Ok(TokioIo::new(Stream::Plain(stream)));
            };
            let name = identity.server_name().cloned().map_or_else(|| server_name(&host), Ok)?;
            let handshake = TlsConnector::from(identity.config()?).connect(name, stream);
            let shaken = tokio::time::timeout(limit, handshake).await;
            let stream = shaken.map_err(|_| ConnectError::Timeout(limit))?;
            let stream = stream.map_err(ConnectError::Handshake)?;
            Ok(TokioIo::new(Stream::Tls(Box::new(TlsStream::Client(stream)))))
        })
    }
}

/// The host of a URL, where an IPv6 address stands in brackets.
fn server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(bare.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))
}

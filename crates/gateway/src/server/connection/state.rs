//! The server state that all client connections use and that reloads change.

use super::limiter::ConnectionLimiter;
use crate::proxy::{ProxyContext, ProxyState};
use crate::server::limits::ServerLimits;
use arc_swap::ArcSwap;
use std::sync::Arc;
use tokenweir_request::observe::AbortRegistry;

/// The state of the server. A reload replaces `proxy_context` and `limits`.
pub struct ServerState {
    /// The context that serves requests. Each request uses the context that is current at its arrival.
    pub proxy_context: ArcSwap<ProxyContext>,
    /// The limits and timeouts. Each connection uses the limits that are current when it is accepted.
    pub limits: ArcSwap<ServerLimits>,
    /// Counts and limits the connections of clients.
    pub connection_limiter: Arc<ConnectionLimiter>,
    /// The proxy state that all contexts share.
    pub proxy: ProxyState,
    /// Abort handles of all HTTP/2 streams.
    pub(in crate::server) abort_registry: Arc<AbortRegistry>,
}

impl ServerState {
    /// A server state whose requests use `proxy_context` until a reload.
    pub fn new(
        proxy_context: ProxyContext,
        limits: ServerLimits,
        connection_limiter: Arc<ConnectionLimiter>,
    ) -> Arc<Self> {
        Arc::new(Self {
            proxy: proxy_context.state.clone(),
            proxy_context: ArcSwap::from_pointee(proxy_context),
            limits: ArcSwap::from_pointee(limits),
            connection_limiter,
            abort_registry: Arc::default(),
        })
    }
}

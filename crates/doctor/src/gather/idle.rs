//! Measures how long a backend keeps an idle connection open: opens a connection, reads one
//! response, and waits until the backend closes it.

use super::client::GatherOptions;
use crate::facts::IdleConnection;
use bytes::Bytes;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use std::future::Future;
use std::pin::pin;
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::tls::Connector;
use tokenweir_protocol::clock;
use tower::ServiceExt;

/// Opens a connection, reads one response, and waits up to the time limit `options.idle` for the
/// backend to close the connection. `None`: no connection or no response.
pub(super) async fn measure_idle_timeout(
    backend: &BackendAddress,
    options: &GatherOptions,
) -> Option<IdleConnection> {
    let connector = Connector::new(options.outbound.clone(), options.timeout);
    let path = PathAndQuery::from_static("/health");
    let stream = connector.oneshot(backend.uri(&path)).await.ok()?;
    let (mut sender, connection) = http1::handshake(stream).await.ok()?;
    let mut connection = pin!(connection);
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = http::Uri::from(backend.path(&path));
    let host: HeaderValue = backend.host_header().clone();
    request.headers_mut().insert(HOST, host);
    let exchange = async {
        let answer = sender.send_request(request).await.ok()?;
        answer.into_body().collect().await.ok()
    };
    let exchange =
        tokio::time::timeout(options.timeout, drive_until(connection.as_mut(), exchange));
    exchange.await.ok()??;
    let idle_since = clock::now();
    let is_closed = tokio::time::timeout(options.idle, connection).await.is_ok();
    // The sender must live until here: dropping it would close the connection on this side.
    drop(sender);
    let after = clock::now().saturating_duration_since(idle_since);
    Some(if is_closed { IdleConnection::Closed(after) } else { IdleConnection::Open(after) })
}

/// Polls the connection until `exchange` is complete. If the connection ends first, `exchange` is
/// polled alone, because its data may already have arrived.
async fn drive_until<T>(connection: impl Future + Unpin, exchange: impl Future<Output = T>) -> T {
    let mut exchange = pin!(exchange);
    tokio::select! {
        biased;
        output = &mut exchange => return output,
        _ = connection => {}
    }
    exchange.await
}

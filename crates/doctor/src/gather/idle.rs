//! How long a replica keeps a connection that is not used: one is opened, has one answer, and is
//! then left alone.

use super::Plan;
use crate::facts::Idle;
use bytes::Bytes;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use std::future::Future;
use std::pin::pin;
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_net::tls::Connector;
use tower::ServiceExt;

/// `None`: there was no connection, or no answer.
pub(super) async fn idle(replica: &Address, plan: &Plan) -> Option<Idle> {
    let connector = Connector::new(plan.outbound.clone(), plan.timeout);
    let path = PathAndQuery::from_static("/health");
    let stream = connector.oneshot(replica.uri(&path)).await.ok()?;
    let (mut sender, connection) = http1::handshake(stream).await.ok()?;
    let mut connection = pin!(connection);
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = http::Uri::from_static("/health");
    let host: HeaderValue = replica.host_header().clone();
    request.headers_mut().insert(HOST, host);
    let answered = async {
        let answer = sender.send_request(request).await.ok()?;
        answer.into_body().collect().await.ok()
    };
    let answered = tokio::time::timeout(plan.timeout, driven(connection.as_mut(), answered));
    answered.await.ok()??;
    let since = clock::now();
    let closed = tokio::time::timeout(plan.idle, connection).await.is_ok();
    // It is kept until here: without it the connection would be ours to close.
    drop(sender);
    let after = clock::now().saturating_duration_since(since);
    Some(if closed { Idle::Closed(after) } else { Idle::Open(after) })
}

/// Waits for something that a connection brings, while it is driven. One that has ended brings
/// what it had.
async fn driven<T>(connection: impl Future + Unpin, wanted: impl Future<Output = T>) -> T {
    let mut wanted = pin!(wanted);
    tokio::select! {
        biased;
        it = &mut wanted => return it,
        _ = connection => {}
    }
    wanted.await
}

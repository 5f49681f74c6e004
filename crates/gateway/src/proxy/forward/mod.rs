//! Forwards a request in the way that its route requires.

mod inbound;
mod lookup;
mod read;
mod route;
mod unread;

use super::attempt::ForwardResult;
use super::request::IncomingBody;
use super::response::EarlyResponse;
use crate::proxy::configured_routes::ConfiguredRoute;
pub(super) use inbound::InboundRequest;
use tokenweir_protocol::openai::ApiRoute;
use tokenweir_request::observe::Exchange;

/// Forwards a request in the way that its route requires: with a body that the gateway reads, with a body that
/// it does not read, or to the backend of a stored response.
pub(super) async fn forward<B: IncomingBody + Send + 'static>(
    inbound: InboundRequest<'_, B>,
    exchange: &mut Exchange,
    route: Option<ApiRoute>,
    configured: Option<&ConfiguredRoute>,
    early: &EarlyResponse,
) -> ForwardResult {
    let total = configured.and_then(|configured| configured.total);
    let unread = configured.and_then(|configured| configured.unread.as_ref());
    match (route, unread) {
        (Some(ApiRoute::StoredResponse), _) => lookup::forward(inbound, exchange).await,
        (Some(ApiRoute::Realtime), _) => unread::forward_websocket(inbound, exchange).await,
        (_, Some(unread)) => unread::forward_body(inbound, exchange, unread, total).await,
        _ => read::forward(inbound, exchange, early, total).await,
    }
}

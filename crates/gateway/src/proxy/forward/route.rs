//! The route of a request.

use crate::backend::routes::ModelRoute;
use crate::proxy::ProxyContext;
use crate::proxy::access::Principal;
use crate::proxy::option::RequestOptions;
use crate::proxy::request::ReadRequest;
use http::request;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::openai::RequestFields;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;

/// How often a request looks for the version of a split model.
const MAX_LOOKS: usize = 100;
/// Time between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// The route of the model that the request names, or of the model version that an option chooses.
pub(super) async fn find_route(
    context: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    head: &request::Parts,
    fields: &RequestFields,
    body: &[u8],
) -> Result<Arc<ModelRoute>, GatewayError> {
    let pool = &context.state.pool;
    let mut route = principal.find_route(pool, exchange, fields).await?;
    for _ in 0..MAX_LOOKS {
        let record = exchange.record();
        if route.renames_response {
            record.options.response_model.clone_from(&fields.model);
        }
        if !route.is_split {
            break;
        }
        let named = ReadRequest {
            principal,
            route: &route,
            head,
            fields,
        };
        if let Some(version) = RequestOptions::version_route(context, record, &named, body) {
            return Ok(version);
        }
        // A reload has changed the splits of the option, and not yet the routes. Boxed, because few requests need
        // the memory of this future.
        Box::pin(tokio::time::sleep(LOOK_PAUSE)).await;
        route = principal.model_route(pool, exchange.record(), fields)?;
    }
    Ok(route)
}

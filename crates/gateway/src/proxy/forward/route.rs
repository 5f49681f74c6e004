//! The route of a request.

use crate::backend::routes::ModelRoute;
use crate::proxy::ProxyContext;
use crate::proxy::access::Principal;
use crate::proxy::option::RequestOptions;
use crate::proxy::request::ReadRequest;
use http::request;
use std::sync::Arc;
use tokenweir_protocol::openai::RequestFields;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;

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
    let route = principal.find_route(pool, exchange, fields).await?;
    let record = exchange.record();
    if route.renames_response {
        record.options.response_model.clone_from(&fields.model);
    }
    if !route.is_split {
        return Ok(route);
    }
    let named = ReadRequest {
        principal,
        route: &route,
        head,
        fields,
    };
    let version = RequestOptions::version_route(context, record, &named, body);
    Ok(version.unwrap_or(route))
}

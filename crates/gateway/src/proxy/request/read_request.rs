//! A request whose body was read.

use crate::backend::routes::ModelRoute;
use crate::proxy::access::Principal;
use http::request;
use tokenweir_protocol::openai::RequestFields;

/// A request whose body was read, with the route of its model.
pub struct ReadRequest<'a> {
    /// The client.
    pub principal: &'a Principal,
    /// The route of the model.
    pub route: &'a ModelRoute,
    /// The head.
    pub head: &'a request::Parts,
    /// The fields that were read from the body.
    pub fields: &'a RequestFields,
}

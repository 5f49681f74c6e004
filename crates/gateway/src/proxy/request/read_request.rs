//! A request whose body was read.

use crate::backend::routes::ModelRoute;
use crate::proxy::access::Principal;
use http::request;
use tokenweir_protocol::openai::RequestFields;

/// A request whose body was read, with the route of its model.
pub struct ReadRequest<'a> {
    /// The authenticated client and its permissions.
    pub principal: &'a Principal,
    /// The backends and the settings of the requested model.
    pub route: &'a ModelRoute,
    /// Method, path and headers.
    pub head: &'a request::Parts,
    /// The fields that were read from the body.
    pub fields: &'a RequestFields,
}

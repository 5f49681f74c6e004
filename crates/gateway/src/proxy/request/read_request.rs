//! A request whose body was read.

use crate::backend::routes::ModelRoute;
use crate::proxy::access::Principal;
use http::request;
use tokenweir_protocol::openai::request_fields::RequestFields;

/// A request whose body was read, with the route of its model.
pub(crate) struct ReadRequest<'a> {
    pub(crate) principal: &'a Principal,
    pub(crate) route: &'a ModelRoute,
    pub(crate) head: &'a request::Parts,
    pub(crate) fields: &'a RequestFields,
}

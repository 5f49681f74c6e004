//! A request of a client that is ready to be forwarded.

use crate::proxy::ProxyContext;
use crate::proxy::access::Principal;
use http::request;
use std::sync::Arc;

/// A request of a client whose body has not been read.
pub(crate) struct InboundRequest<'a, B> {
    pub context: &'a Arc<ProxyContext>,
    pub principal: &'a Principal,
    pub head: &'a mut request::Parts,
    pub body: B,
}

impl<'a, B> InboundRequest<'a, B> {
    pub(super) fn map<C>(self, body: impl FnOnce(B) -> C) -> InboundRequest<'a, C> {
        let Self {
            context,
            principal,
            head,
            ..
        } = self;
        InboundRequest {
            context,
            principal,
            head,
            body: body(self.body),
        }
    }
}

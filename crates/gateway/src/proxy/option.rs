//! The contract between the proxy and an option that handles requests. `options.rs` of the program lists the options.

use super::ProxyContext;
use super::accept::RecordedRequest;
use super::attempt::{AttemptStep, OutboundAttempt};
use super::extensions::Extension;
use super::request::{HeldBody, ReadRequest};
use super::response::{EarlyResponse, ProxyResponse};
use crate::backend::routes::{ModelRoute, RouteTable};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request};
use http_body_util::combinators::UnsyncBoxBody;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use tokenweir_protocol::openai::FieldEdit;
use tokenweir_request::observe::{Exchange, ResponseAbortHandle};
use tokenweir_request::record::RequestRecord;

/// The options that handle requests, in the order of their steps.
#[derive(Debug)]
pub struct RequestOptions(pub Vec<Arc<dyn RequestOption>>);

/// An option that handles requests. Each method has a default.
pub trait RequestOption: Debug + Send + Sync {
    /// Takes over a request after its head, before its body is read. `None`: the proxy handles the request.
    fn take_over<'a>(
        &'a self,
        _recorded: &mut RecordedRequest,
        _headers: &HeaderMap,
    ) -> Option<Box<dyn TakenRequest + 'a>> {
        None
    }

    /// The model version that serves a request for a split model. `request` has the route of the model. `routes`:
    /// those in which the version must be. `None`: the option does not split the model, or `routes` do not have the version yet.
    fn version(
        &self,
        _context: &ProxyContext,
        _routes: &RouteTable,
        _record: &mut RequestRecord,
        _request: &ReadRequest<'_>,
        _body: &[u8],
    ) -> Option<Arc<str>> {
        None
    }

    /// The step of the option for a request whose body was read. The option may also add edits of the body, and
    /// stages of the exchange. `None`: the option cannot tell yet whether it concerns the request.
    fn plan(
        &self,
        _exchange: &mut Exchange,
        _request: &ReadRequest<'_>,
        _body: &HeldBody,
        _edits: &mut Vec<FieldEdit>,
    ) -> Option<Box<dyn AttemptStep>> {
        None
    }

    /// The step of the option for a request that has none so far. Called before an attempt. `None`: the option
    /// does not concern the attempt.
    fn step_at(&self, _attempt: &OutboundAttempt<'_>) -> Option<Box<dyn AttemptStep>> {
        None
    }
}

/// A request that an option executes in place of the proxy.
pub trait TakenRequest: Send {
    /// Executes the request and returns its response.
    fn respond<'a>(
        self: Box<Self>,
        context: &'a Arc<ProxyContext>,
        recorded: Box<RecordedRequest>,
        abort: ResponseAbortHandle,
        early: &'a EarlyResponse,
        request: Request<UnsyncBoxBody<Bytes, io::Error>>,
    ) -> BoxFuture<'a, ProxyResponse>
    where
        Self: 'a;
}

impl Extension for RequestOptions {}

impl RequestOptions {
    /// The options that are attached to the gateway.
    pub fn of(context: &ProxyContext) -> impl Iterator<Item = &dyn RequestOption> {
        let options = context.state.extensions.get::<Self>();
        options
            .into_iter()
            .flat_map(|options| &options.0)
            .map(|option| &**option)
    }

    /// The route of a request after an option chose a version of its model, if any does. Records the model that
    /// serves the request.
    pub(super) fn version_route(
        context: &ProxyContext,
        record: &mut RequestRecord,
        request: &ReadRequest<'_>,
        body: &[u8],
    ) -> Option<Arc<ModelRoute>> {
        let routes = context.state.pool.routes();
        let mut options = Self::of(context);
        let version =
            options.find_map(|option| option.version(context, &routes, record, request, body))?;
        let mut route = ModelRoute::clone(routes.lookup(Some(&version)));
        route.served_as.get_or_insert_with(|| version.clone());
        record.model = route.label.clone();
        record.served_as.clone_from(&route.served_as);
        route.version = Some(version);
        Some(Arc::new(route))
    }

    /// Offers a request to the options by its head. `None`: the proxy handles the request.
    pub fn take_over<'a>(
        context: &'a ProxyContext,
        recorded: &mut RecordedRequest,
        headers: &HeaderMap,
    ) -> Option<Box<dyn TakenRequest + 'a>> {
        Self::of(context).find_map(|option| option.take_over(recorded, headers))
    }
}

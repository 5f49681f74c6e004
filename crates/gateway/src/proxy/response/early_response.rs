//! The beginning of a response before its backend is decided: bytes that keep the connection open. They reach
//! the client while the request can still fail over to another backend.
//!
//! Proxies between client and gateway close connections without traffic. The bytes are the SSE comments and
//! blank lines that a backend sends before its first event, the white space that it sends before JSON, and the
//! comments of `streams.keep_alive`. They contain no output, so any backend can continue the response. But they
//! fix the status 200. So a later failure becomes an error event in the format of the API. A JSON response is
//! cut instead, because an error document with the status 200 would look like a successful response.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::Context;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::Api;
use tokenweir_request::observe::KEEP_ALIVE_COMMENT;
use tokio::time::Sleep;

/// The beginning of the response to one request. The future that handles the request writes it, and the
/// client's connection reads it.
#[derive(Default)]
pub struct EarlyResponse(Mutex<EarlyState>);

#[derive(Default)]
struct EarlyState {
    /// The API of the request, if the response may begin early. `None`: the request has not been read, or
    /// requests no stream.
    api: Option<Api>,
    /// Whether the response is JSON instead of an event stream.
    is_json: bool,
    /// The time without bytes for the client after which a comment is due. `None`: the gateway adds no
    /// comments.
    interval: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Unsent comments or white space for the client.
    comments: BytesMut,
    /// The unsent response headers. `None`: no comment is due yet, or the headers were sent.
    head: Option<HeaderMap>,
    has_begun: bool,
}

impl EarlyResponse {
    /// Allows the response to begin early. Call this when the request has been read and requests a stream of
    /// `api`. `interval`: time without bytes after which a comment is due. `None`: the gateway adds no
    /// comments.
    pub(in crate::proxy) fn allow(&self, api: Api, interval: Option<Duration>) {
        let mut state = lock(&self.0);
        state.api = Some(api);
        state.interval = interval;
    }

    /// Whether the client may get the keep-alive bytes of a backend now: comments before the first event of a stream
    /// (`is_stream`), or white space before JSON.
    pub(in crate::proxy) fn is_allowed(&self, is_stream: bool) -> bool {
        let state = lock(&self.0);
        (state.api.is_some() || !is_stream) && (!state.has_begun || state.is_json != is_stream)
    }

    /// Whether the head of the response has been sent.
    pub(in crate::proxy) fn has_begun(&self) -> bool {
        lock(&self.0).has_begun
    }

    /// Sends bytes of a backend, if [`Self::is_allowed`] permits it. The future that handles the request must
    /// return `Pending` next. If it returned a response instead, the bytes would be lost.
    pub(in crate::proxy) fn send(&self, is_stream: bool, comments: &[u8]) {
        let mut state = lock(&self.0);
        state.comments.extend_from_slice(comments);
        state.is_json = !is_stream;
        state.timer = None;
    }

    /// Adds a comment if one is due, and makes the head of the response if there are bytes to send. Called when
    /// the future that handles the request is pending. `head` makes the response headers for a media type.
    pub(in crate::proxy) fn on_pending(
        &self,
        cx: &mut Context<'_>,
        head: impl FnOnce(&'static str) -> HeaderMap,
    ) {
        let mut state = lock(&self.0);
        if state.api.is_none() && state.comments.is_empty() {
            return;
        }
        state.poll_timer(cx);
        if !state.comments.is_empty() && !state.has_begun {
            state.has_begun = true;
            let stream = "text/event-stream; charset=utf-8";
            state.head = Some(head(if state.is_json {
                "application/json"
            } else {
                stream
            }));
        }
    }

    /// Takes the unsent response headers. `None`: no comment is due, or the headers were taken.
    pub(super) fn take_head(&self) -> Option<HeaderMap> {
        lock(&self.0).head.take()
    }

    /// The API of the request. `None`: the response may not begin early.
    pub(super) fn api(&self) -> Option<Api> {
        lock(&self.0).api
    }

    /// Whether the response is JSON instead of an event stream.
    pub(super) fn is_json(&self) -> bool {
        lock(&self.0).is_json
    }

    /// Whether comments or white space wait to be sent.
    pub(super) fn has_comments(&self) -> bool {
        !lock(&self.0).comments.is_empty()
    }

    /// Takes the unsent comments or white space for the client. `None`: nothing waits.
    pub(super) fn take_comments(&self) -> Option<Bytes> {
        let mut state = lock(&self.0);
        (!state.comments.is_empty()).then(|| state.comments.split().freeze())
    }
}

impl EarlyState {
    /// Adds an SSE comment, which keeps the connection open, if one is due.
    fn poll_timer(&mut self, cx: &mut Context<'_>) {
        let Some(interval) = self.interval else {
            return;
        };
        if self.is_json {
            return;
        }
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(interval)));
        while timer.as_mut().poll(cx).is_ready() {
            self.comments.extend_from_slice(&KEEP_ALIVE_COMMENT);
            timer.as_mut().reset((clock::now() + interval).into());
        }
    }
}

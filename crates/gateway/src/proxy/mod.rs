//! Serves a request, from its head to the end of its response.
//!
//! ```text
//! accept   accept.rs                  route, API key, limits. The gateway answers local routes itself;
//!                                     every other request gets a record
//! receive  request/body.rs            reads the complete body, for its fields and for retries
//! peek     request/body.rs            parses model, `stream` and token limits. The bytes stay unchanged
//! control  request/engine_control.rs  engine-control fields: rejected, removed or forwarded
//! admit    admission/controller.rs    takes a lease on the backend that the policy picks, at once or
//!                                     when a backend has capacity
//! relay    relay/failover.rs          sends the request, and buffers the response to its first output.
//!                                     Until then it fails over to other backends
//!          steps/mod.rs               what else happens between attempts, one step for each concern
//! respond  response                   forwards the response. Its body owns the lease and the exchange
//! ```
//!
//! `forward` in `forward/read.rs` has the steps from `receive` to `relay` in order.
//!
//! The body of a configured route with a fixed model, and the bytes of a WebSocket, are forwarded unread
//! while they arrive (`forward/unread.rs`). Such a request is sent to one backend and never retried.
//!
//! A request about a stored response skips the queue: it goes to the backend that has the response.
//!
//! The response can begin before its backend is decided, with SSE comments or white space that keep the
//! connection open (`response`). The response body then contains the future that handles the request.
//!
//! An option can take over a request before its body is read, and run it in a task of its own. Any other request has no
//! task and no channel of its own: the client connection polls the response body,
//! and the response body polls the body of the backend. So the gateway reads from the backend only
//! as fast as the client reads. A client disconnect drops the request future or the response body,
//! and with it the connection to the backend.

mod accept;
pub mod access;
pub mod admission;
pub mod attempt;
mod configured_routes;
mod context;
pub mod extensions;
mod forward;
mod handle;
pub mod option;
mod overload_guard;
mod relay;
mod request;
mod response;
pub mod retry;
mod steps;
mod stored_responses;

pub use accept::{AcceptedRequest, RecordedRequest, accept_request};
pub use configured_routes::{ConfiguredRoute, ConfiguredRoutes};
pub use context::{ProxyContext, ProxySettings, ProxyState, RecordingSettings};
pub use handle::handle_request;
pub use overload_guard::{ClientInfo, OverloadGuard, OverloadLimits};
pub use request::{
    AttemptDeadlines, BodyMemory, BodyMemoryPermit, HeldBody, IdentityMode, IdentityReader,
    IncomingBody, ReadRequest, ReceivedBody, RequestSettings, ResponseDeadline, TextSample,
    TextSampling, UpstreamBody, conversation_hash, peek_request, receive_body,
};
pub use response::{
    BodySource, EarlyResponse, Handling, ProxyResponse, ProxyResponseBody, Responding,
    ResponseGuard, ResponseHeaders, RunBody,
};
pub use stored_responses::StoredResponses;

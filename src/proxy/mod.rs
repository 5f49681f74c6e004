//! Serves a request, from its head to the end of its response.
//!
//! ```text
//! accept     route, API key, limits    the gateway answers local routes itself; for every other
//!                                      request a record is opened
//! receive    the complete body         needed to read its fields and to retry
//! peek       model, stream, limits     the bytes stay unchanged
//! control    engine-control fields     rejected, removed or forwarded, by permission
//! admit      lease on a backend        at once, or when one has capacity; the policy picks it
//! relay      send, buffer the response failover to another backend before the first output
//! respond    frames, observed          the lease and the exchange live in the response body
//! ```
//!
//! The body of a configured route with a fixed model, and the bytes of a WebSocket, are forwarded unread
//! while they arrive (`unread.rs`). Such a request is sent once.
//!
//! A request about a stored response skips the queue: it goes to the backend that has the response.
//!
//! The response can begin with comments before its backend is decided (`response`). The
//! response body then contains the handling of the request.
//!
//! A request whose client may return to it (`resume`) runs in a task of its own. Any other request has no
//! task and no channel of its own: the client connection polls the response body,
//! and the response body polls the body of the backend. So the gateway reads from the backend only
//! as fast as the client reads. A client disconnect drops the request future or the response body,
//! and with it the connection to the backend.

mod accept;
pub mod access;
pub mod admission;
mod context;
mod handle;
mod lookup;
mod overload_guard;
mod relay;
mod request;
mod response;
pub mod resume;
mod resumption;
pub mod retry;
mod routing_headers;
mod stored_responses;
mod unread;

pub use accept::{AcceptedRequest, accept_request};
pub use context::{ProxyContext, ProxySettings, ProxyState, RecordingSettings};
pub use handle::handle_request;
pub use overload_guard::{ClientInfo, OverloadGuard, OverloadLimits};
pub use request::body_memory::BodyMemory;
pub use request::configured_routes::{ConfiguredRoute, ConfiguredRoutes};
pub use request::continuation::ContinuationMemory;
pub use request::features::PayloadSampling;
pub use request::identity::{IdentityMode, IdentityReader};
pub use request::settings::RequestSettings;
pub use response::{EarlyResponse, ProxyResponseBody, Responding};
pub use resumption::Resumption;
pub use stored_responses::StoredResponses;

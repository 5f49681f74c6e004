//! A response body with a guard, such as a request permit, that lives until the body is sent or dropped.

use http_body::Body;
use http_body_util::BodyExt;

/// Attaches a guard to a body. The guard is dropped when the body is dropped.
pub(super) fn guarded<B: Body>(
    body: B,
    guard: impl Send + 'static,
) -> impl Body<Data = B::Data, Error = B::Error> {
    // The closure owns the guard until the body is dropped.
    body.map_err(move |error| {
        let _guard = &guard;
        error
    })
}

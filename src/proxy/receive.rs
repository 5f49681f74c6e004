//! The request's body: received whole, because it must be there to be peeked at and sent again.

use crate::error::Error;
use crate::openai::request::{Peek, PeekError};
use crate::openai::{Api, form};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

/// Reads the whole body, if it is not too long and not encoded.
pub(super) async fn receive(
    head: &request::Parts,
    body: Incoming,
    limit: usize,
) -> Result<Bytes, Error> {
    if let Some(encoding) = head.headers.get(CONTENT_ENCODING)
        && encoding.as_bytes() != b"identity"
    {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        return Err(Error::EncodedBody { encoding });
    }
    let length = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if length.and_then(|length| length.parse().ok()).is_some_and(|length: usize| length > limit) {
        return Err(Error::BodyTooLarge { limit });
    }
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Error::BodyTooLarge { limit }),
        Err(_) => Err(Error::BodyCut),
    }
}

/// Audio comes in forms. The shapes that we know must be JSON; others may be, and then their model
/// is known too, and must be clear.
pub(super) async fn peek(
    head: &request::Parts,
    body: &Bytes,
    api: Option<Api>,
) -> Result<Peek, Error> {
    if api == Some(Api::Audio) {
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        return Ok(form::peek(content_type.unwrap_or_default(), body).await?);
    }
    match (Peek::of(body), api) {
        (Ok(peek), _) => Ok(peek),
        (Err(PeekError::NotJson), Some(Api::Other)) => Ok(Peek::default()),
        (Err(error), _) => {
            tracing::debug!(path = head.uri.path(), %error, "body refused");
            Err(error.into())
        }
    }
}

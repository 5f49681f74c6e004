//! The body of a request: all of it, before a replica is asked.

use crate::error::Error;
use crate::openai::request::{Peek, PeekError};
use crate::openai::{Api, form};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use std::time::Duration;

/// What is reserved for a body whose length is told, at most: a client that only says so gets no
/// more memory than this.
const MOST_RESERVED: usize = 64 << 10;

/// Reads the whole body, if it is not too long and not encoded. Between two pieces of it the client
/// is waited for as long as `patience`.
pub(super) async fn whole<B>(
    head: &request::Parts,
    body: B,
    limit: usize,
    patience: Duration,
) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    if let Some(encoding) = head.headers.get(CONTENT_ENCODING)
        && encoding.as_bytes() != b"identity"
    {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        return Err(Error::EncodedBody { encoding });
    }
    let length = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|length| length.parse::<usize>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(Error::BodyTooLarge { limit });
    }
    let mut body = std::pin::pin!(Limited::new(body, limit));
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(patience, body.frame()).await;
        let frame = frame.map_err(|_| Error::BodyTimeout { seconds: patience.as_secs() })?;
        let Some(frame) = frame else { break };
        let data = match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(),
            Err(error) if error.is::<LengthLimitError>() => {
                return Err(Error::BodyTooLarge { limit });
            }
            Err(_) => return Err(Error::BodyCut),
        };
        // Most bodies come in one piece, which is not copied.
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.reserve(
                length.unwrap_or_default().min(MOST_RESERVED).max(first.len() + data.len()),
            );
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{StreamExt, stream};
    use http::Request;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use std::convert::Infallible;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Receives a body that comes in these pieces, each after a pause.
    async fn received(pieces: &[(&'static str, Duration)], limit: usize) -> Result<Bytes, Error> {
        let pieces = stream::iter(pieces.to_vec()).then(|(piece, pause)| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(piece.as_bytes())))
        });
        let (head, body) = Request::new(StreamBody::new(pieces)).into_parts();
        whole(&head, body, limit, PATIENCE).await
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_become_one_body_however_long_it_takes_in_all() {
        let almost = PATIENCE / 2;
        let pieces = [("ab", almost), ("", almost), ("cd", almost), ("e", almost)];
        assert_eq!(received(&pieces, 5).await.unwrap(), "abcde");
        assert_eq!(received(&[("ab", almost)], 2).await.unwrap(), "ab");
        assert_eq!(received(&[], 2).await.unwrap(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_pauses_for_too_long_is_told_so() {
        let pieces = [("ab", Duration::ZERO), ("c", PATIENCE + Duration::from_millis(1))];
        assert_eq!(received(&pieces, 9).await, Err(Error::BodyTimeout { seconds: 30 }));
        let pieces = [("ab", Duration::ZERO), ("c", Duration::ZERO)];
        assert_eq!(received(&pieces, 2).await, Err(Error::BodyTooLarge { limit: 2 }));
    }
}

//! A request body that the gateway forwards part by part while it arrives.

use bytes::buf::Chain;
use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokenweir_protocol::atomic::{AtomicFlag, AtomicInstant};
use tokenweir_protocol::clock;
use tokenweir_protocol::http1::{self, RequestFraming};

/// The parts of a request body, as they arrive from the client.
pub struct RequestStream {
    parts: Pin<Box<dyn Body<Data = Bytes, Error = io::Error> + Send>>,
    /// How the request states the end of the body.
    pub framing: RequestFraming,
    /// Whether the end of the previous chunk is not yet written.
    is_in_chunk: bool,
    is_ended: bool,
    upload: Arc<UploadProgress>,
}

/// How much of a request body the client has sent, while the gateway forwards the body. Times in which the
/// backend waits for the client are not a fault of the backend.
#[derive(Debug, Default)]
pub struct UploadProgress {
    /// Whether the gateway waits for the next part of the body from the client.
    waits_for_client: AtomicFlag,
    /// Whether the whole body has come from the client.
    pub is_ended: AtomicFlag,
    /// Time of the last call of [`Self::record`]. `None`: there was no call.
    last_part_at: AtomicInstant,
}

impl UploadProgress {
    /// The time at which the last part of the body arrived. While the gateway waits for the client, the time is
    /// `now`.
    pub(crate) fn last_part_at(&self, now: Instant) -> Instant {
        if self.waits_for_client.get() {
            return now;
        }
        self.last_part_at.get().unwrap_or_else(clock::epoch)
    }

    pub(crate) fn record(&self, waits_for_client: bool, is_ended: bool) {
        self.last_part_at.set(Some(clock::now()));
        self.waits_for_client.set(waits_for_client);
        self.is_ended.set(is_ended);
    }
}

impl RequestStream {
    /// Creates a body whose parts are read from `parts` only when they can be written to the backend.
    pub fn new(
        parts: impl Body<Data = Bytes, Error = io::Error> + Send + 'static,
        framing: RequestFraming,
    ) -> Self {
        let parts = Box::pin(parts);
        Self {
            parts,
            framing,
            is_in_chunk: false,
            is_ended: false,
            upload: Arc::default(),
        }
    }

    /// The progress of the body. `None`: the body is the input of a WebSocket, which does not end before the
    /// response.
    pub fn upload(&self) -> Option<Arc<UploadProgress>> {
        (self.framing != RequestFraming::Upgrade).then(|| self.upload.clone())
    }

    /// The next part with its framing. `None`: the body has ended. A body with another length than stated is an
    /// error.
    pub(crate) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Chain<Bytes, Bytes>>>> {
        while !self.is_ended {
            let polled = self.parts.as_mut().poll_frame(cx);
            let is_ended = matches!(polled, Poll::Ready(None));
            self.upload.record(polled.is_pending(), is_ended);
            let Some(frame) = ready!(polled) else {
                self.is_ended = true;
                return Poll::Ready(self.end());
            };
            // Trailers apply to one connection only, so they are not forwarded.
            let data = frame?.into_data().unwrap_or_default();
            if !data.is_empty() {
                return Poll::Ready(self.frame(data).map(Some));
            }
        }
        Poll::Ready(Ok(None))
    }

    fn frame(&mut self, data: Bytes) -> io::Result<Chain<Bytes, Bytes>> {
        let mut framing = BytesMut::new();
        match &mut self.framing {
            RequestFraming::Length(remaining) => {
                let length = data.len() as u64;
                *remaining = remaining
                    .checked_sub(length)
                    .ok_or(ErrorKind::InvalidData)?;
            }
            RequestFraming::Chunked => {
                if std::mem::replace(&mut self.is_in_chunk, true) {
                    framing.extend_from_slice(http1::CHUNK_END);
                }
                http1::encode_chunk_size(data.len(), &mut framing);
            }
            RequestFraming::Upgrade => {}
        }
        Ok(framing.freeze().chain(data))
    }

    fn end(&mut self) -> io::Result<Option<Chain<Bytes, Bytes>>> {
        match self.framing {
            RequestFraming::Length(1..) => Err(ErrorKind::UnexpectedEof.into()),
            RequestFraming::Chunked => {
                let end = if self.is_in_chunk {
                    http1::CHUNK_END
                } else {
                    b""
                };
                let end = Bytes::from_static(end).chain(Bytes::from_static(http1::LAST_CHUNK));
                Ok(Some(end))
            }
            RequestFraming::Length(0) | RequestFraming::Upgrade => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use std::task::Waker;

    fn written(framing: RequestFraming, parts: &[&'static str]) -> io::Result<String> {
        let parts: Vec<_> = parts
            .iter()
            .map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes()))))
            .collect();
        let mut stream = RequestStream::new(StreamBody::new(stream::iter(parts)), framing);
        let mut text = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let Poll::Ready(part) = stream.poll_part(&mut cx) else {
                panic!("no part waits")
            };
            match part? {
                Some(mut part) => text.extend_from_slice(&part.copy_to_bytes(part.remaining())),
                None => return Ok(String::from_utf8(text).unwrap()),
            }
        }
    }

    #[test]
    fn bodies_are_framed_by_length_chunks_or_nothing() {
        let parts = ["ab", "", "cde"];
        assert_eq!(written(RequestFraming::Length(5), &parts).unwrap(), "abcde");
        assert_eq!(written(RequestFraming::Upgrade, &parts).unwrap(), "abcde");
        let chunked = "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n";
        assert_eq!(written(RequestFraming::Chunked, &parts).unwrap(), chunked);
        assert_eq!(written(RequestFraming::Chunked, &[]).unwrap(), "0\r\n\r\n");
    }

    #[test]
    fn bodies_without_their_stated_length_are_errors() {
        for length in [4, 6] {
            assert!(
                written(RequestFraming::Length(length), &["ab", "cde"]).is_err(),
                "{length}"
            );
        }
    }
}

//! The HTTP body of a streaming response.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};

use crate::generation::Generation;
use crate::wire::{EventWriter, NextEvent};

/// Allocation size of the event buffer, in bytes.
const EVENT_BUFFER_BYTES: usize = 4096;

/// The body of a streaming response. Each server-sent event is one frame and one HTTP chunk.
pub(super) struct EventStream {
    events: EventWriter,
    generation: Generation,
    buffer: BytesMut,
}

impl EventStream {
    pub(super) fn new(events: EventWriter, generation: Generation) -> Self {
        Self {
            events,
            generation,
            buffer: BytesMut::new(),
        }
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self {
            events,
            generation,
            buffer,
        } = &mut *self;
        if buffer.capacity() < EVENT_BUFFER_BYTES / 4 {
            buffer.reserve(EVENT_BUFFER_BYTES);
        }
        match events.next(generation.progress(context), buffer) {
            NextEvent::Event => Poll::Ready(Some(Ok(Frame::data(buffer.split().freeze())))),
            NextEvent::Wait => Poll::Pending,
            NextEvent::End => Poll::Ready(None),
        }
    }
}

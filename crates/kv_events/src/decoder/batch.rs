//! A batch: the events of one step of an engine.

use super::event::{self, KvEvent};
use super::msgpack::{DecodeError, Reader, Value};

/// The events of one step of an engine.
#[derive(Debug, Clone, Copy)]
pub struct EventBatch<'a> {
    events: Reader<'a>,
    count: usize,
}

/// Iterates over the events of a batch. The iteration ends after the first error.
#[derive(Debug, Clone)]
pub struct Events<'a> {
    reader: Reader<'a>,
    pending: usize,
}

impl<'a> EventBatch<'a> {
    /// Reads the start of a batch, up to its first event. The batch is `[timestamp, [event, …], data-parallel
    /// rank]`. Elements after the list of events are ignored.
    pub fn parse(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let Value::Array(2..) = reader.value()? else { return Err(DecodeError::WrongType) };
        reader.skip()?;
        let Value::Array(count) = reader.value()? else { return Err(DecodeError::WrongType) };
        Ok(Self { events: reader, count })
    }

    /// The events.
    pub fn events(&self) -> Events<'a> {
        Events { reader: self.events, pending: self.count }
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Result<KvEvent<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pending = self.pending.checked_sub(1)?;
        let event = event::read(&mut self.reader);
        if event.is_err() {
            self.pending = 0;
        }
        Some(event)
    }
}

//! A batch: the events of one step of an engine.

use super::event::{self, KvEvent};
use super::msgpack::{DecodeError, Reader, Value};

/// Iterates over the events of one step of an engine. The iteration ends after the first error.
#[derive(Debug, Clone)]
pub struct EventBatch<'a> {
    reader: Reader<'a>,
    pending: usize,
}

impl<'a> EventBatch<'a> {
    /// Reads the start of a batch, up to its first event. A batch is `[timestamp, [event, …], data-parallel
    /// rank]`. Elements after the list of events are ignored.
    pub fn parse(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let Value::Array(2..) = reader.value()? else {
            return Err(DecodeError::WrongType);
        };
        reader.skip()?;
        let Value::Array(pending) = reader.value()? else {
            return Err(DecodeError::WrongType);
        };
        Ok(Self { reader, pending })
    }
}

impl<'a> Iterator for EventBatch<'a> {
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

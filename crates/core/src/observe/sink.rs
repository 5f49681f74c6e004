//! The consumers of records.

use crate::record::{RequestRecord, SampleReason};

/// A consumer of records. Its methods must not block: they run on the path of the response bytes.
pub trait Sink: Send + Sync + 'static {
    /// Called at the first output of a stream. The record is not complete.
    fn first_output(&self, _record: &RequestRecord) {}

    /// Decides whether the trace of a finished request is exported, and why. Called once for each
    /// request, before [`Sink::finished`].
    fn judge(&self, _record: &RequestRecord) -> Option<SampleReason> {
        None
    }

    /// Called once for each finished request, with requests in the order in which they ended.
    fn finished(&self, records: &[&RequestRecord]);
}

/// Receives the records of exchanges and passes them to the sinks. Its methods must not block.
pub trait RecordReceiver: Send + Sync + 'static {
    /// Called at the first output of a stream. The record is not complete.
    fn first_output(&self, _record: &RequestRecord) {}

    /// Called once for each exchange, when it has ended. The receiver sets the sample reason.
    fn finished(&self, record: Box<RequestRecord>);
}

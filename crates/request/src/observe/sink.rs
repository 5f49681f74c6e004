//! The consumers of records.

use crate::record::{RequestRecord, SampleReason};
use std::fmt::Debug;

/// A consumer of records. Its methods must not block: they run on the path of the response bytes.
pub trait Sink: Send + Sync + 'static {
    /// Called when the first output of a stream arrives. The record is not complete then.
    fn first_output(&self, _record: &RequestRecord) {}

    /// Called when the id of the response has arrived, which may be long before the end of the
    /// response. The record is not complete then. Sinks that receive records in batches are not
    /// called.
    fn response_named(&self, _record: &RequestRecord, _id: &str) {}

    /// Returns why this sink exports the trace of a finished request. `None`: this sink does not
    /// export it. The sinks are asked in order until one of them has a reason. Called before
    /// [`Sink::finished`].
    fn sample_reason(&self, _record: &RequestRecord) -> Option<SampleReason> {
        None
    }

    /// Receives the records of finished requests in batches. Each record is passed once, and the
    /// records are in the order in which the requests ended.
    fn finished(&self, records: &[&RequestRecord]);
}

/// Receives the records of exchanges and passes them to the sinks. Its methods must not block.
pub trait RecordReceiver: Send + Sync + 'static {
    /// Called when the first output of a stream arrives. The record is not complete then.
    fn first_output(&self, _record: &RequestRecord) {}

    /// Called when the id of the response has arrived. The record is not complete then.
    fn response_named(&self, _record: &RequestRecord, _id: &str) {}

    /// Called once for each exchange, when the exchange has ended. The receiver sets
    /// [`RequestRecord::sample_reason`].
    fn finished(&self, record: Box<RequestRecord>);
}

/// How a request was admitted. [`Exchange::admit`](super::Exchange::admit) keeps it until the request ends.
#[derive(Debug)]
pub struct Admission {
    /// Why the request was admitted, from a closed set.
    pub reason: &'static str,
    /// `None`: nothing is counted for the request.
    pub permit: Option<Box<dyn AdmissionPermit>>,
}

/// The place of a request among those that something admits. Dropping it gives the place up.
pub trait AdmissionPermit: Debug + Send + Sync {
    /// Called once when the request has ended, before the permit is dropped. Must not block.
    fn finished(&mut self, record: &RequestRecord);
}

//! The consumers of records.

use crate::record::{RequestRecord, SampleReason};
use std::fmt::Debug;

/// A consumer of records. Its methods run on the path of the response bytes, so they must not block.
pub trait Sink: Send + Sync + 'static {
    /// Called at the first output of a stream. The record is not complete then.
    fn first_output(&self, _record: &RequestRecord) {}

    /// Called when the id of the response has arrived, which may be long before its end. The record is not
    /// complete then. Not called for sinks that receive records in batches.
    fn response_named(&self, _record: &RequestRecord, _id: &str) {}

    /// Returns why this sink exports the trace of a finished request. `None`: this sink does not export it. The
    /// first sink with a reason decides. Called before [`Sink::finished`].
    fn sample_reason(&self, _record: &RequestRecord) -> Option<SampleReason> {
        None
    }

    /// Receives the records of finished requests in batches. Each record is passed once, in the order in which
    /// the requests ended.
    fn finished(&self, records: &[&RequestRecord]);
}

/// Receives the records of exchanges and passes them to the sinks. Its methods must not block.
pub trait RecordReceiver: Send + Sync + 'static {
    /// Called at the first output of a stream. The record is not complete then.
    fn first_output(&self, _record: &RequestRecord) {}

    /// Called when the id of the response has arrived. The record is not complete then.
    fn response_named(&self, _record: &RequestRecord, _id: &str) {}

    /// Called once for each exchange, when the exchange has ended. The receiver sets
    /// [`RequestRecord::sample_reason`].
    fn finished(&self, record: Box<RequestRecord>);
}

/// How a request was admitted. [`Exchange::admit`](super::Exchange::admit) keeps this value until the request
/// ends.
#[derive(Debug)]
pub struct Admission {
    /// Why the request was admitted, from a closed set.
    pub reason: &'static str,
    /// The permit of the request. `None`: the request counts towards no limit.
    pub permit: Option<Box<dyn AdmissionPermit>>,
}

/// The permit of an admitted request. Dropping it ends the admission.
pub trait AdmissionPermit: Debug + Send + Sync {
    /// Called once when the request has ended, before the permit is dropped. Must not block.
    fn finished(&mut self, record: &RequestRecord);
}

//! The stage that removes usage that only the gateway requested. The observer reports the events of each chunk,
//! and then passes the chunk.

use super::usage_filter::{EventParts, UsageFilter};
use super::usage_splitter::UsageSplitter;
use crate::observe::inspection::EVENT_FIELDS;
use crate::record::{
    ObservedResponse, RequestOptions, UninspectedReason, UsageEventOutcome, UsageLayout,
};
use bytes::Bytes;
use tokenweir_protocol::openai::{Delta, ResponseReader};

/// Removes usage from one response. The default removes nothing.
#[derive(Debug, Default)]
pub(crate) struct UsageStage {
    /// The filter. `None`: nothing is removed from this response.
    filter: Option<Box<UsageFilter>>,
    /// Splits the usage from each event. `None`: continuous usage is not removed.
    splitter: Option<Box<UsageSplitter>>,
    /// Whether the request asked for the usage event but not for continuous usage. The stream then shows where
    /// the server writes usage.
    shows_layout: bool,
    /// Whether usage could reach the client: the gateway requested it, the response is not read as a stream,
    /// and no byte has arrived.
    may_leak: bool,
}

impl UsageStage {
    /// The stage for a response to a request with these options. `fingerprint`: the `system_fingerprint` member
    /// of an earlier stream of the server.
    pub(crate) fn new(
        options: &RequestOptions,
        fingerprint: Option<Bytes>,
        observed: &mut ObservedResponse,
    ) -> Self {
        let removes_event = options.usage_injected;
        let removes_counts = options.continuous_usage_injected;
        let is_injected = removes_event || removes_counts;
        if !observed.is_stream {
            return Self {
                may_leak: is_injected,
                ..Self::default()
            };
        }
        observed.has_continuous_usage = removes_counts;
        if removes_event {
            observed.usage_event = Some(UsageEventOutcome::Missing);
        }
        let filter = UsageFilter::new(removes_event, fingerprint);
        Self {
            filter: is_injected.then(|| Box::new(filter)),
            splitter: removes_counts.then(Box::default),
            shows_layout: (removes_event || options.usage_requested) && !removes_counts,
            may_leak: false,
        }
    }

    /// Whether forwarded chunks can be shorter than received ones.
    pub(crate) fn is_active(&self) -> bool {
        self.filter.is_some()
    }

    /// Passes the data of an event to `reader`. `frame`: the chunk that contains the data.
    pub(crate) fn read(&mut self, data: &[u8], frame: &[u8], reader: &mut ResponseReader) {
        match &mut self.splitter {
            Some(splitter) => read_without_usage(splitter, data, frame, reader),
            None => reader.data(data),
        }
    }

    /// The parts of an event that the filter needs.
    #[inline]
    pub(crate) fn on_event(
        &mut self,
        delta: &Delta,
        observed: &mut ObservedResponse,
    ) -> EventParts {
        if self.shows_layout && (delta.usage.is_some() || delta.has_null_usage) {
            self.on_usage_member(delta, observed);
        }
        let splitter = self.splitter.as_mut();
        EventParts {
            is_event: true,
            is_usage_event: delta.is_usage_event,
            has_usage: delta.usage.is_some() && splitter.is_some(),
            usage_at: splitter.and_then(|splitter| splitter.member.take()),
            has_finish: delta.finish.is_some(),
        }
    }

    /// Reports a block (lines up to a blank line). `end`: the offset in the current chunk at which the block
    /// ends.
    #[inline]
    pub(crate) fn on_block(
        &mut self,
        end: usize,
        event: EventParts,
        observed: &mut ObservedResponse,
    ) {
        if let Some(filter) = &mut self.filter
            && filter.on_block(end, event)
        {
            observed.usage_event = Some(UsageEventOutcome::Stripped);
        }
    }

    /// The bytes to forward, for a chunk whose events have been reported.
    pub(crate) fn forward(&mut self, frame: Bytes) -> Bytes {
        let Some(filter) = &mut self.filter else {
            return frame;
        };
        if let Some(splitter) = &mut self.splitter {
            // The offsets of this member refer to this chunk only.
            splitter.member = None;
        }
        filter.forward(frame)
    }

    /// The held bytes. Called when the body has ended.
    pub(crate) fn flush(&mut self) -> Bytes {
        match &mut self.filter {
            Some(filter) => filter.flush(),
            None => Bytes::new(),
        }
    }

    /// Records the findings of the stage. Called when the response has ended.
    pub(crate) fn report(&self, observed: &mut ObservedResponse) {
        let Some(filter) = &self.filter else { return };
        observed.fingerprint.clone_from(&filter.fingerprint);
        if filter.has_failed {
            observed.usage_event = Some(UsageEventOutcome::NotRemoved);
        }
    }

    /// Processes a chunk of a body that is not read as a stream.
    pub(crate) fn on_unread(&mut self, chunk: &[u8], observed: &mut ObservedResponse) {
        if std::mem::take(&mut self.may_leak) {
            look_for_events(chunk, observed);
        }
    }

    /// Records where the server writes usage without a request for continuous usage.
    #[cold]
    fn on_usage_member(&mut self, delta: &Delta, observed: &mut ObservedResponse) {
        let layout = match delta.usage {
            Some(_) if delta.is_usage_event => UsageLayout::AtEnd,
            Some(_) => UsageLayout::EveryEvent,
            None => UsageLayout::Nulls,
        };
        observed.usage_layout.get_or_insert(layout);
        if layout == UsageLayout::EveryEvent
            && let Some(filter) = &mut self.filter
            && filter.is_searching()
        {
            // The backend may send this usage without any request, so nothing is removed. When the gateway no
            // longer requests usage, clients get what the backend sends by itself.
            observed.usage_event = Some(UsageEventOutcome::NotRemoved);
            filter.stop();
        }
    }
}

/// Records that the client receives the usage that the gateway requested, if the body is encoded or begins like
/// an event stream. `start`: the first bytes of a body that is not read as a stream.
#[cold]
fn look_for_events(start: &[u8], observed: &mut ObservedResponse) {
    let is_encoded = observed.uninspected_reason == Some(UninspectedReason::ContentEncoded);
    if is_encoded || EVENT_FIELDS.iter().any(|field| start.starts_with(field)) {
        observed.usage_event = Some(UsageEventOutcome::NotRemoved);
    }
}

/// Parses the data of an event from which usage is removed. The usage is parsed separately from the other
/// data.
#[cold]
fn read_without_usage(
    splitter: &mut UsageSplitter,
    data: &[u8],
    frame: &[u8],
    reader: &mut ResponseReader,
) {
    splitter.member = None;
    if !reader.is_between_events() {
        return reader.data(data);
    }
    let Some(event) = splitter.split(data) else {
        return reader.data(data);
    };
    // The line feed that joins two `data` lines is not in the frame, so the subtraction must not overflow.
    let offset = data.as_ptr().addr().wrapping_sub(frame.as_ptr().addr());
    let member = event.member.start + offset..event.member.end + offset;
    reader.push_data_without_usage(event.other_data, event.usage);
    splitter.member = Some(member);
}

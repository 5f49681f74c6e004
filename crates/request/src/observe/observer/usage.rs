//! Usage that the gateway requested and the client did not: what the observer reads from it, and
//! what the usage filter removes.

use super::super::inspection::{EVENT_FIELDS, InspectionMode};
use super::super::usage_filters::{EventParts, UsageFilter};
use super::ResponseObserver;
use crate::record::{RequestOptions, UninspectedReason, UsageEventOutcome, UsageLayout};
use bytes::Bytes;
use std::ops::Range;
use tokenweir_protocol::openai::Delta;

impl ResponseObserver {
    /// Removes the usage that the gateway requested and the client did not. `fingerprint`: the
    /// `system_fingerprint` member that the usage filter found in an earlier stream of the server.
    pub fn remove_injected_usage(&mut self, options: &RequestOptions, fingerprint: Option<Bytes>) {
        let (event, counts) = (options.usage_injected, options.continuous_usage_injected);
        if self.mode != InspectionMode::Stream {
            self.may_leak_usage = event || counts;
            return;
        }
        self.shows_usage_layout = (event || options.usage_requested) && !counts;
        self.observed.has_continuous_usage = counts;
        if event || counts {
            self.usage_filter = Some(Box::new(UsageFilter::new(event, fingerprint)));
        }
        if event {
            self.observed.usage_event = Some(UsageEventOutcome::Missing);
        }
        if counts {
            self.usage_splitter = Some(Box::default());
        }
    }

    /// Whether [`ResponseObserver::forward`] can return other bytes than it receives, because usage
    /// is removed.
    pub fn is_filtering_usage(&self) -> bool {
        self.usage_filter.is_some()
    }

    /// Records that the client receives the usage that the gateway requested, if the body is encoded or
    /// begins like an event stream. `start`: the first bytes of a body that is not read as a stream.
    #[cold]
    pub(super) fn look_for_events(&mut self, start: &[u8]) {
        let is_encoded =
            self.observed.uninspected_reason == Some(UninspectedReason::ContentEncoded);
        if is_encoded || EVENT_FIELDS.iter().any(|field| start.starts_with(field)) {
            self.observed.usage_event = Some(UsageEventOutcome::NotRemoved);
        }
    }

    /// The parts of an event that matter to the usage filter.
    #[inline]
    pub(super) fn event_parts(&self, delta: &Delta) -> EventParts {
        EventParts {
            is_event: true,
            is_usage_event: delta.is_usage_event,
            has_usage: delta.usage.is_some() && self.usage_splitter.is_some(),
            usage_at: None,
            has_finish: delta.finish.is_some(),
        }
    }

    /// Reports a block (lines up to a blank line) to the usage filter. `end`: the offset in the current frame
    /// at which the block ends.
    #[inline]
    pub(super) fn on_block(&mut self, end: usize, event: EventParts) {
        if let Some(filter) = &mut self.usage_filter
            && filter.on_block(end, event)
        {
            self.observed.usage_event = Some(UsageEventOutcome::Stripped);
        }
    }

    /// Parses the data of an event from which usage is removed. The usage is parsed separately from
    /// the other data. Returns the byte range of the `usage` member in the frame, if it is known.
    /// `offset`: the offset of the data in the frame.
    #[cold]
    pub(super) fn read_without_usage(
        &mut self,
        data: &[u8],
        offset: usize,
    ) -> Option<Range<usize>> {
        let splitter = self.usage_splitter.as_deref_mut();
        let splitter = splitter.filter(|_| self.reader.is_between_events());
        let Some(event) = splitter.and_then(|splitter| splitter.split(data)) else {
            self.reader.data(data);
            return None;
        };
        self.reader.push_data_without_usage(event.other_data, event.usage);
        Some(event.member.start + offset..event.member.end + offset)
    }

    /// Records where the server writes usage if the request does not ask for continuous usage.
    #[cold]
    pub(super) fn on_usage_member(&mut self, delta: &Delta) {
        let layout = match delta.usage {
            Some(_) if delta.is_usage_event => UsageLayout::AtEnd,
            Some(_) => UsageLayout::EveryEvent,
            None => UsageLayout::Nulls,
        };
        self.observed.usage_layout.get_or_insert(layout);
        let filter = self.usage_filter.as_mut().filter(|filter| filter.is_searching());
        if let Some(filter) = filter
            && layout == UsageLayout::EveryEvent
        {
            // The backend may send this usage with or without a request, so nothing is removed. Once the
            // gateway no longer requests usage, clients get what the backend sends by itself.
            self.observed.usage_event = Some(UsageEventOutcome::NotRemoved);
            filter.stop();
        }
    }
}

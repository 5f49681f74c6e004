//! Counts of the requests of each model and of each tenant. Label values name them, so their number is
//! bounded.

use std::collections::BTreeMap;
use std::time::Duration;
use tokenweir_api::GroupSummary;
use tokenweir_request::observe::StreamInfo;
use tokenweir_request::record::{Outcome, RequestRecord};

/// The counts of each model and of each tenant.
#[derive(Debug, Default)]
pub(super) struct GroupCounts {
    models: Groups,
    tenants: Groups,
}

/// The counts by name.
#[derive(Debug, Default)]
struct Groups(BTreeMap<String, Group>);

#[derive(Debug, Clone, Default)]
struct Group {
    /// The counts. The name and the mean TTFT are not set.
    counts: GroupSummary,
    /// Number of streams with output, and the sum of their TTFTs.
    streams: u32,
    ttft: Duration,
}

// === impl GroupCounts ===

impl GroupCounts {
    /// Counts an ended request. `prompt_tokens`: its prompt tokens, or 0 if no backend got it.
    pub(super) fn record(&mut self, record: &RequestRecord, prompt_tokens: u64) {
        let is_client_error = matches!(record.status, Some(400..=499));
        let counts = GroupSummary {
            requests: 1,
            failed: u64::from(record.outcome.is_backend_failure()),
            client_errors: u64::from(is_client_error && record.outcome != Outcome::Rejected),
            refused: u64::from(record.outcome == Outcome::Rejected),
            client_disconnects: u64::from(record.outcome == Outcome::Cancelled),
            prompt_tokens,
            output_tokens: record.output_tokens().unwrap_or_default(),
            ..GroupSummary::default()
        };
        let group = Group {
            counts,
            streams: u32::from(record.ttft().is_some()),
            ttft: record.ttft().unwrap_or_default(),
        };
        self.models.of(record.model.as_str()).add(&group);
        if let Some(caller) = &record.caller {
            self.tenants.of(caller.tenant_label()).add(&group);
        }
    }

    /// Counts an open stream.
    pub(super) fn record_stream(&mut self, stream: &StreamInfo) {
        self.models.of(stream.model.as_str()).counts.open_streams += 1;
        if let Some(caller) = &stream.caller {
            self.tenants.of(caller.tenant_label()).counts.open_streams += 1;
        }
    }

    /// Adds the counts of another time window to these counts.
    pub(super) fn merge(&mut self, other: &Self) {
        for (name, group) in &other.models.0 {
            self.models.of(name).add(group);
        }
        for (name, group) in &other.tenants.0 {
            self.tenants.of(name).add(group);
        }
    }

    /// The counts of each model, by name.
    pub(super) fn models(&self) -> Vec<GroupSummary> {
        self.models.summaries()
    }

    /// The counts of each tenant, by name.
    pub(super) fn tenants(&self) -> Vec<GroupSummary> {
        self.tenants.summaries()
    }
}

impl Groups {
    fn of(&mut self, name: &str) -> &mut Group {
        self.0.entry(name.to_owned()).or_default()
    }

    fn summaries(&self) -> Vec<GroupSummary> {
        let summary = |(name, group): (&String, &Group)| GroupSummary {
            name: name.clone(),
            ttft_seconds: group
                .ttft
                .checked_div(group.streams)
                .map(|ttft| ttft.as_secs_f64()),
            ..group.counts.clone()
        };
        self.0.iter().map(summary).collect()
    }
}

impl Group {
    fn add(&mut self, other: &Self) {
        let sums = &mut self.counts;
        let counts = &other.counts;
        sums.requests += counts.requests;
        sums.failed += counts.failed;
        sums.client_errors += counts.client_errors;
        sums.refused += counts.refused;
        sums.client_disconnects += counts.client_disconnects;
        sums.prompt_tokens += counts.prompt_tokens;
        sums.output_tokens += counts.output_tokens;
        self.streams += other.streams;
        self.ttft += other.ttft;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokenweir_request::record::ClientIdentity;
    use tokenweir_request::record::fixtures::streamed;

    #[test]
    fn models_and_tenants_have_counts_and_a_ttft() {
        let mut counts = GroupCounts::default();
        let mut record = streamed();
        record.caller = Some(Arc::new(ClientIdentity {
            tenant: "search".into(),
            key: "batch".into(),
            is_tenant_label: true,
        }));
        counts.record(&record, 12);
        let mut both = GroupCounts::default();
        record.outcome = Outcome::Truncated;
        both.record(&record, 12);
        both.merge(&counts);
        let tenants = both.tenants();
        assert_eq!(
            (&*tenants[0].name, tenants[0].requests, tenants[0].failed),
            ("search", 2, 1)
        );
        assert_eq!((tenants[0].prompt_tokens, tenants.len()), (24, 1));
        let ttft = record.ttft().unwrap().as_secs_f64();
        assert!((both.models()[0].ttft_seconds.unwrap() - ttft).abs() < 1e-9);
    }
}

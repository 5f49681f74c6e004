//! The lines of the file. Each line is a `CloudEvent` in JSON, so that it can be pushed unchanged.

use super::usage_record::UsageRecord;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;
use tokenweir_gateway::telemetry::sanitize;

/// The beginning of every line.
pub(super) const LINE_START: &[u8] = br#"{"specversion":"1.0","id":""#;
/// Maximum length of a line, in bytes.
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;
/// The subject of events that belong to no tenant. Names of tenants never begin with `_`.
const NO_TENANT: &str = "_none";

/// The content of an event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum EventContent<'a> {
    /// The usage of one request.
    Usage(&'a UsageRecord),
    /// Records were lost, so the log has a gap.
    Gap(Gap),
    /// The gateway has stopped cleanly, so the file has the records of all its requests.
    Stop,
}

/// Records that are missing in the file.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Gap {
    pub(super) cause: &'static str,
    /// Number of lost records. `None`: unknown.
    pub(super) records: Option<u64>,
}

/// The identity of a line: its series, and its number in the series.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LineId {
    pub(super) series: String,
    pub(super) sequence: u64,
    pub(super) is_stop: bool,
}

const USAGE_TYPE: &str = "tokenweir.usage";
const GAP_TYPE: &str = "tokenweir.usage.gap";
const STOP_TYPE: &str = "tokenweir.usage.stop";

/// The JSON form of a line.
#[derive(Serialize)]
struct Event<'a, D> {
    specversion: &'static str,
    id: String,
    source: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    time: String,
    subject: &'a str,
    data: Numbered<D>,
}

#[derive(Serialize)]
struct Numbered<D> {
    sequence: u64,
    #[serde(flatten)]
    values: D,
}

#[derive(Serialize)]
struct NoValues {}

/// The members that identify a line, as read from the file.
#[derive(Deserialize)]
struct ReadEvent<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
}

impl LineId {
    /// Reads the identity of a complete line. `None`: the line does not belong to a usage log.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let event: ReadEvent<'_> = serde_json::from_slice(line).ok()?;
        let (series, sequence) = event.id.rsplit_once('-')?;
        let sequence = sequence.parse().ok()?;
        let is_known = event.kind.starts_with(USAGE_TYPE);
        is_known.then(|| Self {
            series: series.to_owned(),
            sequence,
            is_stop: event.kind == STOP_TYPE,
        })
    }

    /// The line with this identity, with its line ending. `now`: the time of an event without a request.
    pub(super) fn line(&self, source: &str, content: EventContent<'_>, now: SystemTime) -> Vec<u8> {
        match content {
            EventContent::Usage(record) => {
                let subject = record.tenant.as_deref().unwrap_or(NO_TENANT);
                self.write(source, USAGE_TYPE, record.ended, subject, record)
            }
            EventContent::Gap(gap) => self.write(source, GAP_TYPE, now, NO_TENANT, gap),
            EventContent::Stop => self.write(source, STOP_TYPE, now, NO_TENANT, NoValues {}),
        }
    }

    fn write(
        &self,
        source: &str,
        kind: &'static str,
        time: SystemTime,
        subject: &str,
        values: impl Serialize,
    ) -> Vec<u8> {
        let event = Event {
            specversion: "1.0",
            id: format!("{}-{}", self.series, self.sequence),
            source,
            kind,
            time: humantime::format_rfc3339_millis(time).to_string(),
            subject,
            data: Numbered {
                sequence: self.sequence,
                values,
            },
        };
        // Texts and numbers can always be written as JSON, so this does not fail.
        let mut line = sanitize::json(serde_json::to_string(&event).unwrap_or_default());
        line.push('\n');
        line.into_bytes()
    }
}

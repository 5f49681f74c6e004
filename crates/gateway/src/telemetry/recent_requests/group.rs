//! The counts of the requests that share one property.

use derive_more::AddAssign;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_api::{AnswerCounts, ClientSummary, GroupSummary, HarmKind};
use tokenweir_protocol::named_enum;
use tokenweir_request::observe::StreamInfo;
use tokenweir_request::record::{
    Answer, ClientIdentity, ModelLabel, Outcome, RequestRecord, ShortName, SlowCause,
};

/// The counts of the requests of one client, or with one other property.
#[derive(Debug, Clone, Copy, Default, AddAssign)]
pub(super) struct Group {
    pub(super) requests: u64,
    /// The results that the clients of these requests got.
    pub(super) answers: AnswerCounts,
    /// Number of requests whose client disconnected during output.
    pub(super) cut_off: u64,
    slow: u64,
    pub(super) failed: u64,
    /// Number of responses with a 4xx status that are no refusals.
    pub(super) client_errors: u64,
    /// Number of refusals for lack of capacity, and of refusals with 429 because of a limit.
    pub(super) refused: u64,
    limited: u64,
    /// Number of responses with another 4xx status.
    rejected: u64,
    pub(super) client_disconnects: u64,
    pub(super) prompt_tokens: u64,
    pub(super) output_tokens: u64,
    open_streams: u64,
    /// Number of streams with output, and the sum of their TTFTs.
    streams: u32,
    ttft: Duration,
}

/// A property that requests share, other than their client.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupKey {
    Model(Arc<str>),
    Tenant(Arc<str>),
    /// The served path.
    Route(&'static str),
    Kind(RequestKind),
    Program(ShortName),
    Body(SizeClass),
}

/// A class of lengths: two for each power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SizeClass(u32);

named_enum! {
    #[derive(PartialOrd, Ord)]
    pub(super) enum RequestKind {
        Media = "with images or other media",
        Tools = "with tools",
        Json = "that ask for JSON",
        LongPrompt = "with prompts of 8,000 tokens or more",
        Stream = "with a stream",
        Whole = "without a stream",
    }
}

const LONG_PROMPT_TOKENS: u64 = 8_000;

impl Group {
    /// The counts of one ended request.
    pub(super) fn of_record(record: &RequestRecord) -> Self {
        let outcome = record.outcome;
        let is_client_error = matches!(record.status, Some(400..=499));
        let is_limit = record.status == Some(429) && record.refusal.is_some();
        let is_slow = record
            .slow
            .is_some_and(|cause| cause != SlowCause::SlowClient);
        let mut answers = AnswerCounts::default();
        if let Some(answer) = record.answer {
            count_answer(&mut answers, answer);
        }
        Self {
            requests: 1,
            answers,
            cut_off: u64::from(is_cut_off(record)),
            slow: u64::from(is_slow),
            failed: u64::from(outcome.is_backend_failure()),
            client_errors: u64::from(is_client_error && outcome != Outcome::Rejected),
            refused: u64::from(outcome == Outcome::Rejected),
            limited: u64::from(is_limit && outcome != Outcome::Rejected),
            rejected: u64::from(outcome == Outcome::ClientError && record.status != Some(429)),
            client_disconnects: u64::from(outcome == Outcome::Cancelled),
            prompt_tokens: prompt_tokens(record),
            output_tokens: record.output_tokens().unwrap_or_default(),
            open_streams: 0,
            streams: u32::from(record.ttft().is_some()),
            ttft: record.ttft().unwrap_or_default(),
        }
    }

    /// The counts of one open stream.
    pub(super) fn of_stream(stream: &StreamInfo) -> Self {
        Self {
            open_streams: 1,
            prompt_tokens: stream.prompt_tokens,
            ..Self::default()
        }
    }

    pub(super) fn harmed(&self, kind: HarmKind) -> u64 {
        match kind {
            HarmKind::Failed => self.answers.failed,
            HarmKind::Empty => self.answers.empty,
            HarmKind::Damaged => self.answers.damaged,
            HarmKind::Truncated => self.answers.truncated,
            HarmKind::ClientTimeout => self.answers.client_timeout,
            HarmKind::CutOff => self.cut_off,
            HarmKind::Refused => self.answers.refused,
            HarmKind::Rejected => self.answers.rejected,
            HarmKind::Slow => self.slow,
            HarmKind::Late => self.answers.late,
        }
    }

    /// The work of a client: its tokens, plus its requests and open streams. If there are too many clients,
    /// those with the most work keep their counts.
    pub(super) fn work(&self) -> u64 {
        self.requests + self.prompt_tokens + self.output_tokens + self.open_streams
    }

    pub(super) fn client_summary(&self) -> ClientSummary {
        ClientSummary {
            requests: self.requests,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            refused: self.refused + self.limited,
            rejected: self.rejected,
            open_streams: self.open_streams,
            ..ClientSummary::default()
        }
    }

    /// The summary of a model or of a tenant.
    pub(super) fn group_summary(&self, name: &str) -> GroupSummary {
        let mean_ttft = self.ttft.checked_div(self.streams);
        GroupSummary {
            name: name.to_owned(),
            requests: self.requests,
            failed: self.failed,
            client_errors: self.client_errors,
            refused: self.refused,
            client_disconnects: self.client_disconnects,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            ttft_seconds: mean_ttft.map(|ttft| ttft.as_secs_f64()),
            open_streams: self.open_streams,
        }
    }
}

impl GroupKey {
    pub(super) fn model(model: &ModelLabel) -> Self {
        Self::Model(match model {
            ModelLabel::Known(name) => name.clone(),
            other => other.as_str().into(),
        })
    }

    pub(super) fn tenant(caller: &ClientIdentity) -> Self {
        Self::Tenant(if caller.is_tenant_label {
            caller.tenant.clone()
        } else {
            caller.tenant_label().into()
        })
    }

    /// Calls `visit` with each property of a request.
    pub(super) fn visit(record: &RequestRecord, mut visit: impl FnMut(Self)) {
        visit(Self::model(&record.model));
        if let Some(caller) = &record.caller {
            visit(Self::tenant(caller));
        }
        if let Some(route) = record.route {
            visit(Self::Route(route));
        }
        if let Some(program) = record.program {
            visit(Self::Program(program));
        }
        if let Some(class) = SizeClass::of(record.bytes_in) {
            visit(Self::Body(class));
        }
        let kinds = RequestKind::ALL.into_iter();
        kinds
            .filter(|kind| kind.has(record))
            .for_each(|kind| visit(Self::Kind(kind)));
    }

    /// Whether the property can be reported as the one that harmed requests have in common. The model of a
    /// request that is not read is unknown.
    pub(super) fn is_common(&self) -> bool {
        match self {
            Self::Model(name) => **name != *ModelLabel::Unknown.as_str(),
            Self::Body(_) => false,
            _ => true,
        }
    }

    pub(super) fn words(&self) -> String {
        match self {
            Self::Model(name) => format!("of model {name}"),
            Self::Tenant(name) => format!("of tenant {name}"),
            Self::Route(route) => format!("on {route}"),
            Self::Kind(kind) => kind.as_str().to_owned(),
            Self::Program(name) => format!("of client program {name}"),
            Self::Body(class) => format!("with bodies of {class} or more"),
        }
    }
}

impl SizeClass {
    /// The class of a length in bytes. `None`: the length is 0.
    fn of(bytes: u64) -> Option<Self> {
        let power = bytes.checked_ilog2()?;
        let is_upper = bytes >= lower_bound(2 * power + 1);
        Some(Self(2 * power + u32::from(is_upper)))
    }
}

/// Minimum length in a class, in bytes.
fn lower_bound(class: u32) -> u64 {
    let power = 1_u64 << (class / 2);
    if class % 2 == 1 {
        power + power / 2
    } else {
        power
    }
}

impl fmt::Display for SizeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = lower_bound(self.0);
        match bytes {
            0..1_024 => write!(f, "{bytes} bytes"),
            1_024..1_048_576 => write!(f, "{} KiB", bytes as f64 / 1_024.0),
            _ => write!(f, "{} MiB", bytes as f64 / 1_048_576.0),
        }
    }
}

impl RequestKind {
    fn has(self, record: &RequestRecord) -> bool {
        let options = &record.options;
        match self {
            Self::Media => options.has_media,
            Self::Tools => options.has_tools,
            Self::Json => options.parameters.output == Some("json"),
            Self::LongPrompt => prompt_tokens(record) >= LONG_PROMPT_TOKENS,
            Self::Stream => options.stream,
            Self::Whole => !options.stream && is_read(record),
        }
    }
}

/// Whether the options of the request are known. They are not if the gateway refused the request before it read
/// the body.
fn is_read(record: &RequestRecord) -> bool {
    record.model != ModelLabel::Unknown || !record.attempts.is_empty()
}

/// Whether the client disconnected during output.
fn is_cut_off(record: &RequestRecord) -> bool {
    record.answer == Some(Answer::Cancelled) && record.observed.output_events > 0
}

/// The prompt tokens of an ended request. 0 for a request that the gateway answered itself, because no engine
/// computed its prompt.
fn prompt_tokens(record: &RequestRecord) -> u64 {
    if record.attempts.is_empty() {
        0
    } else if let Some(input) = record.engine_token_counts().input {
        input
    } else {
        let decision = record.decision.as_ref();
        decision.map_or(0, |decision| {
            decision.selected_candidate().prompt.round() as u64
        })
    }
}

fn count_answer(counts: &mut AnswerCounts, answer: Answer) {
    let class = match answer {
        Answer::Good => &mut counts.good,
        Answer::Failed => &mut counts.failed,
        Answer::Empty => &mut counts.empty,
        Answer::Damaged => &mut counts.damaged,
        Answer::Truncated => &mut counts.truncated,
        Answer::ClientTimeout => &mut counts.client_timeout,
        Answer::Refused => &mut counts.refused,
        Answer::Rejected => &mut counts.rejected,
        Answer::Late => &mut counts.late,
        Answer::Cancelled => &mut counts.cancelled,
    };
    *class += 1;
    counts.total += u64::from(answer != Answer::Cancelled);
}

//! The decision log: the last routing decisions, with the predictions for the candidates and the actual results
//! of the requests.
//!
//! `/decisions` of the admin listener returns the log. The log contains neither text of prompts or responses
//! nor session keys.

use super::recent_requests::RequestFacts;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{
    Attempt, ChunkTimings, PhaseDuration, PredictedCandidate, RecordNotes, RequestPhases,
    RequestRecord, RoutingDecision, SlowCause,
};
use tokenweir_routing::PolicyKind;
use tokenweir_routing::kv_aware;

/// The sink that keeps the last decisions. A decision is added when its request ends.
///
/// One entry takes about 0.8 KiB of memory, plus 0.2 KiB per candidate, plus 0.25 KiB for the chunk times of a
/// slow or broken stream. An entry has at most [`RoutingDecision::MAX_RECORDED_CANDIDATES`] candidates. The
/// lock is held only while pointers are moved or copied.
#[derive(Debug)]
pub struct DecisionLog {
    /// Maximum number of entries. 0: the log keeps no decisions.
    pub capacity: usize,
    /// Functions of options that add fields to an entry.
    parts: Vec<DecisionPart>,
    /// The entries, oldest first.
    entries: Mutex<VecDeque<Arc<DecisionLogEntry>>>,
}

/// One decision and the actual result of its request.
#[derive(Debug)]
pub struct DecisionLogEntry {
    request: RequestFacts,
    route: Option<&'static str>,
    decision: Arc<RoutingDecision>,
    /// Why the admission gate admitted the request. `None`: no gate is set.
    admission: Option<&'static str>,
    attempts: Box<[Attempt]>,
    /// Time from sending the request to the backend to the first output, in seconds. `None`: the
    /// response is not a stream, or has no output.
    upstream_ttft: Option<f64>,
    phases: RequestPhases,
    /// Time in the admission queue during which no backend could serve the model. `None`: no such time.
    backend_wait: Option<Duration>,
    /// Number of prompt tokens that the engine reported. `None`: not reported.
    input_tokens: Option<u64>,
    /// Number of cached prompt tokens that the engine reported. `None`: not reported.
    cached_tokens: Option<u64>,
    /// Requests that the gateway derived from this one before an attempt, such as prefill legs.
    pub attempts_apart: Box<[Attempt]>,
    /// Whether another backend than the one of the last attempt has computed the prompt.
    pub has_remote_prompt: bool,
    /// The notes that options wrote into the record.
    pub notes: RecordNotes,
    /// The times of the chunks. `None`: the stream was neither slow nor broken.
    chunk_timings: Option<Box<ChunkTimings>>,
}

/// Adds the fields of an option to the JSON of an entry.
pub type DecisionPart = fn(&DecisionLogEntry, &mut Value);

/// Minimum length of a request ID prefix with which [`DecisionLog::get`] finds a request. The live page and
/// `tokenweir top` show a prefix of this length.
const MIN_ID_PREFIX: usize = 8;

impl DecisionLog {
    /// Creates a log that keeps the last `capacity` decisions. With 0 the log stays empty. `parts`: functions
    /// of options that add fields to an entry.
    pub fn new(capacity: usize, parts: Vec<DecisionPart>) -> Self {
        Self {
            capacity,
            parts,
            entries: Mutex::default(),
        }
    }

    /// All fields of an entry as JSON, including the fields of options.
    pub fn detail(&self, entry: &DecisionLogEntry) -> Value {
        let mut detail = entry.detail();
        for add_part in &self.parts {
            add_part(entry, &mut detail);
        }
        detail
    }

    /// Returns the newest decision for the request with this ID. If none exists and `request_id` has at least 8
    /// characters, returns the newest decision for a request whose ID begins with `request_id`.
    pub fn get(&self, request_id: &str) -> Option<Arc<DecisionLogEntry>> {
        let entries = self.newest(self.capacity);
        let begins = |id: &str| request_id.len() >= MIN_ID_PREFIX && id.starts_with(request_id);
        let exact = entries
            .iter()
            .find(|entry| &*entry.request.request_id == request_id);
        exact
            .or_else(|| {
                entries
                    .iter()
                    .find(|entry| begins(&entry.request.request_id))
            })
            .cloned()
    }

    /// Returns up to `count` decisions, newest first.
    pub fn newest(&self, count: usize) -> Vec<Arc<DecisionLogEntry>> {
        lock(&self.entries)
            .iter()
            .rev()
            .take(count)
            .cloned()
            .collect()
    }

    fn push(&self, entry: Arc<DecisionLogEntry>) {
        let mut entries = lock(&self.entries);
        let oldest = push_bounded(&mut entries, entry, self.capacity);
        drop(entries);
        drop(oldest);
    }
}

impl Sink for DecisionLog {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            if self.capacity > 0
                && let Some(entry) = DecisionLogEntry::from_record(record)
            {
                self.push(Arc::new(entry));
            }
        }
    }
}

impl DecisionLogEntry {
    /// Builds the entry of a finished request. `None`: no backend was chosen for the request.
    fn from_record(record: &RequestRecord) -> Option<Self> {
        let counts = record.engine_token_counts();
        Some(Self {
            request: RequestFacts::from_record(record),
            route: record.route,
            decision: record.decision.clone()?,
            admission: record.admission,
            attempts: record.attempts.as_slice().into(),
            attempts_apart: record.attempts_apart.as_slice().into(),
            has_remote_prompt: record.has_remote_prompt,
            notes: record.notes.clone(),
            upstream_ttft: record.upstream_ttft().map(|ttft| ttft.as_secs_f64()),
            phases: *record.phases(),
            backend_wait: record.backend_wait(),
            input_tokens: counts.input,
            cached_tokens: counts.cached,
            chunk_timings: record.examined_chunk_timings().cloned().map(Box::new),
        })
    }

    /// Returns the main fields of the entry as JSON: one element of the list that `/decisions`
    /// returns.
    pub fn summary(&self) -> Value {
        let request = &self.request;
        let chosen = self.decision.selected();
        json!({
            "request_id": request.request_id,
            "time": humantime::format_rfc3339_millis(request.started).to_string(),
            "model": request.model.name(),
            "backend": chosen.backend.as_str(),
            "reason": self.decision.reason(),
            "outcome": request.outcome,
            "slow_cause": request.slow,
            "predicted_ttft_seconds": round_significant(chosen.ttft),
            "actual_ttft_seconds": self.upstream_ttft.map(round_significant),
        })
    }

    /// All fields of the core as JSON. Candidates are sorted by cost, lowest first. Times to first
    /// token are in seconds and start when the request is sent to the backend.
    fn detail(&self) -> Value {
        let request = &self.request;
        let decision = &self.decision;
        let chosen = decision.selected();
        // Only the kv_aware policy compares costs.
        let has_cost = decision.policy() == PolicyKind::KvAware.as_str();
        let ranked = decision.ranked_candidates();
        let least_cost = if has_cost {
            ranked.first().map(|least| least.cost)
        } else {
            None
        };
        let candidate = |candidate: PredictedCandidate<'_>| {
            candidate_to_json(&candidate, candidate.is_same(&chosen), has_cost)
        };
        let chunks = self.chunk_timings.as_deref();
        let mut detail = json!({
            "request_id": request.request_id,
            "time": humantime::format_rfc3339_millis(request.started).to_string(),
            "model": request.model.name(),
            "route": self.route,
            "policy": decision.policy(),
            "reason": decision.reason(),
            "backend": chosen.backend.as_str(),
            "rank": chosen.candidate.part,
            "tenant": request.caller.as_ref().map(|caller| &*caller.tenant),
            "client": request.client.to_string(),
            "trace_id": request.trace_id.map(|id| format!("{id:032x}")),
            "attempts": list(&self.attempts, attempt_to_json),
            "predicted": predicted_to_json(&chosen),
            "actual": self.actual(),
            "phases": list(self.phases.iter(), phase_to_json),
            "tie_cost": least_cost.map(|least| round_significant(kv_aware::tie_limit(least))),
            "candidates": list(ranked, candidate),
            "omitted_candidates": decision.omitted_candidates,
            "excluded": list(decision.excluded_backends(), |(backend, reason)| {
                json!({ "backend": backend.as_str(), "reason": reason })
            }),
            "chunk_timings": chunks.map(|timings| chunks_to_json(timings, self.ended_ms())),
        });
        if let Some(admission) = self.admission {
            detail["admission"] = admission.into();
        }
        detail
    }

    /// The result of the request as JSON.
    fn actual(&self) -> Value {
        let request = &self.request;
        json!({
            "ttft_seconds": self.upstream_ttft.map(round_significant),
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "outcome": request.outcome,
            "slow_cause": request.slow,
            "slow_meaning": request.slow.map(SlowCause::meaning),
            "client_ttft_seconds": rounded_seconds(request.ttft),
            "first_answer_seconds": rounded_seconds(request.first_answer),
            "duration_seconds": self.ended_ms() as f64 / 1e3,
            "backend_wait_seconds": rounded_seconds(self.backend_wait),
        })
    }

    fn ended_ms(&self) -> u64 {
        self.request.duration.as_millis() as u64
    }
}

/// Converts values to a JSON list.
fn list<T>(values: impl IntoIterator<Item = T>, to_json: impl Fn(T) -> Value) -> Value {
    values.into_iter().map(to_json).collect()
}

fn predicted_to_json(chosen: &PredictedCandidate<'_>) -> Value {
    json!({
        "ttft_seconds": round_significant(chosen.ttft),
        "input_tokens": chosen.candidate.prompt.round(),
        "cached_tokens": chosen.candidate.cached.round(),
        "cached_source": chosen.candidate.cached_source,
    })
}

/// Backend, result and times of one attempt, for `/decisions`.
pub fn attempt_to_json(attempt: &Attempt) -> Value {
    json!({
        "backend": attempt.backend.as_str(),
        "status": attempt.status,
        "failure": attempt.failure,
        "seconds": rounded_seconds(attempt.took()),
    })
}

fn phase_to_json(phase: PhaseDuration) -> Value {
    let seconds = rounded_seconds(Some(phase.took));
    json!({ "phase": phase.phase, "seconds": seconds, "is_estimated": phase.is_estimated })
}

fn rounded_seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| round_significant(time.as_secs_f64()))
}

/// Returns the times of the chunks of a slow or broken stream as JSON, in milliseconds from the
/// request head.
fn chunks_to_json(timings: &ChunkTimings, ended_ms: u64) -> Value {
    json!({
        "chunks": timings.chunks(),
        "stride": timings.stride(),
        "samples_ms": timings.samples_ms(),
        "longest_gaps": list(timings.longest_gaps(), |gap| {
            json!({ "after_chunks": gap.after_chunks, "ended_ms": gap.ended_ms, "gap_ms": gap.gap_ms })
        }),
        "ended_ms": ended_ms,
    })
}

fn candidate_to_json(candidate: &PredictedCandidate<'_>, is_chosen: bool, has_cost: bool) -> Value {
    let mut fields = json!({
        "backend": candidate.backend.as_str(),
        "chosen": is_chosen,
        "predicted_ttft_seconds": round_significant(candidate.ttft),
    });
    if has_cost {
        fields["cost"] = json!(round_significant(candidate.cost));
        fields["cost_terms"] =
            serde_json::to_value(candidate.terms).map_or(Value::Null, round_numbers);
    }
    let estimates = serde_json::to_value(candidate.candidate).map_or(Value::Null, round_numbers);
    if let (Value::Object(fields), Value::Object(estimates)) = (&mut fields, estimates) {
        fields.extend(estimates);
    }
    fields
}

/// Rounds a number to six significant digits.
pub fn round_significant(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

/// Rounds the floating-point values of a JSON number or object to six significant digits.
fn round_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!(number.as_f64().map(round_significant)),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, round_numbers(value)))
            .collect(),
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderValue};
    use tokenweir_protocol::headers::{RequestId, X_REQUEST_ID};
    use tokenweir_request::record::Outcome;
    use tokenweir_request::record::fixtures::streamed;

    #[test]
    fn only_broken_and_slow_streams_have_chunk_times() {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        let gap = Duration::from_millis(900);
        for (chunk, passed) in [200, 210, 1_110].into_iter().enumerate() {
            let gap = (chunk == 2).then_some(gap);
            let now = accepted + Duration::from_millis(passed);
            record.observed.chunk_timings.record(accepted, now, gap);
        }
        let detail =
            |record: &RequestRecord| DecisionLogEntry::from_record(record).unwrap().detail();
        record.slow = None;
        assert_eq!(detail(&record)["chunk_timings"], Value::Null);
        record.outcome = Outcome::Truncated;
        let ended_ms = record.duration().as_millis() as u64;
        let expected = json!({
            "chunks": 3, "stride": 1, "samples_ms": [200, 210, 1_110], "ended_ms": ended_ms,
            "longest_gaps": [{ "after_chunks": 2, "ended_ms": 1_110, "gap_ms": 900 }],
        });
        assert_eq!(detail(&record)["chunk_timings"], expected);
    }

    #[test]
    fn the_latest_of_equal_ids_is_found() {
        let log = DecisionLog::new(3, Vec::new());
        let mut record = streamed();
        for index in 0..5_u16 {
            Arc::make_mut(record.decision.as_mut().unwrap()).omitted_candidates = index.into();
            log.finished(&[&record]);
        }
        let omitted = |entry: &Arc<DecisionLogEntry>| entry.decision.omitted_candidates;
        let newest: Vec<usize> = log.newest(50).iter().map(omitted).collect();
        assert_eq!(newest, [4, 3, 2]);
        assert_eq!(log.get("r-1").as_ref().map(omitted), Some(4));
        assert!(log.get("r-2").is_none() && log.get("").is_none());
    }

    #[test]
    fn eight_characters_of_an_id_find_requests() {
        let log = DecisionLog::new(3, Vec::new());
        let mut record = streamed();
        for id in ["f53ebd45226e", "f53ebd45"] {
            let id = HeaderValue::from_static(id);
            let headers = HeaderMap::from_iter([(X_REQUEST_ID, id)]);
            record.request_id = RequestId::from_headers(&headers, 1);
            log.finished(&[&record]);
        }
        let found = |id: &str| {
            log.get(id)
                .map(|entry| entry.request.request_id.to_string())
        };
        assert_eq!(
            found("f53ebd45").as_deref(),
            Some("f53ebd45"),
            "an equal ID comes first"
        );
        assert_eq!(found("f53ebd452").as_deref(), Some("f53ebd45226e"));
        assert_eq!(found("f53ebd4"), None);
    }

    #[test]
    fn without_capacity_or_decision_nothing_is_stored() {
        let empty_log = DecisionLog::new(0, Vec::new());
        empty_log.finished(&[&streamed()]);
        assert!(empty_log.newest(50).is_empty());
        let log = DecisionLog::new(5, Vec::new());
        log.finished(&[&RequestRecord {
            decision: None,
            ..streamed()
        }]);
        assert!(log.newest(50).is_empty());
    }

    #[test]
    fn a_detail_has_candidates_and_outcome() {
        let log = DecisionLog::new(1, Vec::new());
        log.finished(&[&streamed()]);
        let detail = log.get("r-1").unwrap().detail();
        let expected = json!({
            "ttft_seconds": 0.08, "input_tokens": 12.0, "cached_tokens": 6.0,
            "cached_source": "approximate",
        });
        assert_eq!(detail["predicted"], expected);
        let expected = json!({
            "ttft_seconds": 0.09, "input_tokens": 12, "cached_tokens": 8, "outcome": "ok",
            "slow_cause": null, "slow_meaning": null, "client_ttft_seconds": 0.1, "first_answer_seconds": null,
            "duration_seconds": 0.41, "backend_wait_seconds": null,
        });
        assert_eq!(detail["actual"], expected);
        let candidates = detail["candidates"].as_array().unwrap();
        let chosen: Vec<_> = candidates
            .iter()
            .map(|fields| (&fields["backend"], &fields["chosen"]))
            .collect();
        assert_eq!(
            chosen,
            [
                (&json!("vllm-0"), &json!(true)),
                (&json!("vllm-1"), &json!(false))
            ]
        );
        assert_eq!(candidates[0]["backlog"], 400.0);
        assert!(candidates[0].get("key").is_none());
    }
}

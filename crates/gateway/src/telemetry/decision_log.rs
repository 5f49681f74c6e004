//! The decision log: the last routing decisions, with the predictions for the candidates and the
//! actual results of the requests.
//!
//! `/decisions` of the admin listener returns the log. The log contains no text of prompts or
//! responses and no session key.

use super::recent_requests::RequestFacts;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_engine::prefill_leg::PrefillSkip;
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::continuation::ContinuationRefusal;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{
    Attempt, ChunkTimings, Continuation, Continuations, PhaseDuration, PredictedCandidate,
    PrefillLegs, RequestPhases, RequestRecord, RoutingDecision, SlowCause,
};
use tokenweir_routing::PolicyKind;
use tokenweir_routing::kv_aware;

/// The sink that retains the last decisions. A decision is added when its request ends.
///
/// One entry takes about 0.8 KiB of memory, plus 0.2 KiB per candidate, plus 0.25 KiB for the times of
/// the chunks of a slow or broken stream. An entry has at most
/// [`RoutingDecision::MAX_RECORDED_CANDIDATES`] candidates. The lock is held only while pointers are
/// moved or copied.
#[derive(Debug)]
pub struct DecisionLog {
    /// Largest number of entries. 0: no decisions are retained.
    pub capacity: usize,
    /// The entries, oldest first.
    entries: Mutex<VecDeque<Arc<DecisionLogEntry>>>,
}

/// One decision and the actual result of its request.
#[derive(Debug)]
pub struct DecisionLogEntry {
    request: RequestFacts,
    route: Option<&'static str>,
    decision: Arc<RoutingDecision>,
    /// Why the gate of admission let the request in. `None`: there is no gate.
    admission: Option<&'static str>,
    attempts: Box<[Attempt]>,
    /// Time from sending the request to the backend to the first output, in seconds. `None`: the
    /// response is not a stream, or has no output.
    upstream_ttft: Option<f64>,
    phases: RequestPhases,
    /// Time in the admission queue in which no backend could serve the model. `None`: no such time.
    backend_wait: Option<Duration>,
    /// Number of prompt tokens that the engine reported. `None`: not reported.
    input_tokens: Option<u64>,
    /// Number of cached prompt tokens that the engine reported. `None`: not reported.
    cached_tokens: Option<u64>,
    /// The result of a request with an `Idempotency-Key`: see
    /// [`ResumeOutcome`](tokenweir_request::record::ResumeOutcome).
    resume: Option<&'static str>,
    continuations: Continuations,
    prefill_legs: Option<Box<PrefillLegs>>,
    /// The times of the chunks. `None`: the stream was neither slow nor broken.
    chunk_timings: Option<Box<ChunkTimings>>,
}

/// Minimum length of a prefix of a request ID with which [`DecisionLog::get`] finds a request. The live page
/// and `tokenweir top` show a prefix of this length.
const MIN_ID_PREFIX: usize = 8;

// === impl DecisionLog ===

impl DecisionLog {
    /// Creates a log that retains the last `capacity` decisions. With 0 the log stays empty.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, entries: Mutex::default() }
    }

    /// Returns the newest decision for the request with this ID. If there is none and `request_id` has at
    /// least 8 characters, returns the newest decision for a request whose ID begins with `request_id`.
    pub fn get(&self, request_id: &str) -> Option<Arc<DecisionLogEntry>> {
        let entries = self.newest(self.capacity);
        let begins = |id: &str| request_id.len() >= MIN_ID_PREFIX && id.starts_with(request_id);
        let exact = entries.iter().find(|entry| &*entry.request.request_id == request_id);
        exact.or_else(|| entries.iter().find(|entry| begins(&entry.request.request_id))).cloned()
    }

    /// Returns up to `count` decisions, newest first.
    pub fn newest(&self, count: usize) -> Vec<Arc<DecisionLogEntry>> {
        lock(&self.entries).iter().rev().take(count).cloned().collect()
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

// === impl DecisionLogEntry ===

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
            continuations: record.continuations.clone(),
            prefill_legs: record.prefill_legs.clone(),
            upstream_ttft: record.upstream_ttft().map(|ttft| ttft.as_secs_f64()),
            phases: RequestPhases::from_record(record),
            backend_wait: record.backend_wait(),
            input_tokens: counts.input,
            cached_tokens: counts.cached,
            resume: record.resume_outcome(),
            chunk_timings: record.examined_chunk_timings().cloned().map(Box::new),
        })
    }

    /// Returns the main fields of the entry as JSON: one element of the list that `/decisions`
    /// returns.
    pub fn summary(&self) -> Value {
        let (request, chosen) = (&self.request, self.decision.selected());
        json!({
            "request_id": request.request_id,
            "time": humantime::format_rfc3339_millis(request.started).to_string(),
            "model": request.model.name(),
            "backend": chosen.backend.as_str(),
            "reason": self.decision.reason(),
            "outcome": request.outcome.as_str(),
            "slow_cause": request.slow.map(SlowCause::as_str),
            "predicted_ttft_seconds": round_significant(chosen.ttft),
            "actual_ttft_seconds": self.upstream_ttft.map(round_significant),
        })
    }

    /// All fields of the entry as JSON. Candidates are sorted by cost, lowest first. Times to first
    /// token are in seconds and start when the request is sent to the backend.
    pub fn detail(&self) -> Value {
        let (request, decision) = (&self.request, &self.decision);
        let ended_ms = request.duration.as_millis() as u64;
        let chosen = decision.selected();
        // Only the kv_aware policy compares costs.
        let has_cost = decision.policy() == PolicyKind::KvAware.as_str();
        let ranked = decision.ranked_candidates();
        let least_cost = ranked.first().filter(|_| has_cost).map(|candidate| candidate.cost);
        let candidates = ranked
            .into_iter()
            .map(|candidate| candidate_to_json(&candidate, candidate.is_same(&chosen), has_cost));
        let excluded = decision
            .excluded_backends()
            .map(|(backend, reason)| json!({ "backend": backend.as_str(), "reason": reason }));
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
            "attempts": self.attempts.iter().map(attempt_to_json).collect::<Vec<_>>(),
            "prefill_legs": self.prefill_legs.as_deref().map(prefill_legs_to_json),
            "continuations": self.continuations.begun.iter().map(continuation_to_json).collect::<Vec<_>>(),
            "continuation_refused": self.continuations.refusal.map(ContinuationRefusal::as_str),
            "predicted": {
                "ttft_seconds": round_significant(chosen.ttft),
                "input_tokens": chosen.candidate.prompt.round(),
                "cached_tokens": chosen.candidate.cached.round(),
                "cached_source": chosen.candidate.cached_source.as_str(),
            },
            "actual": {
                "ttft_seconds": self.upstream_ttft.map(round_significant),
                "input_tokens": self.input_tokens,
                "cached_tokens": self.cached_tokens,
                "outcome": request.outcome.as_str(),
                "resume": self.resume,
                "slow_cause": request.slow.map(SlowCause::as_str),
                "slow_meaning": request.slow.map(SlowCause::meaning),
                "client_ttft_seconds": rounded_seconds(request.ttft),
                "first_answer_seconds": rounded_seconds(request.first_answer),
                "duration_seconds": ended_ms as f64 / 1e3,
                "backend_wait_seconds": rounded_seconds(self.backend_wait),
            },
            "phases": phases_to_json(&self.phases),
            "tie_cost": least_cost.map(|least| round_significant(kv_aware::tie_limit(least))),
            "candidates": candidates.collect::<Vec<_>>(),
            "omitted_candidates": decision.omitted_candidates,
            "excluded": excluded.collect::<Vec<_>>(),
            "chunk_timings": self.chunk_timings.as_deref().map(|it| chunks_to_json(it, ended_ms)),
        });
        if let Some(admission) = self.admission {
            detail["admission"] = admission.into();
        }
        detail
    }
}

fn attempt_to_json(attempt: &Attempt) -> Value {
    json!({
        "backend": attempt.backend.as_str(),
        "status": attempt.status,
        "failure": attempt.failure,
        "seconds": rounded_seconds(attempt.took()),
    })
}

/// Returns the durations of the known phases of a request as JSON, in order of time.
fn phases_to_json(phases: &RequestPhases) -> Value {
    let phase = |phase: PhaseDuration| {
        let seconds = rounded_seconds(Some(phase.took));
        json!({ "phase": phase.phase.as_str(), "seconds": seconds, "is_estimated": phase.is_estimated })
    };
    phases.iter().map(phase).collect()
}

fn rounded_seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| round_significant(time.as_secs_f64()))
}

/// Returns the times of the chunks of a slow or broken stream as JSON, in milliseconds from the
/// request head.
fn chunks_to_json(timings: &ChunkTimings, ended_ms: u64) -> Value {
    let gaps = timings.longest_gaps().map(|gap| {
        json!({ "after_chunks": gap.after_chunks, "ended_ms": gap.ended_ms, "gap_ms": gap.gap_ms })
    });
    json!({
        "chunks": timings.chunks(),
        "stride": timings.stride(),
        "samples_ms": timings.samples_ms(),
        "longest_gaps": gaps.collect::<Vec<_>>(),
        "ended_ms": ended_ms,
    })
}

fn prefill_legs_to_json(legs: &PrefillLegs) -> Value {
    let predicted = legs.predicted;
    json!({
        "sent": legs.sent.iter().map(attempt_to_json).collect::<Vec<_>>(),
        "used": legs.is_used,
        "skipped": legs.skipped.map(PrefillSkip::as_str),
        "predicted_ttft_seconds": predicted.map(|ttft| round_significant(ttft.with_leg)),
        "predicted_ttft_seconds_without": predicted.map(|ttft| round_significant(ttft.alone)),
    })
}

fn continuation_to_json(continuation: &Continuation) -> Value {
    json!({
        "cause": continuation.cause.as_str(),
        "tokens": continuation.tokens,
        "gap_seconds": continuation.gap().map(round_significant),
    })
}

fn candidate_to_json(candidate: &PredictedCandidate<'_>, is_chosen: bool, has_cost: bool) -> Value {
    let mut fields = Map::new();
    fields.insert("backend".into(), candidate.backend.as_str().into());
    fields.insert("chosen".into(), is_chosen.into());
    fields.insert("predicted_ttft_seconds".into(), json!(round_significant(candidate.ttft)));
    if has_cost {
        fields.insert("cost".into(), json!(round_significant(candidate.cost)));
        let terms = serde_json::to_value(candidate.terms).map_or(Value::Null, round_numbers);
        fields.insert("cost_terms".into(), terms);
    }
    if let Ok(Value::Object(estimates)) = serde_json::to_value(candidate.candidate) {
        fields.extend(estimates.into_iter().map(|(name, value)| (name, round_numbers(value))));
    }
    Value::Object(fields)
}

/// Rounds a number to six significant digits.
fn round_significant(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

/// Rounds the floating-point numbers of a number or an object to six significant digits.
fn round_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!(number.as_f64().map(round_significant)),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, round_numbers(value))).collect()
        }
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
    fn the_decision_log_has_the_chunk_times_of_broken_and_slow_streams_only() {
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
    fn the_decision_log_retains_the_newest_decisions_and_finds_the_latest_of_equal_request_ids() {
        let log = DecisionLog::new(3);
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
    fn the_decision_log_finds_a_request_by_the_first_8_characters_of_its_id_and_not_by_fewer() {
        let log = DecisionLog::new(3);
        let mut record = streamed();
        for id in ["f53ebd45226e", "f53ebd45"] {
            let id = HeaderValue::from_static(id);
            let headers = HeaderMap::from_iter([(X_REQUEST_ID, id)]);
            record.request_id = RequestId::from_headers(&headers, 1);
            log.finished(&[&record]);
        }
        let found = |id: &str| log.get(id).map(|entry| entry.request.request_id.to_string());
        assert_eq!(found("f53ebd45").as_deref(), Some("f53ebd45"), "an equal ID comes first");
        assert_eq!(found("f53ebd452").as_deref(), Some("f53ebd45226e"));
        assert_eq!(found("f53ebd4"), None);
    }

    #[test]
    fn a_decision_log_of_capacity_zero_and_a_request_without_a_decision_store_no_entry() {
        let empty_log = DecisionLog::new(0);
        empty_log.finished(&[&streamed()]);
        assert!(empty_log.newest(50).is_empty());
        let log = DecisionLog::new(5);
        log.finished(&[&RequestRecord { decision: None, ..streamed() }]);
        assert!(log.newest(50).is_empty());
    }

    #[test]
    fn the_detail_of_a_logged_decision_has_every_candidate_and_the_outcome_of_the_request() {
        let log = DecisionLog::new(1);
        log.finished(&[&streamed()]);
        let detail = log.get("r-1").unwrap().detail();
        let expected = json!({
            "ttft_seconds": 0.08, "input_tokens": 12.0, "cached_tokens": 6.0,
            "cached_source": "approximate",
        });
        assert_eq!(detail["predicted"], expected);
        let expected = json!({
            "ttft_seconds": 0.09, "input_tokens": 12, "cached_tokens": 8, "outcome": "ok",
            "resume": null, "slow_cause": null, "slow_meaning": null, "client_ttft_seconds": 0.1, "first_answer_seconds": null,
            "duration_seconds": 0.41, "backend_wait_seconds": null,
        });
        assert_eq!(detail["actual"], expected);
        let candidates = detail["candidates"].as_array().unwrap();
        let chosen: Vec<_> =
            candidates.iter().map(|fields| (&fields["backend"], &fields["chosen"])).collect();
        assert_eq!(chosen, [(&json!("vllm-0"), &json!(true)), (&json!("vllm-1"), &json!(false))]);
        assert_eq!(candidates[0]["backlog"], 400.0);
        assert!(candidates[0].get("key").is_none());
    }
}

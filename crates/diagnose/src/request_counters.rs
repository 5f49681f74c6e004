//! Counters of the gateway's requests at each backend. The diagnosis reads and resets the counters.

use super::fatal_requests::RequestEnds;
use super::fleet::{AttemptCounts, AttemptFailures, SlowUpload, UnforwardedCounts};
use super::history::{BackendRequestCounts, KnownPrompts, SLOW_START};
use arc_swap::ArcSwap;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::TextSample;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{
    Attempt, Outcome, RequestRecord, ResponseEnd, Termination, ToolAnswer,
};

/// The counters of the backends in the last call of [`Self::retain_backends`]. Requests at other backends are
/// not counted.
#[derive(Debug, Default)]
pub struct BackendRequestCounters {
    backends: ArcSwap<HashMap<BackendId, Arc<BackendCounters>>>,
    /// For each model: the number of requests that were answered with 404 because no backend lists the model.
    /// Only models that are label values of metrics are counted.
    unserved_models: Mutex<BTreeMap<String, u64>>,
    /// The requests that the gateway itself ended, and slow uploads.
    unforwarded: Mutex<UnforwardedCounts>,
    ends: Mutex<RequestEnds>,
    known_prompts: Mutex<KnownPrompts>,
}

/// The counters of one backend since the last reset.
#[derive(Debug, Default)]
struct BackendCounters {
    /// The counts of first outputs, with the same meaning as the fields of [`BackendRequestCounts`]. They are
    /// atomic, so that requests do not wait for a lock.
    first_outputs: AtomicCounter,
    first_output_millis: AtomicCounter,
    slow_first_outputs: AtomicCounter,
    /// All other counts. Only the dispatcher of records and the diagnosis take the lock.
    ended: Mutex<(BackendRequestCounts, AttemptCounts)>,
}

/// The status of the response to a request for a model that no backend lists.
const UNKNOWN_MODEL_STATUS: u16 = 404;
/// Minimum duration of a slow upload of a request body.
const SLOW_UPLOAD: Duration = Duration::from_secs(1);
/// Maximum rate of a slow upload, in bytes per second. A faster upload is never slow.
const SLOW_UPLOAD_RATE: f64 = 250e3;
/// Maximum number of slow uploads that are kept between two diagnoses.
const MAX_UPLOADS: usize = 256;
/// The refusal reasons of an unknown key, and of a key that was in an earlier key file.
const INVALID_KEY: &str = "invalid_api_key";
const REMOVED_KEY: &str = "removed_key";
/// The output format of requests with structured output.
const STRUCTURED: &str = "json";
/// Minimum number of tokens of a long prompt, which is compared with shorter ones.
const LONG_PROMPT_TOKENS: f64 = 4_000.0;
/// Minimum number of events, and then of tokens, of a stream that can show that something buffers the stream.
const MIN_BUFFERED_EVENTS: u64 = 8;
const MIN_BUFFERED_TOKENS: u64 = 16;
/// Time per token in seconds that no engine goes below in one stream.
const FASTEST_TOKEN_SECONDS: f64 = 0.000_4;
/// Maximum number of different pieces among the first 32 of a stream that repeats itself.
const MAX_REPETITIVE_PIECES: u8 = 8;
/// Maximum number of models without a backend whose requests are counted. Without a maximum, the number of
/// names would grow for months, because LoRA adapters are added and removed.
const MAX_UNSERVED_MODELS: usize = 256;

impl BackendRequestCounters {
    /// Sets the backends whose requests are counted. Keeps the existing counters of these backends, and
    /// removes the counters of all other backends.
    pub fn retain_backends<'a>(&self, ids: impl Iterator<Item = &'a BackendId>) {
        let current = self.backends.load();
        let counters = |id: &BackendId| (id.clone(), current.get(id).cloned().unwrap_or_default());
        let backends: HashMap<BackendId, Arc<BackendCounters>> = ids.map(counters).collect();
        if backends.len() != current.len() || backends.keys().any(|id| !current.contains_key(id)) {
            self.backends.store(Arc::new(backends));
        }
    }

    /// Returns the counts of a backend since the last call, and resets them. All counts are zero if
    /// the backend is not retained.
    pub fn take(&self, backend: &BackendId) -> BackendRequestCounts {
        self.backends
            .load()
            .get(backend)
            .map(|counters| counters.take())
            .unwrap_or_default()
    }

    /// Returns the numbers of attempts at a backend since the last call, and resets them.
    pub fn take_attempts(&self, backend: &BackendId) -> AttemptCounts {
        let backends = self.backends.load();
        let take = |counters: &Arc<BackendCounters>| std::mem::take(&mut lock(&counters.ended).1);
        backends.get(backend).map(take).unwrap_or_default()
    }

    /// The models that requests named although no backend lists them, with the number of these requests.
    /// Forgets the models that a backend lists now.
    pub fn unserved_models(&self, is_listed: impl Fn(&str) -> bool) -> Vec<(String, u64)> {
        let mut models = lock(&self.unserved_models);
        models.retain(|name, _| !is_listed(name));
        models
            .iter()
            .map(|(name, requests)| (name.clone(), *requests))
            .collect()
    }

    /// Returns the requests that the gateway itself ended and the slow uploads since the last call, and resets
    /// them.
    pub fn take_unforwarded(&self) -> UnforwardedCounts {
        std::mem::take(&mut lock(&self.unforwarded))
    }

    /// Returns the requests that ended since the last call, and resets them.
    pub fn take_ends(&self) -> RequestEnds {
        std::mem::take(&mut lock(&self.ends))
    }

    /// Counts a request that the gateway ended itself, and a slow upload.
    fn count_unforwarded(&self, record: &RequestRecord) {
        let is_slow = |time: &Duration| {
            *time >= SLOW_UPLOAD && record.bytes_in as f64 <= SLOW_UPLOAD_RATE * time.as_secs_f64()
        };
        let upload = record.upload_time().filter(is_slow);
        let end = own_end(record);
        if end.is_none() && upload.is_none() {
            return;
        }
        let mut counts = lock(&self.unforwarded);
        if let Some(end) = end {
            *counts.ends.entry(end).or_default() += 1;
        }
        if let Some(time) = upload
            && counts.uploads.len() < MAX_UPLOADS
        {
            counts.uploads.push(SlowUpload {
                client: client_name(record),
                seconds: time.as_secs_f64(),
                bytes: record.bytes_in,
            });
        }
    }

    fn counters(&self, record: &RequestRecord) -> Option<Arc<BackendCounters>> {
        self.backends.load().get(record.backend()?).cloned()
    }

    /// The share of the prompt that is also in an earlier prompt.
    fn known_share(&self, record: &RequestRecord) -> f64 {
        let (Some(prompt), Some(ended)) = (&record.fingerprint, record.timings.ended) else {
            return 0.0;
        };
        let blocks = lock(&self.known_prompts).add(&prompt.blocks, ended);
        let bytes = blocks as u64 * u64::from(prompt.block_bytes);
        (bytes as f64 / prompt.bytes.max(1) as f64).min(1.0)
    }

    /// Counts a request for a model that no backend lists.
    fn count_unserved(&self, record: &RequestRecord) {
        let is_unserved = record.attempts.is_empty()
            && record.status == Some(UNKNOWN_MODEL_STATUS)
            && record.model.is_label_value();
        if is_unserved {
            let mut models = lock(&self.unserved_models);
            if models.len() < MAX_UNSERVED_MODELS || models.contains_key(record.model.as_str()) {
                *models.entry(record.model.as_str().to_owned()).or_default() += 1;
            }
        }
    }
}

impl Sink for BackendRequestCounters {
    fn first_output(&self, record: &RequestRecord) {
        if let (Some(counters), Some(ttft)) = (self.counters(record), record.upstream_ttft()) {
            counters.on_first_output(ttft);
        }
    }

    fn finished(&self, records: &[&RequestRecord]) {
        let backends = self.backends.load();
        for record in records {
            self.count_unserved(record);
            self.count_unforwarded(record);
            lock(&self.ends).add(record);
            let known_share = self.known_share(record);
            for (index, attempt) in record.attempts.iter().enumerate() {
                let Some(counters) = backends.get(&attempt.backend) else {
                    continue;
                };
                counters.on_attempt(record, index, attempt);
                if index + 1 == record.attempts.len() {
                    counters.on_finished(record, known_share);
                }
            }
        }
    }
}

impl BackendCounters {
    fn on_first_output(&self, ttft: Duration) {
        self.first_outputs.add(1);
        self.first_output_millis.add(ttft.as_millis() as u64);
        let is_slow = ttft.as_secs_f64() > SLOW_START;
        self.slow_first_outputs.add(is_slow.into());
    }

    fn on_attempt(&self, record: &RequestRecord, index: usize, attempt: &Attempt) {
        let (requests, counts) = &mut *lock(&self.ended);
        counts.attempts += 1;
        requests.refused_attempts += u64::from(matches!(attempt.status, Some(400..=499)));
        if let Some(kind) = record.backend_failure(index) {
            let status = attempt.status.filter(|status| *status >= 400);
            let seconds = seconds_until_failure(record, attempt);
            counts.add_failures(&AttemptFailures {
                kind,
                status,
                error_source: record.error_source(index),
                count: 1,
                seconds,
                squares: seconds * seconds,
            });
        }
    }

    /// Counts a request at the backend of its last attempt.
    fn on_finished(&self, record: &RequestRecord, known_share: f64) {
        let (counts, _) = &mut *lock(&self.ended);
        counts.finished += 1;
        counts.streams += u64::from(record.observed.is_stream);
        counts.generated += u64::from(record.output_tokens().is_some_and(|tokens| tokens > 0));
        counts.buffered += u64::from(is_buffered(record));
        count_head(counts, record);
        count_first_output(counts, record);
        count_arrivals(counts, record);
        if record.outcome == Outcome::Ok {
            counts.served += 1;
            counts.served_seconds += record.duration().as_secs_f64();
            // If the token count of the engine contradicts the response, the gateway estimates it.
            let has_wrong_usage = record.has_wrong_usage();
            let tokens = if has_wrong_usage {
                record.observed.estimated_tokens
            } else {
                record.output_tokens().unwrap_or_default()
            };
            counts.wrong_usages += u64::from(has_wrong_usage);
            counts.served_tokens += tokens;
            counts.served_roots += (tokens as f64).sqrt();
            count_text(counts, &record.observed.text_sample);
            count_content(counts, record);
        }
        if record.outcome == Outcome::Cancelled && !record.is_hedge {
            let seconds = record.duration().as_secs_f64();
            counts.cancelled += 1;
            counts.cancel_seconds += seconds;
            counts.cancel_squares += seconds * seconds;
        }
        let Some(decision) = &record.decision else {
            return;
        };
        let chosen = decision.selected_candidate();
        counts.prompt_tokens += chosen.prompt;
        counts.reusable_tokens += decision.max_cached_tokens();
        counts.reusable_here_tokens += chosen.cached;
        counts.known_tokens += chosen.prompt * known_share;
        counts.longest_prompt = counts.longest_prompt.max(chosen.prompt);
    }

    /// Returns the counts and resets them. The counters of first outputs are reset one by one: if a request
    /// has its first output meanwhile, some of its counts are in this result, and the others in the next.
    fn take(&self) -> BackendRequestCounts {
        BackendRequestCounts {
            first_outputs: self.first_outputs.take(),
            first_output_seconds: self.first_output_millis.take() as f64 / 1e3,
            slow_first_outputs: self.slow_first_outputs.take(),
            ..std::mem::take(&mut lock(&self.ended).0)
        }
    }
}

/// Why the gateway itself ended a request: the reason of its error, or the timeout that ended the response.
/// `None`: a backend or the client ended the request.
fn own_end(record: &RequestRecord) -> Option<&'static str> {
    // The gateway knows the name of a refused key only if the key was valid before.
    if record.refusal == Some(INVALID_KEY) && record.caller.is_some() {
        return Some(REMOVED_KEY);
    }
    match record.end {
        Termination::IdleTimeout => Some("timeout_idle"),
        Termination::TotalTimeout => Some("total_timeout"),
        Termination::WriteTimeout => Some("client_write_timeout"),
        _ => record.refusal,
    }
}

/// The name of the client of a request in texts: tenant and key, or the address.
fn client_name(record: &RequestRecord) -> String {
    match &record.caller {
        Some(caller) => format!("tenant {}, key {}", caller.tenant, caller.key),
        None => format!("client {}", record.client),
    }
}

/// Counts the wait for the response head of an ended request.
fn count_head(counts: &mut BackendRequestCounts, record: &RequestRecord) {
    let timings = &record.timings;
    if let (Some(sent), Some(head)) = (timings.sent, timings.headers) {
        counts.heads += 1;
        counts.head_seconds += head.saturating_duration_since(sent).as_secs_f64();
    }
}

/// Counts the wait for the first output of an ended stream, by the kind of its prompt.
fn count_first_output(counts: &mut BackendRequestCounts, record: &RequestRecord) {
    let Some(wait) = record.upstream_ttft() else {
        return;
    };
    let seconds = wait.as_secs_f64();
    let prompt = record.decision.as_ref();
    let prompt = prompt.map_or(0.0, |decision| decision.selected_candidate().prompt);
    if record.options.has_media {
        counts.media_outputs += 1;
        counts.media_seconds += seconds;
    } else if record.options.parameters.output == Some(STRUCTURED) {
        counts.structured_outputs += 1;
        counts.structured_seconds += seconds;
    } else if prompt >= LONG_PROMPT_TOKENS {
        counts.long_outputs += 1;
        counts.long_seconds += seconds;
    } else {
        counts.plain_outputs += 1;
        counts.plain_seconds += seconds;
    }
}

/// Counts how the output of an ended stream arrived.
fn count_arrivals(counts: &mut BackendRequestCounts, record: &RequestRecord) {
    let events = record.observed.output_events;
    let tokens = record.output_tokens().unwrap_or_default();
    if record.observed.is_stream && events > 0 && tokens >= MIN_BUFFERED_TOKENS {
        counts.stream_tokens += tokens;
        counts.stream_events += events;
        counts.stream_arrivals += u64::from(record.observed.chunk_timings.chunks());
    }
}

/// Time from the start of an attempt to its failure, in seconds. The last attempt ends with its request.
fn seconds_until_failure(record: &RequestRecord, attempt: &Attempt) -> f64 {
    let ended = attempt.ended.or(record.timings.ended);
    ended.map_or(0.0, |ended| {
        ended
            .saturating_duration_since(attempt.started)
            .as_secs_f64()
    })
}

/// Counts how the engine ended a response, and whether the response fits its request.
fn count_content(counts: &mut BackendRequestCounts, record: &RequestRecord) {
    let Some(end) = record.response_end() else {
        return;
    };
    counts.responses += 1;
    counts.empty_responses += u64::from(end == ResponseEnd::Empty);
    counts.cut_responses += u64::from(end == ResponseEnd::Cut);
    counts.reasoning_alone += u64::from(record.is_reasoning_alone());
    let damaged = record.has_damaged_text();
    counts.sampled_texts += u64::from(damaged.is_some());
    counts.damaged_texts += u64::from(damaged == Some(true));
    let json = record.is_requested_json();
    counts.json_answers += u64::from(json.is_some());
    counts.missing_json += u64::from(json == Some(false));
    let tool = record.tool_answer();
    counts.tool_answers += u64::from(tool.is_some());
    counts.tool_calls += u64::from(tool == Some(ToolAnswer::Call));
    counts.texts_like_calls += u64::from(tool == Some(ToolAnswer::TextLikeCall));
    let is_useless = end == ResponseEnd::Empty || record.is_unreadable() || json == Some(false);
    counts.useless_responses += u64::from(is_useless);
}

/// Counts how varied the text of a stream is, if the stream is long enough.
fn count_text(counts: &mut BackendRequestCounts, sample: &TextSample) {
    let (Some(distinct), Some(bytes)) = (sample.distinct(), sample.bytes()) else {
        return;
    };
    let mean_bytes = f64::from(bytes) / TextSample::PIECES;
    let non_ascii = sample.non_ascii_share().unwrap_or_default();
    counts.non_ascii += non_ascii;
    counts.non_ascii_squares += non_ascii.powi(2);
    counts.texts += 1;
    counts.repetitive_texts += u64::from(distinct <= MAX_REPETITIVE_PIECES);
    counts.distinct_pieces += f64::from(distinct);
    counts.distinct_squares += f64::from(distinct).powi(2);
    counts.piece_bytes += mean_bytes;
    counts.piece_bytes_squares += mean_bytes.powi(2);
}

/// Whether the tokens of a stream arrived faster than any engine generates them, because something between the
/// gateway and the engine buffered them.
fn is_buffered(record: &RequestRecord) -> bool {
    let tokens = record.output_tokens().unwrap_or_default();
    let is_long =
        record.observed.output_events >= MIN_BUFFERED_EVENTS && tokens >= MIN_BUFFERED_TOKENS;
    let Some(took) = record.decode() else {
        return false;
    };
    is_long && took.as_secs_f64() < tokens as f64 * FASTEST_TOKEN_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_request::record::fixtures::streamed;

    #[test]
    fn each_request_is_taken_once() {
        let record = streamed();
        let id = record.backend().unwrap().clone();
        let counters = BackendRequestCounters::default();
        counters.finished(&[&record]);
        assert_eq!(
            counters.take(&id),
            BackendRequestCounts::default(),
            "its backend is unknown"
        );
        counters.retain_backends([&id].into_iter());
        counters.first_output(&record);
        counters.finished(&[&record]);
        let cancelled = RequestRecord {
            outcome: Outcome::Cancelled,
            ..streamed()
        };
        counters.finished(&[&cancelled]);
        counters.retain_backends([&id].into_iter());
        let counts = counters.take(&id);
        assert_eq!(
            (counts.first_outputs, counts.finished, counts.cancelled),
            (1, 2, 1)
        );
        assert!(
            counts.first_output_seconds > 0.0 && counts.cancel_seconds > 0.0,
            "{counts:?}"
        );
        assert_eq!(
            counters.take(&id),
            BackendRequestCounts::default(),
            "the counts were reset"
        );
        counters.retain_backends(std::iter::empty());
        counters.finished(&[&record]);
        assert_eq!(counters.take(&id), BackendRequestCounts::default());
    }

    #[test]
    fn failed_attempts_are_counted_by_kind_and_status() {
        let mut record = streamed();
        let id = record.backend().unwrap().clone();
        record.attempts.push(record.attempts[0].clone());
        record.attempts[0].failure = Some("server_error");
        record.attempts[0].status = Some(502);
        let counters = BackendRequestCounters::default();
        counters.retain_backends([&id].into_iter());
        counters.finished(&[&record, &streamed()]);
        let taken = counters.take_attempts(&id);
        assert_eq!((taken.attempts, taken.failures.len()), (3, 1));
        let failure = &taken.failures[0];
        assert_eq!(
            (failure.kind, failure.status, failure.count),
            ("server_error", Some(502), 1)
        );
        assert!((failure.seconds - 0.405).abs() < 1e-9, "{failure:?}");
        assert_eq!(counters.take_attempts(&id), AttemptCounts::default());
    }

    #[test]
    fn unserved_models_are_counted_until_listed() {
        let mut record = streamed();
        record.attempts.clear();
        record.status = Some(404);
        let model = record.model.as_str().to_owned();
        let counters = BackendRequestCounters::default();
        counters.finished(&[&record, &record]);
        assert_eq!(counters.unserved_models(|_| false), [(model, 2)]);
        assert_eq!(counters.unserved_models(|_| true), []);
        assert_eq!(counters.unserved_models(|_| false), []);
    }
}

//! The statistics of a benchmark run. Their memory does not grow with the length of the run.

use super::histogram::LatencyHistogram;
use super::measurement::{RequestMeasurement, ResponseMeasurement};
use super::samples::RequestSamples;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokenweir_replay::results::LatencyObjectives;

/// The statistics of the requests of a run that have ended.
#[derive(Debug, Default)]
pub struct RunStatistics {
    objectives: LatencyObjectives,
    /// Request outcomes and token counts.
    pub counts: RequestCounts,
    /// Times from the intended send time to the first output.
    pub ttft: LatencyHistogram,
    /// Times from the intended send time to the end of the response.
    pub e2e: LatencyHistogram,
    /// Times from the actual send time to the first output.
    pub service_ttft: LatencyHistogram,
    /// Times from the actual send time to the end of the response.
    pub service_e2e: LatencyHistogram,
    /// Times between consecutive events with output of a response.
    pub gaps: LatencyHistogram,
    /// Times per output token after the first token, one value per response.
    pub tpot: LatencyHistogram,
    /// Times from the intended to the actual send time. Requests that had to wait because of the limit of
    /// requests in flight are excluded.
    pub send_delay: LatencyHistogram,
    /// Delays with which the timers of the generator fired.
    pub timer_delay: LatencyHistogram,
    /// The sampled requests.
    pub samples: RequestSamples,
    /// Throughput of the run over time.
    pub timeline: RunTimeline,
    /// The requests with the highest times to first token.
    pub slowest: Vec<SlowRequest>,
    /// The duration of the run until the last request was sent, and the number of requests served in this
    /// time.
    pub sending: SendingPhase,
    /// Number of failures since the last served request. Responses with status 429 or 503 are not counted.
    pub consecutive_failures: u64,
}

/// Request outcomes and token counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Requests with a complete response, and requests at which the client disconnected because the trace
    /// says so.
    pub served: u64,
    /// Served requests at which the client disconnected because the trace says so.
    pub client_disconnects: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// Number of failed requests of each kind of failure.
    pub failures: BTreeMap<String, u64>,
    /// Requests that were due before the end of the run but had not ended by then.
    pub unfinished: u64,
    /// Requests that were sent late because of the limit of requests in flight.
    pub delayed: u64,
    /// Requests that were served within the latency objectives.
    pub good: u64,
    /// Prompt tokens of served requests.
    pub input_tokens: u64,
    /// Prompt tokens of served requests that came from a prefix cache.
    pub cached_tokens: u64,
    /// Responses that reported the number of cached tokens.
    pub reported_cached: u64,
    /// Output tokens of served requests.
    pub output_tokens: u64,
    /// Responses for which the server did not report the number of output tokens. In these responses, each
    /// event with output counts as one token.
    pub uncounted: u64,
}

/// The part of a run until the last request was sent. After it, the run only waits for the last responses,
/// with decreasing load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SendingPhase {
    /// Time from the start of the run to the last request, in seconds.
    pub seconds: f64,
    /// Requests that were served in this time.
    pub served: u64,
}

/// A request with a high TTFT.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SlowRequest {
    /// Position of the request in the load plan.
    pub number: u64,
    /// Intended send time, in seconds since the start of the run.
    pub at: f64,
    /// Time from the intended send time to the first output, in seconds.
    pub ttft: f64,
}

/// The throughput of a run over time, in time slots of equal width.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunTimeline {
    /// Width of a slot in seconds.
    pub width: f64,
    /// The slots in order of time. The first begins with the run.
    pub slots: Vec<TimelineSlot>,
}

/// The numbers of requests and tokens of one time slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelineSlot {
    /// Number of served requests that ended in the slot.
    pub served: f64,
    /// Number of requests that failed in the slot.
    pub failed: f64,
    /// Number of output tokens in the slot. The tokens of a response are spread evenly over the
    /// time from its first to its last output.
    pub tokens: f64,
}

/// The kinds of failures that show an overloaded server.
const OVERLOAD_FAILURES: [&str; 2] = ["status_429", "status_503"];
/// Maximum number of slow requests that the report lists.
const MAX_SLOWEST_REQUESTS: usize = 5;
/// Maximum number of time slots. If a run is longer, the width of all slots doubles.
const MAX_TIMELINE_SLOTS: usize = 120;

impl RunStatistics {
    /// Creates empty statistics.
    pub fn new(objectives: LatencyObjectives) -> Self {
        Self {
            objectives,
            ..Self::default()
        }
    }

    /// Records that a request is sent. `seconds`: time since the start of the run.
    pub fn on_sent(&mut self, seconds: f64) {
        self.sending = SendingPhase {
            seconds,
            served: self.counts.served,
        };
    }

    /// Adds a request that has ended.
    pub fn add(&mut self, measured: &RequestMeasurement) {
        self.counts.delayed += u64::from(measured.has_waited);
        if !measured.has_waited {
            self.send_delay.record_seconds(measured.late());
        }
        self.samples.add(measured, &self.objectives);
        match &measured.result {
            Ok(response) => self.record_response(measured, response),
            Err(failure) => {
                // A server that answers 429 or 503 is overloaded but not down, so these responses do not
                // count as consecutive failures.
                self.consecutive_failures +=
                    u64::from(!OVERLOAD_FAILURES.contains(&&*failure.kind));
                self.counts.failed += 1;
                *self
                    .counts
                    .failures
                    .entry(failure.kind.clone().into_owned())
                    .or_default() += 1;
                self.timeline.slot_at(measured.ended.as_secs_f64()).failed += 1.0;
            }
        }
    }

    /// Adds a request that failed because of an error of the generator itself.
    pub fn record_internal_error(&mut self) {
        self.counts.failed += 1;
        *self.counts.failures.entry("defect".to_owned()).or_default() += 1;
    }

    fn record_response(&mut self, measured: &RequestMeasurement, response: &ResponseMeasurement) {
        self.consecutive_failures = 0;
        let counts = &mut self.counts;
        counts.served += 1;
        counts.client_disconnects += u64::from(response.has_disconnected);
        counts.good += u64::from(measured.is_good(&self.objectives));
        counts.input_tokens += u64::from(response.input);
        counts.cached_tokens += u64::from(response.cached.unwrap_or(0));
        counts.reported_cached += u64::from(response.cached.is_some());
        counts.output_tokens += u64::from(response.output);
        counts.uncounted += u64::from(!response.is_counted);
        let [due, sent, ended] =
            [measured.due, measured.sent, measured.ended].map(|at| at.as_secs_f64());
        self.service_ttft.record_seconds(response.ttft);
        self.ttft.record_seconds(measured.late() + response.ttft);
        if !response.has_disconnected {
            self.service_e2e.record_seconds(ended - sent);
            self.e2e.record_seconds(ended - due);
        }
        response
            .gaps
            .iter()
            .for_each(|gap| self.gaps.record_seconds(*gap));
        response
            .tpot()
            .into_iter()
            .for_each(|tpot| self.tpot.record_seconds(tpot));
        let first = sent + response.ttft;
        self.timeline.slot_at(ended).served += 1.0;
        self.timeline
            .add_tokens(f64::from(response.output), first, first + response.decode);
        let ttft = measured.late() + response.ttft;
        self.slowest.push(SlowRequest {
            number: measured.number,
            at: due,
            ttft,
        });
        self.slowest.sort_by(|a, b| b.ttft.total_cmp(&a.ttft));
        self.slowest.truncate(MAX_SLOWEST_REQUESTS);
    }
}

impl Default for RunTimeline {
    fn default() -> Self {
        Self {
            width: 1.0,
            slots: Vec::new(),
        }
    }
}

impl RunTimeline {
    /// The slot that contains the time `seconds` since the start of the run. If necessary, slots are added
    /// and their width is doubled.
    fn slot_at(&mut self, seconds: f64) -> &mut TimelineSlot {
        while seconds >= self.width * MAX_TIMELINE_SLOTS as f64 {
            self.width *= 2.0;
            let merge_slots = |pair: &[TimelineSlot]| {
                pair.iter()
                    .fold(TimelineSlot::default(), |sum, slot| TimelineSlot {
                        served: sum.served + slot.served,
                        failed: sum.failed + slot.failed,
                        tokens: sum.tokens + slot.tokens,
                    })
            };
            self.slots = self.slots.chunks(2).map(merge_slots).collect();
        }
        let slot = (seconds.max(0.0) / self.width) as usize;
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, TimelineSlot::default());
        }
        &mut self.slots[slot]
    }

    /// Spreads `tokens` evenly over the slots from one time to another.
    fn add_tokens(&mut self, tokens: f64, from: f64, to: f64) {
        self.slot_at(to);
        let width = self.width;
        let length = to - from;
        if length < width / 10.0 {
            self.slot_at(to).tokens += tokens;
            return;
        }
        let mut begin = from;
        while begin < to {
            let end = (((begin / width).floor() + 1.0) * width).min(to);
            // Because of rounding, `end` can equal `begin`. Without this line the loop would never end.
            let end = if end > begin { end } else { to };
            self.slot_at(begin).tokens += tokens * (end - begin) / length;
            begin = end;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;

    /// Builds the measurement of a request whose response has 11 tokens, 10 of them in the second after the
    /// first token. `due` and `sent` are in milliseconds, `ttft` is in seconds.
    pub(crate) fn measured(number: u64, due: u64, sent: u64, ttft: f64) -> RequestMeasurement {
        let response = ResponseMeasurement {
            ttft,
            decode: 1.0,
            gaps: vec![0.1; 10],
            input: 10,
            cached: None,
            output: 11,
            is_counted: true,
            has_disconnected: false,
        };
        RequestMeasurement {
            number,
            due: Duration::from_millis(due),
            sent: Duration::from_millis(sent),
            ended: Duration::from_millis(sent) + Duration::from_secs_f64(ttft + 1.0),
            has_waited: false,
            result: Ok(response),
        }
    }

    fn statistics() -> RunStatistics {
        RunStatistics::new(LatencyObjectives::new(1.0, 0.2))
    }

    #[test]
    fn latency_counts_from_the_intended_time() {
        let mut statistics = statistics();
        statistics.add(&measured(0, 1_000, 3_000, 0.5));
        assert!((statistics.ttft.quantile(0.5) - 2.5).abs() < 0.01);
        assert!((statistics.service_ttft.quantile(0.5) - 0.5).abs() < 0.01);
        assert!((statistics.e2e.quantile(0.5) - 3.5).abs() < 0.01);
        assert!((statistics.service_e2e.quantile(0.5) - 1.5).abs() < 0.01);
        assert_eq!(
            statistics.counts.good, 0,
            "the latency is 2.5 s, over the objective"
        );
    }

    #[test]
    fn the_sending_phase_ends_with_the_last_request() {
        let mut statistics = statistics();
        for number in 0..100 {
            statistics.on_sent(number as f64);
            statistics.add(&measured(number, number * 1_000, number * 1_000, 0.1));
        }
        assert_eq!(
            statistics.sending,
            SendingPhase {
                seconds: 99.0,
                served: 99
            }
        );
    }

    #[test]
    fn failures_count_by_kind_and_in_rows() {
        let mut statistics = statistics();
        let failed = RequestMeasurement {
            result: Err("truncated".into()),
            ..measured(0, 0, 0, 0.0)
        };
        statistics.add(&failed);
        statistics.add(&failed);
        assert_eq!(
            (
                statistics.consecutive_failures,
                statistics.counts.failures["truncated"]
            ),
            (2, 2)
        );
        statistics.add(&RequestMeasurement {
            result: Err("status_429".into()),
            ..failed
        });
        assert_eq!(
            statistics.consecutive_failures, 2,
            "an overloaded server is not down"
        );
        statistics.add(&measured(2, 0, 0, 0.1));
        assert_eq!(
            (statistics.consecutive_failures, statistics.counts.failed),
            (0, 3)
        );
    }

    #[test]
    fn a_long_run_has_bounded_samples() {
        let mut statistics = statistics();
        for number in 0..20_000 {
            statistics.add(&measured(number, number * 50, number * 50, 0.3));
        }
        let samples = statistics.samples.sorted();
        assert!(
            (2_000..=4_096).contains(&samples.requests.len()),
            "{}",
            samples.requests.len()
        );
        assert!(samples.requests.is_sorted_by_key(|sample| sample.number));
        assert!(statistics.timeline.slots.len() <= MAX_TIMELINE_SLOTS);
        let tokens: f64 = statistics
            .timeline
            .slots
            .iter()
            .map(|slot| slot.tokens)
            .sum();
        assert!((tokens - 220_000.0).abs() < 1e-3, "{tokens}");
        assert_eq!(statistics.slowest.len(), MAX_SLOWEST_REQUESTS);
    }
}

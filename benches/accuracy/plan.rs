//! The plans of the bench. A plan consists of one request, a generated stream with known contents as its
//! response, and the pauses and sizes of the writes of the response. All plans come from one seed. The true
//! times are not part of a plan: they are the times at which the backend writes.

use super::generated_streams::exchange_case::{Case, Close};
use super::generated_streams::expected_stream::Meaning;
use fastrand::Rng;
use serde_json::json;
use std::ops::Range;
use std::time::Duration;
use tokenweir_protocol::openai::Api;

/// The plan of one request and its response.
pub(crate) struct Plan {
    pub(crate) id: String,
    pub(crate) path: &'static str,
    pub(crate) request: String,
    /// The time that the client waits before the request.
    pub(crate) think: Duration,
    pub(crate) case: Case,
    pub(crate) writes: Vec<Write>,
}

/// One write of the backend to the connection.
pub(crate) struct Write {
    /// The pause of the backend before this write.
    pub(crate) pause: Duration,
    /// The bytes of the response body that this write sends.
    pub(crate) body: Range<usize>,
}

/// Minimum number of events with output in a stream. With fewer events, a busy machine can deliver all of
/// those that report tokens at once, so that the stream has no ITL.
const MIN_OUTPUTS: usize = 6;

/// Draws the `count` plans of a run. The same seed gives the same plans.
pub(crate) fn plans(count: usize, seed: u64) -> Vec<Plan> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|index| plan(index, &mut rng)).collect()
}

fn plan(index: usize, rng: &mut Rng) -> Plan {
    let (api, path) = match rng.u32(..100) {
        0..50 => (Api::Chat, "/v1/chat/completions"),
        50..70 => (Api::Completions, "/v1/completions"),
        70..85 => (Api::Responses, "/v1/responses"),
        _ => (Api::Messages, "/v1/messages"),
    };
    let mut case = loop {
        let case = Case::draw(api, rng.u64(..));
        if is_measurable(&case) {
            break case;
        }
    };
    let outputs = outputs(&case);
    (case.arrived, case.close) = match rng.u32(..100) {
        0..80 => (case.stream.bytes.len(), Close::Whole),
        80..90 => (outputs[rng.usize(1..outputs.len())], Close::Broken),
        _ => (outputs[rng.usize(1..outputs.len() - 1)], Close::Left),
    };
    let writes = writes(&case, rng);
    let think = Duration::from_millis(rng.u64(..250));
    Plan {
        id: format!("accuracy-{index}"),
        path,
        request: request(&case),
        think,
        case,
        writes,
    }
}

/// Whether requests of an API can ask for usage. If the client does not, the gateway does.
pub(crate) fn has_usage_option(api: Api) -> bool {
    matches!(api, Api::Chat | Api::Completions)
}

/// Whether a stream has enough output to be measured. Streams that make the gateway retry the request or
/// cease to read the stream are excluded.
fn is_measurable(case: &Case) -> bool {
    let outputs = outputs(case);
    let mut events = case
        .stream
        .events
        .iter()
        .map(|event| (event.complete_at, &event.meaning));
    let is_readable = |(at, meaning): (usize, &Meaning)| {
        let Meaning {
            is_malformed,
            error,
            usage,
            is_usage_event,
            ..
        } = meaning;
        let has_unasked_usage = case.is_usage_injected && usage.is_some() && !is_usage_event;
        !is_malformed && !has_unasked_usage && (error.is_none() || at > outputs[1])
    };
    case.is_stream() && outputs.len() >= MIN_OUTPUTS && events.all(is_readable)
}

/// Returns the position in the response body after each event with output.
fn outputs(case: &Case) -> Vec<usize> {
    let events = case
        .stream
        .events
        .iter()
        .filter(|event| event.meaning.output.is_some());
    events.map(|event| event.complete_at).collect()
}

/// Draws the writes of the backend. Most events are one write each; some are written together with the next
/// event, some in two pieces.
fn writes(case: &Case, rng: &mut Rng) -> Vec<Write> {
    let mut writes = Vec::new();
    let (mut from, mut pause) = (0, Duration::from_micros(rng.u64(20_000..300_000)));
    let events = case.stream.events.iter().map(|event| event.complete_at);
    let ends: Vec<usize> = events
        .filter(|end| *end < case.arrived)
        .chain([case.arrived])
        .collect();
    for (number, &end) in ends.iter().enumerate() {
        match rng.u32(..10) {
            0..2 if number + 1 < ends.len() => continue,
            2..4 => {
                let middle = rng.usize(from..end);
                writes.push(Write {
                    pause,
                    body: from..middle,
                });
                (from, pause) = (middle, Duration::from_millis(rng.u64(..3)));
            }
            _ => {}
        }
        writes.push(Write {
            pause,
            body: from..end,
        });
        (from, pause) = (end, Duration::from_micros(rng.u64(2_000..60_000)));
    }
    writes
}

fn request(case: &Case) -> String {
    let mut request = json!({ "model": "m", "stream": true });
    let text = "Tell me a story. 日本";
    match case.api {
        Api::Completions => request["prompt"] = json!(text),
        Api::Responses => request["input"] = json!(text),
        _ => request["messages"] = json!([{ "role": "user", "content": text }]),
    }
    if has_usage_option(case.api) && !case.is_usage_injected {
        request["stream_options"] = json!({ "include_usage": true });
    }
    request.to_string()
}

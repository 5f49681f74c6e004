//! Fuzz target of the observation of responses. For any split of a response of any API into pieces, the
//! observed values are the same, and the stored data is bounded. The forwarded bytes are those of the
//! response, except the usage event if the gateway removes it.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use std::time::Instant;
use tokenweir_fuzz::cut;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Api;
use tokenweir_request::observe::ResponseObserver;
use tokenweir_request::record::{ObservedResponse, RequestOptions, Timings, UsageEventOutcome};

const MEDIA_TYPES: [&str; 2] = ["text/event-stream", "application/json"];

/// Maximum length in bytes of a text that an observation stores, and maximum number of choices that it
/// stores.
const MAX_TEXT: usize = 256;
const MAX_CHOICES: usize = 128;

/// All bytes arrive at the same time, so that no value depends on timing.
static NOW: LazyLock<Instant> = LazyLock::new(clock::now);

/// Maximum length in bytes of a usage event that the gateway can remove if it arrives in several pieces.
const MAX_BLOCK: usize = 64 << 10;

/// What the fuzz input selects for an observation.
#[derive(Clone, Copy)]
struct ObservationSettings {
    api: Api,
    media_type: &'static str,
    takes_usage_event: bool,
}

/// The observed values, five timestamps (`None` if one is not set), and the forwarded bytes.
type ObservationResult = (ObservedResponse, [Option<Instant>; 5], Vec<u8>);

fuzz_target!(|input: &[u8]| {
    let Some((&settings, input)) = input.split_first() else {
        return;
    };
    let Some((answer, pieces)) = cut(input) else {
        return;
    };
    let settings = usize::from(settings);
    let settings = ObservationSettings {
        api: Api::ALL[settings / 4 % Api::ALL.len()],
        media_type: MEDIA_TYPES[settings % 2],
        takes_usage_event: settings & 2 != 0 && answer.len() <= MAX_BLOCK,
    };
    let expected = observe(settings, std::iter::once(answer));
    assert_eq!(observe(settings, pieces), expected);
    let (observed, _, forwarded) = expected;
    check(&observed);
    let is_taken = observed.usage_event == Some(UsageEventOutcome::Stripped);
    assert_eq!(is_taken, forwarded.len() < answer.len());
    assert!(is_without_one_part(answer, &forwarded));
});

fn observe<'a>(
    settings: ObservationSettings,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> ObservationResult {
    let mut observer = ResponseObserver::new(settings.api);
    observer.on_head(settings.media_type, false);
    if settings.takes_usage_event {
        let options = RequestOptions {
            usage_injected: true,
            ..RequestOptions::default()
        };
        // An empty fingerprint means that the server has none, so the gateway inserts none into other events.
        observer.remove_injected_usage(&options, Some(Bytes::new()));
    }
    let mut timings = Timings::begin(*NOW);
    let mut forwarded = Vec::new();
    for piece in pieces {
        observer.on_data(piece, *NOW, &mut timings);
        forwarded.extend(observer.forward(Bytes::copy_from_slice(piece)));
    }
    observer.on_end(*NOW, &mut timings);
    forwarded.extend(observer.flush());
    let Timings {
        first_event,
        first_output,
        first_answer,
        last_output,
        terminal,
        ..
    } = timings;
    let timestamps = [
        first_event,
        first_output,
        first_answer,
        last_output,
        terminal,
    ];
    // The times of chunks are not compared: each read is a chunk, so these times depend on the split.
    let observed = ObservedResponse {
        chunk_timings: Default::default(),
        ..*observer.into_observed()
    };
    (observed, timestamps, forwarded)
}

/// Checks that the stored data is within its limits.
fn check(observed: &ObservedResponse) {
    assert!(observed.output_events <= observed.events);
    assert!(observed.finish_reasons.len() <= MAX_CHOICES);
    let error = observed
        .error
        .iter()
        .flat_map(|error| [&error.code, &error.kind]);
    let stored = [&observed.response_id, &observed.response_model]
        .into_iter()
        .chain(error);
    assert!(stored.flatten().all(|text| text.len() <= MAX_TEXT));
}

/// Whether `part` is `whole`, or `whole` without one contiguous range of bytes.
fn is_without_one_part(whole: &[u8], part: &[u8]) -> bool {
    let same = whole.iter().zip(part).take_while(|(a, b)| a == b).count();
    whole.ends_with(&part[same..]) && part.len() <= whole.len()
}

//! However an answer of any shape is cut, the same is seen of it, what is kept has a bound, and
//! what goes on is the answer, less the usage event where that is taken out.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::observe::Observer;
use tokenweir_core::openai::Api;
use tokenweir_core::record::{Observed, Timings, UsageEvent};
use tokenweir_fuzz::cut;

const MEDIA_TYPES: [&str; 2] = ["text/event-stream", "application/json"];

/// Longest text of an answer that is kept, and most choices, as the gateway's documents say.
const MAX_TEXT: usize = 256;
const MAX_CHOICES: usize = 128;

/// All bytes come at once, so that nothing depends on when they came.
static NOW: LazyLock<Instant> = LazyLock::new(clock::now);

/// A longer block is no usage event if it comes in parts, in bytes.
const MAX_BLOCK: usize = 64 << 10;

/// How an answer is observed.
#[derive(Clone, Copy)]
struct Way {
    api: Api,
    media_type: &'static str,
    takes_usage_event: bool,
}

/// What is seen of an answer, which of its moments came, and what goes on.
type Seen = (Observed, [Option<Instant>; 5], Vec<u8>);

fuzz_target!(|input: &[u8]| {
    let Some((&way, input)) = input.split_first() else { return };
    let Some((answer, pieces)) = cut(input) else { return };
    let way = usize::from(way);
    let way = Way {
        api: Api::ALL[way / 4 % Api::ALL.len()],
        media_type: MEDIA_TYPES[way % 2],
        takes_usage_event: way & 2 != 0 && answer.len() <= MAX_BLOCK,
    };
    let seen = observe(way, std::iter::once(answer));
    assert_eq!(observe(way, pieces), seen);
    let (observed, _, forwarded) = seen;
    check(&observed);
    let is_taken = observed.usage_event == Some(UsageEvent::Stripped);
    assert_eq!(is_taken, forwarded.len() < answer.len());
    assert!(is_without_one_part(answer, &forwarded));
});

fn observe<'a>(way: Way, pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let mut observer = Observer::new(way.api);
    observer.on_head(way.media_type, false);
    if way.takes_usage_event {
        observer.take_usage_event();
    }
    let mut timings = Timings::begin(*NOW);
    let mut forwarded = Vec::new();
    for piece in pieces {
        observer.on_data(piece, *NOW, &mut timings);
        forwarded.extend(observer.forward(Bytes::copy_from_slice(piece)));
    }
    observer.on_end(*NOW, &mut timings);
    forwarded.extend(observer.flush());
    let Timings { first_event, first_output, first_answer, last_output, terminal, .. } = timings;
    let moments = [first_event, first_output, first_answer, last_output, terminal];
    (observer.into_observed(), moments, forwarded)
}

/// What is kept of an answer is bounded.
fn check(observed: &Observed) {
    assert!(observed.output_events <= observed.events);
    assert!(observed.finish_reasons.len() <= MAX_CHOICES);
    let error = observed.error.iter().flat_map(|error| [&error.code, &error.kind]);
    let kept = [&observed.response_id, &observed.response_model].into_iter().chain(error);
    assert!(kept.flatten().all(|text| text.len() <= MAX_TEXT));
}

/// Whether `part` is `whole`, or what is left of it when one stretch of bytes is taken out.
fn is_without_one_part(whole: &[u8], part: &[u8]) -> bool {
    let same = whole.iter().zip(part).take_while(|(a, b)| a == b).count();
    whole.ends_with(&part[same..]) && part.len() <= whole.len()
}

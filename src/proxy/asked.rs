//! What routing and a capture must know of a request: its prompt in hashes, and its session.

use super::KeptText;
use crate::backend::routes::Route;
use http::{HeaderMap, HeaderName};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};
use tokenweir_core::headers::RequestId;
use tokenweir_core::openai::Excerpt;
use tokenweir_core::openai::request::Peek;
use tokenweir_core::record::{Captured, RequestRecord, TextFor};
use tokenweir_core::routing::{Prompt, mix, unit};

/// Drawn when the gateway starts, so that nobody can make a prompt with the hashes of another.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The prompt of a request. Models, and prompts of different `cache_salt`s, share no cache. `salt` is
/// the salt that the engine gets, if it is not the client's own.
pub(super) fn prompt(peek: &Peek, route: &Route, salt: Option<&str>, body: &[u8]) -> Arc<Prompt> {
    let model = route.served_as.as_deref().or(peek.model.as_deref());
    let seed = KEYS.hash_one((model, salt.or(peek.prompt.salt.as_deref())));
    Arc::new(Prompt::new(seed, peek.prompt.parts(body)))
}

/// A hash of the session: of the first of the headers that is there, else of the body's
/// `prompt_cache_key`.
pub(super) fn session(headers: &HeaderMap, names: &[HeaderName], peek: &Peek) -> Option<u64> {
    let named = names.iter().find_map(|name| headers.get(name)).map(|value| hash(value.as_bytes()));
    named.or_else(|| peek.cache_key.as_ref().map(|key| hash(key.as_bytes())))
}

/// What a capture that keeps this share of all requests keeps of one. Sessions are kept whole or
/// left out whole, so that the prefixes that their requests share are seen; `luck` decides for a
/// request without one.
pub(super) fn captured(
    share: f64,
    prompt: &Prompt,
    session: Option<u64>,
    luck: u64,
) -> Option<Arc<Captured>> {
    let drawn = unit(session.map_or(luck, mix));
    let Prompt { bytes, blocks, block_bytes } = prompt;
    (drawn < share).then(|| {
        Arc::new(Captured {
            bytes: *bytes,
            blocks: blocks.clone(),
            block_bytes: *block_bytes,
            session,
        })
    })
}

/// Keeps the prompt as it stands in its body, for samples of requests.
pub(super) fn keep_text(
    kept: KeptText,
    peek: &Peek,
    body: &[u8],
    luck: u64,
    record: &mut RequestRecord,
) {
    let drawn = drawn(record.trace.as_ref().map(|trace| trace.trace_id), &record.request_id);
    record.text_for = TextFor { log: unit(luck) < kept.log, quality: drawn < kept.quality };
    record.prompt = record.text_for.is_anybody().then(|| {
        let mut excerpt = Excerpt::new(kept.bytes);
        peek.prompt.parts(body).for_each(|part| excerpt.push(part));
        excerpt
    });
}

/// A number from 0 to 1 for a trace, or for a request without one: the same in every gateway.
fn drawn(trace: Option<u128>, request_id: &RequestId) -> f64 {
    let hash = match trace {
        Some(trace) => xxhash_rust::xxh3::xxh3_64(&trace.to_be_bytes()),
        None => hash(request_id.as_str().as_bytes()),
    };
    unit(mix(hash))
}

/// The same in every process: two gateways send a session to the same replica.
fn hash(session: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> RequestId {
        let value = name.parse().unwrap();
        RequestId::of(&HeaderMap::from_iter([(tokenweir_core::headers::X_REQUEST_ID, value)]), 1)
    }

    #[test]
    fn a_sample_for_quality_is_its_share_and_the_same_for_the_same_trace() {
        let ids = (0..20_000).map(|number| id(&format!("request-{number}")));
        let many = ids.filter(|id| drawn(None, id) < 0.02).count();
        assert!((320..480).contains(&many), "{many} of 20000 requests, not about 400");
        let mut random = fastrand::Rng::with_seed(5);
        let traces: Vec<u128> = (0..20_000).map(|_| random.u128(..)).collect();
        let is_kept = |trace: &&u128| drawn(Some(**trace), &id("a")) < 0.02;
        let many = traces.iter().filter(is_kept).count();
        assert!((320..480).contains(&many), "{many} of 20000 traces, not about 400");
        let same = |trace, one: &str, other: &str| {
            drawn(trace, &id(one)).to_bits() == drawn(trace, &id(other)).to_bits()
        };
        assert!(traces.iter().all(|trace| same(Some(*trace), "a", "b")));
        assert!(same(None, "a", "a") && !same(None, "a", "b"));
        assert!((0.0..1.0).contains(&drawn(None, &id(""))));
    }

    #[test]
    fn a_capture_keeps_its_share_of_requests_and_sessions_whole() {
        let kept =
            |share, session, luck| captured(share, &Prompt::default(), session, luck).is_some();
        let mut random = fastrand::Rng::with_seed(5);
        assert!((0..1_000).all(|_| !kept(0.0, None, random.u64(..))));
        assert!((0..1_000).all(|_| kept(1.0, None, random.u64(..))) && kept(1.0, None, u64::MAX));
        let many = (0..10_000).filter(|_| kept(0.3, None, random.u64(..))).count();
        assert!((2_700..3_300).contains(&many), "{many} of 10000");
        let sessions: Vec<u64> = (0..1_000).map(|_| random.u64(..)).collect();
        for session in &sessions {
            let first = kept(0.5, Some(*session), random.u64(..));
            assert_eq!(kept(0.5, Some(*session), random.u64(..)), first);
        }
        let kept = sessions.iter().filter(|session| kept(0.5, Some(**session), 0)).count();
        assert!((400..600).contains(&kept), "{kept} of 1000 sessions");
    }
}

//! Derives the properties of a request for routing, trace capture and payload sampling: the hashes
//! of its prompt, and its session.

use super::identity;
use super::read_request::ReadRequest;
use crate::backend::pool::BackendPool;
use http::{HeaderMap, HeaderName};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};
use tokenweir_protocol::headers::RequestId;
use tokenweir_protocol::openai::left_out::LeftOut;
use tokenweir_protocol::openai::request_fields::RequestFields;
use tokenweir_protocol::openai::{Api, TextExcerpt};
use tokenweir_request::record::{CapturedPrompt, PayloadConsumers, RequestRecord};
use tokenweir_routing::{PromptFingerprint, mix, unit};

/// The sampling of requests whose prompt text and response text are captured.
#[derive(Debug, Clone, Copy)]
pub struct PayloadSampling {
    /// Share of requests for the payload log, from 0 to 1, drawn at random.
    pub log_ratio: f64,
    /// Share of requests for quality monitoring, from 0 to 1. A hash of the trace id decides, so
    /// that all gateways sample the same traces. For a request without a trace, a hash of the
    /// request id decides.
    pub quality_ratio: f64,
    /// Maximum length of the stored excerpt of each text, in bytes.
    pub max_text_bytes: usize,
}

/// The random keys of the prompt hashes. Each process has its own keys, so that a client cannot
/// construct a prompt whose hashes equal those of another prompt. Gateways that share a key
/// (`peer_exchange.key`) use that key instead.
static PROMPT_HASH_KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The fingerprint of the prompt: its length and the hashes of its blocks. Prompts for different
/// models or with different `cache_salt`s share no cached prefix, so their hashes differ. `salt` is
/// the `cache_salt` that the gateway sets. `None`: the `cache_salt` of the client is used.
pub(crate) fn hash_prompt(
    request: &ReadRequest<'_>,
    salt: Option<&str>,
    body: &PromptBody<'_>,
    pool: &BackendPool,
) -> Arc<PromptFingerprint> {
    let fields = request.fields;
    let model = request.route.served_as.as_deref().or(fields.model.as_deref());
    let salt = salt.or(fields.prompt.salt.as_deref());
    let seed = match &pool.peer_key {
        Some(key) => key.prompt_seed(model, salt),
        None => PROMPT_HASH_KEYS.hash_one((model, salt)),
    };
    let pieces = fields.prompt.pieces(body.bytes, &body.left_out);
    Arc::new(PromptFingerprint::new(seed, pieces).with_media(body.media))
}

/// A request body, as far as the fingerprint of its prompt depends on it.
#[derive(Default)]
pub(crate) struct PromptBody<'a> {
    pub(crate) bytes: &'a [u8],
    /// Number of bytes of media in the body.
    pub(crate) media: u64,
    /// The bytes in the prompt fields that the engine does not put into the prompt.
    pub(crate) left_out: LeftOut,
}

impl<'a> PromptBody<'a> {
    /// The body of a request of this API to a model.
    pub(crate) fn new(
        bytes: &'a [u8],
        record: &RequestRecord,
        request: &ReadRequest<'_>,
        pool: &BackendPool,
    ) -> Self {
        let left_out = if record.api == Some(Api::Messages) {
            let drops_attribution = || pool.drops_attribution(request.route);
            LeftOut::of_messages(&request.fields.prompt, bytes, drops_attribution)
        } else {
            LeftOut::default()
        };
        Self { bytes, media: record.options.prompt_bytes.media, left_out }
    }
}

/// Converts a number of a request to the 32 bits with which routing calculates. A number that does not
/// fit becomes `u32::MAX`.
pub(crate) fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A hash of the [session name](identity::session_name). `None`: the request names no session.
pub(crate) fn session_hash(
    headers: &HeaderMap,
    names: &[HeaderName],
    fields: &RequestFields,
) -> Option<u64> {
    identity::session_name(headers, names, fields).map(|name| stable_hash(&name))
}

/// The properties of a request that the trace capture stores. `None`: the request is not sampled.
/// `share` is the sampled share of requests, from 0 to 1. Either all requests of a session are sampled
/// or none, so that the trace capture shows the prompt prefixes that these requests share. `random`
/// decides for a request without a session.
pub(crate) fn sample_for_capture(
    share: f64,
    prompt: &PromptFingerprint,
    session: Option<u64>,
    random: u64,
) -> Option<Arc<CapturedPrompt>> {
    let sampling_value = unit(session.map_or(random, mix));
    let PromptFingerprint { bytes, blocks, block_bytes, .. } = prompt;
    (sampling_value < share).then(|| {
        Arc::new(CapturedPrompt {
            prompt_bytes: *bytes,
            block_hashes: blocks.clone(),
            block_bytes: *block_bytes,
            session_hash: session,
        })
    })
}

/// Decides whether the text of the request is sampled for the payload log and for quality
/// monitoring. If either samples the text, copies an excerpt of the prompt from the body into the
/// record. `random` decides for the payload log.
pub(crate) fn sample_payload(
    sampling: PayloadSampling,
    fields: &RequestFields,
    body: &[u8],
    random: u64,
    record: &mut RequestRecord,
) {
    let quality_value =
        sampling_value(record.trace.as_ref().map(|trace| trace.trace_id), &record.request_id);
    record.text_for = PayloadConsumers {
        log: unit(random) < sampling.log_ratio,
        quality: quality_value < sampling.quality_ratio,
    };
    record.prompt = record.text_for.has_any().then(|| {
        let mut excerpt = TextExcerpt::new(sampling.max_text_bytes);
        fields.prompt.parts(body).for_each(|part| excerpt.push(part));
        excerpt
    });
}

/// A hash of the trace id, or of the request id without a trace, as a number from 0 to 1. Every
/// gateway computes the same number. A request is sampled if the number is below the sampled share.
fn sampling_value(trace_id: Option<u128>, request_id: &RequestId) -> f64 {
    let hash = match trace_id {
        Some(trace_id) => xxhash_rust::xxh3::xxh3_64(&trace_id.to_be_bytes()),
        None => stable_hash(request_id.as_str().as_bytes()),
    };
    unit(mix(hash))
}

/// A hash without a random key. Every process computes the same hash, so all gateways send a
/// session to the same backend.
fn stable_hash(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_id(name: &str) -> RequestId {
        let value = name.parse().unwrap();
        RequestId::from_headers(
            &HeaderMap::from_iter([(tokenweir_protocol::headers::X_REQUEST_ID, value)]),
            1,
        )
    }

    #[test]
    fn the_quality_sample_has_the_configured_share_and_treats_all_requests_of_a_trace_alike() {
        let ids = (0..20_000).map(|number| request_id(&format!("request-{number}")));
        let count = ids.filter(|id| sampling_value(None, id) < 0.02).count();
        assert!((320..480).contains(&count), "{count} of 20000 requests, not about 400");
        let mut random = fastrand::Rng::with_seed(5);
        let trace_ids: Vec<u128> = (0..20_000).map(|_| random.u128(..)).collect();
        let is_sampled =
            |trace_id: &&u128| sampling_value(Some(**trace_id), &request_id("a")) < 0.02;
        let count = trace_ids.iter().filter(is_sampled).count();
        assert!((320..480).contains(&count), "{count} of 20000 traces, not about 400");
        let has_same_value = |trace_id, first_id: &str, second_id: &str| {
            sampling_value(trace_id, &request_id(first_id)).to_bits()
                == sampling_value(trace_id, &request_id(second_id)).to_bits()
        };
        assert!(trace_ids.iter().all(|trace_id| has_same_value(Some(*trace_id), "a", "b")));
        assert!(has_same_value(None, "a", "a") && !has_same_value(None, "a", "b"));
        assert!((0.0..1.0).contains(&sampling_value(None, &request_id(""))));
    }

    #[test]
    fn the_trace_capture_samples_the_configured_share_of_requests_and_whole_sessions() {
        let is_sampled = |share, session, random| {
            sample_for_capture(share, &PromptFingerprint::default(), session, random).is_some()
        };
        let mut rng = fastrand::Rng::with_seed(5);
        assert!((0..1_000).all(|_| !is_sampled(0.0, None, rng.u64(..))));
        assert!((0..1_000).all(|_| is_sampled(1.0, None, rng.u64(..))));
        assert!(is_sampled(1.0, None, u64::MAX));
        let count = (0..10_000).filter(|_| is_sampled(0.3, None, rng.u64(..))).count();
        assert!((2_700..3_300).contains(&count), "{count} of 10000");
        let sessions: Vec<u64> = (0..1_000).map(|_| rng.u64(..)).collect();
        for session in &sessions {
            let first = is_sampled(0.5, Some(*session), rng.u64(..));
            assert_eq!(is_sampled(0.5, Some(*session), rng.u64(..)), first);
        }
        let count = sessions.iter().filter(|session| is_sampled(0.5, Some(**session), 0)).count();
        assert!((400..600).contains(&count), "{count} of 1000 sessions");
    }
}

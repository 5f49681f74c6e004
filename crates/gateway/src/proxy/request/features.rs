//! Derives the properties of a request for routing and for records: the hashes of its prompt, its session,
//! and the sample of its text.

use super::identity::stable_hash;
use super::read_request::ReadRequest;
use super::settings::RequestSettings;
use crate::backend::facets::PoolFacets;
use crate::backend::pool::BackendPool;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};
use tokenweir_protocol::headers::RequestId;
use tokenweir_protocol::openai::left_out::LeftOut;
use tokenweir_protocol::openai::{Api, RequestFields, TextExcerpt};
use tokenweir_request::record::{RequestRecord, TextConsumer};
use tokenweir_routing::{PromptFingerprint, mix, unit};
use xxhash_rust::xxh3::Xxh3;

/// The sampling of requests whose prompt text and response text are retained.
#[derive(Debug, Clone, Default)]
pub struct TextSampling {
    /// The consumers, each with its sample. Empty: no text is sampled.
    pub samples: Vec<TextSample>,
    /// Maximum length of the stored excerpt of each text, in bytes.
    pub max_text_bytes: usize,
}

/// The sample of requests whose text one consumer gets.
#[derive(Debug, Clone, Copy)]
pub struct TextSample {
    /// The consumer, such as the payload log.
    pub consumer: TextConsumer,
    /// Share of requests whose text is kept, from 0 to 1.
    pub share: f64,
    /// Whether a hash of the trace id decides, so that all gateways sample the same traces. A request without a
    /// trace uses a hash of its request id. If false, requests are drawn at random.
    pub is_by_trace: bool,
}

/// The random keys of the prompt hashes. Each process has its own keys, so that a client cannot construct a
/// prompt with the hashes of another prompt. Gateways in an exchange share a key instead.
static PROMPT_HASH_KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The fingerprint of the prompt: its length and the hashes of its blocks. Prompts for different models or with
/// different `cache_salt`s share no cached prefix, so their hashes differ. `salt`: the `cache_salt` that the
/// gateway sets. `None`: the client's `cache_salt` counts. `facets`: the options that share prompts with other
/// gateways.
pub(crate) fn hash_prompt(
    request: &ReadRequest<'_>,
    salt: Option<&str>,
    body: &PromptBody<'_>,
    facets: &PoolFacets,
) -> Arc<PromptFingerprint> {
    let fields = request.fields;
    let model = request
        .route
        .served_as
        .as_deref()
        .or(fields.model.as_deref());
    let salt = salt.or(fields.prompt.salt.as_deref());
    let own_seed = || PROMPT_HASH_KEYS.hash_one((model, salt));
    let seed = facets.prompt_seed(model, salt).unwrap_or_else(own_seed);
    let pieces = fields.prompt.pieces(body.bytes, &body.left_out);
    Arc::new(PromptFingerprint::new(seed, pieces).with_media(body.media))
}

/// The parts of a request body on which the fingerprint of its prompt depends.
#[derive(Default)]
pub(crate) struct PromptBody<'a> {
    pub bytes: &'a [u8],
    /// Bytes of images, audio and other media, which count as prompt.
    pub media: u64,
    /// The bytes of the prompt fields that the engine leaves out of the prompt.
    pub left_out: LeftOut,
}

impl<'a> PromptBody<'a> {
    /// The parts of the body of a request of this API to a model.
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
        Self {
            bytes,
            media: record.options.prompt_bytes.media,
            left_out,
        }
    }
}

/// Converts a number of a request to `u32`, the type for numbers in routing. A greater number becomes
/// `u32::MAX`.
pub(crate) fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A hash that all requests of a conversation share. It is computed from the first of these that the request
/// has: the session, the tenant and user, the user's first message, the whole prompt. `None`: the request has
/// none of these. Every process computes the same hash.
pub fn conversation_hash(
    settings: &RequestSettings,
    record: &RequestRecord,
    request: &ReadRequest<'_>,
    body: &[u8],
) -> Option<u64> {
    let fields = request.fields;
    let headers = &request.head.headers;
    let session = settings.session_hash(headers, fields);
    if session.is_some() {
        return session;
    }
    if let Some(user) = settings.identities.user_name(headers, fields) {
        let caller = record.caller.as_ref();
        let tenant = caller.map_or("", |caller| &*caller.tenant);
        return Some(stable_hash(format!("{tenant}\n{user}").as_bytes()));
    }
    let opening = fields.prompt.opening(body);
    let cache_marks = LeftOut::of_messages(&opening, body, || false);
    let mut hash = Xxh3::new();
    let mut length = 0;
    for piece in opening.pieces(body, &cache_marks) {
        hash.update(piece.bytes);
        length += piece.bytes.len();
    }
    (length > 0).then(|| hash.digest())
}

/// Decides which consumers get the text of the request. If any does, copies an excerpt of the prompt from the
/// body into the record.
pub(crate) fn sample_text(
    sampling: &TextSampling,
    fields: &RequestFields,
    body: &[u8],
    record: &mut RequestRecord,
) {
    let trace_id = record.trace.as_ref().map(|trace| trace.trace_id);
    for sample in &sampling.samples {
        let value = if sample.is_by_trace {
            sampling_value(trace_id, &record.request_id)
        } else {
            fastrand::f64()
        };
        if value < sample.share {
            record.text_for.add(sample.consumer);
        }
    }
    if !record.text_for.is_empty() {
        let mut excerpt = TextExcerpt::new(sampling.max_text_bytes);
        fields
            .prompt
            .parts(body)
            .for_each(|part| excerpt.push(part));
        record.prompt = Some(excerpt);
    }
}

/// A number from 0 to 1: a hash of the trace id or, without a trace, of the request id. Every gateway computes
/// the same number. A request is sampled if the number is below the sampled share.
fn sampling_value(trace_id: Option<u128>, request_id: &RequestId) -> f64 {
    let hash = match trace_id {
        Some(trace_id) => stable_hash(&trace_id.to_be_bytes()),
        None => stable_hash(request_id.as_str().as_bytes()),
    };
    unit(mix(hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    fn request_id(name: &str) -> RequestId {
        let value = name.parse().unwrap();
        RequestId::from_headers(
            &HeaderMap::from_iter([(tokenweir_protocol::headers::X_REQUEST_ID, value)]),
            1,
        )
    }

    #[test]
    fn a_sample_has_its_share_of_whole_traces() {
        let ids = (0..20_000).map(|number| request_id(&format!("request-{number}")));
        let count = ids.filter(|id| sampling_value(None, id) < 0.02).count();
        assert!(
            (320..480).contains(&count),
            "{count} of 20000 requests, not about 400"
        );
        let mut random = fastrand::Rng::with_seed(5);
        let trace_ids: Vec<u128> = (0..20_000).map(|_| random.u128(..)).collect();
        let is_sampled =
            |trace_id: &&u128| sampling_value(Some(**trace_id), &request_id("a")) < 0.02;
        let count = trace_ids.iter().filter(is_sampled).count();
        assert!(
            (320..480).contains(&count),
            "{count} of 20000 traces, not about 400"
        );
        let has_same_value = |trace_id, first_id: &str, second_id: &str| {
            sampling_value(trace_id, &request_id(first_id)).to_bits()
                == sampling_value(trace_id, &request_id(second_id)).to_bits()
        };
        assert!(
            trace_ids
                .iter()
                .all(|trace_id| has_same_value(Some(*trace_id), "a", "b"))
        );
        assert!(has_same_value(None, "a", "a") && !has_same_value(None, "a", "b"));
        assert!((0.0..1.0).contains(&sampling_value(None, &request_id(""))));
    }
}

//! What routing must know of a request: its prompt in hashes, and its session.

use crate::backend::routes::Route;
use crate::openai::request::Peek;
use crate::routing::Prompt;
use http::{HeaderMap, HeaderName};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};

/// Drawn when the gateway starts, so that nobody can make a prompt with the hashes of another.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The prompt of a request. Models, and prompts of different `cache_salt`s, share no cache.
pub(super) fn prompt(peek: &Peek, route: &Route, body: &[u8]) -> Arc<Prompt> {
    let model = route.served_as.as_deref().or(peek.model.as_deref());
    let seed = KEYS.hash_one((model, &peek.prompt.salt));
    Arc::new(Prompt::new(seed, peek.prompt.parts(body)))
}

/// A hash of the session: of the first of the headers that is there, else of the body's
/// `prompt_cache_key`.
pub(super) fn session(headers: &HeaderMap, names: &[HeaderName], peek: &Peek) -> Option<u64> {
    let named = names.iter().find_map(|name| headers.get(name)).map(|value| hash(value.as_bytes()));
    named.or_else(|| peek.cache_key.as_ref().map(|key| hash(key.as_bytes())))
}

/// The same in every process: two gateways send a session to the same replica.
fn hash(session: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(session)
}

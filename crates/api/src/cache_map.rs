//! The document of `GET /cache`: which groups of prompts fill the prefix caches of the backends.

use serde::{Deserialize, Serialize};

/// The document of `GET /cache`. The prompts of a group begin with the same 512 bytes. The numbers
/// of tokens of groups are estimates: a number of blocks times the tokens in a block.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheMapDocument {
    /// Memory that the gateway uses for this cache map, in bytes. The memory of the KV events is
    /// not included.
    pub bytes: usize,
    /// All backends.
    pub backends: Vec<CacheSummary>,
    /// The groups with the most tokens, the largest first.
    pub groups: Vec<PrefixGroup>,
    /// Number of groups that `groups` does not list.
    pub omitted_groups: usize,
}

/// The prefix cache of one backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheSummary {
    /// Name of the backend.
    pub backend: String,
    /// The source of the values. `exact`: the KV events of the backend. `approximate`: a model of
    /// the cache of the backend, from the prompts that this gateway sent.
    pub source: String,
    /// Number of tokens in this cache whose blocks belong to a group of prompts.
    pub tokens: u64,
    /// Number of tokens in this cache whose blocks belong to no group of prompts, such as those of
    /// short prompts.
    pub other_tokens: u64,
    /// Number of groups of prompts with blocks in this cache.
    pub groups: usize,
    /// Tokens that were evicted since the gateway began to fill the map.
    pub evicted_tokens: u64,
    /// Evicted tokens that were computed again: they were evicted too early.
    pub recomputed_tokens: u64,
}

/// A group of prompts that begin with the same 512 bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefixGroup {
    /// A hash that identifies the group, as 16 hexadecimal digits. It depends on a random key of the process.
    pub id: String,
    /// Label of the tenant that sent the first prompt of the group. `None`: no keys are configured, or only
    /// other gateways have sent prompts of the group.
    pub tenant: Option<String>,
    /// Tokens of the group in the caches of all backends.
    pub tokens: u64,
    /// Number of requests of this gateway whose prompts belong to the group.
    pub requests: u64,
    /// Number of requests of this gateway in the group that reused at least 512 bytes of the prompt
    /// from a cache.
    pub reused_requests: u64,
    /// Number of backends that have the group in their caches.
    pub backends: usize,
    /// Time since the first request of the group, in seconds. `None`: not known.
    pub age_seconds: Option<f64>,
    /// Time since the last request of the group, in seconds. `None`: not known.
    pub idle_seconds: Option<f64>,
    /// The backends with the most tokens of the group, the largest first.
    pub by_backend: Vec<GroupAtBackend>,
}

/// A group of prompts in the cache of one backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupAtBackend {
    /// Name of the backend.
    pub backend: String,
    /// Number of blocks of the group in the cache of this backend. They are blocks of the engine if
    /// [`CacheSummary::source`] is `exact`, otherwise blocks of 512 bytes.
    pub blocks: u64,
    /// Tokens of the group in the cache of this backend.
    pub tokens: u64,
    /// Tokens of the group that were evicted since the gateway began to fill the map.
    pub evicted_tokens: u64,
    /// Evicted tokens that were computed again: they were evicted too early.
    pub recomputed_tokens: u64,
    /// The other group that evicted most of the tokens. `None`: no other group evicted tokens.
    pub evicted_by: Option<GroupEvictor>,
}

/// A group that evicted blocks of another group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupEvictor {
    /// The id of the evicting group. `None`: blocks that belong to no group evicted the tokens.
    pub id: Option<String>,
    /// Tokens of the other group that this group evicted.
    pub tokens: u64,
}

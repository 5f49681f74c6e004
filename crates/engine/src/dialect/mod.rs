//! Parses the metrics pages of inference engines into an [`EngineLoad`].
//!
//! One pass over the bytes of a page reads the few metrics that the gateway uses. The parser knows all names
//! that versions of the engines have given these metrics. The module `tables` has one table for each engine
//! kind. A test reads a page of each engine kind from `tests/pages` or `tests/wire/metrics`.

mod engine_kind;
mod engine_values;
mod metric_sample;

mod lora_adapters;

mod engine_load;

mod table;

mod tables;

mod page_parser;

#[cfg(test)]
mod tests;

pub use engine_kind::EngineKind;
pub use engine_load::{CACHE_SOURCES, EngineLoad, TokenCounts};
pub use engine_values::hash_engine_values;
pub use lora_adapters::{LoraAdapters, MAX_ADAPTERS, adapter_hash};
pub use metric_sample::{MetricSample, lines};

/// The paths at which backends serve metrics pages, in the order in which they are tried.
/// TensorRT-LLM serves JSON at `/metrics` and its metrics page at the second path.
pub const PATHS: [&str; 2] = ["/metrics", "/prometheus/metrics"];
/// The path of the health check of a Ray Serve proxy. Language models under Ray Serve have no `/health`.
pub const RAY_SERVE_HEALTH_PATH: &str = "/-/healthz";

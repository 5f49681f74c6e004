//! Parses the metrics pages of inference engines into an [`EngineLoad`].
//!
//! One pass over the bytes of a page reads the few metrics that the gateway uses, under every name
//! that engines have given them. Each engine kind has a table in `tables`, and a test page in
//! `tests/pages` or `tests/wire/metrics` with the expected values.

mod engine_kind;
mod metric_sample;

mod lora_adapters;

mod engine_load;

mod table;

mod tables;

mod page_parser;
#[cfg(test)]
mod tests;

pub use engine_kind::EngineKind;
pub use engine_load::EngineLoad;
pub use lora_adapters::{LoraAdapters, MAX_ADAPTERS, adapter_hash};
pub use metric_sample::MetricSample;

/// The paths to scrape, in this order. TensorRT-LLM serves JSON at `/metrics`.
pub const PATHS: [&str; 2] = ["/metrics", "/prometheus/metrics"];

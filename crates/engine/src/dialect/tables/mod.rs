//! The tables of all dialects.

mod gateway;
mod llama_cpp;
mod process;
mod sglang;
mod tensorrt_llm;
mod tgi;
mod vllm;

use super::table::MetricsDialect;

pub(super) const DIALECT_COUNT: usize = 7;

/// The dialects, the most common one first.
pub(super) static DIALECTS: [&MetricsDialect; DIALECT_COUNT] = [
    &vllm::DIALECT,
    &sglang::DIALECT,
    &process::DIALECT,
    &tensorrt_llm::DIALECT,
    &tgi::DIALECT,
    &llama_cpp::DIALECT,
    &gateway::DIALECT,
];

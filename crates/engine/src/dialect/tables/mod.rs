//! The tables of all dialects.

mod gateway;
mod llama_cpp;
mod process;
mod sglang;
mod tensorrt_llm;
mod tgi;
mod vllm;

use super::engine_kind::EngineKind;
use super::table::MetricsDialect;

pub(super) const DIALECT_COUNT: usize = 7;

/// The dialects, the most common one first.
pub(super) static DIALECTS: [MetricsDialect; DIALECT_COUNT] = [
    MetricsDialect::new(Some(EngineKind::Vllm), "vllm", vllm::ROWS),
    MetricsDialect::new(Some(EngineKind::Sglang), "sglang", sglang::ROWS),
    MetricsDialect::new(None, "process", process::ROWS),
    MetricsDialect::new(Some(EngineKind::TensorRtLlm), "trtllm", tensorrt_llm::ROWS),
    MetricsDialect::new(Some(EngineKind::Tgi), "tgi", tgi::ROWS),
    MetricsDialect::new(Some(EngineKind::LlamaCpp), "llamacpp", llama_cpp::ROWS),
    MetricsDialect::new(Some(EngineKind::Gateway), "tokenweir", gateway::ROWS),
];

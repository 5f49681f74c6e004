//! The kinds of inference engines.

/// The kinds of inference engines that the gateway distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// vLLM, with its Python or Rust front end, alone or under Ray Serve.
    Vllm,
    /// SGLang.
    Sglang,
    /// `trtllm-serve` of TensorRT-LLM.
    TensorRtLlm,
    /// text-generation-inference of Hugging Face.
    Tgi,
    /// The llama.cpp server.
    LlamaCpp,
    /// Another gateway of this program.
    Gateway,
}

impl EngineKind {
    /// Parses the field `owned_by` of a model list entry. `None`: the owner is unknown.
    pub fn from_owned_by(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            "tensorrt_llm" => Some(Self::TensorRtLlm),
            "llamacpp" => Some(Self::LlamaCpp),
            _ => None,
        }
    }

    /// Name of the engine kind in `/status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TensorRtLlm => "tensorrt_llm",
            Self::Tgi => "tgi",
            Self::LlamaCpp => "llama_cpp",
            Self::Gateway => "tokenweir",
        }
    }

    /// Whether the engine sends usage in a separate event if `stream_options.include_usage` is set.
    /// `false` also for engine kinds whose behaviour is not known.
    pub const fn sends_usage_event(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang)
    }
}

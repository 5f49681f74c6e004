//! The kinds of inference engines.

use tokenweir_protocol::named_enum;

named_enum! {
    /// The kinds of inference engines that the gateway distinguishes.
    pub enum EngineKind {
        /// vLLM, with its Python or Rust front end, alone or under Ray Serve.
        Vllm = "vllm",
        /// SGLang.
        Sglang = "sglang",
        /// `trtllm-serve` of TensorRT-LLM.
        TensorRtLlm = "tensorrt_llm",
        /// text-generation-inference of Hugging Face.
        Tgi = "tgi",
        /// The llama.cpp server.
        LlamaCpp = "llama_cpp",
        /// Another instance of tokenweir, which is not an engine.
        Gateway = "tokenweir",
    }
}

impl EngineKind {
    /// Derives the engine kind from the field `owned_by` of a model list entry. `None`: no known engine
    /// writes this value.
    pub fn from_owned_by(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            "tensorrt_llm" => Some(Self::TensorRtLlm),
            "llamacpp" => Some(Self::LlamaCpp),
            _ => None,
        }
    }

    /// Whether the engine sends usage in a separate event if `stream_options.include_usage` is set. `false` if
    /// the behaviour of the engine kind is unknown.
    pub const fn sends_usage_event(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang)
    }
}

//! The kind of an error that an engine reports, from the text of its message. The text itself is not kept, because it
//! can contain parts of a prompt.

use crate::named_enum;

named_enum! {
    /// The kind of an error that an engine reports, in words.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum EngineError {
        /// The GPU has too little memory.
        OutOfMemory = "out of GPU memory",
        /// The GPU or its driver failed.
        Gpu = "a GPU fault (CUDA, ECC, Xid)",
        /// Another rank or worker was lost, or a collective operation failed.
        Peer = "a lost worker or collective (NCCL, Ray)",
        /// Images or audio of the request cannot be read.
        Media = "media cannot be fetched or decoded",
        /// The prompt exceeds the context length.
        Context = "the prompt is longer than the context",
        /// The grammar of structured output is invalid.
        Grammar = "structured output (grammar)",
        /// The chat template, the tokenizer or the tool parser failed.
        Template = "the chat template, tokenizer or tool parser",
        /// A LoRA adapter cannot be loaded.
        Adapter = "a LoRA adapter",
        /// The KV cache, or its transfer between engines, failed.
        Cache = "the KV cache or its transfer",
        /// The process of the engine has ended.
        Dead = "the engine core has died",
        /// A file cannot be read or written.
        Storage = "a file or the disk",
        /// The engine does not accept a parameter.
        Parameter = "a parameter that this engine does not accept",
    }
}

/// The texts that show each kind, in lower case. The first kind that a message shows applies.
const TEXTS: [(EngineError, &[&str]); EngineError::ALL.len()] = [
    (
        EngineError::OutOfMemory,
        &["out of memory", "outofmemory", "cudaerrormemoryallocation"],
    ),
    (
        EngineError::Gpu,
        &[
            "cuda error",
            "cudaerror",
            "cublas",
            "cudnn",
            "ecc error",
            "uncorrectable",
            "xid",
            "illegal memory access",
            "device-side assert",
            "hip error",
            "fallen off the bus",
        ],
    ),
    (
        EngineError::Peer,
        &[
            "nccl",
            "rccl",
            "collective",
            "processgroup",
            "gloo",
            "ray actor",
            "rayactor",
            "worker died",
        ],
    ),
    (
        EngineError::Media,
        &[
            "image",
            "video",
            "audio",
            "media",
            "multimodal",
            "multi-modal",
        ],
    ),
    (
        EngineError::Context,
        &[
            "context length",
            "max_model_len",
            "input tokens",
            "too long",
            "longer than",
        ],
    ),
    (
        EngineError::Grammar,
        &[
            "grammar",
            "guided",
            "json schema",
            "json_schema",
            "structured output",
            "regex",
        ],
    ),
    (
        EngineError::Template,
        &[
            "template",
            "tokenizer",
            "jinja",
            "tool parser",
            "tool_choice",
            "tool choice",
        ],
    ),
    (EngineError::Adapter, &["lora", "adapter"]),
    (
        EngineError::Cache,
        &[
            "kv cache",
            "kv_cache",
            "kv block",
            "kv transfer",
            "kv_transfer",
            "no available block",
            "nixl",
        ],
    ),
    (
        EngineError::Dead,
        &[
            "enginedead",
            "enginecore",
            "engine core",
            "engine is dead",
            "background loop",
            "engine process",
        ],
    ),
    (
        EngineError::Storage,
        &[
            "no space left",
            "disk",
            "permission denied",
            "no such file",
            "read-only file",
        ],
    ),
    (
        EngineError::Parameter,
        &[
            "must be",
            "greater than",
            "less than",
            "not supported",
            "unsupported",
            "not allowed",
            "invalid",
            "extra inputs",
        ],
    ),
];

impl EngineError {
    /// The kind of an error with this message, of which the first bytes are enough. `None`: unknown.
    pub fn of_message(message: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(message).to_lowercase();
        let shows = |texts: &[&str]| texts.iter().any(|part| text.contains(part));
        let found = TEXTS.iter().find(|(_, texts)| shows(texts));
        found.map(|(kind, _)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_kind_that_a_message_shows_applies() {
        for (message, kind) in [
            (
                "CUDA out of memory. Tried to allocate 2 GiB",
                Some(EngineError::OutOfMemory),
            ),
            (
                "EngineCore: CUDA error: uncorrectable ECC error encountered",
                Some(EngineError::Gpu),
            ),
            ("NCCL watchdog timeout", Some(EngineError::Peer)),
            (
                "Failed to fetch image from http://a/b.png",
                Some(EngineError::Media),
            ),
            (
                "This model's maximum context length is 8192 tokens",
                Some(EngineError::Context),
            ),
            ("EngineCore encountered an issue", Some(EngineError::Dead)),
            (
                "top_logprobs 20 is greater than max allowed: 5",
                Some(EngineError::Parameter),
            ),
            ("Internal server error", None),
            ("", None),
        ] {
            assert_eq!(
                EngineError::of_message(message.as_bytes()),
                kind,
                "{message}"
            );
        }
    }
}

//! How streams are continued, why a stream needs a continuation, and why a stream is not continued.

use tokenweir_protocol::{named_enum, settings};

settings! {
    /// How the gateway continues a stream whose backend ends it early.
    #[derive(Default, PartialOrd, Ord)]
    pub enum ContinuationMode {
        /// Not at all: the stream ends.
        #[default]
        Off,
        /// Another backend continues the text. It may divide the text into other tokens.
        Text,
        /// Another backend continues after the token ids of the first backend. Needs vLLM 0.32 or later with
        /// its Python front end.
        Exact,
    }
}

named_enum! {
    /// Why a stream needs another backend.
    #[derive(Hash)]
    pub enum InterruptionCause {
        /// The backend ended the stream early or broke its connection.
        Died = "died",
        /// The backend sent no output for longer than `stalls.abort_after`.
        Stalled = "stalled",
        /// The health checker declared the backend down, and the backend sent nothing.
        BackendDown = "backend_down",
        /// The backend aborted the response, because it shuts down.
        Aborted = "aborted",
        /// The backend reported an error of its engine in the stream.
        EngineFailed = "engine_failed",
        /// The next backend did not continue the stream. Its repetition of the prompt or text differs from the
        /// first backend's stream.
        Diverged = "diverged",
        /// The backend was removed, or an operator drains it and moves its streams.
        Migrated = "migrated",
    }
}

named_enum! {
    /// Why a stream that ended early was not continued.
    #[derive(Hash)]
    pub enum ContinuationRefusal {
        /// The API is neither chat completions nor completions.
        Api = "api",
        /// The request asks for several choices.
        Choices = "choices",
        /// The request asks for log probabilities, which cannot be joined from two streams.
        Logprobs = "logprobs",
        /// The request has stop strings, so the engine holds text back.
        StopStrings = "stop_strings",
        /// The request has penalties or bad words, which depend on the tokens that the engine itself
        /// generated.
        Penalties = "penalties",
        /// The request samples with a seed: the random numbers of the next engine would start again from the
        /// beginning.
        Seed = "seed",
        /// The request samples, and `streams.continuation_greedy_only` is set.
        Sampled = "sampled",
        /// The request requires structured output, such as JSON. The state of the structure is in the engine.
        StructuredOutput = "structured_output",
        /// The output so far has a part of a tool call.
        ToolCall = "tool_call",
        /// The request asks the backend to store the response.
        Stored = "stored",
        /// The prompt has images, audio or video, which token ids do not contain.
        Media = "media",
        /// The request has another field with which a continuation would differ from the uninterrupted
        /// stream.
        Field = "field",
        /// A header of the request has a digest of the body, so the gateway cannot change the body.
        SignedBody = "signed_body",
        /// The backend sent no token ids.
        NoTokenIds = "no_token_ids",
        /// The output so far has reasoning, which a continuation by text cannot continue.
        Reasoning = "reasoning",
        /// In the output, no position is known from which another backend could continue exactly.
        Position = "position",
        /// The stream already had its finish reason, or as many tokens as the request allows.
        Finished = "finished",
        /// The next backend did not continue the stream.
        Diverged = "diverged",
        /// An event could not be read.
        Unreadable = "unreadable",
        /// The memory limit for continuations was reached.
        Memory = "memory",
        /// The request was already sent to the maximum number of backends.
        MaxAttempts = "max_attempts",
        /// No other backend had capacity in time.
        Capacity = "capacity",
        /// The request may have crashed several backends.
        PoisonRequest = "poison",
        /// All other backends of the model were down or excluded.
        NoOtherBackend = "no_other_backend",
        /// Only the usage or the end of the stream was missing. The gateway wrote the missing events.
        Completed = "completed",
    }
}

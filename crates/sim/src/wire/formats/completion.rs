//! The text completions format. There is no role chunk, and every chunk has a `finish_reason`
//! field.

use super::openai::OpenAiFormat;

const TEXT: &str = r#"$prefix{"index":$index,"text":"$text","logprobs":null,"finish_reason":$finish,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]$usage$fingerprint}"#;

pub(super) static COMPLETIONS: OpenAiFormat = OpenAiFormat {
    prefix: r#"{"id":$id,"object":"text_completion","created":$created,"model":$model,"choices":["#,
    role: None,
    text: TEXT,
    finish: TEXT,
    continuous_usage: r#","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion}"#,
    usage: r#"$prefix],"usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached}},"system_fingerprint":"$fingerprint"}"#,
    body: r#"{"id":$id,"object":"text_completion","created":$created,"model":$model,"choices":[$choices],"service_tier":null,"system_fingerprint":"$fingerprint","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#,
    choice: r#"{"index":$index,"text":$content,"logprobs":null,"finish_reason":"$finish","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}"#,
};

//! The chat completions format. The role chunks are written with the first token. The last token carries the
//! finish reason, and also the fingerprint if no usage chunk follows.

use super::openai::OpenAiFormat;

pub(super) static CHAT: OpenAiFormat = OpenAiFormat {
    prefix: r#"{"id":$id,"object":"chat.completion.chunk","created":$created,"model":$model,"choices":["#,
    role: Some(
        r#"$prefix{"index":$index,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]$usage,"prompt_token_ids":null,"prompt_text":null}"#,
    ),
    text: r#"$prefix{"index":$index,"delta":{"content":"$text"},"logprobs":null,"finish_reason":null,"token_ids":null}]$usage}"#,
    finish: r#"$prefix{"index":$index,"delta":{$content},"logprobs":null,"finish_reason":$finish,"stop_reason":null,"token_ids":null}]$usage$fingerprint}"#,
    continuous_usage: r#","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"completion_tokens_details":{"reasoning_tokens":0}}"#,
    usage: r#"$prefix],"usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},"system_fingerprint":"$fingerprint"}"#,
    body: r#"{"id":$id,"object":"chat.completion","created":$created,"model":$model,"choices":[$choices],"service_tier":null,"system_fingerprint":"$fingerprint","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":0,"multimodal_tokens":null},"completion_tokens_details":{"reasoning_tokens":0}},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#,
    choice: r#"{"index":$index,"message":{"role":"assistant","content":$content,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"$finish","stop_reason":null,"token_ids":null,"routed_experts":null}"#,
};

//! Responses that are one short JSON document: models, tokenization, embeddings,
//! version.

use super::template::quoted;
use crate::text::{SimulatedPrompt, mix};
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// The body of `GET /version`: the simulated version of vLLM.
pub const VERSION: &str = r#"{"version":"0.32.0"}"#;
/// The response to an unknown path, as from FastAPI.
pub const NOT_FOUND: &str = r#"{"detail":"Not Found"}"#;
/// The response to an unsupported method, as from FastAPI.
pub const METHOD_NOT_ALLOWED: &str = r#"{"detail":"Method Not Allowed"}"#;

/// The body of `GET /v1/models`. The first model is the root, and the others are its aliases.
pub fn models(models: &[String], created: u64, max_model_len: u32) -> String {
    let root = quoted(models.first().map_or("", String::as_str));
    let entries: Vec<String> = models
        .iter()
        .map(|model| {
            let permission = mix(created, model.len() as u64);
            let model = quoted(model);
            format!(
                r#"{{"id":{model},"object":"model","created":{created},"owned_by":"vllm","root":{root},"parent":null,"max_model_len":{max_model_len},"permission":[{{"id":"modelperm-{permission:016x}","object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}"#
            )
        })
        .collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(","))
}

/// The body of `POST /tokenize`.
pub fn tokenize(prompt: &SimulatedPrompt, max_model_len: u32) -> String {
    let tokens: Vec<String> = prompt.tokens().map(|token| token.to_string()).collect();
    format!(
        r#"{{"count":{},"max_model_len":{max_model_len},"tokens":[{}],"token_strs":null}}"#,
        tokens.len(),
        tokens.join(",")
    )
}

/// The body of `POST /detokenize`.
pub fn detokenize(prompt: &SimulatedPrompt) -> String {
    format!(r#"{{"prompt":{}}}"#, quoted(&prompt.text()))
}

/// The body of `POST /v1/messages/count_tokens`.
pub fn count_tokens(tokens: u32) -> String {
    format!(
        r#"{{"input_tokens":{tokens},"context_management":{{"original_input_tokens":{tokens}}}}}"#
    )
}

/// The body of `POST /v1/embeddings`: a unit vector of 64 numbers for each prompt, as an array or in base64.
pub fn embeddings(
    id: &str,
    created: u64,
    model: &str,
    prompts: &[SimulatedPrompt],
    is_base64: bool,
) -> String {
    let entries: Vec<String> = prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| {
            let vector = embedding(prompt.hash());
            let vector = if is_base64 {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                quoted(&BASE64_STANDARD.encode(&bytes))
            } else {
                format!("[{}]", vector.map(|x| x.to_string()).join(","))
            };
            format!(r#"{{"index":{index},"object":"embedding","embedding":{vector}}}"#)
        })
        .collect();
    let tokens: u32 = prompts.iter().map(SimulatedPrompt::token_count).sum();
    format!(
        r#"{{"id":{},"object":"list","created":{created},"model":{},"data":[{}],"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens},"completion_tokens":0,"prompt_tokens_details":null,"completion_tokens_details":null}}}}"#,
        quoted(id),
        quoted(model),
        entries.join(",")
    )
}

/// A unit vector that the seed determines.
fn embedding(seed: u64) -> [f32; 64] {
    let raw: [f32; 64] = std::array::from_fn(|index| {
        (mix(seed, index as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    let length = raw.iter().map(|x| x * x).sum::<f32>().sqrt();
    raw.map(|x| x / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenize_equals_the_recording_and_detokenize_inverts() {
        let prompt = SimulatedPrompt::new("no one");
        let texts = tokenize(&prompt, 2048);
        assert_eq!(
            texts,
            r#"{"count":2,"max_model_len":2048,"tokens":[1864396654,25966],"token_strs":null}"#
        );
        assert_eq!(
            detokenize(&SimulatedPrompt::from_tokens(&[1_864_396_654, 25966])),
            r#"{"prompt":"no one"}"#
        );
    }
}

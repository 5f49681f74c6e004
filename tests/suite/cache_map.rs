//! The cache map, a document of the admin listener: it shows which groups of prompts fill the caches of
//! backends, without the text of prompts.

use crate::access::{KEY, access, keyed, tenant};
use crate::support::scripted_backend::{FINISH, ROLE, WORD, stream_of};
use crate::support::test_gateway::{CHAT, Running, Setup, gateway_answering_with, post};
use serde_json::{Value, json};

/// A usage event: of 900 prompt tokens, 512 were cached.
const USAGE: &str = r#"{"id":"c","model":"tiny","choices":[],"usage":{"prompt_tokens":900,"completion_tokens":3,"total_tokens":903,"prompt_tokens_details":{"cached_tokens":512}}}"#;

/// Sends a chat request with this system prompt and question, and waits for the record of the request.
async fn ask(gateway: &Running, system: &str, question: &str) {
    let messages = json!([
        { "role": "system", "content": system.repeat(300) },
        { "role": "user", "content": question },
    ]);
    let body = json!({ "model": "tiny", "stream": true, "messages": messages }).to_string();
    gateway.raw(keyed(&post(CHAT, &body))).await;
    gateway.record().await;
}

#[tokio::test]
async fn the_cache_map_lists_groups_of_prompts_without_prompt_text_and_api_keys() {
    let answer = stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"]);
    let setup = Setup { access: access(tenant()), ..Setup::default() };
    let (fake, gateway) = gateway_answering_with(setup, answer).await;
    for question in ["secret one", "secret two", "secret three"] {
        ask(&gateway, "secret system ", question).await;
    }
    ask(&gateway, "other system ", "secret").await;
    let page = gateway.admin("/cache").await;
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("cache-control: no-store"), "{page}");
    assert!(!page.contains("secret") && !page.contains(KEY) && !page.contains("\"one\""), "{page}");
    let map: Value = serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap();
    let groups = map["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 2, "{map:#}");
    let large = groups.iter().find(|group| group["requests"] == 3).unwrap();
    assert_eq!(large["tenant"], "a");
    let here = &large["by_backend"][0];
    assert_eq!(here["backend"], fake.addr.to_string());
    assert!(here["tokens"].as_u64().unwrap() > 500, "{here}");
    assert_eq!(large["id"].as_str().unwrap().len(), 16);
}

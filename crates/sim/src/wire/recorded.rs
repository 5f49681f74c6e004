//! Response bodies recorded from vLLM 0.32.0.

/// A chat stream of five tokens with a usage chunk.
pub(super) const CHAT_STREAM: &str = r#"data: {"id":"chatcmpl-a9d5374d321e2fb1","object":"chat.completion.chunk","created":1795191578,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}

data: {"id":"chatcmpl-a9d5374d321e2fb1","object":"chat.completion.chunk","created":1795191578,"model":"tiny","choices":[{"index":0,"delta":{"content":"one"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-a9d5374d321e2fb1","object":"chat.completion.chunk","created":1795191578,"model":"tiny","choices":[{"index":0,"delta":{"content":" two"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-a9d5374d321e2fb1","object":"chat.completion.chunk","created":1795191578,"model":"tiny","choices":[{"index":0,"delta":{"content":" three"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-a9d5374d321e2fb1","object":"chat.completion.chunk","created":1795191578,"model":"tiny","choices":[{"index":0,"delta":{"content":" four"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-a9d5374d321e2fb1","object":"chat.completion.chunk","created":1795191578,"model":"tiny","choices":[{"index":0,"delta":{"content":" five"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-a9d5374d321e2fb1","object":"chat.completion.chunk","created":1795191578,"model":"tiny","choices":[],"usage":{"prompt_tokens":12,"total_tokens":17,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},"system_fingerprint":"vllm-0.32.0-f0a48782"}

data: [DONE]

"#;
/// A text completion stream of eight tokens without a usage chunk.
pub(super) const COMPLETION_STREAM: &str = r#"data: {"id":"cmpl-92117cfcbb24dab7","object":"text_completion","created":1795191581,"model":"tiny","choices":[{"index":0,"text":" closes","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}

data: {"id":"cmpl-92117cfcbb24dab7","object":"text_completion","created":1795191581,"model":"tiny","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}

data: {"id":"cmpl-92117cfcbb24dab7","object":"text_completion","created":1795191581,"model":"tiny","choices":[{"index":0,"text":" slow","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}

data: {"id":"cmpl-92117cfcbb24dab7","object":"text_completion","created":1795191581,"model":"tiny","choices":[{"index":0,"text":" answer","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}

data: {"id":"cmpl-92117cfcbb24dab7","object":"text_completion","created":1795191581,"model":"tiny","choices":[{"index":0,"text":" in","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}

data: {"id":"cmpl-92117cfcbb24dab7","object":"text_completion","created":1795191581,"model":"tiny","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}

data: {"id":"cmpl-92117cfcbb24dab7","object":"text_completion","created":1795191581,"model":"tiny","choices":[{"index":0,"text":" loop","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}

data: {"id":"cmpl-92117cfcbb24dab7","object":"text_completion","created":1795191581,"model":"tiny","choices":[{"index":0,"text":".","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}],"system_fingerprint":"vllm-0.32.0-f0a48782"}

data: [DONE]

"#;
/// A Responses stream of five tokens.
pub(super) const RESPONSES_STREAM: &str = r#"event: response.created
data: {"response":{"id":"resp_8e0cbd9e8c9b59fc","created_at":1795191581,"incomplete_details":null,"instructions":null,"metadata":null,"model":"tiny","object":"response","output":[],"parallel_tool_calls":true,"temperature":0.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":5,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"in_progress","text":null,"top_logprobs":null,"truncation":"disabled","usage":null,"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null},"sequence_number":0,"type":"response.created"}

event: response.in_progress
data: {"response":{"id":"resp_8e0cbd9e8c9b59fc","created_at":1795191581,"incomplete_details":null,"instructions":null,"metadata":null,"model":"tiny","object":"response","output":[],"parallel_tool_calls":true,"temperature":0.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":5,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"in_progress","text":null,"top_logprobs":null,"truncation":"disabled","usage":null,"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null},"sequence_number":1,"type":"response.in_progress"}

event: response.output_item.added
data: {"item":{"id":"msg_95cce4cf0c3ee985","content":[],"role":"assistant","status":"in_progress","type":"message","phase":null},"output_index":0,"sequence_number":2,"type":"response.output_item.added"}

event: response.content_part.added
data: {"content_index":0,"item_id":"msg_95cce4cf0c3ee985","output_index":0,"part":{"annotations":[],"text":"","type":"output_text","logprobs":[]},"sequence_number":3,"type":"response.content_part.added"}

event: response.output_text.delta
data: {"content_index":0,"delta":"one","item_id":"msg_95cce4cf0c3ee985","logprobs":[],"output_index":0,"sequence_number":4,"type":"response.output_text.delta"}

event: response.output_text.delta
data: {"content_index":0,"delta":" two","item_id":"msg_95cce4cf0c3ee985","logprobs":[],"output_index":0,"sequence_number":5,"type":"response.output_text.delta"}

event: response.output_text.delta
data: {"content_index":0,"delta":" three","item_id":"msg_95cce4cf0c3ee985","logprobs":[],"output_index":0,"sequence_number":6,"type":"response.output_text.delta"}

event: response.output_text.delta
data: {"content_index":0,"delta":" four","item_id":"msg_95cce4cf0c3ee985","logprobs":[],"output_index":0,"sequence_number":7,"type":"response.output_text.delta"}

event: response.output_text.delta
data: {"content_index":0,"delta":" five","item_id":"msg_95cce4cf0c3ee985","logprobs":[],"output_index":0,"sequence_number":8,"type":"response.output_text.delta"}

event: response.output_text.done
data: {"content_index":0,"item_id":"msg_95cce4cf0c3ee985","logprobs":[],"output_index":0,"sequence_number":9,"text":"one two three four five","type":"response.output_text.done"}

event: response.content_part.done
data: {"content_index":0,"item_id":"msg_95cce4cf0c3ee985","output_index":0,"part":{"annotations":[],"text":"one two three four five","type":"output_text","logprobs":null},"sequence_number":10,"type":"response.content_part.done"}

event: response.output_item.done
data: {"item":{"id":"msg_95cce4cf0c3ee985","content":[{"annotations":[],"text":"one two three four five","type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message","phase":null},"output_index":0,"sequence_number":11,"type":"response.output_item.done"}

event: response.completed
data: {"response":{"id":"resp_8e0cbd9e8c9b59fc","created_at":1795191581,"incomplete_details":{"reason":"max_output_tokens"},"instructions":null,"metadata":null,"model":"tiny","object":"response","output":[{"id":"msg_95cce4cf0c3ee985","content":[{"annotations":[],"text":"one two three four five","type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message","phase":null}],"parallel_tool_calls":true,"temperature":0.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":5,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"incomplete","text":null,"top_logprobs":null,"truncation":"disabled","usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":17},"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null},"sequence_number":12,"type":"response.completed"}

"#;
/// A Messages stream of five tokens.
pub(super) const MESSAGES_STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"chatcmpl-a6db9eb8594535e2","type":"message","role":"assistant","content":[],"model":"tiny","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":13,"output_tokens":0}}}

event: content_block_start
data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"H"},"index":0}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"el"},"index":0}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"lo"},"index":0}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"!"},"index":0}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":" I"},"index":0}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"input_tokens":13,"output_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}}

event: message_stop
data: {"type":"message_stop"}

"#;
/// A complete body of a chat completion with 24 output tokens.
pub(super) const CHAT: &str = r#"{"id":"chatcmpl-93a105e493a501f9","object":"chat.completion","created":1795191576,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hello! I am a tiny model. How can I help you today?","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-f0a48782","usage":{"prompt_tokens":13,"total_tokens":37,"completion_tokens":24,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0,"multimodal_tokens":null},"completion_tokens_details":{"reasoning_tokens":0}},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#;
/// The body of a text completion of eight tokens.
pub(super) const COMPLETION: &str = r#"{"id":"cmpl-b489d2c5e7ce9726","object":"text_completion","created":1795191581,"model":"tiny","choices":[{"index":0,"text":" closes a slow answer in a loop.","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-f0a48782","usage":{"prompt_tokens":2,"total_tokens":10,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#;
/// A complete body of the Responses API with 24 output tokens.
pub(super) const RESPONSES: &str = r#"{"id":"resp_b50e59b35486d2a3","created_at":1795191581,"incomplete_details":null,"instructions":null,"metadata":null,"model":"tiny","object":"response","output":[{"id":"msg_98e03c950a8bf46a","content":[{"annotations":[],"text":"Hello! I am a tiny model. How can I help you today?","type":"output_text","logprobs":null}],"role":"assistant","status":"completed","type":"message","phase":null}],"parallel_tool_calls":true,"temperature":0.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":2035,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"completed","text":null,"top_logprobs":null,"truncation":"disabled","usage":{"input_tokens":13,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":24,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":37},"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}"#;
/// The body of a Messages response that stopped after 24 tokens.
pub(super) const MESSAGES: &str = r#"{"id":"chatcmpl-98b7f95d4adeb499","type":"message","role":"assistant","content":[{"type":"text","text":"Hello! I am a tiny model. How can I help you today?"}],"model":"tiny","stop_reason":"end_turn","usage":{"input_tokens":13,"output_tokens":24,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}}"#;
/// The role chunk, a token chunk and the finish chunk of a chat stream with continuous usage.
pub(super) const CHAT_CONTINUOUS: [&str; 3] = [
    r#"data: {"id":"chatcmpl-b1e0a9ca914d8d13","object":"chat.completion.chunk","created":1795191576,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":13,"total_tokens":13,"completion_tokens":0,"completion_tokens_details":{"reasoning_tokens":0}},"prompt_token_ids":null,"prompt_text":null}"#,
    r#"data: {"id":"chatcmpl-b1e0a9ca914d8d13","object":"chat.completion.chunk","created":1795191576,"model":"tiny","choices":[{"index":0,"delta":{"content":"H"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":13,"total_tokens":14,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":0}}}"#,
    r#"data: {"id":"chatcmpl-b1e0a9ca914d8d13","object":"chat.completion.chunk","created":1795191576,"model":"tiny","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],"usage":{"prompt_tokens":13,"total_tokens":37,"completion_tokens":24,"completion_tokens_details":{"reasoning_tokens":0}}}"#,
];
pub(super) const CHAT_STOP: &str = r#"data: {"id":"chatcmpl-8c28b332885f353f","object":"chat.completion.chunk","created":1795191576,"model":"tiny","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.32.0-f0a48782"}"#;

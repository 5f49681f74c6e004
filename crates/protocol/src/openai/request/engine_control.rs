//! The table of request fields and headers that control the engine instead of the response, each
//! with its default action and the permission that lets a client use it. The security guide shows
//! the same table.
//!
//! A field is in the table if it lets a client make the engine connect, read or run something,
//! replace the prompt that the gateway sees, or affect other tenants through the queue, the caches,
//! stored responses or the names in KV events. The names of the fields come from the request models
//! of vLLM 0.32, SGLang and TensorRT-LLM.

use super::Splice;
use crate::named_enum;
use crate::openai::Api;
use schemars::JsonSchema;
use serde::Deserialize;
use std::ops::{BitOr, Range};

named_enum! {
    /// A permission to use an engine-control field or header.
    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Permission {
        /// `kv_transfer_params`, and the fields of SGLang and TensorRT-LLM for KV cache transfer.
        KvTransfer = "kv_transfer",
        /// `ec_transfer_params`.
        EcTransfer = "ec_transfer",
        /// `vllm_xargs`: parameters of plugins of the engine.
        Xargs = "xargs",
        /// `vllm_xargs.kv_cache_report_mode`. It needs the permission `xargs` too.
        KvCacheReport = "kv_cache_report",
        /// `session_id` and `X-Session-ID`: the name of the session in KV events.
        SessionId = "session_id",
        /// `priority` and `X-Vllm-Priority`.
        Priority = "priority",
        /// A `cache_salt` of the client. It is forwarded unchanged even if
        /// `access.cache_salt_secret` is set.
        CacheSalt = "cache_salt",
        /// `X-data-parallel-rank`, and SGLang's fields for the data-parallel rank.
        DataParallelRank = "data_parallel_rank",
        /// `request_id` of a Responses request: an id of the stored response that the client
        /// selects.
        RequestId = "request_id",
        /// `chat_template`.
        ChatTemplate = "chat_template",
        /// `prompt_embeds`.
        PromptEmbeds = "prompt_embeds",
        /// LoRA adapters selected by a field other than `model`.
        Lora = "lora",
        /// `x-tokenweir-explain`, which requests response headers with the routing decision.
        RoutingHeaders = "routing_headers",
        /// Stored responses whose creation this gateway did not see, so that it does not know their tenant.
        StoredResponses = "stored_responses",
        /// Requests that go on while their client is away (`streams.resume`).
        Resume = "resume",
    }
}

/// A set of permissions, one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions(u16);

/// How the gateway handles a field or header if the client does not have the permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlAction {
    /// The gateway rejects the request with 400.
    Refuse,
    /// The gateway removes the header. In a body, it replaces a string with this JSON value, which means "not
    /// set" to the engine, and rejects a value of another type with 400.
    Strip(&'static str),
    /// The gateway forwards the field or header unchanged.
    Pass,
}

/// A request field or header that controls the engine instead of the response: a row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineControl {
    /// Name of the header in lower case, or path of the field in a JSON body.
    pub name: &'static str,
    /// The permission that lets a client use the field or header.
    pub permission: Permission,
    /// The action of the gateway if the client sends the field or header without the permission.
    pub action: ControlAction,
    /// The only API in which the field has an effect. `None`: the field has an effect in every API.
    pub api: Option<Api>,
    /// The effect on the engine, for the security guide.
    pub effect: &'static str,
}

/// An engine-control field that a request uses. `null` and a `priority` of 0 do not count as a use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedControl {
    /// The row of the field in [`FIELDS`].
    pub control: &'static EngineControl,
    /// Byte range of a string value in the body, with its quotes. `None`: the value is not a
    /// string, or the body is a form.
    pub text: Option<Range<usize>>,
}

/// A change of one field of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldEdit {
    /// The field that is removed or set.
    pub field: &'static str,
    /// The replacement of the value of the field in the bytes of the body.
    pub splice: Splice,
}

const fn control(
    name: &'static str,
    permission: Permission,
    action: ControlAction,
    effect: &'static str,
) -> EngineControl {
    EngineControl {
        name,
        permission,
        action,
        api: None,
        effect,
    }
}

/// A field that the gateway rejects if the client does not have the permission.
const fn refused(
    name: &'static str,
    permission: Permission,
    effect: &'static str,
) -> EngineControl {
    control(name, permission, Refuse, effect)
}

use ControlAction::{Pass, Refuse, Strip};
use Permission as P;

/// The engine-control fields of JSON bodies. Form fields have the same names.
pub static FIELDS: [EngineControl; 27] = [
    refused(
        "kv_transfer_params",
        P::KvTransfer,
        "makes the engine connect to `remote_host`; `prompt_token_ids` in it replaces the prompt",
    ),
    refused(
        "ec_transfer_params",
        P::EcTransfer,
        "makes the engine fetch encoder caches",
    ),
    refused(
        "vllm_xargs",
        P::Xargs,
        "goes unchecked to plugins of the engine; new engine parameters appear here first",
    ),
    refused(
        "vllm_xargs.kv_transfer_params",
        P::KvTransfer,
        "the engine reads it as `kv_transfer_params`",
    ),
    refused(
        "vllm_xargs.ec_transfer_params",
        P::EcTransfer,
        "the engine reads it as `ec_transfer_params`",
    ),
    refused(
        "vllm_xargs.kv_cache_report_mode",
        P::KvCacheReport,
        "makes KV events announce cached blocks again",
    ),
    control(
        "vllm_xargs.session_id",
        P::SessionId,
        Strip("\"\""),
        "names the session in KV events",
    ),
    refused(
        "sampling_params.extra_args",
        P::Xargs,
        "`/inference/v1/generate`: like `vllm_xargs`",
    ),
    refused(
        "sampling_params.extra_args.kv_transfer_params",
        P::KvTransfer,
        "the engine reads it as `kv_transfer_params`",
    ),
    refused(
        "sampling_params.extra_args.ec_transfer_params",
        P::EcTransfer,
        "the engine reads it as `ec_transfer_params`",
    ),
    control(
        "session_id",
        P::SessionId,
        Strip("null"),
        "names the session in KV events",
    ),
    refused(
        "priority",
        P::Priority,
        "changes the position in the engine's queue",
    ),
    control(
        "cache_salt",
        P::CacheSalt,
        Pass,
        "requests with equal salts share cached prefixes; `access.cache_salt_secret` binds it to a tenant",
    ),
    EngineControl {
        api: Some(Api::Responses),
        ..refused(
            "request_id",
            P::RequestId,
            "is the id of the stored response; replaces a stored response with the same id",
        )
    },
    refused(
        "chat_template",
        P::ChatTemplate,
        "a program that builds the prompt, if vLLM trusts request templates",
    ),
    refused(
        "chat_template_kwargs.chat_template",
        P::ChatTemplate,
        "like `chat_template`",
    ),
    refused(
        "prompt_embeds",
        P::PromptEmbeds,
        "a prompt as embeddings, which the gateway cannot read and which can crash the engine",
    ),
    refused(
        "prompt_token_ids",
        P::KvTransfer,
        "TensorRT-LLM: replaces the prompt",
    ),
    refused(
        "disaggregated_params",
        P::KvTransfer,
        "TensorRT-LLM: makes the engine fetch a KV cache",
    ),
    refused(
        "bootstrap_host",
        P::KvTransfer,
        "SGLang: makes the engine connect there",
    ),
    refused(
        "bootstrap_room",
        P::KvTransfer,
        "SGLang: selects the transfer whose KV cache the engine uses",
    ),
    refused(
        "custom_logit_processor",
        P::Xargs,
        "SGLang: code that the engine runs",
    ),
    refused(
        "data_parallel_rank",
        P::DataParallelRank,
        "SGLang: picks the engine",
    ),
    refused(
        "routed_dp_rank",
        P::DataParallelRank,
        "SGLang: picks the engine",
    ),
    refused(
        "lora",
        P::Lora,
        "llama.cpp: picks adapters, whatever `model` says",
    ),
    refused(
        "lora_path",
        P::Lora,
        "SGLang: picks an adapter, whatever `model` says",
    ),
    refused(
        "lora_request",
        P::Lora,
        "TensorRT-LLM: loads an adapter from a path",
    ),
];

/// The engine-control headers. Headers that are removed for all clients are in [`crate::headers`].
pub static HEADERS: [EngineControl; 3] = [
    control(
        "x-session-id",
        P::SessionId,
        Strip(""),
        "names the session in KV events",
    ),
    control(
        "x-data-parallel-rank",
        P::DataParallelRank,
        Strip(""),
        "picks the engine",
    ),
    control(
        "x-vllm-priority",
        P::Priority,
        Strip(""),
        "like `priority`, and takes precedence over it",
    ),
];

/// Returns the entries of the list of engine-control fields and headers in the security guide, in
/// Markdown.
pub fn table() -> impl Iterator<Item = String> {
    let fields = FIELDS.iter().map(|control| (control, ""));
    fields
        .chain(HEADERS.iter().map(|control| (control, "header ")))
        .map(|(control, kind)| {
            let EngineControl {
                name,
                permission,
                action,
                api,
                effect,
            } = control;
            let action = match action {
                Refuse => "400",
                Strip(_) => "removed",
                Pass => "forwarded",
            };
            let api = if *api == Some(Api::Responses) {
                "field of Responses "
            } else {
                ""
            };
            format!(
                "- {kind}{api}`{name}` ({action}, `{}`): {effect}",
                permission.as_str()
            )
        })
}

/// Paths of requests in which vLLM has no field `cache_salt`.
const PATHS_WITHOUT_CACHE_SALT: [&str; 6] = [
    "/tokenize",
    "/detokenize",
    "/v1/messages/count_tokens",
    "/v2/embed",
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
];

/// Whether vLLM reads `cache_salt` in requests to this path.
pub fn supports_cache_salt(api: Option<Api>, path: &str) -> bool {
    match api {
        None | Some(Api::Audio | Api::Http) => false,
        Some(Api::Other) => !PATHS_WITHOUT_CACHE_SALT.contains(&path),
        Some(_) => true,
    }
}

impl Permissions {
    /// Collects the permissions of a list.
    pub fn new(list: &[Permission]) -> Self {
        Self(
            list.iter()
                .fold(0, |set, permission| set | 1 << *permission as u16),
        )
    }

    /// Whether the client may use the field of this permission.
    pub const fn allow(self, permission: Permission) -> bool {
        self.0 & 1 << permission as u16 != 0
    }

    /// Returns the edits that remove the fields of `used` that the client may not send. Fails with
    /// the row of the first field for which the request must be rejected.
    pub fn check(
        self,
        used: &[UsedControl],
        api: Option<Api>,
    ) -> Result<Vec<FieldEdit>, &'static EngineControl> {
        let mut edits = Vec::new();
        for UsedControl { control, text } in used {
            let has_effect = control.api.is_none() || control.api == api;
            if self.allow(control.permission) || !has_effect {
                continue;
            }
            match (control.action, text) {
                (Pass, _) => {}
                (Strip(unset), Some(range)) => edits.push(FieldEdit {
                    field: control.name,
                    splice: Splice::replace(range.clone(), unset),
                }),
                (Refuse | Strip(_), _) => return Err(control),
            }
        }
        Ok(edits)
    }

    /// Whether the gateway must remove this header of a client's request. `name` is in lower case.
    pub fn strips_header(self, name: &str) -> bool {
        HEADERS
            .iter()
            .any(|control| control.name == name && !self.allow(control.permission))
    }
}

impl BitOr for Permissions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::request_fields::RequestFields;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    #[test]
    fn every_control_has_a_name_and_a_permission() {
        let rows = || FIELDS.iter().chain(&HEADERS);
        let names: BTreeSet<&str> = rows().map(|control| control.name).collect();
        assert_eq!(names.len(), rows().count());
        assert!(FIELDS.len() <= 32, "the parser has 32 bits");
        for EngineControl { permission, .. } in rows() {
            assert_eq!(json!(permission), json!(permission.as_str()));
            let single = Permissions::new(&[*permission]);
            let allowed: Vec<_> = rows().filter(|row| single.allow(row.permission)).collect();
            assert!(allowed.iter().all(|row| row.permission == *permission));
        }
        assert!(
            HEADERS
                .iter()
                .all(|header| header.name == header.name.to_ascii_lowercase())
        );
    }

    #[test]
    fn a_union_has_the_permissions_of_both() {
        let both = Permissions::new(&[P::KvTransfer]) | Permissions::new(&[P::Lora]);
        assert!(both.allow(P::KvTransfer) && both.allow(P::Lora) && !both.allow(P::Xargs));
        assert!(!Permissions::default().allow(P::KvTransfer));
        assert!(Permissions::default().strips_header("x-session-id"));
        assert!(!Permissions::default().strips_header("x-request-id"));
    }

    #[test]
    fn forbidden_strings_are_replaced_and_others_rejected() {
        let body = r#"{"session_id":"a\"b" ,"n":1}"#;
        let fields = RequestFields::parse(body.as_bytes()).unwrap();
        let edits = Permissions::default()
            .check(&fields.controls, Some(Api::Chat))
            .unwrap();
        let edited = Splice::apply(edits.iter().map(|edit| &edit.splice), body.as_bytes());
        assert_eq!(edited, r#"{"session_id":null ,"n":1}"#);
        for value in ["1", "true", "[]", "{}"] {
            let fields =
                RequestFields::parse(format!("{{\"session_id\":{value}}}").as_bytes()).unwrap();
            let rejected = Permissions::default()
                .check(&fields.controls, None)
                .unwrap_err();
            assert_eq!(rejected.name, "session_id", "{value}");
        }
    }

    #[test]
    fn request_id_is_rejected_where_responses_are_stored() {
        let fields = RequestFields::parse(br#"{"request_id":"resp_of_another"}"#).unwrap();
        let none = Permissions::default();
        assert!(none.check(&fields.controls, Some(Api::Responses)).is_err());
        assert_eq!(
            none.check(&fields.controls, Some(Api::Chat)),
            Ok(Vec::new())
        );
        let allowed = Permissions::new(&[P::RequestId]);
        assert_eq!(
            allowed.check(&fields.controls, Some(Api::Responses)),
            Ok(Vec::new())
        );
    }

    #[test]
    fn a_member_fits_into_any_json_object() {
        for body in ["{}", " { }", "{\"a\":{}}", "{ \"a\":1}"] {
            let splice = Splice::insert(body.as_bytes(), "\"s\":\"x\"").unwrap();
            let edited = Splice::apply([&splice], body.as_bytes());
            let mut expected: Value = serde_json::from_str(body).unwrap();
            expected["s"] = json!("x");
            assert_eq!(
                serde_json::from_slice::<Value>(&edited).unwrap(),
                expected,
                "{body}"
            );
        }
        assert_eq!(Splice::insert(b"[]", ""), None);
    }
}

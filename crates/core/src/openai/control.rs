//! Request fields and headers that control the engine instead of the answer: one table with the
//! default action for each, and the permission that lets a client use it. `docs/security.md` shows
//! the same table.
//!
//! A field is in the table if it lets a client make the engine connect, read or run something,
//! replace the prompt that the gateway sees, or touch what other tenants depend on: the queue, the
//! caches, stored answers, the names in KV events. The names were read in the request models of
//! vLLM 0.32, SGLang and TensorRT-LLM.

use super::{Api, Splice};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::{BitOr, Range};

/// What a client may use, besides what everybody may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// `kv_transfer_params`, and the fields of other servers for the transfer of KV caches.
    KvTransfer,
    /// `ec_transfer_params`.
    EcTransfer,
    /// `vllm_xargs`: parameters of logits processors and other plugins of the engine.
    Xargs,
    /// `vllm_xargs.kv_cache_report_mode`; needs `xargs` too.
    KvCacheReport,
    /// `session_id` and `X-Session-ID`: the session that KV events name.
    SessionId,
    /// `priority` and `X-Vllm-Priority`.
    Priority,
    /// A `cache_salt` that passes as the client wrote it although salts are derived.
    CacheSalt,
    /// `X-data-parallel-rank`, and SGLang's fields for the rank.
    DataParallelRank,
    /// The id of a Responses answer, chosen by the client.
    RequestId,
    /// `chat_template`.
    ChatTemplate,
    /// `prompt_embeds`.
    PromptEmbeds,
    /// LoRA adapters that are chosen by another field than `model`.
    Lora,
}

/// A set of permissions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions(u16);

/// What the gateway does with a field or header of a client without the permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It answers 400.
    Refuse,
    /// It removes a header. In a body it writes this JSON, which means "not set", in the place of a
    /// text; a value of another type is refused.
    Strip(&'static str),
    /// It forwards it.
    Pass,
}

/// One field or header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// The name of a header in lower case, or the path of a field in a JSON body.
    pub name: &'static str,
    /// The permission that lets it pass.
    pub permission: Permission,
    /// What is done without the permission.
    pub action: Action,
    /// The only API on which it has an effect. `None`: any.
    pub api: Option<Api>,
    /// What it does to the engine, for the documentation.
    pub effect: &'static str,
}

/// A field of the table that a request uses. `null` is no use, and neither is a `priority` of 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// The field.
    pub control: &'static Control,
    /// Where its value stands in the body, with its quotes, if it is a text.
    pub text: Option<Range<usize>>,
}

/// A change of one field of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The name of the field.
    pub field: &'static str,
    /// The change.
    pub splice: Splice,
}

const fn field(
    name: &'static str,
    permission: Permission,
    action: Action,
    effect: &'static str,
) -> Control {
    Control { name, permission, action, api: None, effect }
}

use Action::{Pass, Refuse, Strip};
use Permission as P;

/// The fields of bodies. A field of a form has the same name.
pub static FIELDS: [Control; 24] = [
    field(
        "kv_transfer_params",
        P::KvTransfer,
        Refuse,
        "makes the engine connect to `remote_host`; `prompt_token_ids` in it replaces the prompt",
    ),
    field("ec_transfer_params", P::EcTransfer, Refuse, "makes the engine fetch encoder caches"),
    field(
        "vllm_xargs",
        P::Xargs,
        Refuse,
        "goes to plugins of the engine as it is; new engine parameters appear here first",
    ),
    field(
        "vllm_xargs.kv_transfer_params",
        P::KvTransfer,
        Refuse,
        "the engine reads it as `kv_transfer_params`",
    ),
    field(
        "vllm_xargs.ec_transfer_params",
        P::EcTransfer,
        Refuse,
        "the engine reads it as `ec_transfer_params`",
    ),
    field(
        "vllm_xargs.kv_cache_report_mode",
        P::KvCacheReport,
        Refuse,
        "makes KV events announce cached blocks again",
    ),
    field("vllm_xargs.session_id", P::SessionId, Strip("\"\""), "names the session in KV events"),
    field("session_id", P::SessionId, Strip("null"), "names the session in KV events"),
    field("priority", P::Priority, Refuse, "goes before or after others in the engine's queue"),
    field(
        "cache_salt",
        P::CacheSalt,
        Pass,
        "chooses who shares a prefix cache; `access.cache_salt` binds it to the tenant",
    ),
    Control {
        api: Some(Api::Responses),
        ..field(
            "request_id",
            P::RequestId,
            Refuse,
            "names the stored answer, and replaces one of that name",
        )
    },
    field(
        "chat_template",
        P::ChatTemplate,
        Refuse,
        "a program that writes the prompt, if vLLM trusts it",
    ),
    field("chat_template_kwargs.chat_template", P::ChatTemplate, Refuse, "the same"),
    field(
        "prompt_embeds",
        P::PromptEmbeds,
        Refuse,
        "a prompt that nobody can read, and that can crash the engine",
    ),
    field("prompt_token_ids", P::KvTransfer, Refuse, "TensorRT-LLM: replaces the prompt"),
    field(
        "disaggregated_params",
        P::KvTransfer,
        Refuse,
        "TensorRT-LLM: makes the engine fetch a KV cache",
    ),
    field("bootstrap_host", P::KvTransfer, Refuse, "SGLang: makes the engine connect there"),
    field("bootstrap_room", P::KvTransfer, Refuse, "SGLang: takes the KV cache of a transfer"),
    field("custom_logit_processor", P::Xargs, Refuse, "SGLang: code that the engine runs"),
    field("data_parallel_rank", P::DataParallelRank, Refuse, "SGLang: picks the engine"),
    field("routed_dp_rank", P::DataParallelRank, Refuse, "SGLang: picks the engine"),
    field("lora", P::Lora, Refuse, "llama.cpp: picks adapters, whatever `model` says"),
    field("lora_path", P::Lora, Refuse, "SGLang: picks an adapter, whatever `model` says"),
    field("lora_request", P::Lora, Refuse, "TensorRT-LLM: loads an adapter from a path"),
];

/// The headers. The gateway removes others for everybody: see `headers`.
pub static HEADERS: [Control; 3] = [
    field("x-session-id", P::SessionId, Strip(""), "names the session in KV events"),
    field("x-data-parallel-rank", P::DataParallelRank, Strip(""), "picks the engine"),
    field("x-vllm-priority", P::Priority, Strip(""), "as `priority`, and wins over it"),
];

/// The rows of the table in `docs/security.md`.
pub fn table() -> impl Iterator<Item = String> {
    let fields = FIELDS.iter().map(|control| (control, "field"));
    fields.chain(HEADERS.iter().map(|control| (control, "header"))).map(|(control, place)| {
        let Control { name, permission, action, api, effect } = control;
        let action = match action {
            Refuse => "400",
            Strip(_) => "removed",
            Pass => "forwarded",
        };
        let only = if *api == Some(Api::Responses) { " of Responses" } else { "" };
        format!("| {place}{only} `{name}` | {effect} | {action} | `{}` |", permission.as_str())
    })
}

/// Paths whose request models in vLLM have no `cache_salt`.
const WITHOUT_CACHE_SALT: [&str; 4] =
    ["/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v2/embed"];

/// Whether vLLM reads `cache_salt` in requests to this path.
pub fn has_cache_salt(api: Option<Api>, path: &str) -> bool {
    match api {
        None | Some(Api::Audio) => false,
        Some(Api::Other) => !WITHOUT_CACHE_SALT.contains(&path),
        Some(_) => true,
    }
}

/// The field of a form with this name.
pub(super) fn of_form(name: &str) -> Option<&'static Control> {
    FIELDS.iter().find(|control| control.name == name)
}

/// A row of the table of fields.
pub(super) fn at(index: u8) -> &'static Control {
    &FIELDS[usize::from(index)]
}

// === impl Permission, Permissions ===

impl Permission {
    /// Its name in a configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KvTransfer => "kv_transfer",
            Self::EcTransfer => "ec_transfer",
            Self::Xargs => "xargs",
            Self::KvCacheReport => "kv_cache_report",
            Self::SessionId => "session_id",
            Self::Priority => "priority",
            Self::CacheSalt => "cache_salt",
            Self::DataParallelRank => "data_parallel_rank",
            Self::RequestId => "request_id",
            Self::ChatTemplate => "chat_template",
            Self::PromptEmbeds => "prompt_embeds",
            Self::Lora => "lora",
        }
    }
}

impl Permissions {
    /// Those of a list.
    pub fn new(list: &[Permission]) -> Self {
        Self(list.iter().fold(0, |set, permission| set | 1 << *permission as u16))
    }

    /// Whether a permission is among them.
    pub const fn allow(self, permission: Permission) -> bool {
        self.0 & 1 << permission as u16 != 0
    }

    /// What must change in a body that uses these fields, or the first field that is refused.
    pub fn check(self, used: &[Used], api: Option<Api>) -> Result<Vec<Edit>, &'static Control> {
        let mut edits = Vec::new();
        for Used { control, text } in used {
            let has_effect = control.api.is_none() || control.api == api;
            if self.allow(control.permission) || !has_effect {
                continue;
            }
            match (control.action, text) {
                (Pass, _) => {}
                (Strip(unset), Some(at)) => edits
                    .push(Edit { field: control.name, splice: Splice::replace(at.clone(), unset) }),
                (Refuse | Strip(_), _) => return Err(control),
            }
        }
        Ok(edits)
    }

    /// Whether a header, by its name in lower case, is not for the engine.
    pub fn strips_header(self, name: &str) -> bool {
        HEADERS.iter().any(|control| control.name == name && !self.allow(control.permission))
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
    use crate::openai::request::Peek;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_name_of_its_own_and_a_permission_as_configurations_write_it() {
        let rows = || FIELDS.iter().chain(&HEADERS);
        let names: BTreeSet<&str> = rows().map(|control| control.name).collect();
        assert_eq!(names.len(), rows().count());
        assert!(FIELDS.len() <= 32, "a bit is kept for each");
        for Control { permission, .. } in rows() {
            assert_eq!(json!(permission), json!(permission.as_str()));
            let only = Permissions::new(&[*permission]);
            let allowed: Vec<_> = rows().filter(|row| only.allow(row.permission)).collect();
            assert!(allowed.iter().all(|row| row.permission == *permission));
        }
        assert!(HEADERS.iter().all(|header| header.name == header.name.to_ascii_lowercase()));
    }

    #[test]
    fn a_set_of_permissions_has_those_of_both() {
        let both = Permissions::new(&[P::KvTransfer]) | Permissions::new(&[P::Lora]);
        assert!(both.allow(P::KvTransfer) && both.allow(P::Lora) && !both.allow(P::Xargs));
        assert!(!Permissions::default().allow(P::KvTransfer));
        assert!(Permissions::default().strips_header("x-session-id"));
        assert!(!Permissions::default().strips_header("x-request-id"));
    }

    #[test]
    fn a_text_is_removed_where_it_stands_and_other_types_are_refused() {
        let body = r#"{"session_id":"a\"b" ,"n":1}"#;
        let peek = Peek::of(body.as_bytes()).unwrap();
        let edits = Permissions::default().check(&peek.controls, Some(Api::Chat)).unwrap();
        let edited = Splice::apply(edits.iter().map(|edit| &edit.splice), body.as_bytes());
        assert_eq!(edited, r#"{"session_id":null ,"n":1}"#);
        for value in ["1", "true", "[]", "{}"] {
            let peek = Peek::of(format!("{{\"session_id\":{value}}}").as_bytes()).unwrap();
            let refused = Permissions::default().check(&peek.controls, None).unwrap_err();
            assert_eq!(refused.name, "session_id", "{value}");
        }
    }

    #[test]
    fn a_request_id_is_refused_where_it_names_a_stored_answer() {
        let peek = Peek::of(br#"{"request_id":"resp_of_another"}"#).unwrap();
        let none = Permissions::default();
        assert!(none.check(&peek.controls, Some(Api::Responses)).is_err());
        assert_eq!(none.check(&peek.controls, Some(Api::Chat)), Ok(Vec::new()));
        let allowed = Permissions::new(&[P::RequestId]);
        assert_eq!(allowed.check(&peek.controls, Some(Api::Responses)), Ok(Vec::new()));
    }

    #[test]
    fn a_member_is_inserted_into_any_object() {
        for body in ["{}", " { }", "{\"a\":{}}", "{ \"a\":1}"] {
            let splice = Splice::insert(body.as_bytes(), "\"s\":\"x\"").unwrap();
            let edited = Splice::apply([&splice], body.as_bytes());
            let mut expected: Value = serde_json::from_str(body).unwrap();
            expected["s"] = json!("x");
            assert_eq!(serde_json::from_slice::<Value>(&edited).unwrap(), expected, "{body}");
        }
        assert_eq!(Splice::insert(b"[]", ""), None);
    }
}

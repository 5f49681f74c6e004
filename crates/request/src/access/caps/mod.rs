//! Caps on the size of one request, and defaults for limits that the request does not state. If tenant and
//! model both have caps, both apply.

mod media_hosts;
mod stated_sizes;

use crate::error::GatewayError;
use media_hosts::check_url;
use stated_sizes::{Holder, StatedSizes};
use tokenweir_protocol::json::members;
use tokenweir_protocol::openai::{
    Api, FieldEdit, PromptBytes, RequestFields, Splice, TOKENS_PER_BYTE, TOKENS_PER_MEDIA_BYTE,
    visit_media_urls,
};
use tokenweir_protocol::settings;

settings! {
    /// Caps on one request. A request beyond a cap is refused before a backend gets it.
    #[derive(Default, Eq)]
    pub struct RequestCaps {
        /// Maximum output tokens of a choice. `None`: no cap.
        pub max_tokens: Option<u64>,
        /// Output tokens of a choice if the request states no limit and its API has no small default. `None`:
        /// `max_tokens`.
        pub default_max_tokens: Option<u64>,
        /// Maximum number of choices of a response. `None`: no cap.
        pub n: Option<u64>,
        /// Maximum prompt tokens, estimated from the length of the text. `None`: no cap.
        pub prompt_tokens: Option<u64>,
        /// Hosts of images, audio, video and files that engines fetch: names, `*.example.com`, addresses, or `*`
        /// for all. `None`: all but private, link-local and loopback hosts.
        pub media_hosts: Option<Vec<String>>,
    }
}

/// A request to which caps apply.
pub struct CappedRequest<'a> {
    /// The caps of the tenant. `None`: no caps.
    pub tenant: Option<&'a RequestCaps>,
    /// The caps of the model. `None`: no caps.
    pub model: Option<&'a RequestCaps>,
    /// Determines which fields the caps concern. `None`: no inference request.
    pub api: Option<Api>,
    /// The path. `None`: the gateway does not serve it.
    pub route: Option<&'static str>,
    /// The fields that were read from the body.
    pub fields: &'a RequestFields,
    /// The sizes of the parts of the body that can become the prompt.
    pub prompt: PromptBytes,
    /// The JSON bytes of the client.
    pub body: &'a [u8],
    /// The priority in the engine's queue that the gateway sets. `None`: the request keeps its own priority.
    pub priority: Option<i32>,
}

/// The changes that the gateway makes to a request.
#[derive(Debug, Default, PartialEq)]
pub struct CapEdits {
    /// The edits that apply defaults and the priority.
    pub edits: Vec<FieldEdit>,
    /// The limit of output tokens that the gateway sets. `None`: the limit of the client applies.
    pub max_tokens: Option<u64>,
}

/// The path of batches of chats. Such a batch has the fields of a chat.
const CHAT_BATCH: &str = "/v1/chat/completions/batch";
/// The path for prompts of token ids. `sampling_params` contains the sizes of such a request.
const GENERATE: &str = "/inference/v1/generate";
const CHAT_LIMITS: &[&str] = &["max_tokens", "max_completion_tokens"];

/// The fields in which an API states its limit of output tokens.
struct OutputLimit {
    holder: Holder,
    /// The names of the field. The gateway sets the first of them.
    names: &'static [&'static str],
    /// Whether engines apply a small default limit if the field is absent. If the field is `null`, engines have
    /// no limit.
    has_default: bool,
}

impl RequestCaps {
    /// Returns the name of the first invalid key and its problem.
    pub fn check(&self) -> Result<(), (String, &'static str)> {
        let numbers = [
            ("max_tokens", self.max_tokens),
            ("default_max_tokens", self.default_max_tokens),
            ("n", self.n),
            ("prompt_tokens", self.prompt_tokens),
        ];
        if let Some((name, _)) = numbers.iter().find(|(_, number)| *number == Some(0)) {
            return Err((
                (*name).to_owned(),
                "a cap must be 1 or more; leave it out for no cap",
            ));
        }
        if self
            .max_tokens
            .is_some_and(|most| self.default_max_tokens > Some(most))
        {
            let problem = "this must be at most `max_tokens`";
            return Err(("default_max_tokens".to_owned(), problem));
        }
        let mut hosts = self.media_hosts.iter().flatten();
        if let Some(index) = hosts.position(|host| !media_hosts::is_pattern(host)) {
            let problem = "write a host name in lower case, `*.` and a name, an address, or `*`";
            return Err((format!("media_hosts.{index}"), problem));
        }
        Ok(())
    }

    /// Caps that allow only what both caps allow.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        let media_hosts = match (&self.media_hosts, &other.media_hosts) {
            (one, other) if one == other => one.clone(),
            (Some(one), Some(other)) => {
                let common = one.iter().filter(|host| other.contains(host));
                Some(common.cloned().collect())
            }
            // A list may name private hosts, which are forbidden if there is no list. So the union would allow
            // more than either cap.
            _ => Some(Vec::new()),
        };
        Self {
            max_tokens: lower(self.max_tokens, other.max_tokens),
            default_max_tokens: lower(self.default_max_tokens, other.default_max_tokens),
            n: lower(self.n, other.n),
            prompt_tokens: lower(self.prompt_tokens, other.prompt_tokens),
            media_hosts,
        }
    }
}

impl CappedRequest<'_> {
    /// Checks the request, and returns its edits. Without caps and priority, the edits are empty.
    pub fn check(&self) -> Result<CapEdits, GatewayError> {
        let is_json = self.api != Some(Api::Audio) && !self.body.is_empty();
        let has_caps = self.tenant.is_some() || self.model.is_some();
        if !is_json || (self.priority.is_none() && !has_caps) {
            return Ok(CapEdits::default());
        }
        let sizes = StatedSizes::read(self.body);
        self.check_choices(&sizes)?;
        self.check_prompt()?;
        if has_caps {
            self.check_media()?;
        }
        let mut edits = self.bound_output(&sizes)?;
        edits.edits.extend(self.set_priority(&sizes));
        Ok(edits)
    }

    fn caps(&self) -> impl Iterator<Item = &RequestCaps> {
        self.tenant.into_iter().chain(self.model)
    }

    /// The lower of the caps of the tenant and of the model.
    fn lowest(&self, cap: impl Fn(&RequestCaps) -> Option<u64>) -> Option<u64> {
        self.caps().filter_map(cap).min()
    }

    fn check_choices(&self, sizes: &StatedSizes) -> Result<(), GatewayError> {
        let Some(most) = self.lowest(|caps| caps.n) else {
            return Ok(());
        };
        for stated in &sizes.choices {
            require_at_most(stated.field, stated.count, most)?;
        }
        let choices = sizes
            .choices
            .iter()
            .filter_map(|stated| stated.count)
            .max()
            .unwrap_or(1);
        require_at_most("prompt", Some(choices.saturating_mul(sizes.prompts)), most)
    }

    fn check_prompt(&self) -> Result<(), GatewayError> {
        let Some(most) = self.lowest(|caps| caps.prompt_tokens) else {
            return Ok(());
        };
        let mut text_bytes = self.prompt.text;
        let mut ids = 0;
        for part in self.fields.prompt.parts(self.body) {
            if let Some(count) = stated_sizes::count_token_ids(part) {
                ids += count;
                text_bytes = text_bytes.saturating_sub(part.len() as u64);
            }
        }
        let media = self.prompt.media as f64 * TOKENS_PER_MEDIA_BYTE;
        let estimated = ids + (text_bytes as f64 * TOKENS_PER_BYTE + media) as u64;
        if estimated > most {
            let problem = format!("has about {estimated} tokens, and this client may send {most}");
            return Err(GatewayError::RequestCap {
                field: "prompt",
                problem,
            });
        }
        Ok(())
    }

    fn check_media(&self) -> Result<(), GatewayError> {
        let mut result = Ok(());
        let is_searched = visit_media_urls(self.body, |url| {
            for caps in self.caps() {
                if result.is_ok() {
                    result = check_url(url, caps.media_hosts.as_deref());
                }
            }
        });
        if !is_searched {
            result = Err("is nested too deeply to be searched for URLs");
        }
        result.map_err(|problem| GatewayError::RequestCap {
            field: "media",
            problem: problem.to_owned(),
        })
    }

    /// Checks the stated limits of output tokens. Sets the default if the request states none and its engine
    /// would generate up to the context length.
    fn bound_output(&self, sizes: &StatedSizes) -> Result<CapEdits, GatewayError> {
        let most = self.lowest(|caps| caps.max_tokens);
        if let Some(most) = most {
            for stated in &sizes.max_tokens {
                require_at_most(stated.field, stated.count, most)?;
            }
        }
        let default = self.lowest(|caps| caps.default_max_tokens);
        let default = [default, most].into_iter().flatten().min();
        let limit = self.output_limit();
        let (Some(default), Some(limit)) = (default, limit) else {
            return Ok(CapEdits::default());
        };
        let OutputLimit { holder, names, .. } = limit;
        let values = names
            .iter()
            .filter_map(|field| Some((*field, sizes.value(self.body, holder, field)?)));
        let mut is_stated = false;
        let mut is_absent = true;
        for (field, value) in values {
            // Some engines treat 0 as a limit, others do not.
            if members::count(value) == Some(0) && !limit.has_default {
                let problem = "must be 1 or more".to_owned();
                return Err(GatewayError::RequestCap { field, problem });
            }
            is_stated |= value != b"null";
            is_absent = false;
        }
        if is_stated || (is_absent && limit.has_default) {
            return Ok(CapEdits::default());
        }
        let field = names[0];
        let splice = sizes.set(self.body, holder, field, &default.to_string());
        let edits = splice
            .map(|splice| FieldEdit { field, splice })
            .into_iter()
            .collect();
        Ok(CapEdits {
            edits,
            max_tokens: Some(default),
        })
    }

    /// The limit of output tokens that the gateway can set. `None`: the API requires a limit from the client,
    /// or generates no text.
    fn output_limit(&self) -> Option<OutputLimit> {
        let in_body = |names| OutputLimit {
            holder: Holder::Body,
            names,
            has_default: false,
        };
        match self.api {
            Some(Api::Chat) => Some(in_body(CHAT_LIMITS)),
            Some(Api::Responses) => Some(in_body(&["max_output_tokens"])),
            Some(Api::Completions) if self.route == Some(GENERATE) => Some(OutputLimit {
                holder: Holder::Parameters,
                names: &["max_tokens"],
                has_default: false,
            }),
            Some(Api::Completions) => Some(OutputLimit {
                has_default: true,
                ..in_body(&["max_tokens"])
            }),
            _ if self.route == Some(CHAT_BATCH) => Some(in_body(CHAT_LIMITS)),
            _ => None,
        }
    }

    /// The edit that sets the priority, unless the client has set one. vLLM has priorities in some APIs only.
    fn set_priority(&self, sizes: &StatedSizes) -> Option<FieldEdit> {
        const FIELD: &str = "priority";
        let has_own = self
            .fields
            .controls
            .iter()
            .any(|used| used.control.name == FIELD);
        let has_priority = matches!(
            self.api,
            Some(Api::Chat | Api::Completions | Api::Responses)
        );
        if has_own || !has_priority {
            return None;
        }
        let priority = self.priority?;
        let splice: Splice = sizes.set(self.body, Holder::Body, FIELD, &priority.to_string())?;
        Some(FieldEdit {
            field: FIELD,
            splice,
        })
    }
}

/// Fails if a number in the request exceeds a cap, or is no non-negative integer.
fn require_at_most(field: &'static str, count: Option<u64>, most: u64) -> Result<(), GatewayError> {
    let problem = match count {
        Some(count) if count <= most => return Ok(()),
        Some(count) => format!("asks for {count}, and this client may ask for {most}"),
        None => "must be an integer, and not negative".to_owned(),
    };
    Err(GatewayError::RequestCap { field, problem })
}

#[cfg(test)]
mod tests;

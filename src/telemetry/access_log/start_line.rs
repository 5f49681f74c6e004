//! The line at the start of a request. It has the fields that are known when the body was read, with
//! the names of the line at the end.

use super::fields::write_field;
use serde::Serialize;
use std::fmt::{self, Display};
use tokenweir_core::record::RequestRecord;

/// The fields of a line, in the order of the JSON form.
#[derive(Debug, Serialize)]
pub(super) struct StartLine<'a> {
    ts: String,
    /// Distinguishes the line from the line at the end, which has no such field.
    event: &'static str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    client: String,
    method: &'a str,
    route: &'a str,
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tier: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    bytes_in: u64,
}

impl<'a> StartLine<'a> {
    pub(super) fn from_record(record: &'a RequestRecord) -> Self {
        let (options, caller) = (&record.options, record.caller.as_ref());
        Self {
            ts: humantime::format_rfc3339_millis(record.started).to_string(),
            event: "start",
            request_id: record.request_id.as_str(),
            trace_id: record.trace.as_ref().map(|trace| format!("{:032x}", trace.trace_id)),
            client: record.client.to_string(),
            method: record.method,
            route: record.route.unwrap_or("-"),
            model: record.model.name(),
            tier: record.tier.as_str(),
            tenant: caller.map(|principal| &*principal.tenant),
            key: caller.map(|principal| &*principal.key),
            stream: options.stream,
            user: options.identity.user.as_deref(),
            session: options.identity.session.as_deref(),
            conversation: options.identity.conversation.as_deref(),
            messages: options.messages,
            max_tokens: options.max_tokens,
            temperature: options.parameters.temperature,
            bytes_in: record.bytes_in,
        }
    }
}

/// The text form of a line.
impl Display for StartLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} --- {:<14} {} {}", self.ts, self.event, self.method, self.route)?;
        write_field(f, "model", Some(self.model))?;
        write_field(f, "tenant", self.tenant)?;
        write_field(f, "key", self.key)?;
        write_field(f, "session", self.session)?;
        write_field(f, "user", self.user)?;
        write_field(f, "stream", Some(self.stream))?;
        write_field(f, "messages", self.messages)?;
        write_field(f, "max_tokens", self.max_tokens)?;
        write_field(f, "id", Some(self.request_id))?;
        write_field(f, "trace", self.trace_id.as_deref())
    }
}

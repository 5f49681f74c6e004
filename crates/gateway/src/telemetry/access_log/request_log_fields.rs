//! The fields that the line at the start and the line at the end of a request have in common.

use super::fields::write_field;
use super::json_object::{JsonObject, write_fields};
use std::fmt;
use std::net::IpAddr;
use tokenweir_protocol::trace_context::TraceContext;
use tokenweir_request::record::RequestRecord;

/// The access log fields that are known once the request body has been read.
#[derive(Debug)]
pub(super) struct RequestLogFields<'a> {
    ts: String,
    request_id: &'a str,
    trace_id: Option<String>,
    client: IpAddr,
    method: &'a str,
    route: &'a str,
    model: &'a str,
    tier: Option<&'a str>,
    tenant: Option<&'a str>,
    /// Name of the API key. The key itself is not logged.
    key: Option<&'a str>,
    pub(super) user: Option<&'a str>,
    pub(super) session: Option<&'a str>,
    conversation: Option<&'a str>,
    /// Number of messages of a chat.
    pub(super) messages: Option<u64>,
    pub(super) max_tokens: Option<u64>,
    temperature: Option<f64>,
    bytes_in: u64,
}

impl<'a> RequestLogFields<'a> {
    pub(super) fn from_record(record: &'a RequestRecord) -> Self {
        let (options, caller) = (&record.options, record.caller.as_ref());
        Self {
            ts: humantime::format_rfc3339_millis(record.started).to_string(),
            request_id: record.request_id.as_str(),
            trace_id: record.trace.as_ref().map(TraceContext::id_text),
            client: record.client,
            method: record.method,
            route: record.route.unwrap_or("-"),
            model: record.model.name(),
            tier: Some(record.tier.as_str()).filter(|tier| !tier.is_empty()),
            tenant: caller.map(|principal| &*principal.tenant),
            key: caller.map(|principal| &*principal.key),
            user: options.identity.user.as_deref(),
            session: options.identity.session.as_deref(),
            conversation: options.identity.conversation.as_deref(),
            messages: options.messages,
            max_tokens: options.max_tokens,
            temperature: options.parameters.temperature,
            bytes_in: record.bytes_in,
        }
    }

    pub(super) fn write_json(&self, json: &mut JsonObject<'_>) {
        write_fields!(json, self,
            member: [ts, request_id],
            known: [trace_id],
            member: [client, method, route, model],
            known: [tier, tenant, key, user, session, conversation, messages, max_tokens, temperature],
            member: [bytes_in],
        );
    }

    /// Writes the first fields of the text form of a line. `state` is the outcome of the request, or
    /// `start` in the line at the start of the request.
    pub(super) fn write_head(
        &self,
        f: &mut fmt::Formatter<'_>,
        status: &str,
        state: &str,
    ) -> fmt::Result {
        write!(f, "{} {status} {state:<14} {} {}", self.ts, self.method, self.route)?;
        write_field(f, "model", Some(self.model))?;
        write_field(f, "tenant", self.tenant)?;
        write_field(f, "key", self.key)
    }

    /// Writes the last fields of the text form of a line.
    pub(super) fn write_ids(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_field(f, "id", Some(self.request_id))?;
        write_field(f, "trace", self.trace_id.as_deref())
    }
}

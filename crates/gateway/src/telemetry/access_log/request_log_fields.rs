//! The fields that the lines at the start and at the end of a request share. They are known once the request
//! body has been read.

use super::fields::{fields, write_field};
use super::json_object::{JsonObject, members};
use std::fmt;
use tokenweir_protocol::trace_context::TraceContext;
use tokenweir_request::record::{RequestIdentity, RequestRecord};

/// Writes the shared fields of the start line and the end line as members of the JSON object of the line.
pub(super) fn write_json(json: &mut JsonObject<'_>, record: &RequestRecord) {
    let options = &record.options;
    let RequestIdentity {
        user,
        session,
        conversation,
    } = &options.identity;
    let tier = record.tier.as_str();
    let caller = record.caller.as_ref();
    members!(json, {
        "ts": humantime::format_rfc3339_millis(record.started).to_string(),
        "request_id": record.request_id.as_str(),
        "trace_id" ? record.trace.as_ref().map(TraceContext::id_text),
        "client": record.client,
        "method": record.method,
        "route": route(record),
        "model": record.model.name(),
        "requested_model" ? record.notes.requested_model(),
        "tier" ? Some(tier).filter(|tier| !tier.is_empty()),
        "tenant" ? caller.map(|principal| &*principal.tenant),
        // The name of the API key. The log never contains the key itself.
        "key" ? caller.map(|principal| &*principal.key),
        "user" ? user.as_deref(),
        "session" ? session.as_deref(),
        "conversation" ? conversation.as_deref(),
        // The number of messages of a chat.
        "messages" ? options.messages,
        "max_tokens" ? options.max_tokens,
        "temperature" ? options.parameters.temperature,
        "bytes_in": record.bytes_in,
    });
}

/// Writes the first fields of the text form of an access log line. `state`: the outcome of the request, or
/// `start` in the start line.
pub(super) fn write_head(
    f: &mut fmt::Formatter<'_>,
    record: &RequestRecord,
    status: &str,
    state: &str,
) -> fmt::Result {
    let caller = record.caller.as_ref();
    write!(
        f,
        "{} {status} {state:<14} ",
        humantime::format_rfc3339_millis(record.started)
    )?;
    write!(f, "{} {}", record.method, route(record))?;
    fields!(f, {
        "model": Some(record.model.name()),
        "requested_model": record.notes.requested_model(),
        "tenant": caller.map(|principal| &*principal.tenant),
        "key": caller.map(|principal| &*principal.key),
    });
    Ok(())
}

/// Writes the session and the user of a request in the text form of an access log line.
pub(super) fn write_session(f: &mut fmt::Formatter<'_>, record: &RequestRecord) -> fmt::Result {
    let RequestIdentity { user, session, .. } = &record.options.identity;
    write_field(f, "session", session.as_deref())?;
    write_field(f, "user", user.as_deref())
}

/// Writes the IDs of the request and of its trace, which are the last fields of the text form of an
/// access log line.
pub(super) fn write_ids(f: &mut fmt::Formatter<'_>, record: &RequestRecord) -> fmt::Result {
    write_field(f, "id", Some(record.request_id.as_str()))?;
    write_field(f, "trace", record.trace.as_ref().map(TraceContext::id_text))
}

fn route(record: &RequestRecord) -> &str {
    record.route.unwrap_or("-")
}

//! The fields that the lines at the start and at the end of a request share. They are known once the request
//! body has been read.

use super::fields::write_field;
use super::json_object::{JsonObject, known, member};
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
    member!(
        json,
        "ts",
        humantime::format_rfc3339_millis(record.started).to_string()
    );
    member!(json, "request_id", record.request_id.as_str());
    known!(
        json,
        "trace_id",
        record.trace.as_ref().map(TraceContext::id_text)
    );
    member!(json, "client", record.client);
    member!(json, "method", record.method);
    member!(json, "route", route(record));
    member!(json, "model", record.model.name());
    known!(json, "requested_model", record.notes.requested_model());
    known!(json, "tier", Some(tier).filter(|tier| !tier.is_empty()));
    if let Some(principal) = &record.caller {
        member!(json, "tenant", *principal.tenant);
        // The name of the API key. The log never contains the key itself.
        member!(json, "key", *principal.key);
    }
    known!(json, "user", user.as_deref());
    known!(json, "session", session.as_deref());
    known!(json, "conversation", conversation.as_deref());
    // The number of messages of a chat.
    known!(json, "messages", options.messages);
    known!(json, "max_tokens", options.max_tokens);
    known!(json, "temperature", options.parameters.temperature);
    member!(json, "bytes_in", record.bytes_in);
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
    write_field(f, "model", Some(record.model.name()))?;
    write_field(f, "requested_model", record.notes.requested_model())?;
    write_field(f, "tenant", caller.map(|principal| &*principal.tenant))?;
    write_field(f, "key", caller.map(|principal| &*principal.key))
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

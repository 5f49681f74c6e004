//! The access log line at the start of a request. It has the fields that are known once the request body has
//! been read. The line at the end of the request uses the same field names.

use super::fields::{fields, write_field};
use super::json_object::{JsonObject, LogLine, members};
use super::request_log_fields;
use std::fmt::{self, Display};
use tokenweir_request::record::RequestRecord;

/// The access log line at the start of a request.
pub(super) struct StartLine<'a>(pub(super) &'a RequestRecord);

/// The value of the JSON field `event` in the line at the start of a request. The line at the end
/// of a request has no field `event`.
const START_EVENT: &str = "start";

impl LogLine for StartLine<'_> {
    fn write_json(&self, json: &mut JsonObject<'_>) {
        request_log_fields::write_json(json, self.0);
        members!(json, { "event": START_EVENT, "stream": self.0.options.stream });
    }
}

/// The text form of the access log line at the start of a request.
impl Display for StartLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.0.options;
        request_log_fields::write_head(f, self.0, "---", START_EVENT)?;
        request_log_fields::write_session(f, self.0)?;
        fields!(f, {
            "stream": Some(options.stream),
            "messages": options.messages,
            "max_tokens": options.max_tokens,
        });
        request_log_fields::write_ids(f, self.0)
    }
}

//! The access log line at the start of a request. It has the fields that are known once the request body has
//! been read. The line at the end of the request uses the same names for these fields.

use super::fields::write_field;
use super::json_object::{JsonObject, LogLine, write_fields};
use super::request_log_fields::RequestLogFields;
use std::fmt::{self, Display};
use tokenweir_request::record::RequestRecord;

/// The fields of the access log line at the start of a request.
#[derive(Debug)]
pub(super) struct StartLine<'a> {
    request: RequestLogFields<'a>,
    /// Always `start`. The line at the end of a request has no such field.
    event: &'static str,
    stream: bool,
}

impl<'a> StartLine<'a> {
    pub(super) fn from_record(record: &'a RequestRecord) -> Self {
        let (request, stream) = (RequestLogFields::from_record(record), record.options.stream);
        Self { request, event: "start", stream }
    }
}

impl LogLine for StartLine<'_> {
    fn write_json(&self, json: &mut JsonObject<'_>) {
        self.request.write_json(json);
        write_fields!(json, self, member: [event, stream]);
    }
}

/// The text form of the access log line at the start of a request.
impl Display for StartLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.write_head(f, "---", self.event)?;
        write_field(f, "session", self.request.session)?;
        write_field(f, "user", self.request.user)?;
        write_field(f, "stream", Some(self.stream))?;
        write_field(f, "messages", self.request.messages)?;
        write_field(f, "max_tokens", self.request.max_tokens)?;
        self.request.write_ids(f)
    }
}

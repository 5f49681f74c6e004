//! The request body for a backend: the bytes of the client with edits. The edits rename the model, remove or
//! set engine-control fields, and request usage.

use super::body_memory::HeldBody;
use super::read_request::ReadRequest;
use crate::backend::Backend;
use bytes::Bytes;
use std::sync::Mutex;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::{Api, FieldEdit, RequestFields, Splice};
use tokenweir_protocol::{clock, headers};
use tokenweir_request::error::GatewayError;
use tokenweir_request::record::RequestRecord;
use tokenweir_routing::{mix, unit};

/// The request body that the client sent, and the edits for the backends.
pub struct UpstreamBody {
    /// The body as the client sent it.
    original: HeldBody,
    /// The edit that renames the model. `None`: the backends use the model name of the client.
    model_edit: Option<Splice>,
    /// The edits that remove or set engine-control fields.
    control_edits: Vec<FieldEdit>,
    /// The API, if it has `stream_options` and the body may be edited.
    api: Option<Api>,
    /// The edit that requests usage at the end of the stream. `None`: the client requests usage, or the body
    /// cannot request it.
    usage_edit: Option<Splice>,
    /// The edit that requests continuous usage (a token count in every event). `None`: the body cannot request
    /// it, or the client does not request usage at the end of the stream only.
    continuous_usage_edit: Option<Splice>,
    /// A number from 0 to 1. The gateway requests continuous usage if the number is below both the backend's
    /// share and the model's share. 1: the body cannot request usage.
    usage_sampling_value: f64,
    /// The model's upper limit of the share of streams with continuous usage, from 0 to 1.
    max_continuous_usage: f64,
    /// The edited copy of the body, and the usage that the gateway requests in it. The first backend that needs
    /// edits gets a copy. A backend that needs another usage injection gets a new copy, which replaces this
    /// one. So at most two bodies exist. `None`: no copy exists.
    edited_copy: Mutex<Option<(UsageInjection, Bytes)>>,
}

/// The usage that the gateway requests from the backend in addition to the client's request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UsageInjection {
    /// Whether the gateway requests the usage event at the end of the stream.
    pub event: bool,
    /// Whether the gateway requests continuous usage, which is a token count in every event.
    pub continuous: bool,
}

impl UpstreamBody {
    /// The body for the backends of a request. `control_edits`: the edits of the engine-control check. The
    /// gateway requests usage only on APIs with `stream_options`: chat completions and completions.
    ///
    /// The gateway never edits a body whose digest is in a request header. Fails if the model of such a body
    /// must be renamed or an engine-control field must be edited, or if there is no memory for the edited copy.
    pub(crate) fn new(
        original: HeldBody,
        record: &RequestRecord,
        request: &ReadRequest<'_>,
        control_edits: Vec<FieldEdit>,
    ) -> Result<Self, GatewayError> {
        let ReadRequest { route, fields, .. } = request;
        let is_signed = headers::has_body_digest(&request.head.headers);
        // At its backends, a version can have the name of the split model.
        let served_as = route.served_as.as_deref();
        let served_as = served_as.filter(|name| Some(*name) != fields.model.as_deref());
        let renaming = served_as.zip(fields.model_slot.as_ref());
        if let Some((served_as, _)) = renaming
            && is_signed
        {
            let served_as = served_as.to_owned();
            return Err(GatewayError::SignedBody {
                model: fields.model.as_deref().unwrap_or_default().to_owned(),
                served_as,
            });
        }
        if let Some(edit) = control_edits.first()
            && is_signed
        {
            return Err(GatewayError::SignedField { field: edit.field });
        }
        let has_stream_options = |api: &Api| matches!(api, Api::Chat | Api::Completions);
        let api = record
            .api
            .filter(|api| has_stream_options(api) && !is_signed);
        let mut usage_edit = None;
        let mut continuous_usage_edit = None;
        if api.is_some() {
            usage_edit.clone_from(&fields.usage_splice);
            continuous_usage_edit.clone_from(&fields.continuous_usage_splice);
        }
        // A body that cannot request usage needs no sampling value.
        let usage_sampling_value = if usage_edit.is_none() && continuous_usage_edit.is_none() {
            1.0
        } else {
            usage_sampling_value(record.request_id.as_str())
        };
        let mut body = Self {
            original,
            model_edit: renaming.map(|(served_as, span)| span.renamed(served_as)),
            control_edits,
            api,
            usage_edit,
            continuous_usage_edit,
            usage_sampling_value,
            max_continuous_usage: route.policy.continuous_usage.unwrap_or(1.0),
            edited_copy: Mutex::default(),
        };
        if body.is_edited() {
            // The count ignores the few bytes that the edits add.
            body.original.add_copy()?;
        }
        Ok(body)
    }

    /// Whether the client requests the usage event but not continuous usage.
    pub(crate) fn requests_usage_event(&self) -> bool {
        self.continuous_usage_edit.is_some()
    }

    /// Whether backends may get an edited copy of the body.
    fn is_edited(&self) -> bool {
        self.model_edit.is_some()
            || self.usage_edit.is_some()
            || self.continuous_usage_edit.is_some()
            || !self.control_edits.is_empty()
    }

    /// The body as the client sent it.
    pub fn original(&self) -> &HeldBody {
        &self.original
    }

    /// The bytes that the last backend got, edited or not, for a holder that counts them as other memory.
    pub fn sent(&self) -> Bytes {
        let copy = lock(&self.edited_copy);
        copy.as_ref()
            .map_or_else(|| self.original.to_send(), |(_, bytes)| bytes.clone())
    }

    /// The bytes for a backend, and the usage that the gateway requests in them.
    pub(crate) fn for_backend(&self, backend: &Backend) -> (Bytes, UsageInjection) {
        let injection = self.usage_injection(backend);
        (self.bytes_with(injection), injection)
    }

    /// The body with the edits that request this usage.
    fn bytes_with(&self, injection: UsageInjection) -> Bytes {
        if !self.is_edited() {
            return self.original.to_send();
        }
        let mut copy = lock(&self.edited_copy);
        let reusable = copy
            .take()
            .filter(|(copied_for, _)| *copied_for == injection);
        if injection == UsageInjection::default()
            && self.model_edit.is_none()
            && self.control_edits.is_empty()
        {
            return self.original.to_send();
        }
        let current = reusable.unwrap_or_else(|| (injection, self.apply_edits(injection)));
        copy.insert(current).1.clone()
    }

    fn usage_injection(&self, backend: &Backend) -> UsageInjection {
        let can_request = self.usage_edit.is_some() || self.continuous_usage_edit.is_some();
        if !can_request || !backend.should_inject_usage(self.api) {
            return UsageInjection::default();
        }
        let continuous = self.is_in_usage_sample(backend);
        UsageInjection {
            event: self.usage_edit.is_some(),
            continuous,
        }
    }

    fn apply_edits(&self, injection: UsageInjection) -> Bytes {
        let usage = match (injection.event, injection.continuous) {
            (false, false) => None,
            (true, false) => self.usage_edit.clone(),
            (true, true) => self.usage_edit.as_ref().map(Splice::with_continuous_usage),
            (false, true) => self.continuous_usage_edit.clone(),
        };
        let control = self.control_edits.iter().map(|edit| &edit.splice);
        Splice::apply(
            self.model_edit.iter().chain(control).chain(&usage),
            &self.original,
        )
    }

    fn is_in_usage_sample(&self, backend: &Backend) -> bool {
        let share = backend
            .continuous_usage_share(self.api)
            .min(self.max_continuous_usage);
        let is_sampled = || self.usage_sampling_value < share;
        share > 0.0
            && (is_sampled() || backend.take_counted_stream(clock::now()))
            && !RequestFields::has_counting_field(&self.original)
            && (backend.has_fingerprint() || !RequestFields::has_tools(&self.original))
    }
}

/// A number from 0 to 1 that depends on the request id only. So all attempts and all gateways decide alike
/// whether to request continuous usage.
fn usage_sampling_value(request_id: &str) -> f64 {
    unit(
        request_id
            .bytes()
            .fold(0, |hash, byte| mix(hash ^ u64::from(byte))),
    )
}

#[cfg(test)]
mod tests {
    use super::super::body_memory::BodyMemory;
    use super::super::body_memory::tests::party;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn usage_sampling_depends_on_the_request_id_only() {
        let is_sampled = |id: &u32| usage_sampling_value(&format!("sample-{id}")) < 0.5;
        let sampled: Vec<u32> = (0..24).filter(is_sampled).collect();
        assert_eq!(sampled, [0, 4, 7, 8, 11, 13, 14, 18, 19, 20, 21, 22]);
    }

    #[test]
    fn the_sent_body_is_the_last_one() {
        let bytes = Bytes::from_static(br#"{"model":"m"}"#);
        let permit = Arc::new(BodyMemory::default()).empty_permit(party("a"));
        let body = UpstreamBody {
            usage_edit: Splice::insert(&bytes, r#""stream_options":{"include_usage":true}"#),
            original: HeldBody::new(bytes.clone(), permit),
            model_edit: None,
            control_edits: Vec::new(),
            api: Some(Api::Chat),
            continuous_usage_edit: None,
            usage_sampling_value: 1.0,
            max_continuous_usage: 1.0,
            edited_copy: Mutex::default(),
        };
        let final_event = UsageInjection {
            event: true,
            continuous: false,
        };
        assert_ne!(body.bytes_with(final_event), bytes);
        assert_eq!(body.bytes_with(UsageInjection::default()), bytes);
        assert_eq!(body.sent(), bytes);
    }
}

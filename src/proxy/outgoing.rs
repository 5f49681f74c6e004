//! The request body as a backend gets it: the client's bytes, or those with the edits that name the
//! model as the backend does, that take away what the client may not control, and that make a
//! stream end with its usage.

use crate::backend::Backend;
use crate::backend::routes::Route;
use bytes::Bytes;
use http::HeaderMap;
use std::sync::{Mutex, PoisonError};
use tokenweir_core::error::Error;
use tokenweir_core::headers;
use tokenweir_core::openai::control::Edit;
use tokenweir_core::openai::request::Peek;
use tokenweir_core::openai::{Api, Splice};

/// A received body, and how it is edited.
pub(super) struct Body {
    /// As it came.
    plain: Bytes,
    model: Option<Splice>,
    control: Vec<Edit>,
    usage: Option<Splice>,
    /// A number from 0 to 1, drawn for this request: it decides whether the request is in the
    /// sample for which the counts of every event are asked for. 1 is in no sample.
    usage_draw: f64,
    /// The edited bytes, and the usage that they ask for. Made for the first backend that wants them,
    /// and made anew for a backend that wants another usage, so that there are two bodies at most.
    edited: Mutex<Option<(UsageEdit, Bytes)>>,
}

/// The usage that a body asks for and its client did not ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageEdit {
    /// None.
    None,
    /// The usage event at the end of a stream.
    AtEnd,
    /// The same, and the counts of every event.
    EveryEvent,
}

impl Body {
    /// A body of these bytes, for backends of this route, with the edits of the control check. Only
    /// APIs that have `stream_options` are edited for usage. A body whose digest is in a header is
    /// never edited: it is refused if it would have to be.
    pub(super) fn new(
        plain: Bytes,
        api: Option<Api>,
        headers: &HeaderMap,
        peek: &Peek,
        route: &Route,
        control: Vec<Edit>,
    ) -> Result<Self, Error> {
        let is_signed = headers::is_digested(headers);
        let named = route.served_as.as_deref().zip(peek.model_slot.as_ref());
        if let Some((served_as, _)) = named
            && is_signed
        {
            let served_as = served_as.to_owned();
            return Err(Error::SignedBody { model: route.label.as_str().to_owned(), served_as });
        }
        if let Some(edit) = control.first()
            && is_signed
        {
            return Err(Error::SignedField { field: edit.field });
        }
        let has_options = matches!(api, Some(Api::Chat | Api::Completions));
        Ok(Self {
            plain,
            model: named.map(|(served_as, slot)| slot.renamed(served_as)),
            control,
            usage: peek.usage_splice.clone().filter(|_| has_options && !is_signed),
            usage_draw: 1.0,
            edited: Mutex::default(),
        })
    }

    /// The same body, with the number that was drawn for its request.
    pub(super) fn with_usage_draw(self, usage_draw: f64) -> Self {
        Self { usage_draw, ..self }
    }

    /// How many bytes an edited copy takes; 0 if there will be none. An edit adds a few bytes more.
    pub(super) fn copy_len(&self) -> usize {
        let is_edited = self.model.is_some() || self.usage.is_some() || !self.control.is_empty();
        if is_edited { self.plain.len() } else { 0 }
    }

    /// The bytes as they came.
    pub(super) fn plain(&self) -> &Bytes {
        &self.plain
    }

    /// The bytes for this backend, and the usage that they ask for on the gateway's account.
    pub(super) fn for_replica(&self, backend: &Backend) -> (Bytes, UsageEdit) {
        let usage = self.usage.as_ref().filter(|_| backend.injects_usage());
        let edit = match usage {
            None => UsageEdit::None,
            Some(_) if self.is_in_sample(backend) => UsageEdit::EveryEvent,
            Some(_) => UsageEdit::AtEnd,
        };
        if self.model.is_none() && self.control.is_empty() && edit == UsageEdit::None {
            return (self.plain.clone(), edit);
        }
        let mut edited = self.edited.lock().unwrap_or_else(PoisonError::into_inner);
        let same = edited.take().filter(|(made_for, _)| *made_for == edit);
        let (_, bytes) = edited.insert(same.unwrap_or_else(|| (edit, self.edit(edit, usage))));
        (bytes.clone(), edit)
    }

    fn edit(&self, edit: UsageEdit, usage: Option<&Splice>) -> Bytes {
        let continuous = usage.filter(|_| edit == UsageEdit::EveryEvent);
        let continuous = continuous.map(Splice::with_continuous_usage);
        let control = self.control.iter().map(|edit| &edit.splice);
        let edits = self.model.iter().chain(control).chain(continuous.as_ref().or(usage));
        Splice::apply(edits, &self.plain)
    }

    fn is_in_sample(&self, backend: &Backend) -> bool {
        self.usage_draw < backend.continuous_usage() && !Peek::names_counting_field(&self.plain)
    }
}

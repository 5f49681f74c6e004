//! The request body as a replica gets it: the client's bytes, or those with the edits that call
//! the model as the replica does, and that make a stream end with its usage.

use crate::backend::Backend;
use crate::backend::routes::Route;
use crate::error::Error;
use crate::headers;
use crate::openai::request::Peek;
use crate::openai::{Api, Splice};
use bytes::Bytes;
use http::HeaderMap;

/// A received body, and how it is edited.
pub(super) struct Body {
    /// As it came.
    plain: Bytes,
    model: Option<Splice>,
    usage: Option<Splice>,
    /// A number from 0 to 1, drawn for this request: it decides whether the request is in the
    /// sample for which the counts of every event are asked for. 1 is in no sample.
    usage_draw: f64,
    /// Made when the first replica wants it: one for each [`UsageEdit`].
    edited: [Option<Bytes>; 3],
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
    /// A body of these bytes, for replicas of this route. Only shapes that have `stream_options`
    /// are edited for usage. A body whose digest somebody has signed is never edited: it is
    /// refused if it would have to be.
    pub(super) fn new(
        plain: Bytes,
        api: Option<Api>,
        headers: &HeaderMap,
        peek: &Peek,
        route: &Route,
    ) -> Result<Self, Error> {
        let is_signed = headers::is_digested(headers);
        let named = route.served_as.as_deref().zip(peek.model_slot.as_ref());
        if let Some((served_as, _)) = named
            && is_signed
        {
            let served_as = served_as.to_owned();
            return Err(Error::SignedBody { model: route.label.as_str().to_owned(), served_as });
        }
        let has_options = matches!(api, Some(Api::Chat | Api::Completions));
        Ok(Self {
            plain,
            model: named.map(|(served_as, slot)| slot.renamed(served_as)),
            usage: peek.usage_splice.clone().filter(|_| has_options && !is_signed),
            usage_draw: 1.0,
            edited: [None, None, None],
        })
    }

    /// The same body, with the number that was drawn for its request.
    pub(super) fn with_usage_draw(self, usage_draw: f64) -> Self {
        Self { usage_draw, ..self }
    }

    /// The bytes as they came.
    pub(super) fn plain(&self) -> &Bytes {
        &self.plain
    }

    /// The bytes for this backend, and the usage that they ask for on the gateway's account.
    pub(super) fn for_replica(&mut self, backend: &Backend) -> (&Bytes, UsageEdit) {
        let usage = self.usage.as_ref().filter(|_| backend.injects_usage());
        let edit = match usage {
            None => UsageEdit::None,
            Some(_) if self.is_in_sample(backend) => UsageEdit::EveryEvent,
            Some(_) => UsageEdit::AtEnd,
        };
        if self.model.is_none() && edit == UsageEdit::None {
            return (&self.plain, edit);
        }
        let edited = &mut self.edited[edit as usize];
        if edited.is_none() {
            let continuous = usage.filter(|_| edit == UsageEdit::EveryEvent);
            let continuous = continuous.map(Splice::with_continuous_usage);
            let edits = self.model.iter().chain(continuous.as_ref().or(usage));
            *edited = Some(Splice::apply(edits, &self.plain));
        }
        (edited.as_ref().unwrap_or(&self.plain), edit)
    }

    fn is_in_sample(&self, backend: &Backend) -> bool {
        self.usage_draw < backend.continuous_usage() && !Peek::names_counting_field(&self.plain)
    }
}

//! The request body as a backend gets it: the client's bytes, or those with the edits that name the
//! model as the backend does, that take away what the client may not control, and that make a
//! stream end with its usage.

use crate::backend::Backend;
use crate::backend::routes::Route;
use crate::error::Error;
use crate::headers;
use crate::openai::control::Edit;
use crate::openai::request::Peek;
use crate::openai::{Api, Splice};
use bytes::Bytes;
use http::HeaderMap;

/// A received body, and how it is edited.
pub(super) struct Body {
    /// As it came.
    plain: Bytes,
    model: Option<Splice>,
    control: Vec<Edit>,
    usage: Option<Splice>,
    /// Made when the first replica wants it: without the edit for usage, and with it.
    edited: [Option<Bytes>; 2],
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
            edited: [None, None],
        })
    }

    /// The bytes as they came.
    pub(super) fn plain(&self) -> &Bytes {
        &self.plain
    }

    /// The bytes for this replica, and whether they ask for usage that the client did not ask for.
    pub(super) fn for_replica(&mut self, backend: &Backend) -> (&Bytes, bool) {
        let usage = self.usage.as_ref().filter(|_| backend.injects_usage());
        let asks_usage = usage.is_some();
        let control = self.control.iter().map(|edit| &edit.splice);
        let mut edits = self.model.iter().chain(control).chain(usage).peekable();
        if edits.peek().is_none() {
            return (&self.plain, false);
        }
        let edited = &mut self.edited[usize::from(asks_usage)];
        (edited.get_or_insert_with(|| Splice::apply(edits, &self.plain)), asks_usage)
    }
}

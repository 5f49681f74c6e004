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
    /// Made when the first replica wants it, with the edit for usage or without. The other one is
    /// made in its place if the next replica wants that, so that there are two bodies at most.
    edited: Option<(bool, Bytes)>,
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
            edited: None,
        })
    }

    /// How many bytes an edited copy takes; 0 if there will be none. An edit adds a few bytes more.
    pub(super) fn copy_len(&self) -> usize {
        if self.model.is_some() || self.usage.is_some() { self.plain.len() } else { 0 }
    }

    /// The bytes as they came.
    pub(super) fn plain(&self) -> &Bytes {
        &self.plain
    }

    /// The bytes for this replica, and whether they ask for usage that the client did not ask for.
    pub(super) fn for_replica(&mut self, backend: &Backend) -> (&Bytes, bool) {
        let usage = self.usage.as_ref().filter(|_| backend.injects_usage());
        let asks_usage = usage.is_some();
        let mut edits = self.model.iter().chain(usage).peekable();
        if edits.peek().is_none() {
            return (&self.plain, false);
        }
        let edited = self.edited.take().filter(|(has_usage, _)| *has_usage == asks_usage);
        let edited = edited.unwrap_or_else(|| (asks_usage, Splice::apply(edits, &self.plain)));
        (&self.edited.insert(edited).1, asks_usage)
    }
}

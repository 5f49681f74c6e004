//! The request body as a replica gets it: the client's bytes, or those with the one edit that
//! makes a stream end with its usage.

use crate::backend::Backend;
use crate::headers;
use crate::openai::{Api, Splice};
use bytes::Bytes;
use http::HeaderMap;

/// A received body, and how it would be edited.
pub(super) struct Body {
    plain: Bytes,
    splice: Option<Splice>,
    /// Made when the first replica wants it.
    edited: Option<Bytes>,
}

impl Body {
    /// A body of these bytes. Only shapes that have `stream_options` are edited, and only bodies
    /// whose digest nobody has signed.
    pub(super) fn new(
        plain: Bytes,
        api: Option<Api>,
        headers: &HeaderMap,
        splice: Option<Splice>,
    ) -> Self {
        let has_options = matches!(api, Some(Api::Chat | Api::Completions));
        let splice = splice.filter(|_| has_options && !headers::is_digested(headers));
        Self { plain, splice, edited: None }
    }

    /// The bytes for this replica, and whether they ask for usage that the client did not ask for.
    pub(super) fn for_replica(&mut self, backend: &Backend) -> (&Bytes, bool) {
        match &self.splice {
            Some(splice) if backend.injects_usage() => {
                (self.edited.get_or_insert_with(|| splice.apply(&self.plain)), true)
            }
            _ => (&self.plain, false),
        }
    }
}

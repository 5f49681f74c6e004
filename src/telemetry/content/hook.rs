//! A redactor that is a server: the object is posted, and comes back with status 200.

use super::StartError;
use super::treatment::Texts;
use crate::telemetry::post::Post;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The server, and the way to it.
pub(super) struct Hook {
    post: Post,
    runtime: Runtime,
}

/// The longest answer in bytes.
const MAX_ANSWER: usize = 64 << 20;

impl Hook {
    /// The server at this URL.
    pub(super) fn new(url: &str) -> Result<Self, StartError> {
        let post = Post::new(url, MAX_ANSWER).ok_or_else(|| StartError::Url(url.to_owned()))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { post, runtime })
    }

    /// The texts as the server gives them back. `None`: it did not, in this time.
    pub(super) fn treat(&self, texts: &Texts, patience: Duration) -> Option<Texts> {
        let body = serde_json::to_vec(texts).ok()?;
        let asking =
            async { tokio::time::timeout(patience, self.post.ask(body)).await.ok().flatten() };
        self.runtime.block_on(asking)
    }
}

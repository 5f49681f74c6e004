//! A redactor that is a server: the object is posted, and comes back with status 200.

use super::{StartError, Texts};
use crate::backend::Idle;
use crate::backend::client::{Client, Limits};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The server, and the way to it.
pub(super) struct Hook {
    url: Uri,
    host: HeaderValue,
    client: Client,
    idle: Idle,
    runtime: Runtime,
}

/// The longest answer in bytes.
const MAX_ANSWER: usize = 64 << 20;

impl Hook {
    /// The server at this URL.
    pub(super) fn new(url: &str) -> Result<Self, StartError> {
        let wrong = || StartError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let host = uri.authority().map(http::uri::Authority::as_str).ok_or_else(wrong)?;
        let host = HeaderValue::from_str(host).map_err(|_| wrong())?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = Client::new(Limits::default());
        Ok(Self { url: uri, host, client, idle: Idle::default(), runtime })
    }

    /// The texts as the server gives them back. `None`: it did not, in this time.
    pub(super) fn treat(&self, texts: &Texts, patience: Duration) -> Option<Texts> {
        let asking = async { tokio::time::timeout(patience, self.ask(texts)).await.ok().flatten() };
        self.runtime.block_on(asking)
    }

    async fn ask(&self, texts: &Texts) -> Option<Texts> {
        let body = serde_json::to_vec(texts).ok()?;
        let request = Request::post(self.url.clone())
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json")
            .body(Bytes::from(body));
        let response = self.client.send(&self.idle, request.ok()?).await.ok()?;
        if response.status() != StatusCode::OK {
            return None;
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await.ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
    }
}

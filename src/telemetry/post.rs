//! A server that is posted a JSON object and answers 200 with another: a redactor, or a judge.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;
use tokenweir_net::client::{Client, Limits};
use tokenweir_net::idle::Idle;

/// The server, and the way to it.
pub(super) struct Post {
    url: Uri,
    host: HeaderValue,
    client: Client,
    idle: Idle,
    /// Longest answer in bytes.
    max_answer: usize,
}

impl Post {
    /// The server at this URL. `None`: it is none that can be asked.
    pub(super) fn new(url: &str, max_answer: usize) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let host = HeaderValue::from_str(uri.authority()?.as_str()).ok()?;
        let client = Client::new(Limits::default());
        Some(Self { url: uri, host, client, idle: Idle::default(), max_answer })
    }

    /// What it answers. `None`: nothing that can be used. It is for the caller to give up waiting.
    pub(super) async fn ask<T: DeserializeOwned>(&self, body: Vec<u8>) -> Option<T> {
        let request = Request::post(self.url.clone())
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json")
            .body(Bytes::from(body));
        let response = self.client.send(&self.idle, request.ok()?).await.ok()?;
        if response.status() != StatusCode::OK {
            return None;
        }
        let body = Limited::new(response.into_body(), self.max_answer).collect().await.ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
    }
}

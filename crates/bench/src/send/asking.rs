//! Whom requests are sent to and with which key, and the small pages that are asked for before.

use super::{Client, Idle, ReplicaBody, SendError};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use std::time::Duration;
use tokenweir_core::address::Address;

/// Sends to one server, on kept connections.
#[derive(Debug, Clone)]
pub struct Asker {
    client: Client,
    idle: Idle,
    target: Address,
    key: Option<HeaderValue>,
}

/// Why a server's page is not known.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It cannot be reached.
    #[error("{0} cannot be reached")]
    Send(String, #[source] SendError),
    /// It wants another key.
    #[error("{0} refuses the key, or wants one ({1}); {2}")]
    Key(String, StatusCode, &'static str),
    /// It has no such page.
    #[error("{0} answers GET {1} with {2}: {3}")]
    Status(String, &'static str, StatusCode, &'static str),
    /// The page is something else.
    #[error("{0}{1} is not {2}")]
    Page(String, &'static str, &'static str),
}

/// Longest page that is read, in bytes.
const MAX_PAGE: usize = 64 << 20;
/// Longest wait for a page.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest error that is shown, in characters.
const SHOWN: usize = 300;
const MODELS: &str = "/v1/models";

impl Asker {
    /// For this server.
    pub fn new(client: Client, target: Address, key: Option<HeaderValue>) -> Self {
        Self { client, idle: Idle::default(), target, key }
    }

    /// The server.
    pub fn target(&self) -> &Address {
        &self.target
    }

    /// The models that it serves, by the names that clients write.
    pub async fn models(&self) -> Result<Vec<String>, AskError> {
        let hint = "is it a gateway or an OpenAI-compatible server?";
        let page = self.page(MODELS, "give a key with --api-key-env or --api-key-file", hint);
        let page = page.await?;
        let list: Option<serde_json::Value> = serde_json::from_slice(&page).ok();
        let list = list.as_ref().and_then(|list| list["data"].as_array());
        let none = || AskError::Page(self.target.to_string(), MODELS, "a list of models");
        let ids = list.ok_or_else(none)?.iter().map(|model| model["id"].as_str());
        ids.map(|id| id.map(str::to_owned)).collect::<Option<_>>().ok_or_else(none)
    }

    /// Its metrics page.
    pub async fn metrics(&self) -> Result<Bytes, AskError> {
        let hint = "--admin is the port of metrics, 9090 by default";
        self.page("/metrics", "set TOKENWEIR_ADMIN_TOKEN", hint).await
    }

    async fn page(
        &self,
        path: &'static str,
        with_key: &'static str,
        hint: &'static str,
    ) -> Result<Bytes, AskError> {
        let of_send = |error| AskError::Send(self.target.to_string(), error);
        let request = || self.request(&PathAndQuery::from_static(path), Bytes::new());
        let send = || self.client.send_within(PATIENCE, &self.idle, request());
        let response = match send().await {
            Err(SendError::Stale { .. }) => send().await,
            response => response,
        };
        let response = response.map_err(of_send)?;
        match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(AskError::Key(self.target.to_string(), response.status(), with_key));
            }
            status if !status.is_success() => {
                return Err(AskError::Status(self.target.to_string(), path, status, hint));
            }
            _ => {}
        }
        let body = Limited::new(response.into_body(), MAX_PAGE).collect();
        let body = tokio::time::timeout(PATIENCE, body).await;
        let body = body.map_err(|_| of_send(SendError::Timeout(PATIENCE)))?;
        let cut = |error: Box<dyn std::error::Error + Send + Sync>| {
            of_send(SendError::Closed(error.to_string()))
        };
        Ok(body.map_err(cut)?.to_bytes())
    }

    pub(super) async fn send(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<ReplicaBody>, SendError> {
        self.client.send(&self.idle, request).await
    }

    pub(super) fn request(&self, path: &PathAndQuery, body: Bytes) -> Request<Bytes> {
        let mut request = Request::new(body);
        *request.uri_mut() = self.target.uri(path);
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.target.host_header().clone());
        let bearer = self.key.clone();
        headers.extend(bearer.map(|bearer| (header::AUTHORIZATION, bearer)));
        request
    }
}

/// What an error says, in OpenAI's envelope or as plain text.
pub(super) fn message(body: &[u8]) -> Option<String> {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let json = json.as_ref();
    let inside = json.and_then(|json| json["error"]["message"].as_str());
    let said = inside.or_else(|| json.and_then(|json| json["message"].as_str()));
    let said = said.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    let plain = said.chars().map(|c| if c.is_control() { ' ' } else { c });
    let said: String = plain.take(SHOWN).collect();
    Some(said.trim().to_owned()).filter(|said| !said.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_error_says_is_shown_without_its_envelope_and_without_control_characters() {
        let of = |body: &str| message(body.as_bytes());
        assert_eq!(of(r#"{"error":{"message":"no model"}}"#).as_deref(), Some("no model"));
        assert_eq!(of(r#"{"message":"no"}"#).as_deref(), Some("no"));
        assert_eq!(of("<h1>\u{1b}[31mno\n").as_deref(), Some("<h1> [31mno"));
        assert_eq!(of(""), None);
        assert_eq!(of(&"x".repeat(9_000)).map(|said| said.len()), Some(300));
    }
}

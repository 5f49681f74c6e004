//! The HTTP client of a benchmark target (the tested server, or the gateway's admin listener): its address,
//! its API key, and the model list and metrics pages that it serves.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::backend_body::BackendResponse;
use tokenweir_net::client::{ConnectionSource, HttpClient, SendError};
use tokenweir_net::idle_pool::IdlePool;

/// Sends requests to one server over reused connections.
#[derive(Debug, Clone)]
pub struct TargetClient {
    client: HttpClient,
    idle: IdlePool,
    target: BackendAddress,
    /// The value of the `Authorization` header. `None`: the requests have no such header.
    key: Option<HeaderValue>,
}

/// Why a page of a server could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The server cannot be reached.
    #[error("{0} cannot be reached")]
    Send(String, #[source] SendError),
    /// The server rejects the API key, or requires a key: status 401 or 403.
    #[error("{0} refuses the API key, or requires one ({1}); {2}")]
    Key(String, StatusCode, &'static str),
    /// The server responds with an error status.
    #[error("{0} responds to GET {1} with {2}: {3}")]
    Status(String, &'static str, StatusCode, &'static str),
    /// The page does not have the expected format.
    #[error("{0}{1} is not {2}")]
    Page(String, &'static str, &'static str),
}

/// Maximum size of the model list or metrics page, in bytes.
const MAX_PAGE_BYTES: usize = 64 << 20;
/// Time limit for the response head of a page. The same limit then applies to its body.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of retries of a request after the server had already closed the reused connection.
const MAX_STALE_RETRIES: u32 = 3;
/// Maximum length of an error message that is kept, in characters.
const MAX_ERROR_CHARS: usize = 300;
const MODELS_PATH: &str = "/v1/models";

impl TargetClient {
    /// Creates a client of a server. `key` is the value of the `Authorization` header.
    pub fn new(client: HttpClient, target: BackendAddress, key: Option<HeaderValue>) -> Self {
        Self {
            client,
            idle: IdlePool::default(),
            target,
            key,
        }
    }

    /// Address of the server.
    pub fn target(&self) -> &BackendAddress {
        &self.target
    }

    /// Fetches the names of the models that the server serves.
    pub async fn models(&self) -> Result<Vec<String>, TargetError> {
        let hint = "is it a gateway or an OpenAI-compatible server?";
        let page = self.fetch_page(
            MODELS_PATH,
            "give a key with --api-key-env or --api-key-file",
            hint,
        );
        let page = page.await?;
        let list: Option<serde_json::Value> = serde_json::from_slice(&page).ok();
        let list = list.as_ref().and_then(|list| list["data"].as_array());
        let format_error =
            || TargetError::Page(self.target.to_string(), MODELS_PATH, "a list of models");
        let ids = list
            .ok_or_else(format_error)?
            .iter()
            .map(|model| model["id"].as_str());
        ids.map(|id| id.map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(format_error)
    }

    /// Fetches the metrics page of the gateway. The target must be the admin listener of the gateway.
    pub async fn metrics(&self) -> Result<Bytes, TargetError> {
        let hint = "--admin must be the address of the admin listener, port 9090 by default";
        self.fetch_page("/metrics", "set TOKENWEIR_ADMIN_TOKEN", hint)
            .await
    }

    async fn fetch_page(
        &self,
        path: &'static str,
        key_hint: &'static str,
        hint: &'static str,
    ) -> Result<Bytes, TargetError> {
        let send_error = |error| TargetError::Send(self.target.to_string(), error);
        let request = || self.request(&PathAndQuery::from_static(path), Bytes::new());
        let response = self
            .send(Some(PAGE_TIMEOUT), request)
            .await
            .map_err(send_error)?;
        match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(TargetError::Key(
                    self.target.to_string(),
                    response.status(),
                    key_hint,
                ));
            }
            status if !status.is_success() => {
                return Err(TargetError::Status(
                    self.target.to_string(),
                    path,
                    status,
                    hint,
                ));
            }
            _ => {}
        }
        let body = Limited::new(response.into_body(), MAX_PAGE_BYTES).collect();
        let body = tokio::time::timeout(PAGE_TIMEOUT, body).await;
        let body = body.map_err(|_| send_error(SendError::Timeout(PAGE_TIMEOUT)))?;
        let read_error = |error: Box<dyn std::error::Error + Send + Sync>| {
            send_error(SendError::Closed(error.to_string()))
        };
        Ok(body.map_err(read_error)?.to_bytes())
    }

    /// Sends a request. If the server had already closed the reused connection, the request is sent again,
    /// because this is not a failure of the request. `timeout`: limit of the time until the response head.
    /// `None`: the limit of the HTTP client.
    pub(super) async fn send(
        &self,
        timeout: Option<Duration>,
        request: impl Fn() -> Request<Bytes>,
    ) -> Result<BackendResponse, SendError> {
        let source = ConnectionSource::Pool;
        let send = || {
            self.client
                .send_via(source, timeout, &self.idle, request(), None)
        };
        for _ in 0..MAX_STALE_RETRIES {
            match send().await {
                Err(SendError::StaleConnection { .. }) => {}
                result => return result,
            }
        }
        send().await
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

/// Extracts the message of an error response. The message is in the error object of the OpenAI API or in a
/// field `message`; otherwise it is the whole body as text. `None`: the body is empty.
pub(super) fn error_message(body: &[u8]) -> Option<String> {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let json = json.as_ref();
    let nested = json.and_then(|json| json["error"]["message"].as_str());
    let text = nested.or_else(|| json.and_then(|json| json["message"].as_str()));
    let text = text.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let message: String = plain.take(MAX_ERROR_CHARS).collect();
    Some(message.trim().to_owned()).filter(|message| !message.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_message_has_no_json_or_controls() {
        let extract = |body: &str| error_message(body.as_bytes());
        assert_eq!(
            extract(r#"{"error":{"message":"no model"}}"#).as_deref(),
            Some("no model")
        );
        assert_eq!(extract(r#"{"message":"no"}"#).as_deref(), Some("no"));
        assert_eq!(
            extract("<h1>\u{1b}[31mno\n").as_deref(),
            Some("<h1> [31mno")
        );
        assert_eq!(extract(""), None);
        assert_eq!(
            extract(&"x".repeat(9_000)).map(|text| text.len()),
            Some(300)
        );
    }
}

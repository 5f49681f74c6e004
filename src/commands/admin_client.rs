//! The client of the commands that query or change a running gateway through its admin listener.

use super::{ADMIN_TOKEN_VARIABLE, resolve_optional_secret};
use crate::config::{Secret, SecretError};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_doctor::facts::{GatherError, GatherResult, TargetKey as Token};
use tokenweir_doctor::gather::ServerClient;
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::tls::{Alpn, OutboundTls};

/// Maximum length of a shown error text of the gateway, in characters.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// A client for the admin listener of a gateway.
#[derive(Debug, Clone)]
pub(crate) struct AdminClient(ServerClient);

impl AdminClient {
    /// Creates a client. The token comes from `token_file` or, if it is not set, from [`ADMIN_TOKEN_VARIABLE`].
    pub(crate) fn new(
        admin: &BackendAddress,
        token_file: Option<PathBuf>,
        timeout: Duration,
    ) -> Result<Self, SecretError> {
        let env_secret = Secret::Env(ADMIN_TOKEN_VARIABLE.to_owned());
        let secret = token_file.map_or(env_secret, Secret::File);
        let key = resolve_optional_secret(&secret)?.map_or(Token::None, Token::Known);
        let outbound = OutboundTls::with_native_roots(Alpn::Http1);
        Ok(Self(ServerClient::new(
            admin.clone(),
            key,
            outbound,
            timeout,
        )))
    }

    /// Sends a `GET` request and returns the body of a successful response. The error text states
    /// the problem and how to fix it.
    pub(crate) async fn get(&self, path: &str) -> Result<Bytes, String> {
        read_body(path, self.0.get(path).await)
    }

    /// Sends a `POST` request and returns the body of a successful response. The error text states
    /// the problem and how to fix it.
    pub(crate) async fn post(&self, path: &str) -> Result<Bytes, String> {
        let json = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
        read_body(path, self.0.request(Method::POST, path, Some(json)).await)
    }

    /// Drains a backend. Without a duration, the drain lasts until an operator ends it. If `is_migrated` is
    /// true, other backends continue the open streams of the backend.
    pub(crate) async fn drain(
        &self,
        backend: &str,
        reason: Option<&str>,
        duration: Option<Duration>,
        is_migrated: bool,
    ) -> Result<Bytes, String> {
        let migrate = if is_migrated { "&migrate=true" } else { "" };
        let query = drain_query(backend, reason, duration);
        self.post(&format!("/-/drain?{query}{migrate}")).await
    }

    /// Drains a backend, or undrains it if `is_drained` is false.
    pub(crate) async fn set_drained(
        &self,
        backend: &str,
        is_drained: bool,
    ) -> Result<Bytes, String> {
        if is_drained {
            self.drain(backend, None, None, false).await
        } else {
            self.post(&format!("/-/undrain?{}", drain_query(backend, None, None)))
                .await
        }
    }
}

/// Builds the query of a drain request. The duration is in milliseconds.
fn drain_query(backend: &str, reason: Option<&str>, duration: Option<Duration>) -> String {
    let mut query = format!("backend={}", percent_encode(backend));
    if let Some(reason) = reason {
        query = format!("{query}&reason={}", percent_encode(reason));
    }
    if let Some(duration) = duration {
        query = format!("{query}&for={}ms", duration.as_millis());
    }
    query
}

/// Returns the body of a successful response. The error text states the problem and how to fix it.
fn read_body(path: &str, result: GatherResult) -> Result<Bytes, String> {
    let response = result.map_err(|error| match error {
        GatherError::Connect(_) | GatherError::Timeout(_) | GatherError::Closed(_) => {
            format!("the gateway does not answer: {error}")
        }
        error => error.to_string(),
    })?;
    if response.status.is_success() {
        return Ok(response.body);
    }
    let document = serde_json::from_slice::<serde_json::Value>(&response.body).ok();
    let message = document.and_then(|document| Some(document["error"].as_str()?.to_owned()));
    let is_text = response.headers.get(CONTENT_TYPE).is_some_and(|value| {
        value
            .to_str()
            .is_ok_and(|value| value.starts_with("text/plain"))
    });
    let text = is_text.then(|| String::from_utf8_lossy(&response.body).trim().to_owned());
    let message = message.or(text.filter(|text| !text.is_empty() && response.status != 404));
    let is_shown = |c: &char| !c.is_control() || *c == '\n';
    Err(match (response.status.as_u16(), message) {
        (401, _) => format!(
            "the gateway requires the admin token (access.admin_token): set \
             {ADMIN_TOKEN_VARIABLE}, or give a file with --token-file"
        ),
        (_, Some(message)) => message
            .chars()
            .filter(is_shown)
            .take(MAX_MESSAGE_CHARS)
            .collect(),
        (404, None) => format!(
            "{} was not found: this is not the admin listener of a gateway of this version",
            path.split('?').next().unwrap_or_default()
        ),
        (status, None) => format!("the gateway answered {status}"),
    })
}

/// Percent-encodes a name as one path segment or query value.
pub(crate) fn percent_encode(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_has_only_given_parameters() {
        assert_eq!(drain_query("gpu 0", None, None), "backend=gpu%200");
        let duration = Some(Duration::from_mins(30));
        let query = drain_query("a", Some("new kernel & reboot"), duration);
        assert_eq!(
            query,
            "backend=a&reason=new%20kernel%20%26%20reboot&for=1800000ms"
        );
    }

    #[test]
    fn special_characters_stay_in_one_path_segment() {
        assert_eq!(percent_encode("a/b?c&d#e f%"), "a%2Fb%3Fc%26d%23e%20f%25");
    }
}

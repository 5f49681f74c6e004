//! Reads the documents of an issuer by their URLs.

use super::key_set::MAX_DOCUMENT_BYTES;
use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use std::net::IpAddr;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts};
use tokenweir_net::page_fetcher::{FetchError, PageFetcher};
use tokenweir_net::tls::{Alpn, OutboundTls};

/// The URL of a JWKS or discovery document of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeysUrl {
    address: BackendAddress,
    path: PathAndQuery,
}

/// The members of a discovery document that the gateway reads (`OpenID` Connect Discovery 1.0).
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

const TIMEOUT: Duration = Duration::from_secs(10);
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// The HTTP client for issuers. It trusts the certificate authorities of this machine.
pub(crate) fn client() -> HttpClient {
    let outbound = OutboundTls::with_native_roots(Alpn::Http1);
    HttpClient::with_tls(HttpClientTimeouts::default(), outbound)
}

impl KeysUrl {
    /// Parses a URL. Plain HTTP is refused for remote hosts, because an attacker could replace the keys.
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
        let is_absolute = url.starts_with("https://") || url.starts_with("http://");
        if !is_absolute || url.contains(['@', '#']) {
            return Err("write a URL that begins with https://, without a user name and `#`");
        }
        let (server, path) = BackendAddress::split_path(url);
        let path = if path.is_empty() { "/" } else { path };
        let address = BackendAddress::parse(server).map_err(|_| "this is not a URL")?;
        let path = path.parse().map_err(|_| "this is not a URL")?;
        if !address.is_https() && !is_loopback(&address) {
            return Err("write an https:// URL: http:// is allowed for loopback addresses only");
        }
        Ok(Self { address, path })
    }

    pub(crate) fn of_discovery(issuer: &str) -> Result<Self, &'static str> {
        if issuer.contains('?') {
            return Err("an issuer with discovery has no query");
        }
        Self::parse(&format!("{}{DISCOVERY_PATH}", issuer.trim_end_matches('/')))
    }

    pub(super) async fn discover(&self, client: &HttpClient, issuer: &str) -> Result<Self, String> {
        let document = self.read(client).await?;
        let found: Discovery = serde_json::from_slice(&document)
            .map_err(|_| "its discovery has no `issuer` and `jwks_uri`")?;
        if found.issuer != issuer {
            return Err("its discovery names another issuer".to_owned());
        }
        let url = Self::parse(&found.jwks_uri).map_err(|_| "its discovery has an invalid URL")?;
        // Plain HTTP is allowed for this machine, so a remote issuer could otherwise make the gateway read from
        // local services.
        if self.address.is_https() && !url.address.is_https() {
            return Err("its discovery has a URL without TLS".to_owned());
        }
        Ok(url)
    }

    /// Reads a document. Redirects are not followed.
    pub(super) async fn read(&self, client: &HttpClient) -> Result<Vec<u8>, String> {
        let address = self.address.clone();
        let fetcher = PageFetcher::new(client.clone(), address, None, TIMEOUT, MAX_DOCUMENT_BYTES);
        let mut fetcher = fetcher.accepting(HeaderValue::from_static("application/json"));
        let page = fetcher.fetch(&self.path, None).await;
        let (status, document) = page.map_err(|error| match error {
            FetchError::Timeout { .. } => format!("no complete response within {TIMEOUT:?}"),
            FetchError::TooLarge => {
                format!("its document has more than {MAX_DOCUMENT_BYTES} bytes")
            }
            error => error.describe(),
        })?;
        if status == StatusCode::OK {
            Ok(document.to_vec())
        } else {
            Err(format!("it responded with status {status}"))
        }
    }
}

fn is_loopback(address: &BackendAddress) -> bool {
    let (host, _) = address.host_and_port();
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    ip.is_ok_and(|ip| ip.is_loopback()) || host.eq_ignore_ascii_case("localhost")
}

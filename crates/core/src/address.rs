//! Where a replica is: an `http://host:port` or `https://host:port` URL, parsed once into the pieces that requests need.

use crate::record::BackendId;
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use std::sync::Arc;

/// The address of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    scheme: Scheme,
    authority: Authority,
    host_header: HeaderValue,
    host: Arc<str>,
    port: u16,
}

/// Why a URL cannot be a replica's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not a URL at all.
    #[error("`{0}` is not a URL; write http://host:port")]
    NotUrl(String),
    /// A scheme other than `http` and `https`.
    #[error("`{0}`: only http:// and https:// can be spoken to a replica")]
    Scheme(String),
    /// More than host and port.
    #[error("`{0}`: leave out the path; clients' paths, such as /v1/models, are appended")]
    Path(String),
    /// A user name or password.
    #[error("a backend URL must not hold a user name or password")]
    Credentials,
}

impl Address {
    /// Parses `http://host:port`; a missing scheme is `http`, a missing port 80, or 443 for `https`.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let with_scheme =
            if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = with_scheme.parse().map_err(|_| AddressError::NotUrl(url.to_owned()))?;
        let mut known = [Scheme::HTTP, Scheme::HTTPS].into_iter();
        let scheme = known.find(|known| uri.scheme() == Some(known));
        let scheme = scheme.ok_or_else(|| AddressError::Scheme(url.to_owned()))?;
        if !matches!(uri.path_and_query().map(PathAndQuery::as_str), None | Some("" | "/")) {
            return Err(AddressError::Path(url.to_owned()));
        }
        let not_url = || AddressError::NotUrl(url.to_owned());
        let authority = uri.authority().cloned().ok_or_else(not_url)?;
        if authority.as_str().contains('@') {
            return Err(AddressError::Credentials);
        }
        // In one piece, of which each request has parts.
        let text = Bytes::copy_from_slice(authority.as_str().as_bytes());
        let host_header = HeaderValue::from_maybe_shared(text.clone()).map_err(|_| not_url())?;
        let authority = Authority::from_maybe_shared(text).map_err(|_| not_url())?;
        Ok(Self {
            host_header,
            host: authority.host().into(),
            port: authority.port_u16().unwrap_or(if scheme == Scheme::HTTPS { 443 } else { 80 }),
            scheme,
            authority,
        })
    }

    /// The absolute URI of a path there.
    pub fn uri(&self, path: &PathAndQuery) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path.clone());
        // Cannot fail: all three parts are there.
        Uri::from_parts(parts).unwrap_or_default()
    }

    /// The `Host` header.
    pub fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    /// Host and port, for spans.
    pub fn host_and_port(&self) -> (Arc<str>, u16) {
        (self.host.clone(), self.port)
    }

    /// Whether it is spoken to through TLS.
    pub fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Host and port as they stand in the URL.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The name of a replica that was given none.
    pub fn default_id(&self) -> BackendId {
        BackendId::new(self.authority.as_str())
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_port_are_enough_and_a_path_is_told_to_go() {
        assert_eq!(Address::parse("http://[::1]:8000").unwrap().to_string(), "http://[::1]:8000");
        assert_eq!(Address::parse("vllm-0:8000").unwrap().host_and_port(), ("vllm-0".into(), 8000));
        assert!(matches!(Address::parse("http://a:1/v1"), Err(AddressError::Path(_))));
        assert_eq!(Address::parse("https://a").unwrap().host_and_port(), ("a".into(), 443));
        assert_eq!(Address::parse("https://a:1").unwrap().to_string(), "https://a:1");
        assert!(matches!(Address::parse("ftp://a"), Err(AddressError::Scheme(_))));
        assert!(matches!(Address::parse("http://"), Err(AddressError::NotUrl(_))));
        assert_eq!(Address::parse("http://u:secret@a:1"), Err(AddressError::Credentials));
    }

    #[test]
    fn a_path_keeps_its_query() {
        let address = Address::parse("http://a:1").unwrap();
        let uri = address.uri(&PathAndQuery::from_static("/v1/models?x=1"));
        assert_eq!(uri, "http://a:1/v1/models?x=1");
    }
}

//! The address of a backend: a URL `http://host:port` or `https://host:port`, with an optional path that
//! precedes the path of each request. The address is parsed once, into the parts that a request contains.

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Parses the address of a listener: an IP address and a port, `localhost:PORT` (127.0.0.1), or `:PORT` (all
/// interfaces). `:PORT` results in the IPv6 address `[::]`, which also accepts IPv4.
pub fn parse_listen_address(text: &str) -> Result<SocketAddr, String> {
    let port_after = |host: &str| {
        text.strip_prefix(host)?
            .strip_prefix(':')?
            .parse::<u16>()
            .ok()
    };
    let on_all = port_after("").map(|port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    let on_localhost =
        port_after("localhost").map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    on_all
        .or(on_localhost)
        .or_else(|| text.parse().ok())
        .ok_or_else(|| {
            format!(
                "`{text}` is not an IP address and a port; write 127.0.0.1:8080, [::1]:8080, \
             localhost:8080, or :8080 for all interfaces"
            )
        })
}

/// Whether the port of a URL is from 1 to 65535. `Uri` accepts any number of digits, and a client then uses the
/// default port of the scheme. So it does without a port, and after a colon without digits.
pub fn has_valid_port(url: &Uri) -> bool {
    let port = url.authority().and_then(|authority| {
        let after_host = authority.as_str().strip_prefix(authority.host())?;
        after_host.strip_prefix(':').filter(|port| !port.is_empty())
    });
    port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// The name of a backend in the configuration, by default its host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(Arc<str>);

/// The parsed URL of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct BackendAddress {
    scheme: Scheme,
    /// Host and port as written in the URL.
    authority: Authority,
    /// The value of the `Host` header: host and port as written in the URL.
    host_header: HeaderValue,
    host: Arc<str>,
    /// Port of the URL, or the default port of the scheme.
    port: u16,
    /// The path that precedes the path of each request, such as `/engine-1`. Usually empty.
    prefix: Arc<str>,
}

/// The URL of the metrics page of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct MetricsUrl {
    /// Scheme, host and port of the metrics page.
    pub address: BackendAddress,
    /// Path and query of the metrics page.
    pub path: PathAndQuery,
}

/// Why a URL is not a valid backend address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendAddressError {
    /// The text is not a URL.
    #[error("`{0}` is not a URL; write http://host:port")]
    NotUrl(String),
    /// The URL has a scheme other than `http` and `https`.
    #[error("`{0}`: the scheme must be http:// or https://")]
    UnsupportedScheme(String),
    /// The URL has a query, or ends with `/v1`, with which the paths of requests already begin.
    #[error("`{0}`: leave out `/v1` and the query; the gateway appends the path of each request")]
    UnexpectedPath(String),
    /// The port of the URL is not a number from 1 to 65535.
    #[error("`{0}`: the port must be a number from 1 to 65535")]
    InvalidPort(String),
    /// The URL has a user name or a password.
    #[error("a backend URL must not contain a user name or password")]
    Credentials,
}

impl BackendId {
    /// Creates the id of the backend with this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name, which is also the value of the metric label `backend`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl BackendAddress {
    /// Parses `http://host:port/prefix`. Defaults: the scheme `http`, the port 80 (443 for `https`), and no
    /// prefix.
    pub fn parse(url: &str) -> Result<Self, BackendAddressError> {
        let with_scheme = if url.contains("://") {
            url.to_owned()
        } else {
            format!("http://{url}")
        };
        let not_url = || BackendAddressError::NotUrl(url.to_owned());
        let uri: Uri = with_scheme.parse().map_err(|_| not_url())?;
        let mut supported_schemes = [Scheme::HTTP, Scheme::HTTPS].into_iter();
        let scheme = supported_schemes.find(|scheme| uri.scheme() == Some(scheme));
        let scheme =
            scheme.ok_or_else(|| BackendAddressError::UnsupportedScheme(url.to_owned()))?;
        let prefix = uri.path().trim_end_matches('/');
        if uri.query().is_some() || prefix.ends_with("/v1") {
            return Err(BackendAddressError::UnexpectedPath(url.to_owned()));
        }
        let authority = uri.authority().cloned().ok_or_else(not_url)?;
        if authority.as_str().contains('@') {
            return Err(BackendAddressError::Credentials);
        }
        if !has_valid_port(&uri) {
            return Err(BackendAddressError::InvalidPort(url.to_owned()));
        }
        // The URI and the `Host` header of each request share this one allocation.
        let authority_bytes = Bytes::copy_from_slice(authority.as_str().as_bytes());
        let host_header = HeaderValue::from_maybe_shared(authority_bytes.clone());
        let host_header = host_header.map_err(|_| not_url())?;
        let authority = Authority::from_maybe_shared(authority_bytes).map_err(|_| not_url())?;
        Ok(Self {
            host_header,
            host: authority.host().into(),
            port: authority
                .port_u16()
                .unwrap_or(if scheme == Scheme::HTTPS { 443 } else { 80 }),
            prefix: prefix.into(),
            scheme,
            authority,
        })
    }

    /// Splits a URL before its path. Returns the scheme with the authority, and the path with the query.
    /// Missing parts are empty.
    pub fn split_path(url: &str) -> (&str, &str) {
        let scheme_end = url.find("://").map_or(0, |at| at + 3);
        let path_start = url[scheme_end..]
            .find(['/', '?'])
            .map_or(url.len(), |at| scheme_end + at);
        url.split_at(path_start)
    }

    /// The absolute URI of a request with this path at this backend. `path` already includes the prefix.
    pub fn uri(&self, path: &PathAndQuery) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(self.path(path));
        // The parts are complete (scheme, authority and path), so this cannot fail.
        Uri::from_parts(parts).unwrap_or_default()
    }

    /// The path of a request at this backend: the prefix of the backend's URL, followed by `path`.
    pub fn path(&self, path: &PathAndQuery) -> PathAndQuery {
        if self.prefix.is_empty() {
            return path.clone();
        }
        // Both parts are valid paths, so this cannot fail.
        format!("{}{path}", self.prefix)
            .parse()
            .unwrap_or_else(|_| path.clone())
    }

    /// Whether both URLs have the same scheme, host and port.
    pub fn is_same_server(&self, other: &Self) -> bool {
        (&self.scheme, &self.authority) == (&other.scheme, &other.authority)
    }

    /// Whether both URLs have the same host, port and prefix, such as `http://vllm` and
    /// `http://VLLM:80`.
    pub fn is_same_endpoint(&self, other: &Self) -> bool {
        self.port == other.port
            && self.host.eq_ignore_ascii_case(&other.host)
            && self.prefix == other.prefix
    }

    /// Whether both URLs name one port of this machine, such as `localhost:8000` and `127.0.0.1:8000`, with
    /// equal prefixes.
    pub fn is_same_local_endpoint(&self, other: &Self) -> bool {
        let is_local = |url: &Self| {
            let host = url.host.trim_matches(['[', ']']);
            let is_loopback = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
            is_loopback || host.eq_ignore_ascii_case("localhost")
        };
        self.port == other.port && self.prefix == other.prefix && is_local(self) && is_local(other)
    }

    /// The value of the `Host` header for requests to the backend.
    pub fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    /// Host and port, for trace spans. A URL without a port has the default port of its scheme.
    pub fn host_and_port(&self) -> (Arc<str>, u16) {
        (self.host.clone(), self.port)
    }

    /// Whether requests to the backend are sent over TLS.
    pub fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Host and port as written in the URL.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The id of a backend whose configuration has no name: host, port and prefix as written in the
    /// URL.
    pub fn default_id(&self) -> BackendId {
        BackendId::new(&format!("{}{}", self.authority, self.prefix))
    }
}

impl MetricsUrl {
    /// The path of a metrics page if its URL has no path.
    pub const DEFAULT_PATH: &str = "/metrics";

    /// Parses `http://host:port/path`. The path defaults to [`MetricsUrl::DEFAULT_PATH`].
    pub fn parse(url: &str) -> Result<Self, BackendAddressError> {
        let (address, path) = BackendAddress::split_path(url);
        let address = BackendAddress::parse(address)?;
        let path = if matches!(path, "" | "/") {
            Self::DEFAULT_PATH
        } else {
            path
        };
        let path = path
            .parse()
            .map_err(|_| BackendAddressError::NotUrl(url.to_owned()))?;
        Ok(Self { address, path })
    }

    /// Returns the URL of the metrics page on the host of a backend. `port`: `None` means the port of the
    /// backend. `path`: `None` means [`Self::DEFAULT_PATH`].
    pub fn beside(backend: &BackendAddress, port: Option<u16>, path: Option<PathAndQuery>) -> Self {
        let port = port.unwrap_or(backend.port);
        let url = format!("{}://{}:{port}", backend.scheme, backend.host);
        Self {
            // Scheme, host and port come from a valid address, so parsing cannot fail.
            address: BackendAddress::parse(&url).unwrap_or_else(|_| backend.clone()),
            path: path.unwrap_or(PathAndQuery::from_static(Self::DEFAULT_PATH)),
        }
    }
}

impl fmt::Display for MetricsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, self.path)
    }
}

impl fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

// === serde ===

impl TryFrom<String> for BackendAddress {
    type Error = BackendAddressError;

    fn try_from(url: String) -> Result<Self, BackendAddressError> {
        Self::parse(&url).map_err(|error| error.without_secret(&url))
    }
}

impl TryFrom<String> for MetricsUrl {
    type Error = BackendAddressError;

    fn try_from(url: String) -> Result<Self, BackendAddressError> {
        Self::parse(&url).map_err(|error| error.without_secret(&url))
    }
}

impl From<BackendAddress> for String {
    fn from(address: BackendAddress) -> Self {
        address.to_string()
    }
}

impl From<MetricsUrl> for String {
    fn from(url: MetricsUrl) -> Self {
        url.to_string()
    }
}

impl BackendAddressError {
    /// The error to show for an invalid URL in a configuration file. Most error messages quote the URL. A URL
    /// that may contain a password gets the error [`Self::Credentials`] instead.
    fn without_secret(self, url: &str) -> Self {
        if url.contains('@') {
            Self::Credentials
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_addresses_or_ports() {
        for (text, address) in [
            (":8080", "[::]:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(
                parse_listen_address(text),
                Ok(address.parse().unwrap()),
                "{text}"
            );
        }
        for text in [
            "",
            ":",
            "8080",
            "host:8080",
            ":99999",
            "localhost",
            "127.0.0.1",
            ":-1",
        ] {
            assert!(
                parse_listen_address(text)
                    .unwrap_err()
                    .contains("localhost:8080"),
                "{text}"
            );
        }
    }

    #[test]
    fn no_url_ends_with_an_api_path() {
        let parse = |url| BackendAddress::parse(url).unwrap();
        assert_eq!(parse("http://[::1]:8000").to_string(), "http://[::1]:8000");
        assert_eq!(
            parse("vllm-0:8000").host_and_port(),
            ("vllm-0".into(), 8000)
        );
        assert_eq!(parse("https://a").host_and_port(), ("a".into(), 443));
        assert_eq!(parse("https://a:1").to_string(), "https://a:1");
        for (url, error) in [
            (
                "http://a:1/v1",
                BackendAddressError::UnexpectedPath as fn(String) -> _,
            ),
            ("ftp://a", BackendAddressError::UnsupportedScheme),
            ("http://", BackendAddressError::NotUrl),
            ("http://[::1]:0", BackendAddressError::InvalidPort),
            ("http://[::1]:65536", BackendAddressError::InvalidPort),
            ("http://[::1]:99999", BackendAddressError::InvalidPort),
            ("http://u:secret@a:1", |_| BackendAddressError::Credentials),
        ] {
            assert_eq!(
                BackendAddress::parse(url),
                Err(error(url.to_owned())),
                "{url}"
            );
        }
    }

    #[test]
    fn metrics_urls_have_their_own_host_and_path() {
        let parse = |url| MetricsUrl::parse(url).map(|url| url.to_string());
        for (url, expected) in [
            ("http://a:8080", "http://a:8080/metrics"),
            ("http://a:8080/", "http://a:8080/metrics"),
            ("https://a/-/metrics?x=/1", "https://a/-/metrics?x=/1"),
            ("[::1]:8080/m", "http://[::1]:8080/m"),
        ] {
            assert_eq!(parse(url).as_deref(), Ok(expected));
        }
        assert_eq!(
            parse("http://u:secret@a/m"),
            Err(BackendAddressError::Credentials)
        );
        assert!(parse("http:///m").is_err() && parse("http://a/ m").is_err());
    }

    #[test]
    fn the_default_metrics_url_has_the_backends_host() {
        let backend = BackendAddress::parse("https://[fd00::1]:8000").unwrap();
        let path = Some(PathAndQuery::from_static("/m"));
        let beside = |port, path| MetricsUrl::beside(&backend, port, path).to_string();
        assert_eq!(beside(Some(9100), None), "https://[fd00::1]:9100/metrics");
        assert_eq!(beside(None, path), "https://[fd00::1]:8000/m");
    }

    #[test]
    fn path_and_query_are_appended_to_the_prefix() {
        let path = PathAndQuery::from_static("/v1/models?x=1");
        for (url, expected, id) in [
            ("http://a:1", "http://a:1/v1/models?x=1", "a:1"),
            (
                "http://a:1/gpu/0/",
                "http://a:1/gpu/0/v1/models?x=1",
                "a:1/gpu/0",
            ),
        ] {
            let address = BackendAddress::parse(url).unwrap();
            assert_eq!(address.uri(&path), expected);
            assert_eq!(address.default_id().as_str(), id);
            assert_eq!(
                BackendAddress::parse(&address.to_string()).as_ref(),
                Ok(&address)
            );
        }
        assert!(BackendAddress::parse("http://a:1/x?y").is_err());
    }
}

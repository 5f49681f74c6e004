//! Attributes of a request head that are reported in spans.

use http::header::{HOST, HeaderName, USER_AGENT};
use http::uri::Authority;
use http::{HeaderMap, Request, Version};

/// The attributes of a request head for spans. The texts are copied, so that a long stream does not keep the
/// buffer of the head in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestHeadAttributes {
    /// HTTP version, such as `1.1`; empty if the attributes were not collected.
    pub version: &'static str,
    /// The requested host and port, from the first of these that exists: `x-forwarded-host`, the authority,
    /// `host`.
    pub host: Option<Box<str>>,
    /// The `user-agent` header.
    pub user_agent: Option<Box<str>>,
}

/// Maximum length of an attribute, in bytes. Longer attributes are truncated.
const MAX_ATTRIBUTE_BYTES: usize = 256;
static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

impl RequestHeadAttributes {
    /// Copies the attributes from the head of a request.
    pub fn from_request<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        let text = |name: &HeaderName| header_text(headers, name);
        let authority = || request.uri().authority().map(Authority::as_str);
        Self {
            version: match request.version() {
                Version::HTTP_10 => "1.0",
                Version::HTTP_2 => "2",
                _ => "1.1",
            },
            host: text(&FORWARDED_HOST)
                .or_else(authority)
                .or_else(|| text(&HOST))
                .map(|host| truncate(strip_userinfo(host))),
            user_agent: text(&USER_AGENT).map(truncate),
        }
    }

    /// The host name, and its port if there is one.
    pub fn host_and_port(&self) -> Option<(&str, Option<u16>)> {
        let host = self.host.as_deref()?;
        // The colons of an IPv6 address do not separate a port.
        if !host.ends_with(']')
            && let Some((name, port)) = host.rsplit_once(':')
            && let Ok(port) = port.parse()
        {
            return Some((name, Some(port)));
        }
        Some((host, None))
    }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers
        .get(name)?
        .to_str()
        .ok()
        .filter(|text| !text.is_empty())
}

/// Removes `user:password@` before a host, because credentials must not be exported.
fn strip_userinfo(host: &str) -> &str {
    host.rsplit_once('@').map_or(host, |(_, host)| host)
}

/// Truncates a text of visible ASCII, in which every index is a character boundary.
fn truncate(text: &str) -> Box<str> {
    text[..text.len().min(MAX_ATTRIBUTE_BYTES)].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_host_precedes_authority_and_host() {
        let host = |uri: &str, forwarded: &str| {
            let request = Request::builder().uri(uri).header("host", "h:1");
            let request = request
                .header("x-forwarded-host", forwarded)
                .body(())
                .unwrap();
            RequestHeadAttributes::from_request(&request)
                .host
                .map(String::from)
        };
        assert_eq!(host("/", "").as_deref(), Some("h:1"));
        assert_eq!(host("http://a:2/", "").as_deref(), Some("a:2"));
        assert_eq!(host("http://name:key@a:2/", "").as_deref(), Some("a:2"));
        assert_eq!(host("/", "name:key@f:3").as_deref(), Some("f:3"));
        let long = format!("name:{}@f:3", "key".repeat(MAX_ATTRIBUTE_BYTES));
        assert_eq!(host("/", &long).as_deref(), Some("f:3"));
        assert_eq!(host("http://a:2/", "f:3").as_deref(), Some("f:3"));
        assert_eq!(
            host("/", &"x".repeat(9_000)).map(|host| host.len()),
            Some(MAX_ATTRIBUTE_BYTES)
        );
    }

    #[test]
    fn a_port_is_distinguished_from_an_ipv6_address() {
        for (host, expected) in [
            ("h", ("h", None)),
            ("h:80", ("h", Some(80))),
            ("[::1]:80", ("[::1]", Some(80))),
            ("[::1]", ("[::1]", None)),
            ("h:port", ("h:port", None)),
        ] {
            let head = RequestHeadAttributes {
                host: Some(host.into()),
                ..RequestHeadAttributes::default()
            };
            assert_eq!(head.host_and_port(), Some(expected));
        }
    }
}

//! What is told of a request's head.

use http::header::{HOST, HeaderName, USER_AGENT};
use http::uri::Authority;
use http::{HeaderMap, Request, Version};

/// What spans tell of a request's head. It is copied, so that a long stream does not keep the
/// buffer alive that the head was read into.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// The version of HTTP, such as `1.1`; empty if nobody looked.
    pub version: &'static str,
    /// The host and port that the client meant: `x-forwarded-host`, else the authority, else `host`.
    pub host: Option<Box<str>>,
    /// `user-agent`
    pub user_agent: Option<Box<str>>,
}

/// Longest text that is kept, in bytes.
const MAX_TEXT: usize = 256;
static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

// === impl Head ===

impl Head {
    /// The head of a request.
    pub fn of<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        let text = |name: &HeaderName| text(headers, name);
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
                .map(|host| cut(without_user(host))),
            user_agent: text(&USER_AGENT).map(cut),
        }
    }

    /// The host, and its port if it has one.
    pub fn host_and_port(&self) -> Option<(&str, Option<u16>)> {
        let host = self.host.as_deref()?;
        let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
        // The colons of an IPv6 address are no port.
        let port = port.parse().ok().filter(|_| !host.ends_with(']'));
        Some(if port.is_some() { (name, port) } else { (host, None) })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().filter(|text| !text.is_empty())
}

/// A user and a password may stand before the host, and are nobody's business.
fn without_user(host: &str) -> &str {
    host.rsplit_once('@').map_or(host, |(_, host)| host)
}

/// Visible ASCII has no boundary to hit.
fn cut(text: &str) -> Box<str> {
    text[..text.len().min(MAX_TEXT)].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_the_one_that_the_client_meant() {
        let host = |uri: &str, forwarded: &str| {
            let request = Request::builder().uri(uri).header("host", "h:1");
            let request = request.header("x-forwarded-host", forwarded).body(()).unwrap();
            Head::of(&request).host.map(String::from)
        };
        assert_eq!(host("/", "").as_deref(), Some("h:1"));
        assert_eq!(host("http://a:2/", "").as_deref(), Some("a:2"));
        assert_eq!(host("http://name:key@a:2/", "").as_deref(), Some("a:2"));
        assert_eq!(host("/", "name:key@f:3").as_deref(), Some("f:3"));
        let long = format!("name:{}@f:3", "key".repeat(MAX_TEXT));
        assert_eq!(host("/", &long).as_deref(), Some("f:3"));
        assert_eq!(host("http://a:2/", "f:3").as_deref(), Some("f:3"));
        assert_eq!(host("/", &"x".repeat(9_000)).map(|host| host.len()), Some(MAX_TEXT));
    }

    #[test]
    fn a_port_is_told_from_an_address() {
        for (host, expected) in [
            ("h", ("h", None)),
            ("h:80", ("h", Some(80))),
            ("[::1]:80", ("[::1]", Some(80))),
            ("[::1]", ("[::1]", None)),
            ("h:port", ("h:port", None)),
        ] {
            let head = Head { host: Some(host.into()), ..Head::default() };
            assert_eq!(head.host_and_port(), Some(expected));
        }
    }
}

//! Pure rewriting of headers: what must not travel past a proxy is taken out, what the gateway
//! owes the next hop is put in, and everything else stays as it came.

use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, EXPECT, FORWARDED, HOST,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version};
use std::net::IpAddr;

/// The request id, accepted from the client or made here.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// On every answer that the gateway made instead of a replica: the reason, as one word.
pub const X_GATEWAY_ERROR: HeaderName = HeaderName::from_static("x-gateway-error");
/// Whether OpenAI's clients shall send a request again by themselves.
pub const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Meant for the next hop only (RFC 9110 §7.6.1), and two that old software still sends.
static HOP_BY_HOP: [HeaderName; 11] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HTTP2_SETTINGS,
    FORWARDED,
];

/// Headers that change what vLLM answers or does, whoever sends them. No client may send them, and no
/// permission lets them pass; those with a permission are in `openai::control`.
const LOAD_METRICS_FORMAT: &str = "endpoint-load-metrics-format";
const SAGEMAKER_PREFIX: &str = "x-amzn-sagemaker-";
/// Names that are this gateway's own: nobody behind it may take a client's for its word.
const OWN_PREFIX: &str = "x-tokenweir-";

/// The name of a request in headers, logs and spans: 1 to 128 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

/// What the gateway adds to a request for a replica.
#[derive(Debug)]
pub struct Outbound<'a> {
    /// The replica's authority, for `Host`.
    pub host: &'a HeaderValue,
    /// The request id.
    pub request_id: &'a RequestId,
    /// The peer that the request came from.
    pub client: IpAddr,
}

impl RequestId {
    /// The client's, if it is fit to be used; else one made of `random`.
    pub fn of(headers: &HeaderMap, random: u128) -> Self {
        let is_fit = |value: &&HeaderValue| {
            (1..=128).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        let theirs = headers.get(X_REQUEST_ID).filter(is_fit).cloned();
        let ours = || HeaderValue::try_from(format!("{random:032x}"));
        // Hexadecimal digits are always a header value.
        Self(theirs.or_else(|| ours().ok()).unwrap_or(HeaderValue::from_static("0")))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// Turns a client's headers into those for a replica.
///
/// `Accept-Encoding` becomes `identity`, so that the answer can be read as it passes.
pub fn outbound(headers: &mut HeaderMap, add: &Outbound<'_>) {
    strip_hop_by_hop(headers);
    strip(headers, |name| *name == EXPECT || is_not_for_clients(name));
    headers.insert(HOST, add.host.clone());
    headers.insert(X_REQUEST_ID, add.request_id.0.clone());
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let forwarded_for = match headers.get(X_FORWARDED_FOR).map(HeaderValue::to_str) {
        Some(Ok(earlier)) => HeaderValue::from_str(&format!("{earlier}, {}", add.client)),
        _ => HeaderValue::from_bytes(&address(add.client)),
    };
    if let Ok(value) = forwarded_for {
        headers.insert(X_FORWARDED_FOR, value);
    }
}

/// An address as text, without the formatter's padding for the usual kind.
fn address(ip: IpAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = ip else { return ip.to_string().into_bytes() };
    let mut text = Vec::with_capacity("255.255.255.255".len());
    for octet in ip.octets() {
        if !text.is_empty() {
            text.push(b'.');
        }
        text.extend_from_slice(itoa::Buffer::new().format(octet).as_bytes());
    }
    text
}

/// Turns a replica's response headers into those for the client.
///
/// Event streams get the headers that keep proxies in between from buffering them, unless the
/// replica sent its own.
pub fn inbound(headers: &mut HeaderMap, request_id: &RequestId) {
    strip_hop_by_hop(headers);
    headers.entry(X_REQUEST_ID).or_insert_with(|| request_id.0.clone());
    if media_type(headers).eq_ignore_ascii_case("text/event-stream") {
        headers.entry(X_ACCEL_BUFFERING).or_insert(HeaderValue::from_static("no"));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
    }
}

/// Whether a request names its host as RFC 9112 §3.2 and RFC 9113 §8.3.1 want it: once in HTTP/1.1, at
/// most once elsewhere, and in HTTP/2 not as another one than `:authority`.
pub fn has_one_host(version: Version, uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return version != Version::HTTP_11;
    };
    let host = Authority::try_from(host.as_bytes());
    let is_sound = host.as_ref().is_ok_and(|host| !host.as_str().contains('@'));
    let authority = uri.authority().filter(|_| version == Version::HTTP_2);
    let is_same = authority.is_none_or(|authority| host.is_ok_and(|host| host == *authority));
    hosts.next().is_none() && is_sound && is_same
}

/// Whether a digest of the body goes with it, so that no byte of it may change.
pub fn is_digested(headers: &HeaderMap) -> bool {
    const DIGESTS: [&str; 4] = ["content-digest", "content-md5", "digest", "x-amz-content-sha256"];
    headers.keys().any(|name| DIGESTS.contains(&name.as_str()))
}

/// The media type of a message without its parameters; empty if there is none.
pub fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    value.split(';').next().unwrap_or("").trim()
}

/// What `Connection` lists: `close`, `keep-alive` and the names of headers that are for this hop.
pub fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Removes what is meant for this hop only, and what `Connection` nominates.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let options = connection_options(headers);
    let nominated: Vec<HeaderName> = options.filter_map(|name| name.parse().ok()).collect();
    strip(headers, |name| HOP_BY_HOP.contains(name) || nominated.contains(name));
}

/// Removes what is unwanted. Most messages have nothing of that kind, so one look at each name is less
/// work than looking for each name that is unwanted.
fn strip(headers: &mut HeaderMap, is_unwanted: impl Fn(&HeaderName) -> bool) {
    let unwanted: Vec<HeaderName> =
        headers.keys().filter(|name| is_unwanted(name)).cloned().collect();
    for name in unwanted {
        headers.remove(name);
    }
}

/// Whether a client may not say this to a replica.
fn is_not_for_clients(name: &HeaderName) -> bool {
    let name = name.as_str();
    name == LOAD_METRICS_FORMAT
        || [SAGEMAKER_PREFIX, OWN_PREFIX].iter().any(|prefix| name.starts_with(prefix))
        // An underscore is how a header hides from a proxy: servers fold it to a dash.
        || name.contains('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn id() -> RequestId {
        RequestId::of(&map(&[("x-request-id", "r1")]), 1)
    }

    fn sent(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = map(pairs);
        let add = Outbound {
            host: &HeaderValue::from_static("replica:8000"),
            request_id: &id(),
            client: IpAddr::from([127, 0, 0, 1]),
        };
        outbound(&mut headers, &add);
        headers
    }

    #[test]
    fn hop_by_hop_headers_and_those_that_connection_nominates_stay_behind() {
        let sent = sent(&[
            ("connection", "close, x-secret"),
            ("x-secret", "1"),
            ("transfer-encoding", "gzip, chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "AA"),
            ("authorization", "Bearer k"),
        ]);
        let names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        assert!(names.contains(&"authorization"));
        for gone in ["connection", "x-secret", "transfer-encoding", "upgrade", "http2-settings"] {
            assert!(!names.contains(&gone), "{gone}");
        }
    }

    #[test]
    fn what_vllm_trusts_blindly_is_taken_from_clients() {
        let sent = sent(&[
            ("endpoint-load-metrics-format", "TEXT"),
            ("x-amzn-sagemaker-session-id", "NEW"),
            ("content_length", "0"),
        ]);
        let mut names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept-encoding", "host", "x-forwarded-for", "x-request-id"]);
        assert_eq!(sent["accept-encoding"], "identity");
    }

    #[test]
    fn the_client_is_added_to_those_the_request_was_forwarded_for() {
        assert_eq!(sent(&[])["x-forwarded-for"], "127.0.0.1");
        assert_eq!(
            sent(&[("x-forwarded-for", "1.2.3.4")])["x-forwarded-for"],
            "1.2.3.4, 127.0.0.1"
        );
    }

    #[test]
    fn a_stream_is_marked_against_buffering_unless_the_replica_did() {
        let mut headers = map(&[("content-type", "Text/Event-Stream; charset=utf-8")]);
        inbound(&mut headers, &id());
        assert_eq!(headers["x-accel-buffering"], "no");
        assert_eq!(headers["cache-control"], "no-cache");
        let mut headers = map(&[("content-type", "application/json"), ("x-request-id", "theirs")]);
        inbound(&mut headers, &id());
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["x-request-id"], "theirs");
    }

    #[test]
    fn a_host_is_named_once_and_as_hosts_are_written() {
        let of = |version, uri: &'static str, hosts: &[&'static str]| {
            let hosts: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            let mut headers = HeaderMap::new();
            for (name, host) in hosts {
                headers.append(name, HeaderValue::from_static(host));
            }
            has_one_host(version, &Uri::from_static(uri), &headers)
        };
        let (http_1_0, http_1_1, http_2) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        assert!(of(http_1_1, "/", &["gateway:8080"]) && of(http_1_1, "/", &["[::1]"]));
        assert!(of(http_1_0, "/", &[]) && of(http_2, "http://gateway/", &[]));
        assert!(of(http_1_1, "http://elsewhere/", &["gateway"]), "nobody goes there");
        assert!(of(http_2, "http://gateway/", &["GATEWAY"]));
        assert!(!of(http_2, "http://gateway/", &["elsewhere"]));
        assert!(!of(http_1_1, "/", &[]) && !of(http_1_1, "/", &["a", "a"]));
        for host in ["", "a, b", "a b", "a@b", "http://a", "a/b", "a?b", "a#b"] {
            assert!(!of(http_1_1, "/", &[host]), "{host:?}");
        }
    }

    #[test]
    fn a_request_id_that_could_break_a_log_line_is_not_accepted() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_str(value).unwrap());
            RequestId::of(&headers, 1).as_str() == value
        };
        assert!(of("bench-01-7"));
        assert!(!of("a b") && !of("") && !of(&"x".repeat(129)));
    }
}

//! Rewriting of request and response headers, without I/O. The functions remove headers that a proxy must not
//! forward, add headers that a backend or a client needs from a proxy, and leave all other headers unchanged.

use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, COOKIE,
    EXPECT, Entry, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RETRY_AFTER, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version};
use memchr::memmem;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// Header with the request id, which the client sent or the gateway generated.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header whose value vLLM copies into the KV events that a request causes.
const X_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
/// Header with the reason of an error, as one word, in every error response of the gateway itself.
pub const X_GATEWAY_ERROR: HeaderName = HeaderName::from_static("x-gateway-error");
/// Header that tells the client libraries of OpenAI whether to retry a request: `true` or `false`.
pub const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Header with a key that the client chooses: its requests with one key count as one request
/// (draft-ietf-httpapi-idempotency-key-header).
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Header with the id of the last event that a client has (WHATWG HTML, server-sent events).
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Header with the value `true` in a response that the gateway replays for a repeated idempotency key. Stripe
/// introduced this header.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Some servers send this header instead of `Retry-After`. Its value is the time in milliseconds.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Headers that are not forwarded: the hop-by-hop headers (RFC 9110 §7.6.1), `http2-settings` and
/// `forwarded`.
static NOT_FORWARDED: [HeaderName; 11] = [
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

/// Request headers whose value is a list, each with the separator of its list. If a request has such a header
/// several times, the gateway joins its values into one header.
static JOINED: [(HeaderName, &str); 9] = [
    (COOKIE, "; "),
    (ACCEPT, ", "),
    (ACCEPT_LANGUAGE, ", "),
    (CACHE_CONTROL, ", "),
    (VIA, ", "),
    (X_FORWARDED_FOR, ", "),
    (HeaderName::from_static("x-forwarded-proto"), ", "),
    (HeaderName::from_static("tracestate"), ","),
    (HeaderName::from_static("baggage"), ","),
];

/// Header that makes vLLM add load metrics to its responses. The gateway removes the header from all client
/// requests, and no permission allows it. `openai::engine_control` lists the headers that clients with a
/// permission may send.
const LOAD_METRICS_FORMAT_HEADER: &str = "endpoint-load-metrics-format";
/// Prefix of headers that change the behaviour of vLLM. The gateway removes them from all client requests.
const SAGEMAKER_PREFIX: &str = "x-amzn-sagemaker-";
/// Prefix of the headers that the gateway writes. The gateway removes them from client requests, so that
/// clients cannot forge them.
const GATEWAY_PREFIX: &str = "x-tokenweir-";

/// Names of response headers that a backend must not send to a client.
static NOT_FROM_BACKENDS: [&str; 11] = [
    // Only the gateway itself writes these headers.
    "idempotent-replayed",
    "x-gateway-error",
    "x-request-id",
    "x-should-retry",
    // These headers apply to the whole site, not to one response.
    "alt-svc",
    "clear-site-data",
    "nel",
    "public-key-pins",
    "report-to",
    "strict-transport-security",
    // LiteSpeed in front of the gateway would send the file that this header names instead of the response.
    "x-litespeed-location",
];
/// Prefixes of response headers that a backend must not send to a client. All begin with `x-`.
static NOT_FROM_BACKENDS_PREFIXES: [&str; 7] = [
    // Only the gateway itself writes headers with this prefix.
    GATEWAY_PREFIX,
    // The gateway states the rate limits of a tenant in these headers.
    "x-ratelimit-",
    // The proxies nginx, Envoy, lighttpd, Perlbal, H2O and Apache obey headers with these prefixes.
    "x-accel-",
    "x-envoy-",
    "x-lighttpd-",
    "x-reproxy-",
    "x-sendfile",
];

/// The id of a request in headers, logs and spans: 1 to 128 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

/// The headers that the gateway adds to a request for a backend.
#[derive(Debug)]
pub struct UpstreamHeaders<'a> {
    /// The value of `Host`: host and port of the backend.
    pub host: &'a HeaderValue,
    /// The id of the request, sent as `X-Request-ID`.
    pub request_id: &'a RequestId,
    /// IP address from which the client connected. The gateway appends it to `X-Forwarded-For`.
    pub client_ip: IpAddr,
}

impl RequestId {
    /// The request id that the client sent, if it is valid; an id made of `random` if it is not.
    pub fn from_headers(headers: &HeaderMap, random: u128) -> Self {
        let is_valid = |value: &&HeaderValue| {
            (1..=128).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        let client_id = headers.get(X_REQUEST_ID).filter(is_valid).cloned();
        let generated_id = || HeaderValue::from_bytes(&hex_digits(random));
        // Hexadecimal digits always form a valid header value.
        Self(
            client_id
                .or_else(|| generated_id().ok())
                .unwrap_or(HeaderValue::from_static("0")),
        )
    }

    /// The id as a string slice.
    pub fn as_str(&self) -> &str {
        // Faster than `to_str`, which checks each byte.
        str::from_utf8(self.0.as_bytes()).unwrap_or_default()
    }
}

/// The request headers for a backend, made from the headers of the client. The caller can add
/// `more` headers without another allocation.
///
/// `Accept-Encoding` becomes `identity` (no compression), so that the gateway can parse the response.
pub fn upstream_request_headers(
    client: &HeaderMap,
    upstream: &UpstreamHeaders<'_>,
    more: usize,
) -> HeaderMap {
    let own = [
        (HOST, upstream.host.clone()),
        (X_REQUEST_ID, upstream.request_id.0.clone()),
        (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
    ];
    let is_replaced = |name: &HeaderName| own.iter().any(|(own, _)| own == name);
    let named = named_by_connection(client);
    // A clone of the client's map would not have capacity for more entries. The 1 is for `X-Forwarded-For`.
    let mut headers = HeaderMap::with_capacity(client.len() + own.len() + 1 + more);
    for (name, value) in client {
        if !is_replaced(name)
            && *name != EXPECT
            && !is_hop_by_hop(name, &named)
            && !is_forbidden_for_clients(name)
        {
            headers.append(name, value.clone());
        }
    }
    headers.extend(own);
    join_fields(&mut headers);
    append_hop(&mut headers, &format_ip(upstream.client_ip));
    headers
}

/// Appends an IP address to `X-Forwarded-For`. The hops are kept as bytes: a client can send bytes that are no text
/// before the hop of a proxy.
fn append_hop(headers: &mut HeaderMap, ip: &[u8]) {
    match headers.entry(X_FORWARDED_FOR) {
        Entry::Vacant(place) => {
            if let Ok(value) = HeaderValue::from_bytes(ip) {
                place.insert(value);
            }
        }
        Entry::Occupied(mut hops) => {
            let all = [hops.get().as_bytes(), ip].join(&b", "[..]);
            if let Ok(value) = HeaderValue::from_bytes(&all) {
                hops.insert(value);
            }
        }
    }
}

/// Joins the fields of [`JOINED`] that occur several times. HTTP/2 divides cookies into several fields
/// (RFC 9113 §8.2.3), and many servers read the first field of a list only. All other fields keep
/// their number and order.
fn join_fields(headers: &mut HeaderMap) {
    // A map without repeated names has as many values as names. Most requests are like this and need no search.
    if headers.len() == headers.keys_len() {
        return;
    }
    for (name, separator) in &JOINED {
        let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
        let (Some(first), Some(second)) = (values.next(), values.next()) else {
            continue;
        };
        let all: Vec<&[u8]> = [first, second].into_iter().chain(values).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&all.join(separator.as_bytes())) {
            headers.insert(name.clone(), joined);
        }
    }
}

/// Formats an IP address. IPv4 has its own formatter here, because that of the standard library is slower.
fn format_ip(ip: IpAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = ip else {
        return ip.to_string().into_bytes();
    };
    let mut text = Vec::with_capacity("255.255.255.255".len());
    for octet in ip.octets() {
        if !text.is_empty() {
            text.push(b'.');
        }
        text.extend_from_slice(itoa::Buffer::new().format(octet).as_bytes());
    }
    text
}

/// The value that the gateway with this id adds to `Via`.
pub fn hop_of(id: u64) -> HeaderValue {
    HeaderValue::try_from(format!("1.1 tokenweir-{id:016x}"))
        .unwrap_or(HeaderValue::from_static("1.1 tokenweir"))
}

/// Whether a request has already passed the gateway whose value in `Via` is `hop`.
pub fn has_passed(headers: &HeaderMap, hop: &HeaderValue) -> bool {
    let has_hop = |via: &HeaderValue| memmem::find(via.as_bytes(), hop.as_bytes()).is_some();
    headers.get_all(VIA).iter().any(has_hop)
}

/// Adds the session id by which the gateway recognizes the request in the KV events of its backend. A session
/// id that the client was permitted to send stays.
pub fn set_session_id(headers: &mut HeaderMap, session_id: &HeaderValue) {
    headers
        .entry(X_SESSION_ID)
        .or_insert_with(|| session_id.clone());
}

/// Removes the response headers of `NOT_FROM_BACKENDS`, so that a backend cannot speak for the gateway or the
/// site, and cannot command a proxy in front of the gateway. `X-Accel-Buffering: no` stays, because a stream
/// needs it. `retry-after-ms` stays in an error response, because clients wait for this time.
pub fn remove_gateway_headers(status: StatusCode, headers: &mut HeaderMap) {
    let is_buffering_off = |headers: &HeaderMap| {
        let value = headers.get(X_ACCEL_BUFFERING);
        value.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"no"))
    };
    let removed = names_where(headers, |name| {
        if *name == X_ACCEL_BUFFERING {
            return !is_buffering_off(headers);
        }
        let name = name.as_str();
        NOT_FROM_BACKENDS.contains(&name)
            || (name.starts_with("x-")
                && NOT_FROM_BACKENDS_PREFIXES
                    .iter()
                    .any(|prefix| name.starts_with(prefix)))
            || (name == RETRY_AFTER_MS.as_str() && status.is_success())
    });
    for name in removed {
        headers.remove(name);
    }
}

/// Whether request headers ask to upgrade the connection to another protocol, such as WebSocket. An offer
/// of HTTP/2 (`h2c`) does not count: Java clients send it with each request.
pub fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let is_other = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"h2c");
    headers.get_all(UPGRADE).iter().any(is_other) && has_token(headers, &CONNECTION, "upgrade")
}

/// Whether the media type is `text/event-stream`.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let value = value.unwrap_or_default().trim_ascii_start();
    let Some((name, parameters)) = value.split_at_checked(EVENT_STREAM.len()) else {
        return false;
    };
    let after = parameters.trim_ascii_start().first();
    name.eq_ignore_ascii_case(EVENT_STREAM) && after.is_none_or(|byte| *byte == b';')
}

/// Turns the response headers of a backend into the response headers for the client.
///
/// An event stream gets headers that keep proxies from buffering it. Values that the backend set stay.
pub fn rewrite_response_headers(headers: &mut HeaderMap, request_id: &RequestId) {
    let named = named_by_connection(headers);
    remove_headers_where(headers, |name| is_hop_by_hop(name, &named));
    headers
        .entry(X_REQUEST_ID)
        .or_insert_with(|| request_id.0.clone());
    if is_event_stream(headers) {
        headers
            .entry(X_ACCEL_BUFFERING)
            .or_insert(HeaderValue::from_static("no"));
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache"));
    }
}

/// Whether a request has a valid `Host` as RFC 9112 §3.2 and RFC 9113 §8.3.1 require: exactly one
/// in HTTP/1.1, at most one in other versions. In HTTP/2, it must not differ from `:authority`. In
/// HTTP/1, an empty value is valid: health monitors that know no host name send it.
pub fn has_valid_host(version: Version, uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return version != Version::HTTP_11;
    };
    let is_single = hosts.next().is_none();
    if host.is_empty() && version != Version::HTTP_2 {
        return is_single;
    }
    let host = Authority::try_from(host.as_bytes());
    let is_valid = host.as_ref().is_ok_and(|host| !host.as_str().contains('@'));
    let authority = if version == Version::HTTP_2 {
        uri.authority()
    } else {
        None
    };
    let is_match = authority.is_none_or(|authority| host.is_ok_and(|host| host == *authority));
    is_single && is_valid && is_match
}

/// The time to wait that `retry-after-ms` or `Retry-After` states. For a date: the time from `now` to it.
/// `None`: the headers state no valid time, or the date is past.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let seconds = |value: f64| Duration::try_from_secs_f64(value).ok();
    if let Some(value) = text(&RETRY_AFTER_MS).and_then(|text| text.parse::<f64>().ok()) {
        return seconds(value / 1e3);
    }
    let value = text(&RETRY_AFTER)?;
    let until = || {
        httpdate::parse_http_date(value)
            .ok()?
            .duration_since(now)
            .ok()
    };
    value.parse().ok().and_then(seconds).or_else(until)
}

/// Whether the headers contain a digest of the body, so that the gateway must not change the body.
pub fn has_body_digest(headers: &HeaderMap) -> bool {
    const DIGESTS: [&str; 4] = [
        "content-digest",
        "content-md5",
        "digest",
        "x-amz-content-sha256",
    ];
    headers.keys().any(|name| DIGESTS.contains(&name.as_str()))
}

/// The media type in `Content-Type`, without its parameters. Empty if the header is missing or invalid.
pub fn media_type(headers: &HeaderMap) -> &str {
    let value = headers
        .get(CONTENT_TYPE)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    let name = value.split(|byte| *byte == b';').next().unwrap_or_default();
    str::from_utf8(name).unwrap_or_default().trim()
}

/// The value of a header. `None`: the header does not occur exactly once, or its value is not visible ASCII.
pub fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter().map(HeaderValue::to_str);
    let value = values.next()?.ok()?;
    values.next().is_none().then(|| value.trim())
}

/// The 32 lower-case hexadecimal digits of a number. `format!` takes several times as long.
pub(crate) fn hex_digits(number: u128) -> [u8; 32] {
    let mut digits = [0; 32];
    write_hex(&number.to_be_bytes(), &mut digits);
    digits
}

/// Writes bytes as pairs of lower-case hexadecimal digits.
pub(crate) fn write_hex(bytes: &[u8], digits: &mut [u8]) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(digits.chunks_exact_mut(2)) {
        let halves = [byte >> 4, byte & 0xf];
        pair.copy_from_slice(&halves.map(|half| DIGITS[usize::from(half)]));
    }
}

/// Whether a header whose value is a list, such as `Connection`, contains this token. HTTP compares tokens
/// without regard to case (RFC 9110 §5.6.2).
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    list_items(headers, name).any(|item| item.eq_ignore_ascii_case(token.as_bytes()))
}

/// The items of a header whose value is a list, including items that are not valid text.
fn list_items<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let values = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
    values
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    list_items(headers, &CONNECTION)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .collect()
}

/// Whether a header must not be forwarded, because it applies to one connection only or is in
/// [`NOT_FORWARDED`]. `named`: the headers that `Connection` names.
fn is_hop_by_hop(name: &HeaderName, named: &[HeaderName]) -> bool {
    NOT_FORWARDED.contains(name) || named.contains(name)
}

/// Removes the headers for which `should_remove` is true. Most messages have no such header, so checking each
/// present name is cheaper than looking up each name that must be removed.
pub fn remove_headers_where(headers: &mut HeaderMap, should_remove: impl Fn(&HeaderName) -> bool) {
    for name in names_where(headers, should_remove) {
        headers.remove(name);
    }
}

fn names_where(headers: &HeaderMap, is_selected: impl Fn(&HeaderName) -> bool) -> Vec<HeaderName> {
    let names = headers.keys().filter(|name| is_selected(name));
    names.cloned().collect()
}

/// Whether this header of a client must not reach a backend.
fn is_forbidden_for_clients(name: &HeaderName) -> bool {
    let name = name.as_str();
    name == LOAD_METRICS_FORMAT_HEADER
        || [SAGEMAKER_PREFIX, GATEWAY_PREFIX].iter().any(|prefix| name.starts_with(prefix))
        // Some servers treat `_` as `-`, so a name with an underscore would bypass the rules above.
        || name.contains('_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_input::header_map;

    fn request_id() -> RequestId {
        RequestId::from_headers(&header_map(&[("x-request-id", "r1")]), 1)
    }

    /// The headers that a backend receives if the client sends the headers `pairs`.
    fn upstream_headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let upstream = UpstreamHeaders {
            host: &HeaderValue::from_static("backend:8000"),
            request_id: &request_id(),
            client_ip: IpAddr::from([127, 0, 0, 1]),
        };
        upstream_request_headers(&header_map(pairs), &upstream, 0)
    }

    #[test]
    fn a_permitted_session_id_is_kept() {
        let own = HeaderValue::from_static("own");
        let mut headers = HeaderMap::new();
        set_session_id(&mut headers, &own);
        assert_eq!(headers.get(X_SESSION_ID), Some(&own));
        set_session_id(&mut headers, &HeaderValue::from_static("other"));
        assert_eq!(headers.get(X_SESSION_ID), Some(&own));
    }

    #[test]
    fn only_list_fields_are_joined() {
        let headers = upstream_headers(&[
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-for", "192.0.2.2"),
            ("tracestate", "x=1"),
            ("tracestate", "y=2"),
            ("accept", "application/json"),
            ("accept", "text/event-stream"),
            ("x-unknown", "1"),
            ("x-unknown", "2"),
        ]);
        let values = |name| headers.get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(values("cookie"), ["a=1; b=2"]);
        assert_eq!(
            values("x-forwarded-for"),
            ["192.0.2.1, 192.0.2.2, 127.0.0.1"]
        );
        assert_eq!(values("tracestate"), ["x=1,y=2"]);
        assert_eq!(values("accept"), ["application/json, text/event-stream"]);
        assert_eq!(values("x-unknown"), ["1", "2"]);
    }

    #[test]
    fn a_backend_cannot_speak_for_others() {
        let is_kept = |status: u16, name: &'static str, value: &'static str| {
            let mut headers = header_map(&[(name, value)]);
            remove_gateway_headers(StatusCode::from_u16(status).unwrap(), &mut headers);
            !headers.is_empty()
        };
        for name in [
            "idempotent-replayed",
            "x-gateway-error",
            "x-request-id",
            "x-should-retry",
            "x-tokenweir-anything",
            "x-ratelimit-remaining-tokens",
            "alt-svc",
            "clear-site-data",
            "strict-transport-security",
            "x-accel-redirect",
            "x-accel-charset",
            "x-accel-buffering",
            "x-sendfile",
            "x-sendfile2",
            "x-lighttpd-send-file",
            "x-reproxy-url",
            "x-litespeed-location",
            "x-envoy-immediate-health-check-fail",
        ] {
            assert!(
                !is_kept(200, name, "1") && !is_kept(503, name, "1"),
                "{name}"
            );
        }
        for name in [
            "retry-after",
            "set-cookie",
            "x-vllm-other",
            "openai-processing-ms",
        ] {
            assert!(is_kept(200, name, "7"), "{name}");
        }
        assert!(is_kept(200, "x-accel-buffering", "No"), "a stream needs it");
        assert!(is_kept(429, "retry-after-ms", "7") && is_kept(503, "retry-after-ms", "7"));
        assert!(
            !is_kept(200, "retry-after-ms", "7"),
            "a success needs no retry"
        );
    }

    #[test]
    fn tokens_in_any_case_are_found_beside_binaries() {
        let odd = HeaderValue::from_bytes(b"\xe9, Close").unwrap();
        let headers = HeaderMap::from_iter([(CONNECTION, odd)]);
        assert!(has_token(&headers, &CONNECTION, "close"));
        assert!(!has_token(&headers, &CONNECTION, "keep-alive"));
        let odd = HeaderValue::from_bytes(b"Application/JSON ; x=\xe9").unwrap();
        assert_eq!(
            media_type(&HeaderMap::from_iter([(CONTENT_TYPE, odd)])),
            "Application/JSON"
        );
    }

    #[test]
    fn event_streams_are_found_by_media_type() {
        let is_stream = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            is_event_stream(&HeaderMap::from_iter([(CONTENT_TYPE, value)]))
        };
        assert!(is_stream("text/event-stream") && is_stream(" Text/Event-Stream ; charset=utf-8"));
        assert!(!is_stream("text/event-streams") && !is_stream("text/event-stream, text/plain"));
        assert!(!is_stream("application/json"));
    }

    #[test]
    fn binary_hops_leave_others_in_x_forwarded_for() {
        for line in [
            &b"caf\xe9"[..],
            b"\xff\xfe",
            b"",
            b"\t",
            b"unknown, _hidden",
        ] {
            let mut client = HeaderMap::new();
            for value in [b"1.2.3.4", line, b"203.0.113.7"] {
                client.append(X_FORWARDED_FOR, HeaderValue::from_bytes(value).unwrap());
            }
            let upstream = UpstreamHeaders {
                host: &HeaderValue::from_static("backend:8000"),
                request_id: &request_id(),
                client_ip: IpAddr::from([127, 0, 0, 1]),
            };
            let headers = upstream_request_headers(&client, &upstream, 0);
            let expected = [b"1.2.3.4, ", line, b", 203.0.113.7, 127.0.0.1"].concat();
            assert_eq!(headers[X_FORWARDED_FOR].as_bytes(), expected);
        }
    }

    #[test]
    fn hop_by_hop_and_trusted_headers_are_removed() {
        let headers = upstream_headers(&[
            ("connection", "close, x-secret"),
            ("x-secret", "1"),
            ("transfer-encoding", "gzip, chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "AA"),
            ("authorization", "Bearer k"),
            ("endpoint-load-metrics-format", "TEXT"),
            ("x-amzn-sagemaker-session-id", "NEW"),
            ("content_length", "0"),
            ("x-vllm_priority", "-9"),
            ("x-tokenweir-tenant", "root"),
        ]);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = [
            "accept-encoding",
            "authorization",
            "host",
            "x-forwarded-for",
            "x-request-id",
        ];
        assert_eq!(names, expected);
        assert_eq!(headers["accept-encoding"], "identity");
        assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
    }

    #[test]
    fn retry_waits_are_seconds_milliseconds_or_dates() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let cases = [
            ("retry-after", "7", Some(7_000)),
            ("retry-after", " 0.5 ", Some(500)),
            ("retry-after-ms", "250", Some(250)),
            ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT", Some(7_000)),
            ("retry-after", "Sun, 06 Nov 1994 08:49:00 GMT", None),
            ("retry-after", "-1", None),
            ("retry-after", "NaN", None),
            ("retry-after", "soon", None),
        ];
        for (name, value, expected) in cases {
            let rest = retry_after(&header_map(&[(name, value)]), now);
            assert_eq!(rest, expected.map(Duration::from_millis), "{name}: {value}");
        }
    }

    #[test]
    fn event_streams_get_anti_buffering_headers() {
        let mut headers = header_map(&[("content-type", "Text/Event-Stream; charset=utf-8")]);
        rewrite_response_headers(&mut headers, &request_id());
        assert_eq!(headers["x-accel-buffering"], "no");
        assert_eq!(headers["cache-control"], "no-cache");
        let mut headers = header_map(&[
            ("content-type", "application/json"),
            ("x-request-id", "of-backend"),
        ]);
        rewrite_response_headers(&mut headers, &request_id());
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["x-request-id"], "of-backend");
    }

    #[test]
    fn the_host_header_is_unique_and_well_formed() {
        let is_valid = |version, uri: &'static str, hosts: &[&str]| {
            let hosts: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            has_valid_host(version, &Uri::from_static(uri), &header_map(&hosts))
        };
        let http_1_0 = Version::HTTP_10;
        let http_1_1 = Version::HTTP_11;
        let http_2 = Version::HTTP_2;
        assert!(is_valid(http_1_1, "/", &["gateway:8080"]) && is_valid(http_1_1, "/", &["[::1]"]));
        assert!(is_valid(http_1_0, "/", &[]) && is_valid(http_2, "http://gateway/", &[]));
        assert!(
            is_valid(http_1_1, "http://elsewhere/", &["gateway"]),
            "HTTP/1.1 ignores the URI"
        );
        assert!(is_valid(http_2, "http://gateway/", &["GATEWAY"]));
        assert!(!is_valid(http_2, "http://gateway/", &["elsewhere"]));
        assert!(!is_valid(http_1_1, "/", &[]) && !is_valid(http_1_1, "/", &["a", "a"]));
        assert!(is_valid(http_1_1, "/", &[""]) && is_valid(http_1_0, "/", &[""]));
        assert!(!is_valid(http_1_1, "/", &["", ""]) && !is_valid(http_1_1, "/", &["", "a"]));
        assert!(!is_valid(http_2, "http://gateway/", &[""]));
        for host in ["a, b", "a b", "a@b", "http://a", "a/b", "a?b", "a#b"] {
            assert!(!is_valid(http_1_1, "/", &[host]), "{host:?}");
        }
    }

    #[test]
    fn ids_that_break_log_lines_are_refused() {
        let is_valid = |value: &str| {
            RequestId::from_headers(&header_map(&[("x-request-id", value)]), 1).as_str() == value
        };
        assert!(is_valid("bench-01-7"));
        assert!(!is_valid("a b") && !is_valid("") && !is_valid(&"x".repeat(129)));
    }
}

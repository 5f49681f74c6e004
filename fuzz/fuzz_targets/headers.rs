//! Fuzz target of headers and paths. For any headers of a client, the backend receives exactly one host and
//! one request id. It receives no hop-by-hop header, no header with an underscore in its name, no header of
//! the gateway itself, and no header that would change the engine for every client. No hop-by-hop header of a
//! backend reaches the client. A path is forwarded exactly as the route table has it, or not forwarded.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;
use tokenweir_protocol::headers::{self, RequestId, UpstreamHeaders};
use tokenweir_protocol::openai::route::ApiRoute;

/// Headers that must not be forwarded in either direction.
const HOP_BY_HOP_HEADERS: [&str; 11] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "forwarded",
];

/// Headers that the gateway sets on every request for a backend.
const GATEWAY_HEADERS: [&str; 4] = ["host", "x-request-id", "accept-encoding", "x-forwarded-for"];

/// Prefixes of headers that no client may send to a backend.
const FORBIDDEN_PREFIXES: [&str; 3] = [
    "endpoint-load-metrics-format",
    "x-amzn-sagemaker-",
    "x-tokenweir-",
];

fuzz_target!(|input: &[u8]| {
    let mut lines = input.split(|byte| *byte == b'\n');
    let target = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    route(&target);
    let mut map = HeaderMap::new();
    for line in lines.take(200) {
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .unwrap_or(line.len());
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line.get(colon + 1..).unwrap_or_default());
        if let (Ok(name), Ok(value)) = (name, value) {
            map.append(name, value);
        }
    }
    let uri = target.parse().unwrap_or_default();
    if headers::has_valid_host(Version::HTTP_11, &uri, &map) {
        assert_eq!(map.get_all("host").iter().count(), 1);
    }
    let id = RequestId::from_headers(&map, 1);
    assert!(!id.as_str().is_empty() && id.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
    let nominated = nominated(&map);
    check_request_headers(&map, &id, &nominated);
    headers::rewrite_response_headers(&mut map, &id);
    assert!(
        HOP_BY_HOP_HEADERS
            .iter()
            .all(|name| !map.contains_key(*name))
    );
});

/// The header names that the client's `Connection` header lists, which must not be forwarded.
fn nominated(map: &HeaderMap) -> Vec<String> {
    let values = map
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(','));
    names.map(|name| name.trim().to_ascii_lowercase()).collect()
}

fn check_request_headers(client: &HeaderMap, id: &RequestId, nominated: &[String]) {
    let host = HeaderValue::from_static("backend:8000");
    let upstream = UpstreamHeaders {
        host: &host,
        request_id: id,
        client_ip: IpAddr::from([127, 0, 0, 1]),
    };
    let map = headers::upstream_request_headers(client, &upstream, 0);
    for name in GATEWAY_HEADERS {
        assert_eq!(map.get_all(name).iter().count(), 1, "{name}");
    }
    assert_eq!(map["host"], host);
    for name in map
        .keys()
        .map(HeaderName::as_str)
        .filter(|name| !GATEWAY_HEADERS.contains(name))
    {
        assert!(
            !HOP_BY_HOP_HEADERS.contains(&name) && !name.contains('_'),
            "{name}"
        );
        assert!(
            !nominated
                .iter()
                .any(|nominated_name| nominated_name == name),
            "{name}"
        );
        assert!(
            !FORBIDDEN_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix)),
            "{name}"
        );
    }
}

fn route(target: &str) {
    let Ok(uri) = target.parse::<Uri>() else {
        return;
    };
    if let Ok((_, path)) = ApiRoute::lookup(&Method::POST, uri.path()) {
        assert_eq!(path, uri.path());
        assert!(!path.contains("..") && !path.contains('%') && !path.contains("//"));
    }
}

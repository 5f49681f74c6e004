//! For any client headers, a backend receives exactly one host, one length and one id, and no
//! hop-by-hop header, no header with an underscore and no header that controls the engine. No
//! hop-by-hop header of a backend reaches the client. A path is forwarded exactly as in the route
//! table, or not at all.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;
use tokenweir_core::headers::{self, RequestId, UpstreamHeaders};
use tokenweir_core::openai::route::Route;

/// Headers that must not be forwarded in either direction.
const HOP_BY_HOP_HEADERS: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

fuzz_target!(|input: &[u8]| {
    let mut lines = input.split(|byte| *byte == b'\n');
    let target = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    route(&target);
    let mut map = HeaderMap::new();
    for line in lines.take(200) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
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
    check_request_headers(map.clone(), &id, &nominated);
    headers::rewrite_response_headers(&mut map, &id);
    assert!(HOP_BY_HOP_HEADERS.iter().all(|name| !map.contains_key(*name)));
});

/// The header names that `Connection` nominates.
fn nominated(map: &HeaderMap) -> Vec<String> {
    let values = map.get_all("connection").iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(','));
    names.map(|name| name.trim().to_ascii_lowercase()).collect()
}

fn check_request_headers(mut map: HeaderMap, id: &RequestId, nominated: &[String]) {
    let upstream = UpstreamHeaders {
        host: &HeaderValue::from_static("backend:8000"),
        request_id: id,
        client_ip: IpAddr::from([127, 0, 0, 1]),
        content_length: 7,
    };
    headers::rewrite_request_headers(&mut map, &upstream);
    let gateway_headers = ["host", "content-length", "x-request-id", "accept-encoding", "x-forwarded-for"];
    for name in gateway_headers {
        assert_eq!(map.get_all(name).iter().count(), 1, "{name}");
    }
    assert_eq!((&map["host"], &map["content-length"]), (add.host, &HeaderValue::from(7)));
    for name in map.keys().map(HeaderName::as_str).filter(|name| !gateway_headers.contains(name)) {
        assert!(!HOP_BY_HOP_HEADERS.contains(&name) && !name.contains('_'), "{name}");
        assert!(!nominated.iter().any(|nominated_name| nominated_name == name), "{name}");
        assert!(!name.starts_with("x-amzn-sagemaker-") && name != "x-vllm-priority", "{name}");
    }
}

fn route(target: &str) {
    let Ok(uri) = target.parse::<Uri>() else { return };
    if let Ok((_, path)) = Route::lookup(&Method::POST, uri.path()) {
        assert_eq!(path, uri.path());
        assert!(!path.contains("..") && !path.contains('%') && !path.contains("//"));
    }
}

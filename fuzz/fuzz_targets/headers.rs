//! Whatever a client sends as headers, a replica gets one host, one length, an id and nothing that is
//! meant for one hop, hides behind an underscore or is trusted blindly; and the client gets no more
//! of a replica's. A path is forwarded as it stands in the table, or not at all.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;
use tokenweir_core::headers::{self, Outbound, RequestId};
use tokenweir_core::openai::route::Route;

/// What may not go on, in either direction.
const HOPS: [&str; 9] = [
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
    if headers::has_one_host(Version::HTTP_11, &uri, &map) {
        assert_eq!(map.get_all("host").iter().count(), 1);
    }
    let id = RequestId::of(&map, 1);
    assert!(!id.as_str().is_empty() && id.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
    let nominated = nominated(&map);
    goes_out(map.clone(), &id, &nominated);
    headers::inbound(&mut map, &id);
    assert!(HOPS.iter().all(|name| !map.contains_key(*name)));
});

/// The names that `Connection` has.
fn nominated(map: &HeaderMap) -> Vec<String> {
    let values = map.get_all("connection").iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(','));
    names.map(|name| name.trim().to_ascii_lowercase()).collect()
}

fn goes_out(mut map: HeaderMap, id: &RequestId, nominated: &[String]) {
    let add = Outbound {
        host: &HeaderValue::from_static("replica:8000"),
        request_id: id,
        client: IpAddr::from([127, 0, 0, 1]),
        content_length: 7,
    };
    headers::outbound(&mut map, &add);
    let ours = ["host", "content-length", "x-request-id", "accept-encoding", "x-forwarded-for"];
    for name in ours {
        assert_eq!(map.get_all(name).iter().count(), 1, "{name}");
    }
    assert_eq!((&map["host"], &map["content-length"]), (add.host, &HeaderValue::from(7)));
    for name in map.keys().map(HeaderName::as_str).filter(|name| !ours.contains(name)) {
        assert!(!HOPS.contains(&name) && !name.contains('_'), "{name}");
        assert!(!nominated.iter().any(|there| there == name), "{name}");
        assert!(!name.starts_with("x-amzn-sagemaker-") && name != "x-vllm-priority", "{name}");
    }
}

fn route(target: &str) {
    let Ok(uri) = target.parse::<Uri>() else { return };
    if let Ok((_, path)) = Route::of(&Method::POST, uri.path()) {
        assert_eq!(path, uri.path());
        assert!(!path.contains("..") && !path.contains('%') && !path.contains("//"));
    }
}

//! The opening handshake of WebSocket (RFC 6455, section 4). The gateway checks the handshake, and forwards the
//! frames without reading them.

use crate::headers::{has_token, single_value};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::header::{
    CONNECTION, CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Version, request};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// The value of `Upgrade` in a handshake.
pub const PROTOCOL: HeaderValue = HeaderValue::from_static("websocket");
/// The text that RFC 6455 appends to the key.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Length of a key: 16 bytes in Base64.
const KEY_CHARS: usize = 24;

/// The value of `Sec-WebSocket-Accept` with which a server must accept the request. `None`: the request is not
/// a valid opening handshake of version 13 over HTTP/1.1.
pub fn expected_accept(head: &request::Parts) -> Option<HeaderValue> {
    let headers = &head.headers;
    let has_body = headers.contains_key(TRANSFER_ENCODING)
        || headers
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length != "0");
    let is_handshake = head.method == Method::GET
        && head.version == Version::HTTP_11
        && !has_body
        && is_upgrade(headers)
        && single_value(headers, &SEC_WEBSOCKET_VERSION) == Some("13");
    if !is_handshake {
        return None;
    }
    let key = single_value(headers, &SEC_WEBSOCKET_KEY)?.as_bytes();
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let is_key = key.len() == KEY_CHARS && key.ends_with(b"==") && key[..22].iter().all(is_base64);
    is_key.then(|| accept_for(key))
}

/// Whether the headers of a response accept the handshake: `Upgrade` names WebSocket, and
/// `Sec-WebSocket-Accept` is `expected`.
pub fn is_accepted(headers: &HeaderMap, expected: &HeaderValue) -> bool {
    is_upgrade(headers)
        && single_value(headers, &SEC_WEBSOCKET_ACCEPT).is_some_and(|accept| accept == expected)
}

/// Whether the headers ask for WebSocket and for no other protocol.
fn is_upgrade(headers: &HeaderMap) -> bool {
    single_value(headers, &UPGRADE)
        .is_some_and(|name| PROTOCOL.as_bytes().eq_ignore_ascii_case(name.as_bytes()))
        && has_token(headers, &CONNECTION, "upgrade")
}

fn accept_for(key: &[u8]) -> HeaderValue {
    // RFC 6455 prescribes SHA-1 to show that the server read the key. The hash protects nothing.
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, KEY_SUFFIX].concat());
    let text = BASE64_STANDARD.encode(hash);
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, Request};

    /// Key of the example handshake in RFC 6455, section 1.3. `ACCEPT` is the accept value of the example.
    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
    const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

    fn handshake(changes: &[(&'static str, &'static str)]) -> request::Parts {
        let mut request = Request::new(());
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("upgrade", "WebSocket"),
            ("connection", "keep-alive, Upgrade"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", KEY),
        ]
        .iter()
        .chain(changes)
        {
            let name = HeaderName::from_static(name);
            headers.remove(&name);
            for value in value.split('|').filter(|value| !value.is_empty()) {
                headers.append(name.clone(), HeaderValue::from_static(value));
            }
        }
        *request.headers_mut() = headers;
        request.into_parts().0
    }

    #[test]
    fn the_accept_value_is_that_of_the_rfc() {
        let expected = expected_accept(&handshake(&[])).unwrap();
        assert_eq!(expected, ACCEPT);
        let response = |accept, upgrade| {
            let changes = [("sec-websocket-accept", accept), ("upgrade", upgrade)];
            handshake(&changes).headers
        };
        assert!(is_accepted(&response(ACCEPT, "websocket"), &expected));
        assert!(!is_accepted(
            &response("s3pPLMBiTxaQ9kYGzzhZRbK+xOp=", "websocket"),
            &expected
        ));
        assert!(!is_accepted(&response(ACCEPT, "h2c"), &expected));
        assert!(!is_accepted(&response("", "websocket"), &expected));
    }

    #[test]
    fn a_violation_of_any_rule_prevents_the_handshake() {
        for change in [
            ("upgrade", ""),
            ("upgrade", "h2c"),
            ("upgrade", "websocket, h2c"),
            ("upgrade", "websocket|h2c"),
            ("connection", "keep-alive"),
            ("sec-websocket-version", "8"),
            ("sec-websocket-key", ""),
            ("sec-websocket-key", "short=="),
            (
                "sec-websocket-key",
                "dGhlIHNhbXBsZSBub25jZQ==|dGhlIHNhbXBsZSBub25jZQ==",
            ),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
        ] {
            assert_eq!(expected_accept(&handshake(&[change])), None, "{change:?}");
        }
        for (method, version) in [
            (Method::POST, Version::HTTP_11),
            (Method::GET, Version::HTTP_10),
            (Method::GET, Version::HTTP_2),
        ] {
            let mut head = handshake(&[]);
            (head.method, head.version) = (method, version);
            assert_eq!(expected_accept(&head), None);
        }
    }
}

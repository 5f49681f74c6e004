//! Who made an error response: the engine, or a proxy in front of it.

use http::HeaderMap;
use http::header::{SERVER, VIA};
use memchr::memmem;
use tokenweir_protocol::headers::media_type;
use tokenweir_request::record::{ErrorSource, ShortName};

/// The servers of engines. Proxies write other names, but some leave the name of the server behind them.
const ENGINE_SERVERS: [&str; 6] = [
    "uvicorn",
    "hypercorn",
    "gunicorn",
    "granian",
    "llama.cpp",
    "sglang",
];
/// The members of JSON errors of engines (vLLM, FastAPI, llama.cpp, SGLang, TGI).
const ENGINE_MEMBERS: [&[u8]; 3] = [b"\"error\"", b"\"object\"", b"\"detail\""];
/// The proxy that made an error response. `None`: the engine made it, or nothing shows who did. `body`: the part of the
/// response that was read.
pub(crate) fn error_source(headers: &HeaderMap, body: &[u8]) -> Option<ErrorSource> {
    let server = ShortName::of_header(headers, &SERVER);
    let named = server.or_else(|| {
        let via = headers.get(VIA)?.as_bytes();
        // `1.1 varnish`: the name follows the version of the protocol.
        let at = via.iter().position(|byte| *byte == b' ')?;
        ShortName::first_word(via.get(at + 1..)?)
    });
    let is_engine = server.is_some_and(|server| {
        let name = server.as_str().to_ascii_lowercase();
        ENGINE_SERVERS.iter().any(|engine| name.starts_with(engine))
    });
    let kind = media_type(headers);
    let is_page = kind.eq_ignore_ascii_case("text/html");
    let is_json = kind.to_ascii_lowercase().contains("json");
    let has_any = |texts: &[&[u8]]| texts.iter().any(|text| memmem::find(body, text).is_some());
    let is_strange_json = is_json && !body.is_empty() && !has_any(&ENGINE_MEMBERS);
    if is_page || named.is_some() && !is_engine && (!is_json || is_strange_json) {
        return Some(ErrorSource::Proxy(if is_engine { None } else { named }));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn source(server: &str, kind: &str, body: &str) -> String {
        let mut headers = HeaderMap::new();
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        if !server.is_empty() {
            headers.insert(SERVER, value(server));
        }
        headers.insert(http::header::CONTENT_TYPE, value(kind));
        let source = error_source(&headers, body.as_bytes());
        source.map_or_else(String::new, |it| it.to_string())
    }

    #[test]
    fn pages_and_strange_errors_are_of_proxies() {
        let nginx = "by a proxy in front of the engines (server: nginx/1.27), not by an engine";
        assert_eq!(source("nginx/1.27", "text/html", "<html>"), nginx);
        assert_eq!(source("nginx/1.27", "text/plain", "no"), nginx);
        let message = r#"{"message":"no Route matched"}"#;
        assert_eq!(source("nginx/1.27", "application/json", message), nginx);
        let nameless = "by a proxy in front of the engines, not by an engine";
        assert_eq!(source("uvicorn", "text/html; charset=utf-8", ""), nameless);
    }

    #[test]
    fn errors_of_engines_pass_through_proxies() {
        let error = r#"{"error":{"message":"too long","code":400}}"#;
        for server in ["nginx", "uvicorn", ""] {
            assert_eq!(source(server, "application/json", error), "");
        }
        assert_eq!(source("uvicorn", "text/plain", "Internal Server Error"), "");
        assert_eq!(source("", "text/plain", "Internal Server Error"), "");
    }
}

//! Which web pages may read answers. Browsers ask before they send a request with a key, and show
//! no answer to a page that is not named in it.
//!
//! Cookies are never allowed: a key is in a header, which no other page can make a browser send.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The origins that are allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The web pages that may read answers, such as `https://chat.example.com`; `*` is any.
    pub origins: Vec<String>,
}

/// The rule that [`Settings`] make.
#[derive(Debug, Clone, Default)]
pub struct Cors {
    origins: Vec<HeaderValue>,
    is_any: bool,
}

const ANY: &str = "*";
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST");
/// What clients of this gateway want to know of an answer, besides its body.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, x-gateway-error, retry-after, \
     x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
     x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens",
);
/// Ten minutes, in seconds: how soon a browser hears that an origin is no longer allowed.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

impl Settings {
    /// The first origin that no browser would ever send.
    pub fn stray(&self) -> Option<usize> {
        self.origins.iter().position(|origin| origin != ANY && !is_origin(origin))
    }
}

/// A scheme, a host and maybe a port, in lower case, and nothing after them.
fn is_origin(text: &str) -> bool {
    let uri: Option<Uri> = text.parse().ok();
    let rebuilt = uri.and_then(|uri| {
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        Some(format!("{}://{authority}", uri.scheme_str()?))
    });
    rebuilt.is_some_and(|rebuilt| rebuilt == text && !text.contains(char::is_uppercase))
}

// === impl Cors ===

impl Cors {
    /// Of settings that have been checked.
    pub fn new(settings: &Settings) -> Self {
        let named = settings.origins.iter().filter(|origin| *origin != ANY);
        Self {
            origins: named.filter_map(|origin| origin.parse().ok()).collect(),
            is_any: settings.origins.iter().any(|origin| origin == ANY),
        }
    }

    /// The headers of the answer to a browser that asks whether a page may send a request. `None`:
    /// this is no such question, or the page may not.
    pub fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<HeaderMap> {
        let asks = method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let origin = headers.get(ORIGIN).filter(|origin| asks && self.allows(origin))?;
        let mut answer = HeaderMap::new();
        self.name(origin, &mut answer);
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        // SDKs send headers of their own, and none of them means anything to a page.
        if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
            answer.append(VARY, HeaderValue::from(ACCESS_CONTROL_REQUEST_HEADERS));
        }
        Some(answer)
    }

    /// Tells the browser of a page from `origin` whether the page may read this answer. What a
    /// replica says about that does not count.
    pub fn apply(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        take_replicas(headers);
        if let Some(origin) = origin.filter(|origin| self.allows(origin)) {
            self.name(origin, headers);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        } else if !self.origins.is_empty() && !self.is_any {
            headers.append(VARY, HeaderValue::from(ORIGIN));
        }
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        self.is_any || self.origins.contains(origin)
    }

    fn name(&self, origin: &HeaderValue, headers: &mut HeaderMap) {
        if self.is_any {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static(ANY));
        } else {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.append(VARY, HeaderValue::from(ORIGIN));
        }
    }
}

fn take_replicas(headers: &mut HeaderMap) {
    let is_one = |name: &&HeaderName| name.as_str().starts_with("access-control-");
    let names: Vec<HeaderName> = headers.keys().filter(is_one).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: &[&str]) -> Cors {
        Cors::new(&Settings { origins: origins.iter().map(|&origin| origin.into()).collect() })
    }

    fn map(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    fn question(origin: &'static str) -> HeaderMap {
        map(&[
            (ORIGIN, origin),
            (ACCESS_CONTROL_REQUEST_METHOD, "POST"),
            (ACCESS_CONTROL_REQUEST_HEADERS, "authorization, x-stainless-os"),
        ])
    }

    #[test]
    fn a_browser_is_told_what_a_page_that_is_named_may_send() {
        let cors = cors(&["https://a.example", "http://localhost:3000"]);
        let answer = cors.preflight(&Method::OPTIONS, &question("https://a.example")).unwrap();
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_METHODS], "GET, POST");
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_HEADERS], "authorization, x-stainless-os");
        assert!(!answer.contains_key("access-control-allow-credentials"));
        for origin in ["https://b.example", "https://a.example.evil", "http://a.example", "null"] {
            assert_eq!(cors.preflight(&Method::OPTIONS, &question(origin)), None, "{origin}");
        }
    }

    #[test]
    fn only_a_question_of_a_browser_is_answered() {
        let cors = cors(&["*"]);
        let mut headers = question("https://a.example");
        assert!(cors.preflight(&Method::POST, &headers).is_none());
        headers.remove(ACCESS_CONTROL_REQUEST_METHOD);
        assert!(cors.preflight(&Method::OPTIONS, &headers).is_none());
        let off = Cors::default();
        assert!(off.preflight(&Method::OPTIONS, &question("https://a.example")).is_none());
    }

    #[test]
    fn an_answer_names_the_page_that_may_read_it_whatever_the_replica_says() {
        let origin = HeaderValue::from_static("https://a.example");
        let replicas = || map(&[(ACCESS_CONTROL_ALLOW_ORIGIN, "*"), (VARY, "accept")]);
        let mut headers = replicas();
        cors(&["https://a.example"]).apply(Some(&origin), &mut headers);
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(headers.get_all(VARY).iter().collect::<Vec<_>>(), ["accept", "origin"]);
        let mut headers = replicas();
        cors(&["https://b.example"]).apply(Some(&origin), &mut headers);
        assert!(!headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
        let mut headers = replicas();
        Cors::default().apply(Some(&origin), &mut headers);
        assert_eq!(headers, map(&[(VARY, "accept")]));
    }

    #[test]
    fn an_origin_that_no_browser_sends_is_found() {
        let stray = |origin: &str| Settings { origins: vec!["*".into(), origin.into()] }.stray();
        for good in ["https://a.example", "http://localhost:3000", "https://[::1]:8443"] {
            assert_eq!(stray(good), None, "{good}");
        }
        let bad = ["https://a.example/", "a.example", "https://A.example", "https://u@a", "", "*."];
        for bad in bad {
            assert_eq!(stray(bad), Some(1), "{bad}");
        }
    }
}

//! Each error has a row, a fault that agrees with its status, and a help for its reader.

use super::*;
use serde_json::Value;

#[test]
fn of_many_names_the_first_are_listed() {
    assert_eq!(listed(["a", "b"].iter()), "`a`, `b`");
    let names: Vec<usize> = (1..=23).collect();
    let list = listed(names.iter());
    assert!(list.starts_with("`1`, `2`, ") && list.ends_with(", `20` and 3 more"), "{list}");
    assert_eq!(listed(names[..20].iter()).matches('`').count(), 40);
}

#[test]
fn a_reason_is_in_the_list_and_a_fault_agrees_with_its_status() {
    let all = [
        Error::NotFound { path: "/x".into() },
        Error::MethodNotAllowed { allow: "POST" },
        Error::BadBody(PeekError::NotObject),
        Error::SignedBody { model: "a".into(), served_as: "b".into() },
        Error::SignedField { field: "session_id" },
        Error::EngineControl { field: "kv_transfer_params", permission: "kv_transfer" },
        Error::BadHead,
        Error::HeadTooLarge,
        Error::UriTooLong,
        Error::EncodedBody { encoding: "gzip".into() },
        Error::BodyTooLarge { limit: 1 },
        Error::BodyCut,
        Error::InvalidApiKey,
        Error::ModelNotAllowed { model: "`a`".into() },
        rate_limited(Limited::Requests),
        rate_limited(Limited::Tokens),
        rate_limited(Limited::Concurrency),
        Error::BodyTimeout { seconds: 1 },
        Error::ClientBusy,
        Error::Overloaded,
        Error::Exhausted,
        Error::BodyMemory,
        Error::UnknownModel { model: "a".into(), known: "b".into() },
        Error::NoBackend,
        Error::Saturated { retry_after: 1 },
        Error::Shed { retry_after: 1 },
        Error::QueueTimeout { waited: Duration::from_secs(1), retry_after: 1 },
        Error::Closed,
        Error::Garbage,
        Error::HeaderTimeout { seconds: 1 },
        Error::Internal,
    ];
    for error in all {
        let is_client = error.fault() == Fault::Client;
        // That replicas are full is not the fault of any one client; that it took too much is.
        let is_own = matches!(error, Error::RateLimited { .. } | Error::ClientBusy);
        let is_full = error.status() == StatusCode::TOO_MANY_REQUESTS && !is_own;
        assert_eq!(is_client, error.status().is_client_error() && !is_full, "{error:?}");
        assert_eq!(is_full, SHED_REASONS.contains(&error.reason()), "{error:?}");
        assert!(REASONS.contains(&error.reason()), "{error:?}");
        assert_eq!(error.response().status(), error.status());
    }
}

#[test]
fn a_request_that_found_no_room_is_told_when_to_retry_and_is_no_client_error() {
    for error in [
        Error::Saturated { retry_after: 7 },
        Error::Shed { retry_after: 7 },
        Error::QueueTimeout { waited: Duration::from_secs(30), retry_after: 7 },
    ] {
        assert_eq!(error.response().headers()[RETRY_AFTER], "7");
        assert_eq!(error.outcome(), Outcome::Rejected);
    }
}

fn rate_limited(limited: Limited) -> Error {
    Error::RateLimited { limited, allowed: 60, retry_after: 7 }
}

#[test]
fn a_client_that_took_too_much_is_told_so_in_the_words_that_sdks_read() {
    for (limited, kind, message) in [
        (Limited::Requests, "requests", "the limit of 60 requests in a minute is reached"),
        (Limited::Tokens, "tokens", "the limit of 60 tokens in a minute is reached"),
        (Limited::Concurrency, "requests", "the limit of 60 requests at once is reached"),
    ] {
        let error = rate_limited(limited);
        let response = error.response();
        assert_eq!(response.headers()[RETRY_AFTER], "7");
        assert_eq!(error.outcome(), Outcome::ClientError);
        let body = response.into_body().into_inner().unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "rate_limit_exceeded");
        assert_eq!(body["error"]["type"], kind);
        assert_eq!(body["error"]["message"], format!("{message}; retry after 7 s"));
    }
}

#[test]
fn a_client_without_a_key_is_told_how_to_send_one() {
    let response = Error::InvalidApiKey.response();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
    let body = response.into_body().into_inner().unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error"]["code"], "invalid_api_key");
}

#[test]
fn no_backend_says_when_to_retry() {
    let response = Error::NoBackend.response();
    assert_eq!(response.headers()[RETRY_AFTER], "1");
    assert_eq!(response.headers()[X_GATEWAY_ERROR], "no_backend");
}

//! Tests of the error table: status, fault, reason, headers and message of every error.

use super::*;
use serde_json::Value;
use std::time::Duration;
use tokenweir_protocol::openai::request_fields::RequestBodyError;

#[test]
fn long_lists_of_names_are_truncated() {
    assert_eq!(listed(["a", "b"].iter()), "`a`, `b`");
    let names: Vec<usize> = (1..=23).collect();
    let list = listed(names.iter());
    assert!(
        list.starts_with("`1`, `2`, ") && list.ends_with(", `20` and 3 more"),
        "{list}"
    );
    assert_eq!(listed(names[..20].iter()).matches('`').count(), 40);
}

const TOO_MANY_READERS: OptionError = OptionError {
    reason: "idempotency_key",
    message: "too many readers",
    status: 409,
    retry_after: Some(1),
};

#[test]
fn reasons_are_listed_and_faults_match_statuses() {
    let errors = [
        GatewayError::NotFound {
            path: "/x".into(),
            nearest: None,
        },
        GatewayError::NotFound {
            path: "/chat/completions".into(),
            nearest: Some("/v1/chat/completions"),
        },
        GatewayError::MethodNotAllowed { allow: "POST" },
        GatewayError::WebSocketRequired,
        GatewayError::UpgradeNotOffered { allow: "POST" },
        GatewayError::BadBody(RequestBodyError::NotObject),
        GatewayError::SignedBody {
            model: "a".into(),
            served_as: "b".into(),
        },
        GatewayError::SignedField {
            field: "session_id",
        },
        GatewayError::EngineControl {
            field: "kv_transfer_params",
            permission: "kv_transfer",
        },
        GatewayError::BadHead,
        GatewayError::HeadTooLarge,
        GatewayError::UriTooLong,
        GatewayError::EncodedBody {
            encoding: "gzip".into(),
        },
        GatewayError::BodyTooLarge { limit: 1 },
        GatewayError::IncompleteBody,
        GatewayError::InvalidApiKey,
        GatewayError::InvalidToken,
        GatewayError::ModelNotAllowed {
            model: "`a`".into(),
        },
        GatewayError::Option(&OptionError {
            reason: "idempotency_key",
            message: "another request",
            status: 422,
            retry_after: None,
        }),
        GatewayError::Option(&TOO_MANY_READERS),
        GatewayError::Option(&OptionError {
            reason: "last_event_id",
            message: "an unknown event",
            status: 412,
            retry_after: None,
        }),
        rate_limited(RateLimitKind::Requests),
        rate_limited(RateLimitKind::Tokens),
        rate_limited(RateLimitKind::Concurrency),
        GatewayError::BodyTimeout { seconds: 1 },
        GatewayError::ClientBusy,
        GatewayError::Overloaded,
        GatewayError::Exhausted,
        GatewayError::BodyMemory,
        GatewayError::NoIssuerKeys,
        GatewayError::UsageUnknown,
        GatewayError::UnknownModel {
            model: "a".into(),
            known: "b".into(),
        },
        GatewayError::NoBackend,
        GatewayError::Loop,
        GatewayError::Saturated { retry_after: 1 },
        GatewayError::Shed { retry_after: 1 },
        GatewayError::QueueTimeout {
            waited: Duration::from_secs(1),
            retry_after: 1,
        },
        GatewayError::Late {
            objective: Duration::from_secs(2),
            retry_after: 1,
        },
        GatewayError::Closed,
        GatewayError::Garbage,
        GatewayError::ResponseHeadTimeout { seconds: 1 },
        GatewayError::Internal,
    ];
    for error in errors {
        let is_client = error.fault() == Fault::Client;
        // If all backends are full, the client is not at fault. It is at fault if it exceeds its own limit.
        let is_client_limit = matches!(
            error,
            GatewayError::RateLimited { .. } | GatewayError::ClientBusy
        );
        let is_full = error.status() == StatusCode::TOO_MANY_REQUESTS && !is_client_limit;
        assert_eq!(
            is_client,
            error.status().is_client_error() && !is_full,
            "{error:?}"
        );
        assert_eq!(is_full, SHED_REASONS.contains(&error.reason()), "{error:?}");
        assert!(REASONS.contains(&error.reason()), "{error:?}");
        assert_eq!(error.response().status(), error.status());
    }
}

#[test]
fn shed_requests_get_retry_after() {
    for error in [
        GatewayError::Saturated { retry_after: 7 },
        GatewayError::Shed { retry_after: 7 },
        GatewayError::QueueTimeout {
            waited: Duration::from_secs(30),
            retry_after: 7,
        },
        GatewayError::Late {
            objective: Duration::from_secs(2),
            retry_after: 7,
        },
    ] {
        assert_eq!(error.response().headers()[RETRY_AFTER], "7");
        assert_eq!(error.outcome(), Outcome::Rejected);
    }
}

pub(super) fn rate_limited(limited: RateLimitKind) -> GatewayError {
    GatewayError::RateLimited {
        limited,
        allowed: 60,
        retry_after: 7,
    }
}

#[test]
fn rate_limit_errors_have_the_fields_of_sdks() {
    for (limited, kind, message) in [
        (
            RateLimitKind::Requests,
            "requests",
            "the limit of 60 requests per minute is reached",
        ),
        (
            RateLimitKind::Tokens,
            "tokens",
            "the limit of 60 tokens per minute is reached",
        ),
        (
            RateLimitKind::Concurrency,
            "requests",
            "the limit of 60 concurrent requests is reached",
        ),
    ] {
        let error = rate_limited(limited);
        let response = error.response();
        assert_eq!(response.headers()[RETRY_AFTER], "7");
        assert_eq!(error.outcome(), Outcome::ClientError);
        let body = response.into_body().into_inner().unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "rate_limit_exceeded");
        assert_eq!(body["error"]["type"], kind);
        assert_eq!(
            body["error"]["message"],
            format!("{message}; retry after 7 s")
        );
    }
}

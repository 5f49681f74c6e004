//! The user, the session and the conversation of a request. The record has them, and spans and log lines read
//! them from there. The metrics page never has them.

use crate::support::scripted_backend::{WHOLE_STREAM, stream_of};
use crate::support::test_gateway::{CHAT, Setup, gateway_answering_with, post, with_lines};
use tokenweir::config::IdentitiesConfig;
use tokenweir_gateway::proxy::{IdentityMode, IdentityReader};
use tokenweir_request::record::RequestIdentity;

const BODY: &str = r#"{"model":"tiny","stream":true,"user":"alice@example.com","max_tokens":7,
    "temperature":0.5,"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#;

/// The identity reader of the default configuration, with `mode` as its mode.
fn reader(mode: IdentityMode) -> IdentityReader {
    IdentitiesConfig { mode, ..IdentitiesConfig::default() }.reader(None)
}

#[tokio::test]
async fn the_identity_of_a_request_is_recorded_and_never_in_the_metrics() {
    for mode in [IdentityMode::Plain, IdentityMode::Hashed, IdentityMode::Off] {
        let setup = Setup { identities: reader(mode), ..Setup::default() };
        let (fake, gateway) = gateway_answering_with(setup, stream_of(&WHOLE_STREAM)).await;
        let session_header = "x-claude-code-session-id: session-7";
        gateway.raw(with_lines(&post(CHAT, BODY), session_header)).await;
        let record = gateway.record().await;
        let RequestIdentity { user, session, conversation } = &record.options.identity;
        match mode {
            IdentityMode::Plain => {
                assert_eq!(user.as_deref(), Some("alice@example.com"));
                assert_eq!(session.as_deref(), Some("session-7"));
            }
            IdentityMode::Hashed => {
                assert_eq!(user.as_ref().map(|hash| hash.len()), Some(32));
                assert_eq!(session, conversation);
            }
            IdentityMode::Off => assert_eq!(record.options.identity, RequestIdentity::default()),
        }
        assert_eq!(record.options.messages, Some(2));
        assert!(record.tokens_per_second().is_some());
        let page = gateway.admin("/metrics").await;
        for value in [user, session].into_iter().flatten() {
            assert!(!page.contains(&**value), "{value} is in the metrics");
        }
        // Whatever the mode, the backend gets the body that the client sent.
        assert!(String::from_utf8_lossy(&fake.seen()[0].body).contains("alice@example.com"));
    }
}

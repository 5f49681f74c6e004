//! The user, the session and the conversation of a request: the record has them, and spans and log lines take
//! them from the record. The metrics page never has them.

use crate::support::scripted_backend::{WHOLE_STREAM, stream_of};
use crate::support::test_gateway::{CHAT, Setup, gateway_answering_with, post, with_lines};
use tokenweir::config::IdentitiesConfig;
use tokenweir_gateway::proxy::IdentityMode;

const BODY: &str = r#"{"model":"tiny","stream":true,"user":"alice@example.com","max_tokens":7,
    "temperature":0.5,"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#;

#[tokio::test]
async fn identities_are_recorded_but_not_in_metrics() {
    let plain = IdentitiesConfig {
        mode: IdentityMode::Plain,
        ..IdentitiesConfig::default()
    };
    for config in [plain, IdentitiesConfig::default()] {
        let setup = Setup {
            identities: config.reader(|_| None).unwrap(),
            ..Setup::default()
        };
        let (fake, gateway) = gateway_answering_with(setup, stream_of(&WHOLE_STREAM)).await;
        let session_header = "x-claude-code-session-id: session-7";
        gateway
            .raw(with_lines(&post(CHAT, BODY), session_header))
            .await;
        let record = gateway.record().await;
        let identity = &record.options.identity;
        let recorded = [&identity.user, &identity.session].map(|value| value.as_deref().unwrap());
        let values = ["alice@example.com", "session-7"];
        if config.mode == IdentityMode::Plain {
            assert_eq!(recorded, values);
        } else {
            assert_eq!(config.mode, IdentityMode::Hashed);
            assert!(recorded.iter().all(|hash| hash.len() == 32), "{recorded:?}");
        }
        assert_eq!(record.options.messages, Some(2));
        assert!(record.tokens_per_second().is_some());
        let page = gateway.admin("/metrics").await;
        assert!(
            !values
                .iter()
                .chain(&recorded)
                .any(|value| page.contains(value)),
            "{page}"
        );
        assert!(String::from_utf8_lossy(&fake.seen()[0].body).contains("alice@example.com"));
    }
}

//! Response headers that name the backend and the reason of a routing decision. Only clients that request
//! these headers and have the permission get them.

use crate::access::{access_for_all, head};
use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, WORD, stream_of};
use crate::support::test_gateway::{ASK_STREAM, CHAT, Setup, post, start_with, with_lines};
use tokenweir_protocol::openai::engine_control::Permission;

/// Sends a request. Returns the head of the response in lower case. `asks`: whether the client sends the
/// header that requests the explanation.
async fn response_head(fake: &ScriptedBackend, permissions: &[Permission], asks: bool) -> String {
    let setup = Setup {
        access: access_for_all(permissions),
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let request = post(CHAT, ASK_STREAM);
    let request = if asks {
        with_lines(&request, "x-tokenweir-explain: 1")
    } else {
        request
    };
    head(&gateway.raw(request).await)
}

#[tokio::test]
async fn the_backend_is_named_to_permitted_clients() {
    let response = stream_of(&[ROLE, WORD, FINISH, "[DONE]"]);
    let response = String::from_utf8(response).unwrap();
    // The backend sends such headers itself, as another gateway would.
    let own = "\r\nx-tokenweir-backend: inner\r\nx-gateway-error: inner\r\n";
    let response = response.replacen("\r\n", own, 1);
    let fake = ScriptedBackend::answering(response).await;
    let allowed = [Permission::RoutingHeaders];
    let head = response_head(&fake, &allowed, true).await;
    let expected = format!("x-tokenweir-backend: {}\r\n", fake.addr);
    assert!(head.contains(&expected), "{head}");
    assert!(
        head.contains("x-tokenweir-reason: only_candidate"),
        "{head}"
    );
    assert!(
        head.contains("x-tokenweir-queue-ms: 0") && !head.contains("inner"),
        "{head}"
    );
    assert_eq!(head.matches("x-tokenweir-").count(), 3, "{head}");
    for (permissions, asks) in [
        (&allowed[..], false),
        (&[], true),
        (&[Permission::Lora], true),
    ] {
        let head = response_head(&fake, permissions, asks).await;
        assert!(
            head.starts_with("http/1.1 200") && !head.contains("x-tokenweir-"),
            "{head}"
        );
        assert!(!head.contains("inner"), "{head}");
    }
    assert!(
        fake.seen()
            .iter()
            .all(|it| !it.head.contains("x-tokenweir-explain"))
    );
}

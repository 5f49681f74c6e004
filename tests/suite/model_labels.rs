//! The names of the models that backends list become values of metric labels up to a limit. The gateway also
//! serves the models beyond the limit.

use crate::metrics::assert_value;
use crate::support::scripted_backend::{ScriptedBackend, json};
use crate::support::test_gateway::{CHAT, Running, Setup, advance_time, start, start_with, status};
use std::time::Duration;
use tokenweir_gateway::backend::routes::ModelConfig;

async fn ask(gateway: &Running, model: &str) -> tokenweir_request::record::ModelLabel {
    let answer = gateway
        .post(CHAT, &format!(r#"{{"model":"{model}"}}"#))
        .await;
    assert_eq!(status(&answer), 200, "{model}");
    gateway.record().await.model
}

fn requests(page: &str, model: &str) -> usize {
    let label = format!("gen_ai_request_model=\"{model}\"");
    page.lines().filter(|line| line.contains(&label)).count()
}

#[tokio::test]
async fn a_model_beyond_the_limit_is_other() {
    let fake = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    fake.set_models(&["base", "base:a", "base:b", "base:c"]);
    let alias = ModelConfig {
        name: "c".into(),
        ..ModelConfig::default()
    };
    let setup = Setup {
        max_models: 2,
        models: vec![alias],
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    for (model, label) in [("base", "base"), ("a", "a"), ("b", "_other"), ("c", "c")] {
        let found = ask(&gateway, model).await;
        assert_eq!((found.as_str(), found.name()), (label, model));
    }
    let page = gateway.admin("/metrics").await;
    assert_eq!(requests(&page, "b"), 0);
    for label in ["base", "a", "c", "_other"] {
        assert!(requests(&page, label) > 0, "{label}");
    }
    let folded = "tokenweir_label_overflow_total{label=\"gen_ai_request_model\"}";
    assert_value(&page, folded, 1.0);
    let explained = gateway.admin("/decisions").await;
    assert!(explained.contains(r#""model":"b""#), "{explained}");
}

#[tokio::test]
async fn an_adapters_series_end_after_ten_minutes() {
    let fake = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    fake.set_models(&["base", "base:a"]);
    let gateway = start(&[fake.addr]).await;
    let page = gateway.admin("/metrics").await;
    assert!(
        requests(&page, "base") > 100,
        "counters of the base model are 0 from the start"
    );
    assert_eq!(requests(&page, "a"), 0);
    ask(&gateway, "a").await;
    assert!(requests(&gateway.admin("/metrics").await, "a") > 0);
    fake.set_models(&["base"]);
    advance_time(Duration::from_secs(10)).await;
    wait_until!(gateway.pool.routes().models().len() == 1);
    assert!(
        requests(&gateway.admin("/metrics").await, "a") > 0,
        "the last values are still exported"
    );
    advance_time(Duration::from_mins(10)).await;
    let page = gateway.admin("/metrics").await;
    assert_eq!(
        (requests(&page, "a"), requests(&page, "base") > 0),
        (0, true)
    );
}

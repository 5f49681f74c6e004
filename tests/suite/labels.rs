//! Models that backends list are label values up to a bound, and served beyond it.

use crate::metrics::value;
use crate::support::fake::{Fake, json};
use crate::support::gateway::{Running, Setup, start_with, status};
use std::time::Duration;
use tokenweir::backend::routes::Named;

const CHAT: &str = "/v1/chat/completions";

async fn start(fake: &Fake, setup: Setup) -> Running {
    start_with(&[fake.addr], setup).await
}

async fn ask(gateway: &Running, model: &str) -> tokenweir_core::record::ModelLabel {
    let answer = gateway.post(CHAT, &format!(r#"{{"model":"{model}"}}"#)).await;
    assert_eq!(status(&answer), 200, "{model}");
    gateway.record().await.model
}

fn requests(page: &str, model: &str) -> usize {
    let label = format!("gen_ai_request_model=\"{model}\"");
    page.lines().filter(|line| line.contains(&label)).count()
}

/// Lets the watchers believe that time has passed.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

async fn until_listed(gateway: &Running, count: usize) {
    while gateway.pool.routes().models().len() != count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_model_beyond_the_bound_is_served_and_named_and_only_its_label_is_other() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    fake.set_models(&["base", "base:a", "base:b", "base:c"]);
    let alias = Named { name: "c".into(), ..Named::default() };
    let gateway =
        start(&fake, Setup { max_models: 2, models: vec![alias], ..Setup::default() }).await;
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
    assert!((value(&page, folded) - 1.0).abs() < 1e-9, "{}", value(&page, folded));
    let explained = gateway.admin("/explain").await;
    assert!(explained.contains(r#""model":"b""#), "{explained}");
}

#[tokio::test]
async fn an_adapter_has_no_series_before_its_first_request() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    fake.set_models(&["base", "base:a"]);
    let gateway = start(&fake, Setup::default()).await;
    let page = gateway.admin("/metrics").await;
    assert!(requests(&page, "base") > 100, "what can be counted is 0 from the start");
    assert_eq!(requests(&page, "a"), 0);
    ask(&gateway, "a").await;
    assert!(requests(&gateway.admin("/metrics").await, "a") > 0);
}

#[tokio::test]
async fn series_of_a_model_that_is_gone_end_after_ten_minutes() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    fake.set_models(&["base", "base:a"]);
    let gateway = start(&fake, Setup::default()).await;
    ask(&gateway, "a").await;
    fake.set_models(&["base"]);
    pass(Duration::from_secs(10)).await;
    until_listed(&gateway, 1).await;
    assert!(requests(&gateway.admin("/metrics").await, "a") > 0, "the last values can be read");
    pass(Duration::from_mins(10)).await;
    let page = gateway.admin("/metrics").await;
    assert_eq!((requests(&page, "a"), requests(&page, "base") > 0), (0, true));
}

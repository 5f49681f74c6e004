//! The number of series is a contract: whatever clients and replicas send, it stays within the
//! formula of the README, and what does not fit is counted.
//!
//! `LABEL_VALUES` sets how many requests there are, each with values of its own.

use crate::metrics::{samples, value};
use crate::mutations::resident_kib;
use crate::support::fake::{Fake, ROLE, Step, WORD, json, stream_of};
use crate::support::gateway::{Setup, start_with};
use futures_util::future::join_all;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenweir::telemetry::catalog;
use tokenweir::telemetry::metric::{Kind, Known, Label};
use tokenweir_core::record::Tiers;
use tokenweir_core::slo::Objective;

const CHAT: &str = "/v1/chat/completions";
const REQUESTS: usize = 3_000;
/// Requests that are open at once.
const AT_ONCE: usize = 50;
/// What this process may grow by after the first tenth of many requests, in KiB.
const MOST_GROWTH_KIB: usize = 16 << 10;

/// The formula of the README, with these numbers of models, replicas, tiers, objectives, error types.
fn most_series(models: usize, backends: usize, tiers: usize, slos: usize, errors: usize) -> usize {
    let values = |label: &Label| match label {
        Label::Model => models,
        Label::Backend => backends,
        Label::Tier => tiers,
        Label::Slo => slos,
        Label::ErrorType => errors,
        Label::GenAiOperation => 4,
        // Nobody needs a key here.
        Label::Tenant => 0,
        closed => closed.values(&Known::default()).len(),
    };
    let of_row = |row: &tokenweir::telemetry::metric::Row| {
        let each = match row.kind {
            Kind::Counter | Kind::Gauge => 1,
            Kind::Histogram(bounds) => bounds.len() + 3,
        };
        each * row.labels.iter().map(values).product::<usize>()
    };
    catalog::rows().map(of_row).sum()
}

/// An answer that no other is like: a finish reason or a status of its own.
fn answer(number: usize) -> Vec<u8> {
    if number.is_multiple_of(3) {
        return json(&format!("{} Odd", 400 + number % 200), r#"{"error":{"message":"no"}}"#);
    }
    let finish = format!(
        r#"{{"id":"c","model":"m{number}","choices":[{{"index":0,"delta":{{}},"finish_reason":"f{number}"}}]}}"#
    );
    stream_of(&[ROLE, WORD, WORD, &finish, "[DONE]"])
}

/// A request of which everything is new that a client can choose.
fn request(number: usize) -> String {
    let method = if number % 10 == 3 { format!("M{number}") } else { "POST".to_owned() };
    let path = if number % 10 == 5 { format!("/v1/p{number}?q={number}") } else { CHAT.to_owned() };
    // Only a known model reaches a replica.
    let is_known = number.is_multiple_of(2);
    let model = if is_known { "tiny".to_owned() } else { format!("\\\"}} {number}\\n# EOF") };
    let body = format!(r#"{{"model":"{model}","stream":true,"user":"u{number}"}}"#);
    format!(
        "{method} {path} HTTP/1.1\r\nhost: h{number}\r\ncontent-type: application/json\r\n\
         x-tier: t{number}\"\t\r\nauthorization: Bearer k{number}\r\nx-tenant: n{number}\r\n\
         x-h{number}: {number}\r\nx-request-id: r{number}\r\nuser-agent: a{number}\r\n\
         traceparent: 00-{number:032x}-{number:016x}-01\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn a_flood_of_made_up_values_stays_within_the_formula_and_is_counted() {
    let answered = AtomicUsize::new(0);
    let script = move |_: &_| vec![Step::Send(answer(answered.fetch_add(1, Ordering::Relaxed)))];
    let fake = Fake::start(script).await;
    let tiers = Tiers {
        header: Some("x-tier".parse().unwrap()),
        names: vec!["gold".into()],
        keys: Vec::new(),
    };
    let known = Known { tiers: vec!["gold".into()], ..Known::default() };
    let promise = "ttft < 1s for 99 %".parse().unwrap();
    let slos = vec![Objective { name: "all".into(), model: None, tier: None, promise }];
    let setup = Setup { tiers, known, slos, ..Setup::default() };
    let gateway = start_with(&[fake.addr], setup).await;
    let count = std::env::var("LABEL_VALUES").map_or(REQUESTS, |count| count.parse().unwrap());
    let (mut early_series, mut early_kib) = (0, 0);
    for first in (1..=count).step_by(AT_ONCE) {
        let requests = (first..first + AT_ONCE).map(|number| gateway.raw(request(number)));
        join_all(requests).await;
        for _ in 0..AT_ONCE {
            gateway.record().await;
        }
        fake.take_seen();
        if first <= count / 10 {
            early_kib = resident_kib();
            if first + AT_ONCE > count / 10 {
                early_series = samples(&gateway.admin("/metrics").await).len();
            }
        }
    }
    let page = gateway.admin("/metrics").await;
    let series = samples(&page).len();
    let growth = resident_kib().saturating_sub(early_kib);
    println!(
        "{count} requests: {early_series} series after the first tenth, {series} at the end, \
         {growth} KiB more"
    );
    assert!(count <= REQUESTS || growth < MOST_GROWTH_KIB, "{growth} KiB more");
    // One model and `_other`; none, `gold` and `_other`.
    let most = most_series(2, 1, 3, 1, 40) + 20;
    assert!(series <= most, "{series} series, and the formula allows {most} with process_*");
    for made_up in ["# EOF\"", "t7", "u7", "h7", "k7", "n7", "r7", "f7", "/v1/p"] {
        let is_there = page.lines().any(|line| line.contains(&format!("=\"{made_up}")));
        assert!(!is_there, "{made_up} is a label value");
    }
    let folded =
        |label: &str| value(&page, &format!("tokenweir_label_overflow_total{{label=\"{label}\"}}"));
    assert!((folded("tier") - count as f64).abs() < 0.5, "{}", folded("tier"));
    for label in ["gen_ai_request_model", "reason", "error_type"] {
        assert!(folded(label) > 50.0, "{label}: {}", folded(label));
    }
}

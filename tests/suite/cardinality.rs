//! The number of time series on the metrics page is a contract. For any values from clients and backends, it
//! stays within the formula of the documentation, and the gateway counts values beyond the limits.
//!
//! `LABEL_VALUES` sets the number of requests. Each request has values that no other request has.

use crate::metrics::{max_series, samples, value};
use crate::mutated_requests::resident_kib;
use crate::support::scripted_backend::{ROLE, ScriptedBackend, Step, WORD, json, stream_of};
use crate::support::test_gateway::{CHAT, Setup, start_with, tiers};
use futures_util::future::join_all;
use tokenweir_request::slo::Objective;

const REQUESTS: usize = 3_000;
const CONCURRENT_REQUESTS: usize = 50;
/// Maximum growth of this process's memory in KiB after the first tenth of the requests. It is checked only
/// for more requests than by default.
const MAX_GROWTH_KIB: usize = 16 << 10;

/// Returns the number of time series that the documented formula allows, if each of these letters of the
/// formula has this number of values. The other letters have no values.
fn allowed_series(values: &[(&str, usize)]) -> usize {
    let count = |letter: &str| {
        values
            .iter()
            .find(|(known, _)| *known == letter)
            .map_or(0, |(_, count)| *count)
    };
    let term = |(factors, each): (String, usize)| {
        each * factors.split('·').skip(1).map(count).product::<usize>()
    };
    max_series().into_iter().map(term).sum()
}

/// Builds the backend's response to the request with this number. Its finish reason or its status is unique.
fn answer(number: usize) -> Vec<u8> {
    if number.is_multiple_of(3) {
        return json(
            &format!("{} Odd", 400 + number % 200),
            r#"{"error":{"message":"no"}}"#,
        );
    }
    let finish = format!(
        r#"{{"id":"c","model":"m{number}","choices":[{{"index":0,"delta":{{}},"finish_reason":"f{number}"}}]}}"#
    );
    stream_of(&[ROLE, WORD, WORD, &finish, "[DONE]"])
}

/// Builds the request with this number. Every value that a client can choose is unique.
fn request(number: usize) -> String {
    let method = if number % 10 == 3 {
        format!("M{number}")
    } else {
        "POST".to_owned()
    };
    let path = if number % 10 == 5 {
        format!("/v1/p{number}?q={number}")
    } else {
        CHAT.to_owned()
    };
    // The model of every other request is the known one, because only requests for a known model reach a
    // backend.
    let is_known = number.is_multiple_of(2);
    let model = if is_known {
        "tiny".to_owned()
    } else {
        format!("\\\"}} {number}\\n# EOF")
    };
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
async fn unique_label_values_stay_within_the_limit() {
    let fake = ScriptedBackend::start(|seen| vec![Step::Send(answer(seen.number))]).await;
    let tiers = tiers(&["gold"]);
    let definition = "ttft < 1s for 99 %".parse().unwrap();
    let slos = vec![Objective {
        name: "all".into(),
        model: None,
        tier: None,
        definition,
    }];
    let setup = Setup {
        tiers,
        slos,
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let count = std::env::var("LABEL_VALUES").map_or(REQUESTS, |count| count.parse().unwrap());
    let (mut early_series, mut early_kib) = (0, 0);
    for first in (1..=count).step_by(CONCURRENT_REQUESTS) {
        let requests =
            (first..first + CONCURRENT_REQUESTS).map(|number| gateway.raw(request(number)));
        join_all(requests).await;
        for _ in 0..CONCURRENT_REQUESTS {
            gateway.record().await;
        }
        fake.take_received();
        if first <= count / 10 {
            early_kib = resident_kib();
            if first + CONCURRENT_REQUESTS > count / 10 {
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
    assert!(
        count <= REQUESTS || growth < MAX_GROWTH_KIB,
        "{growth} KiB more"
    );
    // The label `model` has two values: the known model and `_other`. The label `tier` has three: none,
    // `gold` and `_other`. The gateway has no keys, so there is no tenant.
    let values = [
        ("M", 2),
        ("B", 1),
        ("T", 3),
        ("S", 1),
        ("E", 40),
        ("O", 4),
        ("H", 22),
    ];
    let limit = allowed_series(&values) + 20;
    assert!(
        series <= limit,
        "{series} series, and the formula allows {limit} with process_*"
    );
    for made_up in ["# EOF\"", "t7", "u7", "h7", "k7", "n7", "r7", "f7", "/v1/p"] {
        let is_there = page
            .lines()
            .any(|line| line.contains(&format!("=\"{made_up}")));
        assert!(!is_there, "{made_up} is a label value");
    }
    let folded = |label: &str| {
        value(
            &page,
            &format!("tokenweir_label_overflow_total{{label=\"{label}\"}}"),
        )
    };
    assert!(
        (folded("tier") - count as f64).abs() < 0.5,
        "{}",
        folded("tier")
    );
    for label in ["gen_ai_request_model", "reason", "error_type"] {
        assert!(folded(label) > 50.0, "{label}: {}", folded(label));
    }
}

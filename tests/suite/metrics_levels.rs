//! The levels of the metrics: the number of series of each, as the documentation states it, and
//! dashboards and alerts that work at the default level.

use crate::metrics::samples;
use crate::support::scripted_backend::{
    FINISH, Page, ROLE, ScriptedBackend, Step, USAGE, WORD, json, stream_of,
};
use crate::support::test_gateway::{CHAT, Setup, start_with};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenweir::telemetry::metrics_registry::MetricsLevel;

/// Maximum number of series for each further backend at the level `standard`, with one model.
const MAX_STANDARD_SERIES_PER_BACKEND: usize = 165;

/// The number of series of a gateway with these numbers of backends after requests of all kinds:
/// all series, and those with the label `backend`.
async fn series(level: MetricsLevel, backends: usize) -> [usize; 2] {
    let page = crate::engine_metrics::recorded_page("python-metrics-spec.http");
    let mut fakes = Vec::new();
    for _ in 0..backends {
        let count = AtomicUsize::new(0);
        let fake = ScriptedBackend::start(move |_| {
            let usage = r#"{"usage":{"prompt_tokens":3,"total_tokens":3}}"#;
            vec![match count.fetch_add(1, Ordering::SeqCst) % 4 {
                0 => Step::Send(json("500 Internal Server Error", "{}")),
                1 => Step::Send(json("400 Bad Request", "{}")),
                2 => Step::Send(json("200 OK", usage)),
                _ => Step::Send(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])),
            }]
        })
        .await;
        fake.set_metrics(Some(Page::Whole(page.clone())));
        fakes.push(fake);
    }
    let addresses: Vec<_> = fakes.iter().map(|fake| fake.addr).collect();
    let gateway = start_with(&addresses, Setup { level, ..Setup::default() }).await;
    for _ in 0..12 * backends {
        gateway.post(CHAT, r#"{"model":"tiny","stream":true}"#).await;
        gateway.record().await;
    }
    let is_scraped = |backend: &std::sync::Arc<tokenweir::backend::Backend>| {
        backend.health.state().sample.is_some()
    };
    wait_until!(gateway.pool.backends().iter().all(is_scraped));
    let samples = samples(&gateway.admin("/metrics").await);
    let with_backend = samples.iter().filter(|(series, _)| series.contains("backend=\"")).count();
    [samples.len(), with_backend]
}

#[tokio::test]
async fn each_level_has_the_documented_number_of_series() {
    let mut table =
        String::from("| `metrics.level` | without a backend | per backend |\n|---|--:|--:|\n");
    for level in MetricsLevel::ALL {
        let [all, with_backend] = series(level, 2).await;
        let per_backend = with_backend / 2;
        if level == MetricsLevel::Standard {
            assert!(per_backend <= MAX_STANDARD_SERIES_PER_BACKEND, "{per_backend}");
        }
        let row = [all - with_backend, per_backend].map(round_up);
        writeln!(table, "| `{}` | {} | {} |", level.as_str(), row[0], row[1]).unwrap();
    }
    let page = "docs/operate/size.md";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text.contains(&table), "put this table into {page}:\n\n{table}");
}

/// The number rounded up to a multiple of 10: `process_*` and the backend that gets a failure first
/// vary by a few series.
fn round_up(series: usize) -> usize {
    series.div_ceil(10) * 10
}

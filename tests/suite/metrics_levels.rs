//! The levels of the metrics. Each level has the documented number of time series. Dashboards and alerts work
//! at the default level.

use crate::documentation::read;
use crate::metrics::samples;
use crate::support::scripted_backend::{
    FINISH, Page, ROLE, ScriptedBackend, Step, USAGE, WORD, json, stream_of,
};
use crate::support::test_gateway::{CHAT, Running, Setup, start_before};
use std::io::Read;
use tokenweir_gateway::telemetry::metrics_registry::MetricsLevel;

/// How many time series each further backend may add at the level `standard`, if it serves one model.
const MAX_STANDARD_SERIES_PER_BACKEND: usize = 120;
/// Maximum size in bytes of a compressed page of 50 backends at the level `standard`.
const MAX_COMPRESSED_BYTES: usize = 60_000;

/// Starts a gateway with this metrics level and this number of backends, and sends requests of all kinds.
/// Also returns the backends, which end when they are dropped.
async fn used_gateway(level: MetricsLevel, backends: usize) -> (Running, Vec<ScriptedBackend>) {
    let page = crate::engine_metrics::recorded_page();
    let mut fakes = Vec::new();
    for _ in 0..backends {
        let fake = ScriptedBackend::start(|seen| {
            let usage = r#"{"choices":["a"],"usage":{"prompt_tokens":3,"total_tokens":3}}"#;
            vec![match seen.number % 4 {
                0 => Step::Send(json("500 Internal Server Error", "{}")),
                1 => Step::Send(json("400 Bad Request", "{}")),
                2 => Step::Send(json("200 OK", usage)),
                _ => Step::Send(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])),
            }]
        })
        .await;
        fake.set_metrics(Some(Page::of(page)));
        fakes.push(fake);
    }
    let gateway = start_before(
        &fakes,
        Setup {
            level,
            ..Setup::default()
        },
    )
    .await;
    for _ in 0..12 * backends {
        gateway
            .post(CHAT, r#"{"model":"tiny","stream":true}"#)
            .await;
        gateway.record().await;
    }
    let is_scraped = |backend: &std::sync::Arc<tokenweir_gateway::backend::Backend>| {
        backend.health.state().sample.is_some()
    };
    wait_until!(gateway.pool.backends().iter().all(is_scraped));
    (gateway, fakes)
}

/// Returns two numbers of time series on the metrics page of [`used_gateway`]: all, and those with the label
/// `backend`.
async fn series(level: MetricsLevel, backends: usize) -> [usize; 2] {
    let (gateway, _backends) = used_gateway(level, backends).await;
    let samples = samples(&gateway.admin("/metrics").await);
    let with_backend = samples
        .iter()
        .filter(|(series, _)| series.contains("backend=\""))
        .count();
    [samples.len(), with_backend]
}

/// Returns the numbers of a metrics level in the table of `docs/operate/size.md`: time series without
/// backends, and time series per backend.
fn documented(page: &str, level: MetricsLevel) -> [usize; 2] {
    let row = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("| `{}` | ", level.as_str())));
    let mut cells = row
        .unwrap()
        .trim_end_matches(" |")
        .split(" | ")
        .map(|cell| cell.parse().unwrap());
    [cells.next().unwrap(), cells.next().unwrap()]
}

/// Some time series may be missing or additional, because `process_*`, the phases of streams and the results
/// of attempts vary.
#[tokio::test]
async fn each_level_has_the_documented_series() {
    let page = read("docs/operate/size.md");
    for level in MetricsLevel::ALL {
        let [all, with_backend] = series(level, 2).await;
        let per_backend = with_backend / 2;
        if level == MetricsLevel::Standard {
            assert!(
                per_backend <= MAX_STANDARD_SERIES_PER_BACKEND,
                "{per_backend}"
            );
        }
        for (number, documented) in [all - with_backend, per_backend]
            .into_iter()
            .zip(documented(&page, level))
        {
            assert!(
                number.abs_diff(documented) <= 20 + documented / 20,
                "{level:?}: {number}, page: {documented}"
            );
        }
    }
}

#[tokio::test]
async fn the_page_of_50_backends_is_small() {
    let (gateway, _backends) = used_gateway(MetricsLevel::Standard, 50).await;
    let response = gateway
        .get_admin_bytes("/metrics", "accept-encoding: gzip")
        .await;
    let head_bytes = memchr::memmem::find(&response, b"\r\n\r\n").unwrap() + 4;
    let (head, compressed) = response.split_at(head_bytes);
    let head = str::from_utf8(head).unwrap();
    assert!(head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
    let mut page = head.to_owned();
    flate2::read::GzDecoder::new(compressed)
        .read_to_string(&mut page)
        .unwrap();
    let plain = gateway.admin("/metrics").await;
    println!("{} bytes, compressed {}", page.len(), compressed.len());
    assert!(!plain.contains("content-encoding"));
    let names = |page: &str| {
        samples(page)
            .into_iter()
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&page), names(&plain));
    assert!(
        compressed.len() <= MAX_COMPRESSED_BYTES,
        "{} bytes",
        compressed.len()
    );
}

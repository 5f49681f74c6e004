//! GPUs of backends. The gateway reads the metrics pages of DCGM exporters and assigns their GPUs to
//! backends. If an exporter fails, its last values remain, and no request fails.

use crate::metrics::{assert_value, samples, value};
use crate::support::scripted_backend::{Page, ScriptedBackend, WHOLE_STREAM, response, stream_of};
use crate::support::test_gateway::{Running, Setup, gateway_answering_with, start_with};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tokenweir_engine::address::MetricsUrl;
use tokenweir_gpu::GpuExporter;
use tokenweir_gpu::{GpuIndex, GpuPage, GpuRule};

async fn serving() -> ScriptedBackend {
    ScriptedBackend::answering(stream_of(&WHOLE_STREAM)).await
}

fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages/gpu")
}

fn gpu_page(name: &str) -> String {
    fs::read_to_string(pages().join(name)).unwrap()
}

fn exporter(fake: &ScriptedBackend, rules: Vec<GpuRule>) -> GpuExporter {
    let url = MetricsUrl::parse(&format!("http://{}", fake.addr)).unwrap();
    GpuExporter { url, rules }
}

fn rule(backend: &ScriptedBackend, gpu: &str) -> GpuRule {
    GpuRule {
        backend: backend.addr.to_string(),
        gpus: Some(vec![GpuIndex::parse(gpu).unwrap()]),
        pod: None,
        host_name: None,
    }
}

/// Waits until the state of the only GPU exporter fulfils a condition. Returns this state.
async fn exporter_when(gateway: &Running, is_it: impl Fn(&Value) -> bool) -> Value {
    wait_for!({
        let status = gateway.document("/status").await;
        Some(status["gpu_exporters"][0].clone()).filter(&is_it)
    })
}

fn is_read(exporter: &Value) -> bool {
    exporter["scrape_age_seconds"].is_number()
}

#[test]
fn recorded_exporter_pages_give_the_expected_values() {
    let pages: Vec<PathBuf> = fs::read_dir(pages())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    assert!(pages.len() >= 3);
    for path in pages {
        let expected: Value =
            serde_json::from_str(&fs::read_to_string(path.with_extension("json")).unwrap())
                .unwrap();
        let page = GpuPage::read(&fs::read(&path).unwrap()).unwrap();
        let missing: Vec<&str> = page.missing_signals().map(|signal| signal.name).collect();
        assert_eq!(serde_json::json!(missing), expected["missing"], "{path:?}");
        assert_eq!(
            page.gpus.len(),
            expected["gpus"].as_array().unwrap().len(),
            "{path:?}"
        );
        for (gpu, expected) in page.gpus.iter().zip(expected["gpus"].as_array().unwrap()) {
            assert_eq!(gpu.index.to_string(), expected["index"], "{path:?}");
            assert_eq!(
                gpu.host_name.as_deref(),
                expected["host_name"].as_str(),
                "{path:?}"
            );
            let pods: Vec<&str> = gpu.pods.iter().map(|pod| &**pod).collect();
            assert_eq!(serde_json::json!(pods), expected["pods"], "{path:?}");
            let values = serde_json::to_value(gpu.values).unwrap();
            for (name, value) in values.as_object().unwrap() {
                assert_same(
                    value,
                    &expected["values"][name],
                    &format!("{path:?} {name}"),
                );
            }
        }
    }
}

/// Asserts that two JSON values are equal, except for rounding. A missing list equals a list of nulls.
fn assert_same(value: &Value, expected: &Value, name: &str) {
    match (value, expected) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() <= 1e-9 * b.abs(), "{name}: {a}, not {b}");
        }
        (Value::Array(values), Value::Array(expected)) => {
            assert_eq!(values.len(), expected.len(), "{name}");
            for (value, expected) in values.iter().zip(expected) {
                assert_same(value, expected, name);
            }
        }
        (Value::Array(values), Value::Null) => {
            assert!(values.iter().all(Value::is_null), "{name}");
        }
        (value, expected) => assert_eq!(value, expected, "{name}"),
    }
}

#[tokio::test]
async fn a_single_backend_owns_its_hosts_gpus() {
    let dcgm = ScriptedBackend::start(|_| Vec::new()).await;
    dcgm.set_metrics(Some(Page::of(&gpu_page("dcgm_default.txt"))));
    let setup = Setup {
        gpu_exporters: vec![exporter(&dcgm, Vec::new())],
        ..Setup::default()
    };
    let (backend, gateway) = gateway_answering_with(setup, stream_of(&WHOLE_STREAM)).await;
    let exporter = exporter_when(&gateway, is_read).await;
    assert_eq!(
        (&exporter["assigned"], &exporter["unassigned"]),
        (&2.into(), &Value::Array(vec![]))
    );
    assert_eq!(exporter["missing"][0]["signal"], "throttling");
    let page = gateway.admin("/metrics").await;
    let labels = |gpu| {
        format!(
            "{{backend=\"{}\",exporter=\"{}\",gpu=\"{gpu}\"",
            backend.addr, dcgm.addr
        )
    };
    for (name, end, expected) in [
        ("tokenweir_gpu_utilization_ratio", "}", 0.97),
        (
            "tokenweir_gpu_memory_used_bytes",
            "}",
            20_720.0 * 1_048_576.0,
        ),
        (
            "tokenweir_gpu_temperature_celsius",
            ",sensor=\"gpu\"}",
            61.0,
        ),
        ("tokenweir_gpu_last_xid", "}", 0.0),
    ] {
        let found = value(&page, &format!("{name}{}{end}", labels(0)));
        assert!(
            (found - expected).abs() < 1e-9 * expected.max(1.0),
            "{name}: {found}"
        );
    }
    assert!(
        !page.contains("tokenweir_gpu_throttle_active{"),
        "not reported"
    );
    let backend_gpus = |document: &Value| document["backends"][0].clone();
    let status = backend_gpus(&gateway.document("/status").await);
    assert_eq!(status["gpus"][0]["gpu"], "0", "{status:#}");
    let summary = backend_gpus(&gateway.document("/streams").await);
    assert_eq!(summary["gpus"]["count"], 2, "{summary:#}");
    assert_eq!(summary["gpus"]["max_temperature_celsius"], 61.0);
}

#[tokio::test]
async fn rules_assign_gpus_of_shared_hosts() {
    let (one, two) = (serving().await, serving().await);
    let dcgm = ScriptedBackend::start(|_| Vec::new()).await;
    dcgm.set_metrics(Some(Page::of(&gpu_page("dcgm_kubernetes.txt"))));
    let backends = [one.addr, two.addr];
    let setup = |rules| Setup {
        gpu_exporters: vec![exporter(&dcgm, rules)],
        ..Setup::default()
    };
    let without_rules = start_with(&backends, setup(Vec::new())).await;
    let ambiguous = exporter_when(&without_rules, is_read).await;
    assert_eq!(ambiguous["is_ambiguous"], true, "{ambiguous:#}");
    assert_eq!(ambiguous["unassigned"], serde_json::json!(["0", "1"]));
    assert!(
        !without_rules
            .admin("/metrics")
            .await
            .contains("tokenweir_gpu_utilization_ratio{")
    );
    let gateway = start_with(&backends, setup(vec![rule(&one, "0"), rule(&two, "1")])).await;
    exporter_when(&gateway, is_read).await;
    let page = gateway.admin("/metrics").await;
    let throttled: Vec<String> = samples(&page)
        .into_iter()
        .filter(|(series, value)| {
            series.starts_with("tokenweir_gpu_throttle_active{") && *value > 0.0
        })
        .map(|(series, _)| series)
        .collect();
    assert_eq!(throttled.len(), 4, "{throttled:?}");
    let of_two = throttled
        .iter()
        .filter(|series| series.contains(&two.addr.to_string()));
    assert_eq!(
        of_two.filter(|series| series.contains("thermal")).count(),
        2
    );
    let errors = format!(
        "tokenweir_gpu_memory_errors_total{{backend=\"{}\",exporter=\"{}\",gpu=\"1\",type=\"uncorrected\"}}",
        two.addr, dcgm.addr
    );
    assert_value(&page, &errors, 1.0);
}

#[tokio::test]
async fn last_values_stay_after_a_failed_scrape() {
    let dcgm = ScriptedBackend::start(|_| Vec::new()).await;
    let setup = Setup {
        gpu_exporters: vec![exporter(&dcgm, Vec::new())],
        ..Setup::default()
    };
    let (_backend, gateway) = gateway_answering_with(setup, stream_of(&WHOLE_STREAM)).await;
    let good = || Page::of(&gpu_page("dcgm_default.txt"));
    for (bad, error) in [
        (Page::of("<html>not found</html>"), "not_understood"),
        (Page::Whole(response("500 No", "", "")), "status"),
        (
            Page::Cut(b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\nDCGM_".to_vec()),
            "truncated",
        ),
    ] {
        dcgm.set_metrics(Some(good()));
        exporter_when(&gateway, |it| is_read(it) && it["scrape_error"].is_null()).await;
        dcgm.set_metrics(Some(bad));
        let failed = exporter_when(&gateway, |it| it["scrape_error"] == error).await;
        assert_eq!(failed["assigned"], 2, "{error}");
        let age = format!(
            "tokenweir_gpu_exporter_scrape_age_seconds{{exporter=\"{}\"}}",
            dcgm.addr
        );
        let page = gateway.admin("/metrics").await;
        assert!(value(&page, &age) > 0.0 && page.contains("tokenweir_gpu_utilization_ratio{"));
        let response = gateway
            .post("/v1/chat/completions", r#"{"model":"tiny","stream":true}"#)
            .await;
        let response = String::from_utf8_lossy(&response);
        assert!(response.contains("[DONE]"), "{error}: {response}");
    }
    dcgm.set_metrics(Some(good()));
    exporter_when(&gateway, |it| it["scrape_error"].is_null()).await;
}

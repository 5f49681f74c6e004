//! Metrics pages of every engine dialect. The values that the gateway reads equal values that were written by
//! hand, or those that a simple, independent parser reads.

use crate::support::recording::folder;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tokenweir_engine::dialect::{EngineKind, EngineLoad, adapter_hash};
use tokenweir_engine::engine_metrics::EngineMetricSet;

/// Returns the values that the gateway reads from a metrics page, by the name of the field, without absent
/// values.
fn numbers(load: &EngineLoad) -> BTreeMap<&'static str, f64> {
    let fields = [
        ("kv_usage", load.kv_usage),
        ("kv_usage_least", load.min_kv_usage),
        ("waiting", load.waiting),
        ("waiting_capacity", load.waiting_capacity),
        ("waiting_deferred", load.waiting_deferred),
        ("swapped", load.swapped),
        ("cpu_cache_usage", load.cpu_cache_usage),
        ("cached_on_device", load.cached_by_source[0]),
        ("admission_rejections", load.admission_rejections),
        ("corrupted", load.corrupted),
        ("drafts", load.drafts),
        ("draft_tokens", load.draft_tokens),
        ("accepted_tokens", load.accepted_tokens),
        ("running", load.running),
        ("engines", load.engines),
        ("preemptions", load.preemptions),
        ("prefix_queries", load.prefix_queries),
        ("prefix_hits", load.prefix_hits),
        ("prompt_tokens", load.prompt_tokens),
        ("generation_tokens", load.generation_tokens),
        ("block_size", load.block_size),
        ("blocks", load.blocks),
        ("kv_tokens", load.kv_tokens),
        ("queue_seconds", load.queue_seconds),
        ("queued", load.queued),
        ("prefill_seconds", load.prefill_seconds),
        ("prefilled", load.prefilled),
        ("awake", load.awake),
        ("started", load.started),
    ];
    fields
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.extension().is_some_and(|actual| actual == extension))
        .collect()
}

fn assert_is(name: &str, expected: &Map<String, Value>, load: &EngineLoad) {
    let expected_numbers: BTreeMap<&str, f64> = expected
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
        .collect();
    let mut fields = numbers(load);
    fields.extend(
        load.capacity()
            .map(|capacity| ("capacity", capacity as f64)),
    );
    assert_eq!(fields, expected_numbers, "{name}");
    assert_eq!(
        load.server.map(EngineKind::as_str),
        expected["server"].as_str(),
        "{name}"
    );
    let names = |key: &str| -> Vec<&str> {
        let names = expected.get(key).and_then(Value::as_array);
        names
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    };
    let each = EngineMetricSet::from_load(load).each();
    let offered: Vec<&str> = each
        .filter_map(|(signal, it)| it.then_some(signal.name))
        .collect();
    assert_eq!(offered, names("offered"), "{name}");
    let hashes: Vec<u64> = names("adapters").into_iter().map(adapter_hash).collect();
    let adapters = load.adapters.unwrap_or_default();
    assert_eq!(adapters.hashes(), hashes, "{name}");
    assert!(load.is_understood(), "{name}");
}

#[test]
fn every_dialect_gives_the_expected_values() {
    let pages = files(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages"),
        "txt",
    );
    assert!(pages.len() >= 7, "{pages:?}");
    for path in pages {
        let name = path.display().to_string();
        let expected = fs::read(path.with_extension("json")).unwrap();
        let expected: Map<String, Value> = serde_json::from_slice(&expected).unwrap();
        let page = fs::read_to_string(path).unwrap();
        assert_is(&name, &expected, &EngineLoad::read(page.as_bytes()));
        let windows = page.replace('\n', "\r\n");
        assert_is(&name, &expected, &EngineLoad::read(windows.as_bytes()));
        assert_is(
            &name,
            &expected,
            &EngineLoad::read(page.trim_end().as_bytes()),
        );
    }
}

/// A sample of a metrics page, as the independent parser reads it.
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

fn parse(line: &str) -> Option<Sample> {
    let (name, labels, value) = if let Some((name, rest)) = line.split_once('{') {
        let (labels, value) = rest.rsplit_once('}')?;
        (name, labels, value)
    } else {
        let (name, value) = line.split_once(' ')?;
        (name, "", value)
    };
    // Splitting at these characters suffices: no recorded label value contains a comma or a quote, except in
    // lists, which this test does not need.
    let pairs = labels
        .split("\",")
        .filter_map(|pair| pair.split_once("=\""));
    let labels = pairs.map(|(name, value)| (name.into(), value.trim_end_matches('"').into()));
    Some(Sample {
        name: name.into(),
        labels: labels.collect(),
        value: value.trim().parse().ok()?,
    })
}

/// Returns the load that a metrics page of vLLM 0.32 reports, computed by the independent parser from all
/// samples of the page.
fn simple_load(page: &str) -> BTreeMap<&'static str, f64> {
    let samples: Vec<Sample> = page.lines().filter_map(parse).collect();
    let values_of = |name: &str, label: &str, wanted: &str| -> Vec<f64> {
        let name = format!("vllm:{name}");
        let is_wanted = |sample: &&Sample| {
            sample.name == name
                && (label.is_empty() || sample.labels.get(label).is_some_and(|it| it == wanted))
        };
        samples
            .iter()
            .filter(is_wanted)
            .map(|sample| sample.value)
            .collect()
    };
    let label = |wanted: &str| -> Vec<f64> {
        let caches = samples
            .iter()
            .filter(|sample| sample.name == "vllm:cache_config_info");
        caches
            .filter_map(|sample| sample.labels.get(wanted)?.parse().ok())
            .collect()
    };
    let mut fields = BTreeMap::new();
    let mut put = |field, values: Vec<f64>, fold: fn(&[f64]) -> f64| {
        if !values.is_empty() {
            fields.insert(field, fold(&values));
        }
    };
    let sum: fn(&[f64]) -> f64 = |values| values.iter().sum();
    let most: fn(&[f64]) -> f64 = |values| values.iter().copied().fold(f64::MIN, f64::max);
    let least: fn(&[f64]) -> f64 = |values| values.iter().copied().fold(f64::MAX, f64::min);
    for (field, name) in [
        ("waiting", "num_requests_waiting"),
        ("running", "num_requests_running"),
        ("preemptions", "num_preemptions_total"),
        ("prefix_queries", "prefix_cache_queries_total"),
        ("prefix_hits", "prefix_cache_hits_total"),
        ("admission_rejections", "admission_rejections_total"),
        ("corrupted", "corrupted_requests_total"),
        ("drafts", "spec_decode_num_drafts_total"),
        ("draft_tokens", "spec_decode_num_draft_tokens_total"),
        ("accepted_tokens", "spec_decode_num_accepted_tokens_total"),
        ("prompt_tokens", "prompt_tokens_total"),
        ("generation_tokens", "generation_tokens_total"),
        ("queue_seconds", "request_queue_time_seconds_sum"),
        ("queued", "request_queue_time_seconds_count"),
        ("prefill_seconds", "request_prefill_time_seconds_sum"),
        ("prefilled", "request_prefill_time_seconds_count"),
    ] {
        put(field, values_of(name, "", ""), sum);
    }
    put(
        "engines",
        values_of("num_requests_running", "", ""),
        |values| values.len() as f64,
    );
    put("kv_usage", values_of("kv_cache_usage_perc", "", ""), most);
    put(
        "kv_usage_least",
        values_of("kv_cache_usage_perc", "", ""),
        least,
    );
    put(
        "waiting_capacity",
        values_of("num_requests_waiting_by_reason", "reason", "capacity"),
        sum,
    );
    put(
        "waiting_deferred",
        values_of("num_requests_waiting_by_reason", "reason", "deferred"),
        sum,
    );
    let on_device = values_of("prompt_tokens_cached_by_source_total", "source", "device");
    put("cached_on_device", on_device, sum);
    put(
        "awake",
        values_of("engine_sleep_state", "sleep_state", "awake"),
        least,
    );
    put("block_size", label("block_size"), most);
    put("blocks", label("num_gpu_blocks"), sum);
    let started = samples
        .iter()
        .filter(|sample| sample.name == "process_start_time_seconds");
    put(
        "started",
        started.map(|sample| sample.value).collect(),
        most,
    );
    fields
}

#[test]
fn recorded_pages_agree_with_an_independent_parser() {
    let pages = files(&folder().join("metrics"), "http");
    assert!(pages.len() >= 20, "{pages:?}");
    let mut most_fields = 0;
    for path in pages {
        let page = fs::read_to_string(&path).unwrap();
        let expected = simple_load(&page);
        most_fields = most_fields.max(expected.len());
        assert_eq!(
            numbers(&EngineLoad::read(page.as_bytes())),
            expected,
            "{}",
            path.display()
        );
    }
    assert!(
        most_fields >= 19,
        "the simple parser finds {most_fields} fields"
    );
}

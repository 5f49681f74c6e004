//! Diagnosis with insufficient data: half of the metrics are missing, there are no observations of a gateway,
//! or too little time has passed.

use super::fleet_model::last_diagnosis;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokenweir_diagnose::{Diagnoser, Diagnosis, DiagnosisSample, EVERY, RULES};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::EngineLoad;

/// Returns the diagnosis of one backend after `samples` samples, each with the metrics page `page`. `None`:
/// the backend has no metrics page.
fn after(samples: u64, page: Option<&EngineLoad>) -> Diagnosis {
    last_diagnosis(samples, |_, at| {
        vec![DiagnosisSample {
            at,
            is_up: true,
            page: page.copied(),
            gateway: None,
            gpus: None,
        }]
    })
}

fn missing(diagnosis: &Diagnosis) -> BTreeMap<&str, Vec<&str>> {
    let undetermined = diagnosis.undetermined.iter();
    undetermined
        .map(|it| (&*it.verdict, it.missing.iter().map(|it| &**it).collect()))
        .collect()
}

#[test]
fn half_of_the_metrics_suffices_for_some_rules() {
    let queue = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n";
    let page = EngineLoad::read(queue.as_bytes());
    let diagnosis = after(13, Some(&page));
    assert!(
        diagnosis.verdicts.is_empty() && diagnosis.backends[0].is_determined,
        "{diagnosis:#?}"
    );
    let missing = missing(&diagnosis);
    assert_eq!(missing["kv_thrashing"], ["kv_usage", "preemptions"]);
    assert_eq!(missing["memory_leak"], ["kv_usage"]);
    assert_eq!(missing["stalls"], ["gateway"]);
    assert!(
        !missing.contains_key("shared_backend"),
        "the metrics of shared_backend are available"
    );
}

#[test]
fn without_engine_metrics_only_their_lack_is_reported() {
    let diagnosis = after(13, None);
    assert_eq!(diagnosis.verdicts.len(), 1);
    assert_eq!(diagnosis.verdicts[0].verdict, "blind");
    assert!(!diagnosis.backends[0].is_determined);
    assert_eq!(diagnosis.undetermined.len(), RULES.len() - 1);
}

#[test]
fn thirty_seconds_of_samples_are_needed() {
    let page = EngineLoad {
        waiting: Some(0.0),
        running: Some(0.0),
        ..EngineLoad::default()
    };
    let (short, enough) = (after(5, Some(&page)), after(6, Some(&page)));
    assert!(!short.backends[0].is_determined && enough.backends[0].is_determined);
    assert_eq!(EVERY * 6, Duration::from_secs(30));
    assert!(
        missing(&short)
            .values()
            .all(|it| it[..] == ["30 seconds of samples"])
    );
}

#[test]
fn samples_of_removed_backends_are_forgotten() {
    let (mut watch, start) = (Diagnoser::default(), Instant::now());
    let page = EngineLoad {
        waiting: Some(0.0),
        running: Some(0.0),
        ..EngineLoad::default()
    };
    let mut take_sample = |number: u32, name: &str| {
        let at = start + EVERY * number;
        let sample = DiagnosisSample {
            at,
            is_up: true,
            page: Some(page),
            gateway: None,
            gpus: None,
        };
        watch.diagnose(vec![(BackendId::new(name), sample)], at)
    };
    (0..12).for_each(|number| drop(take_sample(number, "gpu-0")));
    let other = take_sample(12, "gpu-1");
    assert_eq!(
        (other.backends.len(), other.backends[0].is_determined),
        (1, false)
    );
    assert!(!take_sample(13, "gpu-0").backends[0].is_determined);
}

//! Verdicts about the GPUs of a backend.

use super::fleet_model::last_diagnosis;
use std::time::Duration;
use tokenweir_diagnose::GpuCondition;
use tokenweir_diagnose::{Diagnosis, DiagnosisSample, EVERY};
use tokenweir_engine::dialect::EngineLoad;

/// Returns the diagnosis of one busy backend after `time`. `gpus` returns the state of its GPUs at a time since
/// the start.
fn after(time: Duration, gpus: impl Fn(Duration) -> Option<GpuCondition>) -> Diagnosis {
    last_diagnosis(time.as_secs() / EVERY.as_secs(), |step, at| {
        let page = EngineLoad {
            running: Some(8.0),
            waiting: Some(0.0),
            kv_usage: Some(0.4),
            generation_tokens: Some(1e3 * step as f64),
            ..EngineLoad::default()
        };
        let gpus = gpus(EVERY * step as u32);
        vec![DiagnosisSample {
            at,
            is_up: true,
            page: Some(page),
            gateway: None,
            gpus,
        }]
    })
}

/// Returns the diagnosis of three busy backends. The first backend has the GPUs `gpus`, and takes 25 times as
/// long for a token as the others.
fn slow_among_three(gpus: GpuCondition) -> Diagnosis {
    last_diagnosis(36, |step, at| {
        let gaps = 50.0 * step as f64;
        let samples = [(0.5, Some(gpus)), (0.02, None), (0.02, None)].map(|(seconds, gpus)| {
            let page = EngineLoad {
                running: Some(8.0),
                waiting: Some(0.0),
                gap_seconds: Some(seconds * gaps),
                gaps: Some(gaps),
                ..EngineLoad::default()
            };
            DiagnosisSample {
                at,
                is_up: true,
                page: Some(page),
                gateway: None,
                gpus,
            }
        });
        samples.into()
    })
}

/// Returns the state of GPUs without faults: busy, with constant memory usage.
fn healthy() -> GpuCondition {
    GpuCondition {
        utilization: Some(0.9),
        max_temperature_celsius: Some(62.0),
        is_throttled: Some(false),
    }
}

fn gpu_verdicts(diagnosis: &Diagnosis) -> Vec<&str> {
    let names = diagnosis.verdicts.iter().map(|verdict| &*verdict.verdict);
    names.filter(|name| name.starts_with("gpu_")).collect()
}

#[test]
fn healthy_and_unmeasured_gpus_have_no_verdict() {
    let diagnosis = after(Duration::from_hours(1), |_| Some(healthy()));
    assert!(gpu_verdicts(&diagnosis).is_empty(), "{diagnosis:#?}");
    assert_eq!(
        diagnosis.known_verdicts().get(&("gpu-0", "gpu_throttled")),
        None
    );
    let without_gpus = after(Duration::from_mins(3), |_| None);
    assert!(gpu_verdicts(&without_gpus).is_empty());
    let missing = without_gpus
        .undetermined
        .iter()
        .filter(|it| it.verdict.starts_with("gpu_"));
    assert!(missing.clone().count() == 1 && missing.clone().all(|it| it.missing == ["gpus"]));
}

#[test]
fn throttling_has_a_verdict_until_it_ends() {
    let hot = GpuCondition {
        is_throttled: Some(true),
        ..healthy()
    };
    let diagnosis = after(Duration::from_mins(3), |_| Some(hot));
    assert_eq!(gpu_verdicts(&diagnosis), ["gpu_throttled"]);
    let ended = after(Duration::from_mins(6), |at| {
        Some(if at < Duration::from_mins(3) {
            hot
        } else {
            healthy()
        })
    });
    assert!(gpu_verdicts(&ended).is_empty(), "{ended:#?}");
    let short = |at: Duration| {
        Some(if at.as_secs() % 60 < 10 {
            hot
        } else {
            healthy()
        })
    };
    assert!(gpu_verdicts(&after(Duration::from_mins(5), short)).is_empty());
}

#[test]
fn throttling_is_a_cause_only_if_shown() {
    for (is_throttled, expected) in [(Some(true), true), (Some(false), false), (None, false)] {
        let gpus = GpuCondition {
            is_throttled,
            ..healthy()
        };
        let diagnosis = slow_among_three(gpus);
        let verdict = diagnosis
            .verdicts
            .iter()
            .find(|it| it.verdict == "slow_engine");
        let cause = verdict.map(|it| it.cause.as_deref().is_some_and(|it| it.contains("clock")));
        assert_eq!(
            cause,
            Some(expected),
            "{is_throttled:?}: {:#?}",
            diagnosis.verdicts
        );
    }
}

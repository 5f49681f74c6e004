//! What cannot be told: pages with half of the metrics, replicas without a gateway, and too little
//! time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokenweir_core::dialect::Load;
use tokenweir_core::record::BackendId;
use tokenweir_diagnose::{Diagnosis, EVERY, RULES, Sample, Watch};

/// What is said of a replica with this page after so many looks.
fn after(looks: u32, page: Option<&Load>) -> Diagnosis {
    let (mut watch, start) = (Watch::default(), Instant::now());
    let mut diagnosis = Diagnosis::default();
    for look in 0..looks {
        let at = start + EVERY * look;
        let sample = Sample { at, is_up: true, page: page.copied(), seen: None };
        diagnosis = watch.look(vec![(BackendId::new("gpu-0"), sample)], at);
    }
    diagnosis
}

fn missing(diagnosis: &Diagnosis) -> BTreeMap<&str, Vec<&str>> {
    let untold = diagnosis.cannot_tell.iter();
    untold.map(|it| (&*it.verdict, it.missing.iter().map(|it| &**it).collect())).collect()
}

#[test]
fn an_old_version_with_half_the_metrics_is_judged_as_far_as_it_tells() {
    let queue = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n";
    let page = Load::read(queue.as_bytes());
    let diagnosis = after(13, Some(&page));
    assert!(diagnosis.verdicts.is_empty() && diagnosis.backends[0].is_judged, "{diagnosis:#?}");
    let missing = missing(&diagnosis);
    assert_eq!(missing["kv_thrashing"], ["kv_usage", "preemptions"]);
    assert_eq!(missing["memory_leak"], ["kv_usage"]);
    assert_eq!(missing["stalls"], ["gateway"]);
    assert!(!missing.contains_key("gpu_underused"), "its signals are there");
}

#[test]
fn a_page_that_is_not_of_an_engine_tells_nothing_and_is_named() {
    let diagnosis = after(13, None);
    assert_eq!(diagnosis.verdicts.len(), 1);
    assert_eq!(diagnosis.verdicts[0].verdict, "blind");
    assert!(!diagnosis.backends[0].is_judged);
    assert_eq!(diagnosis.cannot_tell.len(), RULES.len() - 1);
}

#[test]
fn less_than_three_quarters_of_a_minute_is_too_short() {
    let page = Load { waiting: Some(0.0), running: Some(0.0), ..Load::default() };
    let (short, enough) = (after(8, Some(&page)), after(9, Some(&page)));
    assert!(!short.backends[0].is_judged && enough.backends[0].is_judged);
    assert_eq!(EVERY * 9, Duration::from_secs(45));
    assert!(missing(&short).values().all(|it| it[..] == ["45 seconds of samples"]));
}

#[test]
fn a_replica_that_is_forgotten_begins_again() {
    let (mut watch, start) = (Watch::default(), Instant::now());
    let page = Load { waiting: Some(0.0), running: Some(0.0), ..Load::default() };
    let mut look = |number: u32, name: &str| {
        let at = start + EVERY * number;
        let sample = Sample { at, is_up: true, page: Some(page), seen: None };
        watch.look(vec![(BackendId::new(name), sample)], at)
    };
    (0..12).for_each(|number| drop(look(number, "gpu-0")));
    let other = look(12, "gpu-1");
    assert_eq!((other.backends.len(), other.backends[0].is_judged), (1, false));
    assert!(!look(13, "gpu-0").backends[0].is_judged);
}

//! Tests of the arbitration: which verdicts follow from others, and which remain.

use super::*;
use crate::fleet::tests::backend;
use tokenweir_routing::resilience::Availability;

struct Found(Vec<Verdict>);

impl Found {
    fn add(mut self, rule: &'static str, backends: &[usize], origin: Option<Origin>) -> Self {
        for number in backends {
            self.0.push(Verdict {
                verdict: rule.into(),
                backend: format!("gpu-{number}"),
                origin: origin.unwrap_or(Origin::of_rule(rule)),
                cause: Some("its own words".into()),
                severity: VerdictSeverity::Critical,
                ..Verdict::default()
            });
        }
        self
    }

    fn add_for_all(mut self, rule: &'static str) -> Self {
        self.0.push(Verdict {
            verdict: rule.into(),
            scope: VerdictScope::Fleet,
            origin: Origin::of_rule(rule),
            cause: Some("every backend is full".into()),
            severity: VerdictSeverity::Critical,
            ..Verdict::default()
        });
        self
    }

    /// The verdicts after arbitration among three backends, of which `down` are down, each as one line.
    fn lines(mut self, down: &[usize], client: Option<&str>) -> Vec<String> {
        let state = |number: usize| {
            if down.contains(&number) {
                Availability::Down
            } else {
                Availability::Available
            }
        };
        let named = (0..3).map(|number| backend(&format!("gpu-{number}"), state(number)));
        let backends: Vec<FleetBackend> = named.collect();
        arbitrate(&mut self.0, &backends, client);
        let line = |it: &Verdict| {
            let severity = it.severity.as_str();
            format!("{severity} {}: {}", it.subject(), it.cause_or_meaning())
        };
        self.0.iter().map(line).collect()
    }
}

const SEEN: &str = "its own words";

#[test]
fn a_kind_of_requests_explains_stalls_everywhere() {
    let lines = Found(Vec::new())
        .add("stalls", &[0, 1], Some(Origin::Network))
        .add("front_end_gap", &[0], Some(Origin::Network))
        .add("front_end_gap", &[1, 2], Some(Origin::Requests))
        .lines(&[], None);
    let follows = "follows from front_end_gap at gpu-1, gpu-2";
    let expected = [
        format!("info gpu-0: {follows}"),
        format!("info gpu-1: {follows}"),
        format!("info gpu-0: {follows}"),
        format!("critical gpu-1: {SEEN}"),
        format!("critical gpu-2: {SEEN}"),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn an_overloaded_peer_follows_from_lost_backends() {
    let lines = Found(Vec::new())
        .add("backend_down", &[0, 1], None)
        .add("prefill_starvation", &[2], None)
        .add_for_all("gateway_queue")
        .lines(&[0, 1], None);
    let follows = "follows from backend_down at gpu-0, gpu-1";
    let expected = [
        format!("critical gpu-0: {SEEN}"),
        format!("critical gpu-1: {SEEN}"),
        format!("info gpu-2: {follows}"),
        format!("info all backends: {follows}"),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_fault_of_one_engine_stands() {
    let lines = Found(Vec::new())
        .add("front_end_gap", &[1, 2], Some(Origin::Requests))
        .add("stalls", &[0], Some(Origin::Engine))
        .lines(&[], None);
    assert_eq!(lines[2], format!("critical gpu-0: {SEEN}"));
}

#[test]
fn full_engines_follow_from_a_client() {
    let client = "64 % of the open streams are of tenant etl";
    let lines = Found(Vec::new())
        .add("prefill_starvation", &[0, 1, 2], None)
        .add_for_all("gateway_queue")
        .lines(&[], Some(client));
    assert_eq!(
        lines[0],
        "info all backends: follows from gateway_queue at all backends"
    );
    assert_eq!(
        lines[3],
        format!("critical all backends: every backend is full; {client}")
    );
}

#[test]
fn one_slow_backend_explains_no_queue() {
    let lines = Found(Vec::new())
        .add("slow_engine", &[0], None)
        .add_for_all("gateway_queue")
        .lines(&[], None);
    assert_eq!(lines[1], "critical all backends: every backend is full");
}

#[test]
fn the_host_of_all_its_backends_is_named() {
    let mut found = Found(Vec::new()).add("backend_down", &[0, 1], None).0;
    let mut backends: Vec<FleetBackend> = (0..3)
        .map(|number| backend(&format!("gpu-{number}"), Availability::Available))
        .collect();
    backends[2].host = "10.0.0.2".into();
    arbitrate(&mut found, &backends, None);
    let cause = found[0].cause_or_meaning();
    assert!(
        cause.contains("all 2 backends of the host 127.0.0.1"),
        "{cause}"
    );
}

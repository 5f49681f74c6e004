//! Tests of the causes that the rule finds in a fleet of three backends.

use crate::fleet::FleetObservation;
use crate::history::{BackendRequestCounts, DiagnosisSample, EVERY, GatewayObservations};
use crate::{Diagnoser, RULES, Verdict};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_protocol::clock;

/// The observations of one backend in one step. A test changes the values to simulate a fault.
#[derive(Debug, Clone)]
struct Step {
    page: EngineLoad,
    gateway: GatewayObservations,
    number: u64,
}

/// Runs one minute of a healthy fleet and then one minute in which `change` changes the steps of the backends.
/// Returns the verdicts as `name backend: cause`.
fn found(change: impl Fn(usize, &mut Step)) -> Vec<String> {
    let mut diagnoser = Diagnoser::default();
    let mut now = clock::epoch();
    let mut verdicts: Vec<Verdict> = Vec::new();
    let mut stalls = [0; 3];
    for number in 1..=30 {
        now += EVERY;
        let mut samples = Vec::new();
        for (index, stalls) in stalls.iter_mut().enumerate() {
            let mut step = healthy(number);
            if number > 12 {
                change(index, &mut step);
            }
            *stalls += step.gateway.stalls;
            step.gateway.stalls = *stalls;
            samples.push((
                BackendId::new(&format!("gpu-{index}")),
                DiagnosisSample {
                    is_up: true,
                    page: Some(step.page),
                    gateway: Some(step.gateway),
                    ..DiagnosisSample::at(now)
                },
            ));
        }
        let fleet = FleetObservation::default();
        verdicts = diagnoser.diagnose_gateway(samples, &fleet, now).verdicts;
    }
    let is_of_rules = |verdict: &&Verdict| RULES.iter().any(|rule| rule.name == verdict.verdict);
    let text = |verdict: &Verdict| {
        let cause = verdict.cause.as_deref().unwrap_or_default();
        format!("{} {}: {cause}", verdict.verdict, verdict.backend)
    };
    verdicts.iter().filter(is_of_rules).map(text).collect()
}

/// Ten plain streams with a TTFT of 30 ms and 40 tokens.
fn healthy(number: u64) -> Step {
    let total = |per_step: f64| Some(per_step * number as f64);
    let page = EngineLoad {
        kv_usage: Some(0.2),
        running: Some(4.0),
        waiting: Some(0.0),
        generation_tokens: total(400.0),
        prompt_tokens: total(1_000.0),
        first_token_seconds: total(0.3),
        first_tokens: total(10.0),
        queue_seconds: total(0.01),
        queued: total(10.0),
        prefill_seconds: total(0.2),
        prefilled: total(10.0),
        gap_seconds: total(4.0),
        gaps: total(390.0),
        ..EngineLoad::default()
    };
    let counts = BackendRequestCounts {
        first_outputs: 10,
        first_output_seconds: 0.31,
        finished: 10,
        streams: 10,
        generated: 10,
        plain_outputs: 10,
        plain_seconds: 0.31,
        stream_tokens: 400,
        stream_events: 400,
        stream_arrivals: 400,
        ..BackendRequestCounts::default()
    };
    let gateway = GatewayObservations {
        in_flight: 4,
        weight: 1,
        page_seconds: Some(0.004),
        connects: 2,
        connect_seconds: 0.001,
        counts,
        ..GatewayObservations::default()
    };
    Step {
        page,
        gateway,
        number,
    }
}

/// Delays the first output of each stream of the step by `seconds`.
fn delay(step: &mut Step, seconds: f64) {
    let counts = &mut step.gateway.counts;
    counts.first_output_seconds += 10.0 * seconds;
    counts.plain_seconds += 10.0 * seconds;
}

#[track_caller]
fn assert_only(found: &[String], verdict: &str, words: &str) {
    assert!(!found.is_empty(), "{words}");
    for text in found {
        assert!(text.starts_with(verdict) && text.contains(words), "{text}");
    }
}

#[test]
fn healthy_steps_have_no_verdict() {
    assert_eq!(found(|_, _| {}), [""; 0]);
}

#[test]
fn slow_connects_are_named_without_a_lag() {
    let found = found(|index, step| {
        if index == 1 {
            step.gateway.connects = 1;
            step.gateway.connect_seconds = 1.6;
        }
    });
    let words = "opening a connection to it takes 1.6 s on average";
    assert_only(&found, "front_end_gap gpu-1", words);
}

#[test]
fn late_heads_on_new_connections_are_named() {
    let found = found(|index, step| {
        if index == 1 {
            step.gateway.first_heads = 1;
            step.gateway.first_head_seconds = 1.6;
        }
    });
    let words = "opening a connection to it takes";
    assert_only(&found, "front_end_gap gpu-1", words);
}

#[test]
fn late_heads_everywhere_are_no_slow_connects() {
    let found = found(|index, step| {
        if index == 1 {
            step.gateway.first_heads = 1;
            step.gateway.first_head_seconds = 1.6;
            step.gateway.counts.heads = 6;
            step.gateway.counts.head_seconds = 6.0 * 1.5;
        }
    });
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_slow_metrics_page_shows_the_api_server() {
    let found = found(|index, step| {
        if index == 1 {
            delay(step, 0.6);
            step.gateway.page_seconds = Some(0.8);
            step.gateway.stalls = 2;
        }
    });
    assert_eq!(found.len(), 2, "{found:?}");
    for text in found {
        assert!(
            text.contains("gpu-1: the API server of this backend"),
            "{text}"
        );
    }
}

#[test]
fn late_pages_of_all_backends_show_network_delay() {
    let found = found(|_, step| {
        delay(step, 0.3);
        step.gateway.page_seconds = Some(0.5);
    });
    assert_only(&found, "front_end_gap", "the network between the gateway");
}

#[test]
fn lumps_of_tokens_are_named() {
    let found = found(|index, step| {
        if index == 2 {
            delay(step, 0.4);
            step.gateway.counts.stream_events = 16;
            step.gateway.counts.stream_arrivals = 16;
        }
    });
    let words = "its tokens arrive in lumps of 25, at its peers 1: the engine sends them so";
    assert_only(&found, "front_end_gap gpu-2", words);
}

#[test]
fn events_that_a_proxy_collects_are_named() {
    let found = found(|index, step| {
        if index == 2 {
            delay(step, 0.4);
            step.gateway.counts.stream_arrivals = 20;
        }
    });
    assert_only(
        &found,
        "front_end_gap gpu-2",
        "a proxy on the way collects them",
    );
}

#[test]
fn only_requests_with_media_wait() {
    let found = found(|_, step| {
        let counts = &mut step.gateway.counts;
        counts.first_output_seconds += 2.0 * 6.0;
        counts.plain_outputs = 8;
        counts.plain_seconds = 0.25;
        counts.media_outputs = 2;
        counts.media_seconds = 12.06;
    });
    assert_only(&found, "front_end_gap", "only requests with media wait");
}

#[test]
fn a_hanging_stream_beside_served_ones_is_named() {
    let found = found(|index, step| {
        if index == 0 {
            step.gateway.hanging = 1;
            step.gateway.hanging_seconds = 30.0;
        }
    });
    assert_only(
        &found,
        "stalls gpu-0",
        "requests there hang without output while many",
    );
}

#[test]
fn a_limit_below_that_of_peers_is_named() {
    let found = found(|index, step| {
        let is_limited = index == 2;
        step.gateway.in_flight = if is_limited { 7 } else { 9 };
        step.page.running = Some(if is_limited { 2.0 } else { 9.0 });
        step.page.waiting = Some(if is_limited { 5.0 } else { 0.0 });
        if is_limited {
            let since = step.number as f64 - 12.0;
            step.page.first_token_seconds =
                step.page.first_token_seconds.map(|it| it + 26.0 * since);
            step.page.queue_seconds = step.page.queue_seconds.map(|it| it + 26.0 * since);
            delay(step, 2.6);
            step.gateway.counts.slow_first_outputs = 6;
        }
    });
    assert_only(
        &found,
        "prefill_starvation gpu-2",
        "it runs at most 2 requests at once",
    );
}

#[test]
fn a_disturbed_gateway_accuses_no_backend() {
    let mut diagnoser = Diagnoser::default();
    let mut now = clock::epoch();
    let mut fleet = FleetObservation::default();
    for number in 1..=30 {
        now += EVERY;
        fleet.gateway.cpu.timers += 40;
        let mut step = healthy(number);
        if number > 12 {
            fleet.gateway.cpu.pauses += 1;
            fleet.gateway.cpu.pause_seconds += 3.0;
            fleet.gateway.cpu.late_seconds += 3.0;
            fleet.gateway.cpu.longest_pause_seconds = 3.0;
            delay(&mut step, 1.0);
            step.gateway.stalls = 3 * number;
        }
        let sample = DiagnosisSample {
            is_up: true,
            page: Some(step.page),
            gateway: Some(step.gateway),
            ..DiagnosisSample::at(now)
        };
        let id = BackendId::new("gpu-0");
        let diagnosis = diagnoser.diagnose_gateway(vec![(id, sample)], &fleet, now);
        let of_backend = diagnosis
            .verdicts
            .iter()
            .find(|found| found.backend == "gpu-0");
        assert!(of_backend.is_none(), "{number}: {of_backend:?}");
        let is_named = diagnosis
            .verdicts
            .iter()
            .any(|found| found.cause_or_meaning().starts_with("it stood still"));
        assert_eq!(is_named, number > 12, "{number}");
    }
}

//! One replica with one thing wrong.

use super::*;

#[test]
fn names_of_checks_are_words_and_differ() {
    let mut names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CHECKS.len());
    assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
}

#[test]
fn a_well_vllm_gets_nothing_worse_than_notes_and_each_says_what_to_do() {
    let findings = found(|_| {});
    assert_eq!(worst(&findings), Some(Severity::Note), "{findings:#?}");
    let queue = one(&findings, "queue_limit");
    assert!(queue.change.as_ref().unwrap().contains("--max-num-queued-reqs"), "{queue:?}");
    for finding in &findings {
        assert!(!finding.why.is_empty() && finding.change.is_some(), "{finding:?}");
    }
}

#[test]
fn each_way_not_to_answer_has_its_own_advice() {
    for (silence, advice) in [
        (Silence::Connect("Connection refused (os error 111)".into()), "vllm serve MODEL"),
        (Silence::Tls("TLS: invalid peer certificate: UnknownIssuer".into()), "backend_tls.ca"),
        (
            Silence::Tls("TLS: received corrupt message of type InvalidContentType".into()),
            "http://a",
        ),
        (Silence::Timeout(Duration::from_secs(5)), "--timeout"),
        (Silence::NotHttp("invalid HTTP version parsed".into()), "https://a"),
        (Silence::Closed("connection closed".into()), "https://a"),
    ] {
        let findings = found(|replica| replica.health = Err(silence.clone()));
        let finding = one(&findings, "reachable");
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.change.as_ref().unwrap().contains(advice), "{finding:?}");
        assert!(findings.len() <= 2, "nothing else is said of it: {findings:#?}");
    }
    assert_eq!(
        one(&found(|it| it.health = Ok(answer(503, ""))), "health").severity,
        Severity::Error
    );
}

#[test]
fn what_is_not_vllm_is_told_apart_from_what_is_nothing() {
    let nothing = found(|replica| {
        replica.models = Ok(answer(404, "<html>"));
        replica.metrics = Ok(answer(404, "<html>"));
    });
    assert_eq!(one(&nothing, "server").severity, Severity::Error);
    assert!(of(&nothing, "metrics").is_empty(), "one statement is enough: {nothing:#?}");
    let llama = found(|replica| {
        replica.models = Ok(answer(200, r#"{"data":[{"id":"a","owned_by":"llamacpp"}]}"#));
        replica.metrics = Ok(answer(501, ""));
    });
    assert_eq!(one(&llama, "server").severity, Severity::Note);
    assert_eq!(one(&llama, "metrics").change.as_deref(), Some("start it with --metrics"));
    let gateway = found(|replica| {
        let mut not_found = answer(404, "{}");
        not_found.headers.insert("x-gateway-error", HeaderValue::from_static("not_found"));
        replica.metrics = Ok(not_found);
    });
    assert!(one(&gateway, "server").change.as_ref().unwrap().contains("--admin"));
}

#[test]
fn versions_that_are_too_old_too_new_or_not_known_are_told() {
    let of_version = |text: &str| {
        let body = format!(r#"{{"version":"{text}"}}"#);
        let findings = found(|replica| replica.version = Ok(answer(200, &body)));
        of(&findings, "version").first().map(|finding| finding.severity)
    };
    assert_eq!(of_version("0.5.4"), Some(Severity::Warning));
    assert_eq!(of_version("0.9.1"), Some(Severity::Note));
    assert_eq!(of_version("0.32.0+cpu"), None);
    assert_eq!(of_version("0.40.0"), Some(Severity::Note));
    assert_eq!(of_version("nightly"), Some(Severity::Note));
    assert_eq!(
        one(&found(|it| it.version = Ok(answer(404, ""))), "version").severity,
        Severity::Note
    );
}

#[test]
fn keys_that_are_wanted_wrong_or_not_needed_are_told() {
    let refused = || Ok(answer(401, r#"{"error":"Unauthorized"}"#));
    let known = || Key::Known(HeaderValue::from_static("Bearer sekret"));
    let wanted = found(|replica| replica.models = refused());
    assert_eq!(one(&wanted, "key").severity, Severity::Error);
    assert!(of(&wanted, "models").is_empty() && of(&wanted, "server").is_empty());
    let wrong = found(|replica| {
        (replica.key, replica.models, replica.models_without_key) =
            (known(), refused(), Some(refused()));
    });
    assert!(one(&wrong, "key").seen.contains("refuses the key"));
    assert!(!format!("{wrong:?}").contains("sekret"));
    let idle = found(|replica| {
        (replica.key, replica.models_without_key) = (known(), Some(Ok(answer(200, MODELS))));
    });
    assert_eq!(one(&idle, "key").severity, Severity::Note);
    let right = found(|replica| {
        (replica.key, replica.models_without_key) = (known(), Some(refused()));
        open(replica, "/invocations");
    });
    assert!(of(&right, "key").is_empty());
    assert!(one(&right, "unguarded").seen.contains("/invocations"));
    let missing = found(|replica| {
        replica.key = Key::Missing("KEY is not set".into());
        replica.health = Err(Silence::Timeout(Duration::from_secs(5)));
    });
    assert_eq!(one(&missing, "key").severity, Severity::Error);
}

fn open(replica: &mut Replica, path: &str) {
    let status = &mut replica.options.iter_mut().find(|(it, _)| *it == path).unwrap().1;
    *status = Some(StatusCode::METHOD_NOT_ALLOWED);
}

#[test]
fn paths_that_act_are_found_and_a_server_that_answers_alike_to_all_tells_nothing() {
    let developer = found(|replica| {
        open(replica, "/collective_rpc");
        open(replica, "/sleep");
    });
    let finding = one(&developer, "exposed");
    assert_eq!(finding.severity, Severity::Error);
    assert!(finding.seen.contains("/collective_rpc /sleep"), "{finding:?}");
    assert!(finding.change.as_ref().unwrap().contains("VLLM_SERVER_DEV_MODE"));
    for path in ["/is_paused", "/init_weight_transfer_engine", "/weight_checker"] {
        let reached = found(|replica| open(replica, path));
        assert!(one(&reached, "exposed").seen.ends_with(path), "{reached:?}");
    }
    let adapters = found(|replica| open(replica, "/v1/load_lora_adapter"));
    assert_eq!(one(&adapters, "exposed").severity, Severity::Warning);
    for status in [StatusCode::OK, StatusCode::METHOD_NOT_ALLOWED] {
        let alike = found(|replica| {
            replica.options.iter_mut().for_each(|(_, it)| *it = Some(status));
        });
        assert!(one(&alike, "exposed").seen.contains("cannot be seen"));
    }
}

#[test]
fn kv_events_that_everybody_can_find_and_a_port_without_a_key_are_reported() {
    let sources =
        r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}}"#;
    let events = found(|replica| replica.event_sources = Ok(answer(200, sources)));
    let finding = one(&events, "exposed");
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.seen.contains("tcp://*:5557"), "{finding:?}");
    for quiet in
        ["{}", r#"{"0":{"enable_kv_cache_events":false,"endpoint":"tcp://*:1"}}"#, "[]", ""]
    {
        let none = found(|replica| replica.event_sources = Ok(answer(200, quiet)));
        assert!(of(&none, "exposed").is_empty(), "{quiet}");
    }
    let finding = one(&found(|_| {}), "key").clone();
    assert_eq!((finding.severity, &*finding.seen), (Severity::Note, "serves without a key"));
}

#[test]
fn metrics_that_are_missing_are_told_with_what_they_cost() {
    let none = found(|replica| replica.metrics = Ok(recorded(NO_STATS)));
    let finding = one(&none, "metrics");
    assert_eq!(finding.severity, Severity::Error);
    assert!(finding.change.as_ref().unwrap().contains("--disable-log-stats"));
    let half = found(|replica| {
        replica.metrics = Ok(recorded(&PYTHON.replace("vllm:kv_cache_usage_perc{", "vllm:other{")));
    });
    assert!(one(&half, "signals").seen.contains("kv_usage"), "{half:#?}");
    assert_eq!(one(&half, "signals").severity, Severity::Warning);
    let old = found(|replica| replica.metrics = Ok(answer(200, BEFORE_0_9)));
    assert!(of(&old, "signals").iter().all(|finding| finding.severity == Severity::Note));
    assert!(!of(&old, "signals").is_empty());
    let rust = found(|replica| replica.metrics = Ok(recorded(RUST)));
    assert!(of(&rust, "signals").iter().any(|finding| finding.seen.contains("kv_capacity")));
    let slow = found(|replica| {
        if let Ok(answer) = &mut replica.metrics {
            answer.took = Duration::from_millis(1_900);
        }
    });
    assert_eq!(one(&slow, "scrape_time").severity, Severity::Warning);
}

#[test]
fn an_engine_without_a_prefix_cache_or_asleep_is_told() {
    let with = |from: &str, to: &str| {
        let page = PYTHON.replace(from, to);
        assert_ne!(page, PYTHON);
        found(|replica| replica.metrics = Ok(recorded(&page)))
    };
    let off = with("enable_prefix_caching=\"True\"", "enable_prefix_caching=\"False\"");
    let finding = one(&off, "prefix_caching");
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!(finding.change.as_deref(), Some("vllm serve --enable-prefix-caching"));
    let awake = "engine_sleep_state{engine=\"0\",model_name=\"tiny\",sleep_state=\"awake\"} ";
    let asleep = with(&format!("{awake}1.0"), &format!("{awake}0.0"));
    assert_eq!(one(&asleep, "sleep").severity, Severity::Warning);
    let refused = "reason=\"max_num_queued_reqs\"} ";
    let limited = with(&format!("{refused}0.0"), &format!("{refused}3.0"));
    assert!(of(&limited, "queue_limit").is_empty(), "it has a limit");
}

#[test]
fn a_clock_is_wrong_only_by_more_than_its_date_can_hide() {
    let at = |seconds: i64| {
        let findings = found(|replica| {
            let shift = Duration::from_secs(seconds.unsigned_abs());
            let now = if seconds < 0 { noon() - shift } else { noon() + shift };
            replica.health.as_mut().unwrap().clock = [now; 2];
        });
        of(&findings, "clock").first().map(|finding| finding.seen.clone())
    };
    assert_eq!([at(0), at(2), at(3), at(-1)], [None, None, None, None]);
    assert!(at(10).unwrap().contains("8 s behind"));
    assert!(at(-90).unwrap().contains("90 s ahead of"));
}

#[test]
fn connections_that_close_before_the_gateway_gives_them_up_are_told() {
    let closed = |millis: u64| {
        found(|replica| replica.idle = Some(Idle::Closed(Duration::from_millis(millis))))
    };
    assert_eq!(one(&closed(2_000), "keep_alive").severity, Severity::Warning);
    assert_eq!(one(&closed(3_200), "keep_alive").severity, Severity::Warning);
    let usual = closed(5_000);
    let finding = one(&usual, "keep_alive");
    assert_eq!(finding.severity, Severity::Note);
    assert!(finding.change.as_ref().unwrap().contains("VLLM_HTTP_TIMEOUT_KEEP_ALIVE=120"));
    let longer =
        Configuration { idle_connection: Duration::from_secs(10), ..Configuration::default() };
    let mut replica = replica("a");
    replica.idle = Some(Idle::Closed(Duration::from_secs(5)));
    assert_eq!(one(&configured(longer, vec![replica]), "keep_alive").severity, Severity::Warning);
    assert!(of(&found(|replica| replica.idle = None), "keep_alive").is_empty());
    let short = found(|replica| replica.idle = Some(Idle::Open(Duration::from_secs(1))));
    assert!(one(&short, "keep_alive").change.as_ref().unwrap().contains("--idle"));
}

#[test]
fn tokens_that_come_all_at_once_were_collected_by_somebody() {
    let steady =
        found(|replica| replica.probe = Some(Ok(probe(STREAM, Duration::from_micros(900)))));
    assert!(of(&steady, "stream").is_empty(), "{steady:#?}");
    let burst = found(|replica| replica.probe = Some(Ok(probe(STREAM, Duration::from_micros(5)))));
    assert_eq!(one(&burst, "stream").severity, Severity::Warning);
    assert!(one(&burst, "stream").change.as_ref().unwrap().contains("proxy_buffering off"));
    let nginx = found(|replica| {
        let server = HeaderValue::from_static("nginx/1.22");
        replica.models.as_mut().unwrap().headers.insert("server", server);
    });
    assert!(one(&nginx, "in_between").seen.contains("nginx/1.22"));
}

#[test]
fn a_probe_that_fails_in_any_way_is_told_as_it_failed() {
    let cut = STREAM.split_once("data: [DONE]").unwrap().0;
    let gap = Duration::from_millis(3);
    for (probe, severity, words) in [
        (probe(cut, gap), Severity::Error, "broke off"),
        (Probe { given_up: Some(gap), ..probe(cut, gap) }, Severity::Error, "no end"),
        (Probe { status: StatusCode::BAD_GATEWAY, ..probe(cut, gap) }, Severity::Error, "502"),
        (Probe { status: StatusCode::BAD_REQUEST, ..probe(cut, gap) }, Severity::Warning, "400"),
    ] {
        let findings = found(|replica| replica.probe = Some(Ok(probe)));
        let finding = one(&findings, "stream");
        assert_eq!(finding.severity, severity);
        assert!(finding.seen.contains(words), "{finding:?}");
    }
    let silent = found(|replica| replica.probe = Some(Err(Silence::Timeout(gap))));
    assert_eq!(one(&silent, "stream").severity, Severity::Error);
}

#[test]
fn flags_that_would_tell_more_are_named_by_what_an_answer_lacks() {
    let flag = |recording: &str, check: &str| {
        let findings = found(|it| it.probe = Some(Ok(probe(recording, Duration::from_millis(3)))));
        of(&findings, check).first().and_then(|finding| finding.change.clone())
    };
    // The sets of recordings: base has prompt token details, limits forced usage and engine times.
    let base = include_str!("../../../../../tests/wire/python/chat-stream-usage.http");
    assert_eq!(flag(base, "cached_tokens"), None);
    assert_eq!(
        flag(base, "engine_times").as_deref(),
        Some("vllm serve --enable-per-request-metrics")
    );
    assert_eq!(flag(base, "forced_usage"), None);
    assert_eq!(flag(STREAM, "engine_times"), None);
    assert!(flag(STREAM, "forced_usage").unwrap().contains("--enable-force-include-usage"));
    let without = base.replace("\"prompt_tokens_details\"", "\"other\"");
    assert_ne!(without, base);
    assert!(flag(&without, "cached_tokens").unwrap().contains("--enable-prompt-tokens-details"));
    let no_id = found(|it| drop(it.version.as_mut().unwrap().headers.remove("x-request-id")));
    assert!(one(&no_id, "request_id").change.as_ref().unwrap().contains("request-id-headers"));
    let not_probed = found(|replica| replica.probe = None);
    assert!(one(&not_probed, "not_probed").change.as_ref().unwrap().contains("--probe"));
}

#[test]
fn every_check_has_its_row_in_the_documentation() {
    let rows = include_str!("../../../../../docs/doctor.md");
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let rows: Vec<&str> = rows.filter(|row| !row.starts_with("--")).collect();
    assert_eq!(rows, CHECKS.map(|check| check.name));
}

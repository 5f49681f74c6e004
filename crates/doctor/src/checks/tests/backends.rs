//! Tests with one backend that differs from a healthy one.

use super::*;

#[test]
fn check_names_are_unique_identifiers() {
    let mut names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CHECKS.len());
    assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
}

#[test]
fn a_healthy_vllm_gets_only_notes_and_each_has_a_change() {
    let findings = found(|_| {});
    assert_eq!(worst(&findings), Some(FindingSeverity::Note), "{findings:#?}");
    let queue = one(&findings, "queue_limit");
    assert!(queue.remedy.as_ref().unwrap().contains("--max-num-queued-reqs"), "{queue:?}");
    for finding in &findings {
        assert!(!finding.reason.is_empty() && finding.remedy.is_some(), "{finding:?}");
    }
}

#[test]
fn each_fetch_error_has_its_own_advice() {
    for (error, advice) in [
        (GatherError::Connect("Connection refused (os error 111)".into()), "vllm serve MODEL"),
        (GatherError::Tls("TLS: invalid peer certificate: UnknownIssuer".into()), "backend_tls.ca"),
        (
            GatherError::Tls("TLS: received corrupt message of type InvalidContentType".into()),
            "http://a",
        ),
        (GatherError::Timeout(Duration::from_secs(5)), "--timeout"),
        (GatherError::NotHttp("invalid HTTP version parsed".into()), "https://a"),
        (GatherError::Closed("connection closed".into()), "https://a"),
    ] {
        let findings = found(|backend| backend.health = Err(error.clone()));
        let finding = one(&findings, "reachable");
        assert_eq!(finding.severity, FindingSeverity::Error);
        assert!(finding.remedy.as_ref().unwrap().contains(advice), "{finding:?}");
        assert!(findings.len() <= 2, "no other check reports it: {findings:#?}");
    }
    assert_eq!(
        one(&found(|it| it.health = Ok(answer(503, ""))), "health").severity,
        FindingSeverity::Error
    );
}

#[test]
fn other_engines_are_distinguished_from_unknown_servers() {
    let nothing = found(|backend| {
        backend.models = Ok(answer(404, "<html>"));
        backend.metrics = Ok(answer(404, "<html>"));
    });
    assert_eq!(one(&nothing, "server").severity, FindingSeverity::Error);
    assert!(findings_of(&nothing, "metrics").is_empty(), "only one check reports it: {nothing:#?}");
    let llama = found(|backend| {
        backend.models = Ok(answer(200, r#"{"data":[{"id":"a","owned_by":"llamacpp"}]}"#));
        backend.metrics = Ok(answer(501, ""));
    });
    assert_eq!(one(&llama, "server").severity, FindingSeverity::Note);
    assert_eq!(one(&llama, "metrics").remedy.as_deref(), Some("start it with --metrics"));
    let gateway = found(|backend| {
        let mut not_found = answer(404, "{}");
        not_found.headers.insert("x-gateway-error", HeaderValue::from_static("not_found"));
        backend.metrics = Ok(not_found);
    });
    assert!(one(&gateway, "server").remedy.as_ref().unwrap().contains("--admin"));
}

#[test]
fn old_new_and_unknown_versions_are_reported() {
    let of_version = |text: &str| {
        let body = format!(r#"{{"version":"{text}"}}"#);
        let findings = found(|backend| backend.version = Ok(answer(200, &body)));
        findings_of(&findings, "version").first().map(|finding| finding.severity)
    };
    assert_eq!(of_version("0.5.4"), Some(FindingSeverity::Warning));
    assert_eq!(of_version("0.9.1"), Some(FindingSeverity::Note));
    assert_eq!(of_version("0.32.0+cpu"), None);
    assert_eq!(of_version("0.40.0"), Some(FindingSeverity::Note));
    assert_eq!(of_version("nightly"), Some(FindingSeverity::Note));
    assert_eq!(
        one(&found(|it| it.version = Ok(answer(404, ""))), "version").severity,
        FindingSeverity::Note
    );
}

#[test]
fn missing_wrong_and_unneeded_keys_are_reported() {
    let refused = || Ok(answer(401, r#"{"error":"Unauthorized"}"#));
    let known = || TargetKey::Known(HeaderValue::from_static("Bearer sekret"));
    let wanted = found(|backend| backend.models = refused());
    assert_eq!(one(&wanted, "key").severity, FindingSeverity::Error);
    assert!(findings_of(&wanted, "models").is_empty() && findings_of(&wanted, "server").is_empty());
    let wrong = found(|backend| {
        (backend.key, backend.models, backend.models_without_key) =
            (known(), refused(), Some(refused()));
    });
    assert!(one(&wrong, "key").observation.contains("refuses the key"));
    assert!(!format!("{wrong:?}").contains("sekret"));
    let idle = found(|backend| {
        (backend.key, backend.models_without_key) = (known(), Some(Ok(answer(200, MODELS))));
    });
    assert_eq!(one(&idle, "key").severity, FindingSeverity::Note);
    let right = found(|backend| {
        (backend.key, backend.models_without_key) = (known(), Some(refused()));
        open(backend, "/invocations");
    });
    assert!(findings_of(&right, "key").is_empty());
    assert!(one(&right, "unauthenticated").observation.contains("/invocations"));
    let missing = found(|backend| {
        backend.key = TargetKey::Missing("KEY is not set".into());
        backend.health = Err(GatherError::Timeout(Duration::from_secs(5)));
    });
    assert_eq!(one(&missing, "key").severity, FindingSeverity::Error);
}

fn open(backend: &mut BackendFacts, path: &str) {
    let status = &mut backend.options.iter_mut().find(|(it, _)| *it == path).unwrap().1;
    *status = Some(StatusCode::METHOD_NOT_ALLOWED);
}

#[test]
fn control_paths_are_found_unless_all_paths_answer_the_same() {
    let developer = found(|backend| {
        open(backend, "/collective_rpc");
        open(backend, "/sleep");
    });
    let finding = one(&developer, "exposed");
    assert_eq!(finding.severity, FindingSeverity::Error);
    assert!(finding.observation.contains("/collective_rpc /sleep"), "{finding:?}");
    assert!(finding.remedy.as_ref().unwrap().contains("VLLM_SERVER_DEV_MODE"));
    for path in ["/is_paused", "/init_weight_transfer_engine", "/weight_checker"] {
        let reached = found(|backend| open(backend, path));
        assert!(one(&reached, "exposed").observation.ends_with(path), "{reached:?}");
    }
    let adapters = found(|backend| open(backend, "/v1/load_lora_adapter"));
    assert_eq!(one(&adapters, "exposed").severity, FindingSeverity::Warning);
    for status in [StatusCode::OK, StatusCode::METHOD_NOT_ALLOWED] {
        let alike = found(|backend| {
            backend.options.iter_mut().for_each(|(_, it)| *it = Some(status));
        });
        assert!(one(&alike, "exposed").observation.contains("cannot be seen"));
    }
}

#[test]
fn public_kv_event_sources_and_a_port_without_a_key_are_reported() {
    let sources =
        r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}}"#;
    let events = found(|backend| backend.event_sources = Ok(answer(200, sources)));
    let finding = one(&events, "exposed");
    assert_eq!(finding.severity, FindingSeverity::Warning);
    assert!(finding.observation.contains("tcp://*:5557"), "{finding:?}");
    for quiet in
        ["{}", r#"{"0":{"enable_kv_cache_events":false,"endpoint":"tcp://*:1"}}"#, "[]", ""]
    {
        let none = found(|backend| backend.event_sources = Ok(answer(200, quiet)));
        assert!(findings_of(&none, "exposed").is_empty(), "{quiet}");
    }
    let finding = one(&found(|_| {}), "key").clone();
    assert_eq!(
        (finding.severity, &*finding.observation),
        (FindingSeverity::Note, "serves without a key")
    );
}

#[test]
fn missing_metrics_are_reported_with_their_consequences() {
    let none = found(|backend| backend.metrics = Ok(recorded(NO_STATS)));
    let finding = one(&none, "metrics");
    assert_eq!(finding.severity, FindingSeverity::Error);
    assert!(finding.remedy.as_ref().unwrap().contains("--disable-log-stats"));
    let half = found(|backend| {
        backend.metrics = Ok(recorded(&PYTHON.replace("vllm:kv_cache_usage_perc{", "vllm:other{")));
    });
    assert!(one(&half, "engine_metrics").observation.contains("kv_usage"), "{half:#?}");
    assert_eq!(one(&half, "engine_metrics").severity, FindingSeverity::Warning);
    let old = found(|backend| backend.metrics = Ok(answer(200, BEFORE_0_9)));
    assert!(
        findings_of(&old, "engine_metrics")
            .iter()
            .all(|finding| finding.severity == FindingSeverity::Note)
    );
    assert!(!findings_of(&old, "engine_metrics").is_empty());
    let rust = found(|backend| backend.metrics = Ok(recorded(RUST)));
    let has_capacity = |finding: &&Finding| finding.observation.contains("kv_capacity");
    assert!(findings_of(&rust, "engine_metrics").iter().any(has_capacity));
    let slow = found(|backend| {
        if let Ok(answer) = &mut backend.metrics {
            answer.took = Duration::from_millis(1_900);
        }
    });
    assert_eq!(one(&slow, "scrape_time").severity, FindingSeverity::Warning);
}

#[test]
fn an_engine_without_prefix_caching_or_asleep_is_reported() {
    let with = |from: &str, to: &str| {
        let page = PYTHON.replace(from, to);
        assert_ne!(page, PYTHON);
        found(|backend| backend.metrics = Ok(recorded(&page)))
    };
    let off = with("enable_prefix_caching=\"True\"", "enable_prefix_caching=\"False\"");
    let finding = one(&off, "prefix_caching");
    assert_eq!(finding.severity, FindingSeverity::Warning);
    assert_eq!(finding.remedy.as_deref(), Some("vllm serve --enable-prefix-caching"));
    let awake = "engine_sleep_state{engine=\"0\",model_name=\"tiny\",sleep_state=\"awake\"} ";
    let asleep = with(&format!("{awake}1.0"), &format!("{awake}0.0"));
    assert_eq!(one(&asleep, "sleep").severity, FindingSeverity::Warning);
    let refused = "reason=\"max_num_queued_reqs\"} ";
    let limited = with(&format!("{refused}0.0"), &format!("{refused}3.0"));
    assert!(findings_of(&limited, "queue_limit").is_empty(), "it has a limit");
}

#[test]
fn clock_skew_is_reported_beyond_the_resolution_of_the_date_header() {
    let at = |seconds: i64| {
        let findings = found(|backend| {
            let shift = Duration::from_secs(seconds.unsigned_abs());
            let now = if seconds < 0 { noon() - shift } else { noon() + shift };
            backend.health.as_mut().unwrap().clock = [now; 2];
        });
        findings_of(&findings, "clock").first().map(|finding| finding.observation.clone())
    };
    assert_eq!([at(0), at(2), at(3), at(-1)], [None, None, None, None]);
    assert!(at(10).unwrap().contains("8 s behind"));
    assert!(at(-90).unwrap().contains("90 s ahead of"));
}

#[test]
fn connections_closed_before_the_idle_timeout_of_the_gateway_are_reported() {
    let closed = |millis: u64| {
        found(|backend| backend.idle = Some(IdleConnection::Closed(Duration::from_millis(millis))))
    };
    assert_eq!(one(&closed(2_000), "keep_alive").severity, FindingSeverity::Warning);
    assert_eq!(one(&closed(3_200), "keep_alive").severity, FindingSeverity::Warning);
    let usual = closed(5_000);
    let finding = one(&usual, "keep_alive");
    assert_eq!(finding.severity, FindingSeverity::Note);
    assert!(finding.remedy.as_ref().unwrap().contains("VLLM_HTTP_TIMEOUT_KEEP_ALIVE=120"));
    let longer =
        GatewaySettings { idle_connection: Duration::from_secs(10), ..GatewaySettings::default() };
    let mut backend = backend("a");
    backend.idle = Some(IdleConnection::Closed(Duration::from_secs(5)));
    assert_eq!(
        one(&configured(longer, vec![backend]), "keep_alive").severity,
        FindingSeverity::Warning
    );
    assert!(findings_of(&found(|backend| backend.idle = None), "keep_alive").is_empty());
    let short = found(|backend| backend.idle = Some(IdleConnection::Open(Duration::from_secs(1))));
    assert!(one(&short, "keep_alive").remedy.as_ref().unwrap().contains("--idle"));
}

#[test]
fn tokens_that_arrive_together_are_reported_as_buffered() {
    let steady =
        found(|backend| backend.probe = Some(Ok(probe(STREAM, Duration::from_micros(900)))));
    assert!(findings_of(&steady, "stream").is_empty(), "{steady:#?}");
    let burst = found(|backend| backend.probe = Some(Ok(probe(STREAM, Duration::from_micros(5)))));
    assert_eq!(one(&burst, "stream").severity, FindingSeverity::Warning);
    assert!(one(&burst, "stream").remedy.as_ref().unwrap().contains("proxy_buffering off"));
    let nginx = found(|backend| {
        let server = HeaderValue::from_static("nginx/1.22");
        backend.models.as_mut().unwrap().headers.insert("server", server);
    });
    assert!(one(&nginx, "intermediary").observation.contains("nginx/1.22"));
}

#[test]
fn each_failure_of_a_probe_is_reported() {
    let cut = STREAM.split_once("data: [DONE]").unwrap().0;
    let gap = Duration::from_millis(3);
    for (probe, severity, words) in [
        (probe(cut, gap), FindingSeverity::Error, "broke off"),
        (
            StreamProbe { gave_up_after: Some(gap), ..probe(cut, gap) },
            FindingSeverity::Error,
            "no end",
        ),
        (
            StreamProbe { status: StatusCode::BAD_GATEWAY, ..probe(cut, gap) },
            FindingSeverity::Error,
            "502",
        ),
        (
            StreamProbe { status: StatusCode::BAD_REQUEST, ..probe(cut, gap) },
            FindingSeverity::Warning,
            "400",
        ),
    ] {
        let findings = found(|backend| backend.probe = Some(Ok(probe)));
        let finding = one(&findings, "stream");
        assert_eq!(finding.severity, severity);
        assert!(finding.observation.contains(words), "{finding:?}");
    }
    let timed_out = found(|backend| backend.probe = Some(Err(GatherError::Timeout(gap))));
    assert_eq!(one(&timed_out, "stream").severity, FindingSeverity::Error);
}

#[test]
fn flags_for_missing_response_fields_are_suggested() {
    let flag = |recording: &str, check: &str| {
        let findings = found(|it| it.probe = Some(Ok(probe(recording, Duration::from_millis(3)))));
        findings_of(&findings, check).first().and_then(|finding| finding.remedy.clone())
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
    assert!(one(&no_id, "request_id").remedy.as_ref().unwrap().contains("request-id-headers"));
    let not_probed = found(|backend| backend.probe = None);
    assert!(one(&not_probed, "not_probed").remedy.as_ref().unwrap().contains("--probe"));
}

#[test]
fn every_check_has_its_row_in_the_documentation() {
    let rows = include_str!("../../../../../docs/operate/doctor.md");
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let rows: Vec<&str> = rows.filter(|row| !row.starts_with("--")).collect();
    assert_eq!(rows, CHECKS.map(|check| check.name));
}

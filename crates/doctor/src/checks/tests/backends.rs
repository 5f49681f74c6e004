//! Tests with one backend that differs from a healthy backend in one respect.

use super::*;

#[test]
fn the_checks_of_doctor_have_unique_names() {
    let mut names: Vec<&str> = CHECKS.map(|(name, _)| name).to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CHECKS.len());
    assert!(
        names
            .iter()
            .all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    );
}

#[test]
fn a_healthy_vllm_backend_gives_only_notes() {
    let findings = findings_after(|_| {});
    assert_eq!(
        highest_severity(&findings),
        Some(FindingSeverity::Note),
        "{findings:#?}"
    );
    let queue = only_finding(&findings, "queue_limit");
    assert!(
        queue
            .remedy
            .as_ref()
            .unwrap()
            .contains("--max-num-queued-reqs"),
        "{queue:?}"
    );
    for Finding {
        remark: finding, ..
    } in &findings
    {
        assert!(
            !finding.reason.is_empty() && finding.remedy.is_some(),
            "{finding:?}"
        );
    }
}

#[test]
fn each_kind_of_connection_error_has_a_remedy() {
    for (error, advice) in [
        (
            GatherError::Connect("Connection refused (os error 111)".into()),
            "vllm serve MODEL",
        ),
        (
            GatherError::Tls("TLS: invalid peer certificate: UnknownIssuer".into()),
            "backend_tls.ca",
        ),
        (
            GatherError::Tls("TLS: received corrupt message of type InvalidContentType".into()),
            "http://",
        ),
        (
            GatherError::Timeout(Duration::from_secs(5)),
            "still loading",
        ),
        (
            GatherError::NotHttp("invalid HTTP version parsed".into()),
            "https://",
        ),
        (GatherError::Closed("connection closed".into()), "https://"),
    ] {
        let findings = findings_after(|backend| backend.health = Err(error.clone()));
        let finding = only_finding(&findings, "reachable");
        assert_eq!(finding.severity, FindingSeverity::Error);
        assert!(
            finding.remedy.as_ref().unwrap().contains(advice),
            "{finding:?}"
        );
        assert!(
            findings.len() <= 2,
            "no other check reports it: {findings:#?}"
        );
    }
    let unhealthy = findings_after(|backend| backend.health = Ok(answer(503, "")));
    assert_eq!(severity_of(&unhealthy, "health"), FindingSeverity::Error);
}

#[test]
fn other_engines_and_gateways_are_no_unknown_servers() {
    let nothing = findings_after(|backend| {
        backend.models = Ok(answer(404, "<html>"));
        backend.metrics = Ok(answer(404, "<html>"));
    });
    assert_eq!(severity_of(&nothing, "server"), FindingSeverity::Error);
    assert!(
        findings_of(&nothing, "metrics").is_empty(),
        "only one check reports it: {nothing:#?}"
    );
    let llama = findings_after(|backend| {
        backend.models = Ok(answer(
            200,
            r#"{"data":[{"id":"a","owned_by":"llamacpp"}]}"#,
        ));
        backend.metrics = Ok(answer(501, ""));
    });
    assert_eq!(severity_of(&llama, "server"), FindingSeverity::Note);
    assert_eq!(
        remedy_of(&llama, "metrics"),
        "start the engine with --metrics"
    );
    let gateway = findings_after(|backend| {
        let mut not_found = answer(404, "{}");
        not_found
            .headers
            .insert("x-gateway-error", HeaderValue::from_static("not_found"));
        backend.metrics = Ok(not_found);
    });
    assert!(remedy_of(&gateway, "server").contains("--admin"));
    let on_purpose = findings_after(|backend| {
        backend.metrics = Ok(answer(200, "tokenweir_build_info 1\n"));
    });
    assert_eq!(severity_of(&on_purpose, "server"), FindingSeverity::Note);
    assert_eq!(
        highest_severity(&on_purpose),
        Some(FindingSeverity::Note),
        "{on_purpose:#?}"
    );
}

#[test]
fn old_new_and_unknown_vllm_versions_are_reported() {
    let of_version = |text: &str| {
        let body = format!(r#"{{"version":"{text}"}}"#);
        let findings = findings_after(|backend| backend.version = Ok(answer(200, &body)));
        findings_of(&findings, "version")
            .first()
            .map(|finding| finding.severity)
    };
    assert_eq!(of_version("0.5.4"), Some(FindingSeverity::Warning));
    assert_eq!(of_version("0.9.1"), Some(FindingSeverity::Note));
    assert_eq!(of_version("0.32.0+cpu"), None);
    assert_eq!(of_version("0.40.0"), Some(FindingSeverity::Note));
    assert_eq!(of_version("nightly"), Some(FindingSeverity::Note));
    let without_version = findings_after(|backend| backend.version = Ok(answer(404, "")));
    assert_eq!(
        severity_of(&without_version, "version"),
        FindingSeverity::Note
    );
}

#[test]
fn doctor_reports_missing_wrong_and_unneeded_api_keys() {
    let refused = || Ok(answer(401, r#"{"error":"Unauthorized"}"#));
    let known = || TargetKey::Known(HeaderValue::from_static("Bearer sekret"));
    let wanted = findings_after(|backend| backend.models = refused());
    assert_eq!(severity_of(&wanted, "key"), FindingSeverity::Error);
    assert!(findings_of(&wanted, "models").is_empty() && findings_of(&wanted, "server").is_empty());
    let wrong = findings_after(|backend| {
        (backend.key, backend.models, backend.models_without_key) =
            (known(), refused(), Some(refused()));
    });
    assert!(
        only_finding(&wrong, "key")
            .observation
            .contains("refuses the key")
    );
    assert!(!format!("{wrong:?}").contains("sekret"));
    let idle = findings_after(|backend| {
        (backend.key, backend.models_without_key) = (known(), Some(Ok(answer(200, MODELS))));
    });
    assert_eq!(severity_of(&idle, "key"), FindingSeverity::Note);
    let right = findings_after(|backend| {
        (backend.key, backend.models_without_key) = (known(), Some(refused()));
        open_path(backend, "/invocations");
    });
    assert!(findings_of(&right, "key").is_empty());
    assert!(
        only_finding(&right, "unauthenticated")
            .observation
            .contains("/invocations")
    );
    let missing = findings_after(|backend| {
        backend.key = TargetKey::Missing("KEY is not set".into());
        backend.health = Err(GatherError::Timeout(Duration::from_secs(5)));
    });
    assert_eq!(severity_of(&missing, "key"), FindingSeverity::Error);
}

fn open_path(backend: &mut BackendFacts, path: &str) {
    let status = &mut backend
        .options
        .iter_mut()
        .find(|(listed, _)| *listed == path)
        .unwrap()
        .1;
    *status = Some(StatusCode::METHOD_NOT_ALLOWED);
}

#[test]
fn open_control_paths_are_reported() {
    let developer = findings_after(|backend| {
        open_path(backend, "/collective_rpc");
        open_path(backend, "/sleep");
    });
    let finding = only_finding(&developer, "exposed");
    assert_eq!(finding.severity, FindingSeverity::Error);
    assert!(
        finding.observation.contains("/collective_rpc /sleep"),
        "{finding:?}"
    );
    assert!(
        finding
            .remedy
            .as_ref()
            .unwrap()
            .contains("VLLM_SERVER_DEV_MODE")
    );
    for path in [
        "/is_paused",
        "/init_weight_transfer_engine",
        "/weight_checker",
    ] {
        let reached = findings_after(|backend| open_path(backend, path));
        assert!(
            only_finding(&reached, "exposed")
                .observation
                .ends_with(path),
            "{reached:?}"
        );
    }
    let adapters = findings_after(|backend| open_path(backend, "/v1/load_lora_adapter"));
    assert_eq!(severity_of(&adapters, "exposed"), FindingSeverity::Warning);
    for status in [StatusCode::OK, StatusCode::METHOD_NOT_ALLOWED] {
        let with_equal_responses = findings_after(|backend| {
            backend
                .options
                .iter_mut()
                .for_each(|(_, listed)| *listed = Some(status));
        });
        let finding = only_finding(&with_equal_responses, "exposed");
        assert!(finding.observation.contains("cannot be seen"));
        assert_eq!(
            finding.remedy.as_deref(),
            Some("give the URL of vLLM itself")
        );
        let rust_front_end = findings_after(|backend| {
            backend
                .options
                .iter_mut()
                .for_each(|(_, listed)| *listed = Some(status));
            backend.metrics = Ok(recorded(RUST));
        });
        let remedy = remedy_of(&rust_front_end, "exposed");
        assert_eq!(
            remedy, "let only the gateway reach the port of vLLM",
            "there is no proxy"
        );
    }
}

#[test]
fn one_remark_tells_whether_kv_events_are_used() {
    const PORT: &str = "tcp://*:5557";
    let cases = [
        (None, "", None, "http", None),
        (
            Some(true),
            "",
            None,
            "http",
            Some("warning: its /kv_event_sources lists no publishers"),
        ),
        (
            None,
            PORT,
            Some(true),
            "http",
            Some("note: the gateway uses its KV events"),
        ),
        (
            Some(true),
            PORT,
            Some(true),
            "https",
            Some("note: the gateway uses its KV events"),
        ),
        (
            None,
            PORT,
            Some(true),
            "https",
            Some("note: it publishes KV events, which the gateway"),
        ),
        (
            Some(false),
            PORT,
            None,
            "http",
            Some("note: it publishes KV events, which the gateway"),
        ),
        (
            None,
            PORT,
            Some(false),
            "http",
            Some("warning: its KV events at tcp://*:5557 cannot be"),
        ),
        (
            None,
            "tcp://127.0.0.1:1",
            None,
            "http",
            Some("warning: its KV events are not published"),
        ),
    ];
    for (setting, endpoint, publisher_answers, scheme, expected) in cases {
        let source = format!(r#"{{"0":{{"endpoint":"{endpoint}"}}}}"#);
        let sources = if endpoint.is_empty() { "{}" } else { &source };
        let mut facts = facts(vec![backend("a")]);
        facts.config.kv_events = setting;
        let backend = &mut facts.backends[0];
        backend.url = BackendAddress::parse(&format!("{scheme}://a:8000")).unwrap();
        backend.event_sources = Ok(answer(200, sources));
        backend.publisher_answers = publisher_answers;
        let findings = examine(&facts);
        let found = findings_of(&findings, "kv_events");
        let said =
            |finding: &&Remark| format!("{}: {}", finding.severity.as_str(), finding.observation);
        let found: Vec<String> = found.iter().map(said).collect();
        let is_expected = match (expected, &found[..]) {
            (None, []) => true,
            (Some(expected), [found]) => found.starts_with(expected),
            _ => false,
        };
        assert!(is_expected, "{setting:?} {endpoint} {scheme}: {found:?}");
    }
}

#[test]
fn public_event_sockets_and_missing_keys_are_reported() {
    let sources =
        r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}}"#;
    let events = findings_after(|backend| backend.event_sources = Ok(answer(200, sources)));
    let finding = only_finding(&events, "exposed");
    assert_eq!(finding.severity, FindingSeverity::Warning);
    assert!(finding.observation.contains("tcp://*:5557"), "{finding:?}");
    for sources_without_events in [
        "{}",
        r#"{"0":{"enable_kv_cache_events":false,"endpoint":"tcp://*:1"}}"#,
        "[]",
        "",
    ] {
        let event_sources = || Ok(answer(200, sources_without_events));
        let none = findings_after(|backend| backend.event_sources = event_sources());
        assert!(
            findings_of(&none, "exposed").is_empty(),
            "{sources_without_events}"
        );
    }
    let healthy = findings_after(|_| {});
    let finding = only_finding(&healthy, "key");
    assert_eq!(finding.severity, FindingSeverity::Note);
    assert_eq!(finding.observation, "serves without a key");
}

#[test]
fn missing_engine_metrics_and_slow_pages_are_reported() {
    let none = findings_after(|backend| backend.metrics = Ok(recorded(NO_STATS)));
    let finding = only_finding(&none, "metrics");
    assert_eq!(finding.severity, FindingSeverity::Error);
    assert!(
        finding
            .remedy
            .as_ref()
            .unwrap()
            .contains("--disable-log-stats")
    );
    let half = findings_after(|backend| {
        backend.metrics = Ok(recorded(
            &PYTHON.replace("vllm:kv_cache_usage_perc{", "vllm:other{"),
        ));
    });
    assert!(
        only_finding(&half, "engine_metrics")
            .observation
            .contains("kv_usage"),
        "{half:#?}"
    );
    assert_eq!(
        severity_of(&half, "engine_metrics"),
        FindingSeverity::Warning
    );
    let old = findings_after(|backend| backend.metrics = Ok(answer(200, BEFORE_0_9)));
    let old = findings_of(&old, "engine_metrics");
    assert!(!old.is_empty() && old.iter().all(|it| it.severity == FindingSeverity::Note));
    let rust = findings_after(|backend| backend.metrics = Ok(recorded(RUST)));
    let has_capacity = |finding: &&Remark| finding.observation.contains("kv_capacity");
    assert!(
        findings_of(&rust, "engine_metrics")
            .iter()
            .any(has_capacity)
    );
    let slow = findings_after(|backend| {
        if let Ok(answer) = &mut backend.metrics {
            answer.took = Duration::from_millis(1_900);
        }
    });
    assert_eq!(severity_of(&slow, "scrape_time"), FindingSeverity::Warning);
}

#[test]
fn sleep_and_missing_prefix_caching_are_reported() {
    let with = |from: &str, to: &str| {
        let page = PYTHON.replace(from, to);
        assert_ne!(page, PYTHON);
        findings_after(|backend| backend.metrics = Ok(recorded(&page)))
    };
    let off = with(
        "enable_prefix_caching=\"True\"",
        "enable_prefix_caching=\"False\"",
    );
    let finding = only_finding(&off, "prefix_caching");
    assert_eq!(finding.severity, FindingSeverity::Warning);
    assert_eq!(
        finding.remedy.as_deref(),
        Some("vllm serve --enable-prefix-caching")
    );
    let awake = "engine_sleep_state{engine=\"0\",model_name=\"tiny\",sleep_state=\"awake\"} ";
    let asleep = with(&format!("{awake}1.0"), &format!("{awake}0.0"));
    assert_eq!(severity_of(&asleep, "sleep"), FindingSeverity::Warning);
    let refused = "reason=\"max_num_queued_reqs\"} ";
    let limited = with(&format!("{refused}0.0"), &format!("{refused}3.0"));
    assert!(
        findings_of(&limited, "queue_limit").is_empty(),
        "it has a limit"
    );
}

#[test]
fn clock_skew_above_the_date_resolution_is_reported() {
    let at = |seconds: i64| {
        let findings = findings_after(|backend| {
            let shift = Duration::from_secs(seconds.unsigned_abs());
            let now = if seconds < 0 {
                date_header_time() - shift
            } else {
                date_header_time() + shift
            };
            let health = backend.health.as_mut().unwrap();
            health.sent_at = now;
            health.received_at = now;
        });
        findings_of(&findings, "clock")
            .first()
            .map(|finding| finding.observation.clone())
    };
    assert_eq!([at(0), at(2), at(3), at(-1)], [None, None, None, None]);
    assert!(at(10).unwrap().contains("8 s behind"));
    assert!(at(-90).unwrap().contains("90 s ahead of"));
}

#[test]
fn early_closes_of_idle_connections_are_reported() {
    let closed = |millis: u64| {
        findings_after(|backend| {
            backend.idle = Some(IdleConnection::Closed(Duration::from_millis(millis)));
        })
    };
    assert_eq!(
        severity_of(&closed(2_000), "keep_alive"),
        FindingSeverity::Warning
    );
    assert_eq!(
        severity_of(&closed(3_200), "keep_alive"),
        FindingSeverity::Warning
    );
    let usual = closed(5_000);
    let finding = only_finding(&usual, "keep_alive");
    assert_eq!(finding.severity, FindingSeverity::Note);
    assert!(
        finding
            .remedy
            .as_ref()
            .unwrap()
            .contains("VLLM_HTTP_TIMEOUT_KEEP_ALIVE=120")
    );
    let longer = GatewaySettings {
        idle_connection: Duration::from_secs(10),
        ..GatewaySettings::default()
    };
    let mut backend = backend("a");
    backend.idle = Some(IdleConnection::Closed(Duration::from_secs(5)));
    let early = findings_with_config(longer, vec![backend]);
    assert_eq!(severity_of(&early, "keep_alive"), FindingSeverity::Warning);
    assert!(findings_of(&findings_after(|backend| backend.idle = None), "keep_alive").is_empty());
    let short =
        findings_after(|backend| backend.idle = Some(IdleConnection::Open(Duration::from_secs(1))));
    assert!(remedy_of(&short, "keep_alive").contains("--idle"));
}

#[test]
fn tokens_that_arrive_together_are_reported_as_buffered() {
    let steady = findings_after(|backend| {
        backend.probe = Some(Ok(probe(STREAM, Duration::from_micros(900))));
    });
    assert!(findings_of(&steady, "stream").is_empty(), "{steady:#?}");
    let burst =
        findings_after(|backend| backend.probe = Some(Ok(probe(STREAM, Duration::from_micros(5)))));
    assert_eq!(severity_of(&burst, "stream"), FindingSeverity::Warning);
    assert!(remedy_of(&burst, "stream").contains("proxy_buffering off"));
    let nginx = findings_after(|backend| {
        let server = HeaderValue::from_static("nginx/1.22");
        backend
            .models
            .as_mut()
            .unwrap()
            .headers
            .insert("server", server);
    });
    assert!(
        only_finding(&nginx, "intermediary")
            .observation
            .contains("nginx/1.22")
    );
}

#[test]
fn each_failure_of_the_probe_is_reported() {
    let cut = STREAM.split_once("data: [DONE]").unwrap().0;
    let gap = Duration::from_millis(3);
    let without_end = StreamProbe {
        gave_up_after: Some(gap),
        ..probe(cut, gap)
    };
    let answered = |status| StreamProbe {
        status,
        ..probe(cut, gap)
    };
    for (probe, severity, words) in [
        (probe(cut, gap), FindingSeverity::Error, "broke off"),
        (without_end, FindingSeverity::Error, "no end"),
        (
            answered(StatusCode::BAD_GATEWAY),
            FindingSeverity::Error,
            "502",
        ),
        (
            answered(StatusCode::BAD_REQUEST),
            FindingSeverity::Warning,
            "400",
        ),
    ] {
        let findings = findings_after(|backend| backend.probe = Some(Ok(probe)));
        let finding = only_finding(&findings, "stream");
        assert_eq!(finding.severity, severity);
        assert!(finding.observation.contains(words), "{finding:?}");
    }
    let timed_out = findings_after(|backend| backend.probe = Some(Err(GatherError::Timeout(gap))));
    assert_eq!(severity_of(&timed_out, "stream"), FindingSeverity::Error);
}

#[test]
fn doctor_suggests_vllm_flags_for_missing_response_fields() {
    let flag = |recording: &str, check: &str| {
        let findings = findings_after(|backend| {
            backend.probe = Some(Ok(probe(recording, Duration::from_millis(3))));
        });
        findings_of(&findings, check)
            .first()
            .and_then(|finding| finding.remedy.clone())
    };
    // Two recordings. `base` has prompt token details, but no usage in every event and no engine times.
    // `STREAM` has both.
    let base = include_str!("../../../../../tests/wire/python/chat-stream-usage.http");
    assert_eq!(flag(base, "cached_tokens"), None);
    let engine_times = flag(base, "engine_times").unwrap();
    assert_eq!(engine_times, "vllm serve --enable-per-request-metrics");
    assert_eq!(flag(base, "forced_usage"), None);
    assert_eq!(flag(STREAM, "engine_times"), None);
    assert!(
        flag(STREAM, "forced_usage")
            .unwrap()
            .contains("--enable-force-include-usage")
    );
    let without = base.replace("\"prompt_tokens_details\"", "\"other\"");
    assert_ne!(without, base);
    assert!(
        flag(&without, "cached_tokens")
            .unwrap()
            .contains("--enable-prompt-tokens-details")
    );
    let no_id = findings_after(|backend| {
        drop(
            backend
                .version
                .as_mut()
                .unwrap()
                .headers
                .remove("x-request-id"),
        );
    });
    assert!(remedy_of(&no_id, "request_id").contains("request-id-headers"));
    let not_probed = findings_after(|backend| backend.probe = None);
    assert!(remedy_of(&not_probed, "not_probed").contains("--probe"));
}

#[test]
fn the_documentation_names_every_check_of_doctor() {
    let page = include_str!("../../../../../docs/operate/doctor.md");
    for (name, _) in CHECKS {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

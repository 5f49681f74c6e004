//! Tests with several backends, a configuration, a gateway and a collector.

use super::*;

#[test]
fn backends_that_differ_are_reported() {
    let other = |id: &str, models: &str, version: &str| {
        let mut backend = backend(id);
        backend.models = Ok(answer(200, models));
        backend.version = Ok(answer(200, &format!(r#"{{"version":"{version}"}}"#)));
        backend
    };
    let longer = MODELS.replace("2048", "4096");
    let adapter = MODELS.replace("]}", r#",{"id":"sql","owned_by":"vllm","parent":"tiny"}]}"#);
    let findings = examine(&facts(vec![
        other("a", MODELS, "0.32.0"),
        other("b", &longer, "0.33.0"),
        other("c", &adapter, "0.32.0"),
    ]));
    let differences = findings_of(&findings, "fleet");
    let texts: Vec<&str> = differences
        .iter()
        .map(|it| it.observation.as_str())
        .collect();
    assert_eq!(texts.len(), 3, "{findings:#?}");
    assert!(
        texts.contains(&"max_model_len of tiny differs: 2048 (a, c), 4096 (b)"),
        "{texts:?}"
    );
    let has = |words| texts.iter().any(|text| text.contains(words));
    assert!(
        has("0.32.0 (a, c), 0.33.0 (b)") && has("sql is on 1 of 3"),
        "{texts:?}"
    );
    let same = examine(&facts(vec![backend("a"), backend("b")]));
    assert!(findings_of(&same, "fleet").is_empty());
    let queue_limit = same
        .iter()
        .find(|finding| finding.check == "queue_limit")
        .unwrap();
    assert_eq!(queue_limit.backends, ["a", "b"], "one finding for both");
    assert_eq!(
        severity_of(&examine(&facts(Vec::new())), "fleet"),
        FindingSeverity::Error
    );
}

#[test]
fn unserved_models_and_open_ports_are_reported() {
    let models = vec![model("gpt", "large", None), model("small", "tiny", None)];
    let named = GatewaySettings {
        models,
        ..GatewaySettings::default()
    };
    let findings = findings_with_config(named, vec![backend("a")]);
    let observation = &only_finding(&findings, "named_models").observation;
    assert!(observation.contains("gpt leads to large"), "{observation}");
    let models = vec![model("gpt", "tiny", Some(&["b"]))];
    let objective_models = vec![("chat".to_owned(), "none".to_owned())];
    let objective = GatewaySettings {
        objective_models,
        ..GatewaySettings::default()
    };
    let findings = findings_with_config(objective, vec![backend("a")]);
    let observation = &only_finding(&findings, "named_models").observation;
    assert_eq!(
        observation,
        "the objective chat is for none, which no backend serves"
    );
    let elsewhere = GatewaySettings {
        models,
        ..GatewaySettings::default()
    };
    let findings = findings_with_config(elsewhere, vec![backend("a")]);
    assert!(
        only_finding(&findings, "named_models")
            .observation
            .contains("none of b")
    );
    let open = findings_with_config(
        GatewaySettings {
            listen: "0.0.0.0:8080".parse().unwrap(),
            admin: "0.0.0.0:9090".parse().unwrap(),
            ..GatewaySettings::default()
        },
        vec![backend("a")],
    );
    assert_eq!(findings_of(&open, "open_ports").len(), 2, "{open:#?}");
    let closed = findings_with_config(
        GatewaySettings {
            backends: vec![ConfiguredBackend {
                id: "h:1".to_owned(),
                url: BackendAddress::parse("http://h:1").unwrap(),
                has_key: true,
                kv_events: None,
            }],
            ..GatewaySettings::default()
        },
        Vec::new(),
    );
    assert_eq!(severity_of(&closed, "open_ports"), FindingSeverity::Note);
}

#[test]
fn options_check_their_part_of_the_status() {
    let mut facts = facts_of_gateway(serde_json::json!({ "part": 7 }), Vec::new());
    facts.status_checks = vec![|status| vec![Remark::warning(status["part"].to_string())]];
    let findings = examine(&facts);
    assert_eq!(only_finding(&findings, "gateway").observation, "7");
}

#[test]
fn status_faults_and_a_faulty_collector_are_reported() {
    let status = serde_json::json!({
        "ready": true,
        "config_reloads": { "last_successful": false },
        "spans": { "failed": 3, "exported": 1 },
        "backends": [
            { "backend": "a", "health": "up", "breaker": "open" },
            { "backend": "b", "health": "down", "reason": "/health answered 503" },
            { "backend": "c", "health": "up", "breaker": "closed", "scrape_error": "timeout" },
            { "backend": "d", "health": "up", "unserved": ["/v1/messages", "/v1/responses"] },
        ],
    });
    let mut unreached = backend("a");
    unreached.health = Err(GatherError::Connect("refused".into()));
    let findings = findings_of_gateway(status, vec![unreached]);
    assert_eq!(findings_of(&findings, "gateway").len(), 6, "{findings:#?}");
    assert_eq!(
        severity_of(&findings, "reachable"),
        FindingSeverity::Note,
        "the gateway reaches it"
    );
    let collector = |problem: Option<&str>| DoctorFacts {
        collector: Some(CollectorFacts {
            endpoint: "http://c:4317".into(),
            protocol: "grpc",
            problem: problem.map(Into::into),
        }),
        backends: vec![backend("a")],
        ..DoctorFacts::default()
    };
    for (problem, severity) in [
        (Some("refused"), FindingSeverity::Error),
        (None, FindingSeverity::Note),
    ] {
        assert_eq!(
            severity_of(&examine(&collector(problem)), "traces"),
            severity
        );
    }
}

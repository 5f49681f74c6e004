//! Several replicas, a configuration, a gateway and a collector.

use super::*;

#[test]
fn replicas_that_differ_are_told_beside_each_other() {
    let other = |id: &str, models: &str, version: &str| {
        let mut replica = replica(id);
        replica.models = Ok(answer(200, models));
        replica.version = Ok(answer(200, &format!(r#"{{"version":"{version}"}}"#)));
        replica
    };
    let longer = MODELS.replace("2048", "4096");
    let adapter = MODELS.replace("]}", r#",{"id":"sql","owned_by":"vllm","parent":"tiny"}]}"#);
    let findings = examine(&facts(vec![
        other("a", MODELS, "0.32.0"),
        other("b", &longer, "0.33.0"),
        other("c", &adapter, "0.32.0"),
    ]));
    let seen: Vec<&str> = of(&findings, "fleet").iter().map(|it| it.seen.as_str()).collect();
    assert_eq!(seen.len(), 3, "{findings:#?}");
    assert!(seen.contains(&"max_model_len of tiny differs: 2048 (a, c), 4096 (b)"), "{seen:?}");
    assert!(seen.iter().any(|seen| seen.contains("0.32.0 (a, c), 0.33.0 (b)")), "{seen:?}");
    assert!(seen.iter().any(|seen| seen.contains("sql is on 1 of 3")), "{seen:?}");
    let same = examine(&facts(vec![replica("a"), replica("b")]));
    assert!(of(&same, "fleet").is_empty());
    assert_eq!(one(&same, "queue_limit").replicas, ["a", "b"], "said once");
    assert_eq!(one(&examine(&facts(Vec::new())), "fleet").severity, Severity::Error);
}

#[test]
fn conflicts_of_the_configuration_with_itself_and_with_replicas_are_told() {
    let models = vec![model("gpt", "large", None), model("small", "tiny", None)];
    let named = Configuration { models, ..Configuration::default() };
    let findings = configured(named, vec![replica("a")]);
    assert!(one(&findings, "named_models").seen.contains("gpt leads to large"), "{findings:#?}");
    let models = vec![model("gpt", "tiny", Some(&["b"]))];
    let elsewhere = Configuration { models, ..Configuration::default() };
    assert!(
        one(&configured(elsewhere, vec![replica("a")]), "named_models").seen.contains("none of b")
    );
    let open = configured(
        Configuration {
            listen: "0.0.0.0:8080".parse().unwrap(),
            admin: "0.0.0.0:9090".parse().unwrap(),
            ..Configuration::default()
        },
        vec![replica("a")],
    );
    assert_eq!(of(&open, "open_ports").len(), 2, "{open:#?}");
    let closed = configured(
        Configuration {
            backends: vec![Backend {
                id: "h:1".to_owned(),
                url: Address::parse("http://h:1").unwrap(),
                has_key: true,
            }],
            ..Configuration::default()
        },
        Vec::new(),
    );
    assert_eq!(one(&closed, "open_ports").severity, Severity::Note);
}

#[test]
fn a_gateway_tells_what_it_sees_and_a_collector_whether_it_listens() {
    let status = serde_json::json!({
        "ready": true,
        "config_reloads": { "last_successful": false },
        "spans": { "failed": 3, "exported": 1 },
        "backends": [
            { "backend": "a", "health": "up", "breaker": "open" },
            { "backend": "b", "health": "down", "reason": "/health answered 503" },
            { "backend": "c", "health": "up", "breaker": "closed", "metrics_error": "timeout" },
        ],
    });
    let url = Address::parse("http://admin:9090").unwrap();
    let told = |status| Some(Ok(Gateway { url: url.clone(), status, config_problem: None }));
    let mut unseen = replica("a");
    unseen.health = Err(Silence::Connect("refused".into()));
    let told_all = Facts { gateway: told(Ok(status)), replicas: vec![unseen], ..Facts::default() };
    let findings = examine(&told_all);
    assert_eq!(of(&findings, "gateway").len(), 5, "{findings:#?}");
    assert_eq!(one(&findings, "reachable").severity, Severity::Note, "the gateway reaches it");
    let refused =
        Facts { gateway: told(Err("answered 401 Unauthorized".into())), ..Facts::default() };
    let findings = examine(&refused);
    assert!(one(&findings, "gateway").change.as_ref().unwrap().contains("TOKENWEIR_ADMIN_TOKEN"));
    let collector = |problem: Option<&str>| Facts {
        collector: Some(Collector {
            endpoint: "http://c:4317".into(),
            protocol: "grpc",
            problem: problem.map(Into::into),
        }),
        replicas: vec![replica("a")],
        ..Facts::default()
    };
    assert_eq!(one(&examine(&collector(Some("refused"))), "traces").severity, Severity::Error);
    assert_eq!(one(&examine(&collector(None)), "traces").severity, Severity::Note);
}

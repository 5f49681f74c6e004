//! The files for operations. Every query uses existing metrics, every alert has a test and a runbook, and the files in the repository equal the output of `tokenweir generate`.

use crate::support::promql::{self, Named};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use tokenweir::app::metrics::metric_rows;
use tokenweir::app::options::diagnosis_rules;
use tokenweir::commands::generate::run::{default_surroundings, metrics, tables};
use tokenweir::config::{Config, LoadedConfig, Overrides};
use tokenweir_gateway::metric::{KnownLabelValues, MetricLabel};
use tokenweir_operations::{Artifact, DeploymentEndpoints};
use tokenweir_protocol::metric_kind::MetricKind;
use tokenweir_protocol::openai::Api;
use tokenweir_request::record::Outcome;

/// Metrics that queries may use although the catalogue lacks them: metrics that Prometheus creates, and
/// process metrics.
const EXTERNAL_METRICS: [&str; 4] = [
    "up",
    "ALERTS",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
];
/// Labels that Prometheus, its configuration or Alertmanager creates.
const EXTERNAL_LABELS: [&str; 6] = [
    "le",
    "job",
    "instance",
    "cluster",
    "alertname",
    "alertstate",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Reads the gateway configuration in docker/compose.yml for this compose profile.
fn composed(profile: &str) -> LoadedConfig {
    let file = root().join(format!("docker/tokenweir.{profile}.yaml"));
    Config::load(Some(&file), Overrides::default()).unwrap()
}

fn rules(file: &str) -> Vec<Value> {
    let file: Value = serde_saphyr::from_str(&read(&format!("config/prometheus/{file}"))).unwrap();
    let groups = file["groups"].as_array().unwrap().iter();
    groups
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

fn alerts() -> Vec<Value> {
    rules("alert-rules.yml")
}

fn text<'a>(rule: &'a Value, key: &str) -> &'a str {
    rule[key].as_str().unwrap()
}

/// Returns every query, with the name of the alert, recording rule or panel that contains it.
fn queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for (name, file) in [
        ("alert", "alert-rules.yml"),
        ("record", "recording-rules.yml"),
    ] {
        for rule in rules(file) {
            queries.push((text(&rule, name).to_owned(), text(&rule, "expr").to_owned()));
        }
    }
    for board in dashboards() {
        queries.extend(panel_queries(&board));
        for annotation in board["annotations"]["list"].as_array().unwrap() {
            queries.push((
                "annotation".to_owned(),
                annotation["expr"].as_str().unwrap().to_owned(),
            ));
        }
    }
    assert!(queries.len() > 100);
    queries
}

/// Returns the queries in the panels of a dashboard, each with the title of its panel.
fn panel_queries(board: &Value) -> impl Iterator<Item = (String, String)> {
    all_panels(board).flat_map(|panel| {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(move |target| {
            (
                title.to_owned(),
                target["expr"].as_str().unwrap().to_owned(),
            )
        })
    })
}

/// The main dashboard and the dashboard of one backend.
fn dashboards() -> [Value; 2] {
    ["overview", "backend"].map(|name| {
        serde_json::from_str(&read(&format!("config/grafana/dashboards/{name}.json"))).unwrap()
    })
}

/// Returns every metric that a query may use, with the labels that its matchers may use at the default level
/// of metrics. `None`: any label. Metrics of engines and exporters are excluded, because the queries must
/// work with a Prometheus that scrapes only gateways.
fn known_metrics() -> BTreeMap<String, Option<Vec<MetricLabel>>> {
    let mut known = BTreeMap::new();
    let described = metrics().0.into_iter();
    let folded: BTreeSet<&str> = described
        .filter(|metric| metric.is_folded)
        .map(|metric| metric.name)
        .collect();
    for row in metric_rows() {
        let ends: &[&str] = match row.kind {
            MetricKind::Histogram(_) => &["_bucket", "_sum", "_count"],
            MetricKind::Counter | MetricKind::Gauge => &[""],
        };
        for end in ends {
            let labels = row.labels.iter().copied();
            let has = |label: &MetricLabel| label.name != "backend" || !folded.contains(row.name);
            known.insert(
                format!("{}{end}", row.name),
                Some(labels.filter(has).collect()),
            );
        }
    }
    let recorded = rules("recording-rules.yml");
    let recorded = recorded.iter().map(|rule| text(rule, "record").to_owned());
    let free = recorded.chain(EXTERNAL_METRICS.map(str::to_owned));
    known.extend(free.map(|name| (name, None)));
    known
}

/// Whether a label can have a value that a label matcher of a query allows. The pattern of the matcher is
/// `a|b`, `a.*` or a variable.
fn can_be(label: MetricLabel, pattern: &str) -> bool {
    let is_open = ["gen_ai_request_model", "backend", "tier"].contains(&label.name);
    let values = match label.name {
        // For this label, `seeds` has only one value, because the time series of the others do not exist at
        // the start.
        "gen_ai_operation_name" => Api::ALL.map(|api| api.operation().to_owned()).to_vec(),
        _ => label.seeds(&KnownLabelValues::default()),
    };
    let can_be_one = |one: &str| match one.strip_suffix(".*") {
        Some(prefix) => values.iter().any(|value| value.starts_with(prefix)),
        None => values.iter().any(|value| value == one),
    };
    is_open || pattern.starts_with('$') || pattern.split('|').all(can_be_one)
}

fn faults(named: &Named, known: &BTreeMap<String, Option<Vec<MetricLabel>>>) -> Vec<String> {
    let Named { metric, matchers } = named;
    let Some(labels) = known.get(metric) else {
        return vec![format!("no metric {metric}")];
    };
    let Some(labels) = labels else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    for (label, value) in matchers {
        match labels.iter().find(|known| known.name == label) {
            Some(known) if can_be(*known, value) => {}
            Some(_) => faults.push(format!("{metric}: {label} is never {value}")),
            None if EXTERNAL_LABELS.contains(&label.as_str()) => {}
            None => faults.push(format!("{metric} has no label {label}")),
        }
    }
    faults
}

#[test]
fn every_query_names_existing_metrics() {
    let known = known_metrics();
    let rows = metric_rows()
        .flat_map(|row| row.labels)
        .map(|label| label.name);
    let labels: BTreeSet<&str> = rows.chain(EXTERNAL_LABELS).collect();
    let mut wrong = Vec::new();
    for (location, query) in queries() {
        let names = promql::names(&query);
        assert!(!names.metrics.is_empty(), "{location} uses no metric");
        for fault in names.metrics.iter().flat_map(|named| faults(named, &known)) {
            wrong.push(format!("{location}: {fault}"));
        }
        for label in names
            .labels
            .iter()
            .filter(|label| !labels.contains(label.as_str()))
        {
            wrong.push(format!("{location}: no label {label}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn variables_of_dashboards_read_labels_of_existing_metrics() {
    for board in dashboards() {
        let variables = board["templating"]["list"].as_array().unwrap().iter();
        let queried = variables.filter(|variable| variable["type"] == "query");
        let queries: Vec<&str> = queried
            .map(|variable| variable["definition"].as_str().unwrap())
            .collect();
        assert!(!queries.is_empty());
        for query in queries {
            let inner = query
                .strip_prefix("label_values(")
                .unwrap()
                .strip_suffix(')')
                .unwrap();
            let (metric, label) = inner.split_once(", ").unwrap();
            let row = metric_rows().find(|row| row.name == metric).unwrap();
            let is_known = row.labels.iter().any(|known| known.name == label);
            assert!(is_known || EXTERNAL_LABELS.contains(&label), "{query}");
        }
    }
}

#[test]
fn the_check_detects_an_unknown_metric() {
    let known = known_metrics();
    let fault = |query: &str| {
        promql::names(query)
            .metrics
            .iter()
            .flat_map(|it| faults(it, &known))
            .count()
    };
    assert_eq!(
        fault("rate(tokenweir_requests_total{outcome=\"ok\"}[5m])"),
        0
    );
    assert_eq!(fault("rate(tokenweir_request_total[5m])"), 1);
    assert_eq!(fault("tokenweir_requests_total{result=\"ok\"}"), 1);
    assert_eq!(fault("tokenweir_requests_total{outcome=~\"ok|fine\"}"), 1);
    assert_eq!(fault("tokenweir_backend_up_count"), 1);
    assert_eq!(
        fault("vllm:num_requests_running"),
        1,
        "a metric of an engine"
    );
}

/// Returns the addresses of the services in docker/compose.yml. docs/check.sh uses the same addresses.
fn compose_endpoints() -> DeploymentEndpoints {
    DeploymentEndpoints {
        span_metrics: Some("collector:8889".to_owned()),
        gpus: Some(("dcgm-exporter".to_owned(), 9400)),
        runbooks: "http://127.0.0.1:9090/runbooks".to_owned(),
        ..default_surroundings(&composed("simulator").config)
    }
}

#[test]
fn committed_files_equal_the_generated_ones() {
    let around = compose_endpoints();
    let mut stale = Vec::new();
    // The repository has no copies of the schema and the catalogue: other programs get both from this program.
    for artifact in Artifact::ALL
        .into_iter()
        .filter(|artifact| ![Artifact::Schema, Artifact::Metrics].contains(artifact))
    {
        let text = artifact.print(&tables(), &around).unwrap();
        let path = root().join(artifact.as_str());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &text).unwrap();
        }
        if read(artifact.as_str()) != text {
            stale.push(artifact.as_str());
        }
    }
    assert!(stale.is_empty(), "UPDATE_GOLDEN=1 rewrites them: {stale:?}");
}

#[test]
fn every_alert_has_two_rule_tests() {
    let files = fs::read_dir(root().join("tests/operations")).unwrap();
    let cases: String = files
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap_or_default())
        .collect();
    for alert in alerts() {
        let alert = text(&alert, "alert");
        let name = format!("alertname=\"{alert}\"");
        let of_alert: Vec<&str> = cases.lines().filter(|line| line.contains(&name)).collect();
        let silent = of_alert
            .iter()
            .filter(|line| line.contains("exp_samples: []"))
            .count();
        assert!(silent > 0, "{alert} has no test in which it does not fire");
        assert!(silent < of_alert.len(), "{alert} never fires");
    }
}

#[test]
fn alerts_have_unique_names_and_inhibit_existing_alerts() {
    let alerts = alerts();
    let names: BTreeSet<&str> = alerts.iter().map(|alert| text(alert, "alert")).collect();
    assert_eq!(names.len(), alerts.len());
    let is_verdict = |name: &str| diagnosis_rules().any(|verdict| verdict.name == name);
    let alertmanager = read("config/alertmanager/alertmanager.yml");
    let alertmanager: Value = serde_saphyr::from_str(&alertmanager).unwrap();
    for rule in alertmanager["inhibit_rules"].as_array().unwrap() {
        for matcher in ["source_matchers", "target_matchers"]
            .iter()
            .flat_map(|side| rule[side].as_array().unwrap())
        {
            match matcher.as_str().unwrap().split_once(" = ").unwrap() {
                ("alertname", alert) => assert!(names.contains(alert), "{alert}"),
                ("verdict", verdict) => assert!(is_verdict(verdict), "{verdict}"),
                (label, _) => panic!("{label}"),
            }
        }
        assert_ne!(rule["source_matchers"], rule["target_matchers"]);
        assert_eq!(rule["equal"][0], "cluster");
    }
}

#[test]
fn each_alert_links_to_its_runbook() {
    let page = read("docs/operate/diagnose.md");
    let mut urgent = Vec::new();
    for alert in alerts() {
        let name = text(&alert, "alert");
        let severity = text(&alert["labels"], "severity");
        let section = format!(
            "\n### {name}\n\n*{severity} after {}.* ",
            text(&alert, "for")
        );
        assert!(page.contains(&section), "{section}");
        let link = text(&alert["annotations"], "runbook_url");
        let (_, anchor) = link.split_once("http://127.0.0.1:9090/runbooks#").unwrap();
        let mut verdicts = diagnosis_rules();
        if let Some(verdict) = verdicts.find(|verdict| verdict.name == anchor) {
            assert_eq!(text(&alert["annotations"], "description"), verdict.meaning);
            assert!(
                text(&alert, "expr").contains(&format!("\"{anchor}\"")),
                "{name}"
            );
        } else {
            assert!(
                anchor == name.to_lowercase() || anchor == "{{ $labels.verdict }}",
                "{anchor}"
            );
        }
        if severity == "page" {
            urgent.push(format!("`{name}`"));
        }
    }
    let urgent = urgent.join(", ");
    let sentence = format!("Alerts with the severity `page` need action now: {urgent}.");
    assert!(page.contains(&sentence));
}

#[test]
fn queries_have_the_labels_of_the_program() {
    let expression = |name: &str| {
        let alert = alerts()
            .into_iter()
            .find(|alert| alert["alert"] == name)
            .unwrap();
        text(&alert, "expr").to_owned()
    };
    let paging = diagnosis_rules().filter(|verdict| verdict.pages);
    let paging: Vec<&str> = paging.map(|verdict| verdict.name).collect();
    let critical = format!("verdict=~\"{}\"", paging.join("|"));
    assert!(
        expression("TokenweirCriticalVerdict").contains(&critical),
        "{critical}"
    );
    let failed = Outcome::ALL
        .into_iter()
        .filter(|outcome| outcome.is_backend_failure());
    let failed: Vec<&str> = failed.map(Outcome::as_str).collect();
    let failed = format!("outcome=~\"{}\"", failed.join("|"));
    assert!(expression("TokenweirErrors").contains(&failed), "{failed}");
    let refused = format!("outcome=\"{}\"", Outcome::Rejected.as_str());
    assert!(
        expression("TokenweirRequestsShed").contains(&refused),
        "{refused}"
    );
}

#[test]
fn queries_stay_within_a_cluster() {
    for rule in ["alert-rules.yml", "recording-rules.yml"]
        .into_iter()
        .flat_map(rules)
    {
        let query = text(&rule, "expr");
        for clause in [" by (", " on ("] {
            let mut lists = query.split(clause).skip(1);
            assert!(lists.all(|list| list.starts_with("cluster")), "{query}");
        }
        for operator in ["sum(", "min(", "max(", "avg("] {
            assert!(!query.contains(operator), "{query}");
        }
    }
}

/// Returns the rows and panels of a dashboard. Each row is followed by its panels, and a collapsed row
/// contains them.
fn all_panels(board: &Value) -> impl Iterator<Item = &Value> {
    let panels = board["panels"].as_array().unwrap().iter();
    panels.flat_map(|panel| {
        let nested = panel["panels"].as_array().into_iter().flatten();
        std::iter::once(panel).chain(nested)
    })
}

/// Whether a panel is a collapsed row. The positions of the panels in it are valid only while the row is
/// open.
fn is_collapsed(panel: &Value) -> bool {
    panel["type"] == "row" && panel["collapsed"] == true
}

#[test]
fn first_rows_are_expanded_and_others_collapsed() {
    let [board, _] = dashboards();
    let rows = all_panels(&board).filter(|panel| panel["type"] == "row");
    let collapsed: Vec<bool> = rows.map(is_collapsed).collect();
    assert_eq!(collapsed[..4], [false, false, false, true], "{collapsed:?}");
}

#[test]
fn panels_do_not_overlap_and_are_described() {
    for board in dashboards() {
        let mut taken = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for panel in all_panels(&board) {
            assert!(ids.insert(panel["id"].as_u64()), "{panel}");
            let grid = |side: &str| panel["gridPos"][side].as_u64().unwrap();
            assert!(grid("x") + grid("w") <= 24, "{panel}");
            if is_collapsed(panel) {
                taken.clear();
            }
            for x in grid("x")..grid("x") + grid("w") {
                for y in grid("y")..grid("y") + grid("h") {
                    assert!(taken.insert((x, y)), "{} overlaps", panel["title"]);
                }
            }
            if panel["type"] != "row" {
                assert!(
                    panel["description"].as_str().unwrap().ends_with('.'),
                    "{panel}"
                );
                assert!(!panel["targets"].as_array().unwrap().is_empty(), "{panel}");
            }
        }
    }
}

#[test]
fn both_dashboards_show_verdicts() {
    for board in dashboards() {
        let panel = all_panels(&board)
            .find(|panel| panel["type"] == "state-timeline")
            .unwrap();
        let target = &panel["targets"][0];
        let names = promql::names(target["expr"].as_str().unwrap());
        assert_eq!(names.metrics[0].metric, "tokenweir_diagnosis_active");
        // The legend must contain all labels by which the query groups, so that bars have different names.
        for label in &names.labels {
            let name = target["legendFormat"].as_str().unwrap();
            assert!(
                name.contains(&format!("{{{{{label}}}}}")),
                "{label} is not in {name}"
            );
        }
        let mappings = &panel["fieldConfig"]["defaults"]["mappings"];
        assert_eq!(mappings[0]["options"]["1"]["text"], "found");
        assert_eq!(mappings[1]["options"]["result"]["text"], "undetermined");
    }
}

#[test]
fn every_quality_metric_is_shown_and_alerted() {
    let alerts: Vec<String> = alerts()
        .iter()
        .map(|alert| text(alert, "expr").to_owned())
        .collect();
    let [board, _] = dashboards();
    let panels: Vec<String> = panel_queries(&board).map(|(_, query)| query).collect();
    let rows = metric_rows().filter(|row| row.name.starts_with("tokenweir_quality_"));
    let mut seen = 0;
    for row in rows {
        assert!(
            alerts.iter().any(|query| query.contains(row.name)),
            "no alert on {}",
            row.name
        );
        assert!(
            panels.iter().any(|query| query.contains(row.name)),
            "no panel of {}",
            row.name
        );
        seen += 1;
    }
    assert_eq!(seen, 3);
}

/// Returns the host paths that docker/compose.yml mounts with this compose profile.
fn mounts(composition: &str, profile: &str) -> Vec<PathBuf> {
    let composition = composition.replace("${COMPOSE_PROFILES}", profile);
    let words = composition.split([' ', '"', '[', ']', '\n']);
    let paths = words.filter(|word| word.starts_with("./") || word.starts_with("../"));
    paths
        .map(|word| root().join("docker").join(word.split(':').next().unwrap()))
        .collect()
}

#[test]
fn mounted_host_paths_exist() {
    let composition = read("docker/compose.yml");
    for profile in ["simulator", "gpu"] {
        let mounts = mounts(&composition, profile);
        assert!(mounts.len() > 6, "{mounts:?}");
        for path in mounts {
            assert!(path.exists(), "{}", path.display());
        }
    }
    let images = composition
        .lines()
        .filter_map(|line| line.trim().strip_prefix("image: "));
    for image in images {
        let tag = image.rsplit_once(':').map(|(_, tag)| tag);
        assert!(
            tag.is_some_and(|tag| tag != "latest"),
            "{image} has no exact version"
        );
    }
}

#[test]
fn the_compose_file_uses_existing_flags() {
    let composition = read("docker/compose.yml");
    let commands = composition
        .lines()
        .filter_map(|line| line.trim().strip_prefix("command: ["));
    let own = ["serve", "sim"];
    let mut seen = 0;
    for command in commands.filter(|command| own.iter().any(|name| command.starts_with(name))) {
        let words = command
            .trim_end_matches(']')
            .split(',')
            .map(|word| word.trim().trim_matches('"'));
        let words = ["tokenweir"].into_iter().chain(words).map(OsString::from);
        tokenweir::cli::parse(words).unwrap_or_else(|error| panic!("{command}: {error}"));
        seen += 1;
    }
    assert_eq!(seen, own.len());
    // With each profile, docker/compose.yml must start the backends and exporters that the gateway's
    // configuration names.
    for profile in ["simulator", "gpu"] {
        let config = composed(profile).config;
        for backend in &config.backends {
            let host = backend
                .url
                .to_string()
                .replace("http://", "")
                .replace(":8000", "");
            assert!(
                composition.contains(&format!("aliases: [{host}]")),
                "{host}"
            );
        }
        assert_eq!(!config.gpu.exporters.is_empty(), profile == "gpu");
    }
}

//! What packages are made of: the chart carries what is printed, its values are described, and the
//! image is made of files that are there. `packaging/check.sh` renders and builds them.

use crate::operations::composed;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tokenweir::commands::generate::run::{tables, usual_surroundings};
use tokenweir_operations::Artifact;

const CHART: &str = "packaging/helm/tokenweir";

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    assert!(at(path).exists(), "{path} is not there");
    fs::read_to_string(at(path)).unwrap()
}

/// The values that templates read, as `a.b`.
fn read_by_templates() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in fs::read_dir(at(CHART).join("templates")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for after in text.split(".Values.").skip(1) {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
            found.insert(after[..end.unwrap_or(after.len())].trim_end_matches('.').to_owned());
        }
    }
    assert!(found.len() > 20, "{found:?}");
    found
}

/// What a path leads to, through `between` at each step.
fn follow<'a>(root: &'a Value, path: &str, between: Option<&str>) -> Option<&'a Value> {
    path.split('.').try_fold(root, |value, key| {
        let value = between.map_or(Some(value), |between| value.get(between))?;
        value.get(key)
    })
}

/// The chart has copies: links do not survive every way that sources are handed on, and what is then
/// rendered is the path that they led to.
#[test]
fn the_chart_carries_the_rules_and_dashboards_that_are_printed() {
    let around = usual_surroundings(&composed().config);
    let mut stale = Vec::new();
    for (carried, artifact) in [
        ("alert-rules.yml", Artifact::AlertRules),
        ("recording-rules.yml", Artifact::RecordingRules),
        ("overview.json", Artifact::DashboardOverview),
        ("replica.json", Artifact::DashboardReplica),
    ] {
        let (path, text) =
            (at(CHART).join("files").join(carried), artifact.print(&tables(), &around).unwrap());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &text).unwrap();
        }
        if fs::read_to_string(&path).unwrap() != text {
            stale.push(carried);
        }
    }
    assert!(stale.is_empty(), "UPDATE_GOLDEN=1 rewrites them: {stale:?}");
}

#[test]
fn every_value_that_a_template_reads_is_there_and_in_the_schema() {
    let values: Value = serde_saphyr::from_str(&read(&format!("{CHART}/values.yaml"))).unwrap();
    let schema: Value =
        serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap();
    for path in read_by_templates() {
        assert!(follow(&values, &path, None).is_some(), "{path} is not in values.yaml");
        assert!(follow(&schema, &path, Some("properties")).is_some(), "{path} is not described");
    }
    let described: BTreeSet<&String> = schema["properties"].as_object().unwrap().keys().collect();
    for key in values.as_object().unwrap().keys() {
        assert!(described.contains(key), "{key} is refused by the schema");
    }
}

#[test]
fn the_image_is_made_of_files_that_are_there_and_not_left_out() {
    let file = read("docker/Dockerfile");
    let ignored = read(".dockerignore");
    let copies = file.lines().filter_map(|line| line.strip_prefix("COPY "));
    let mut seen = 0;
    for copy in copies.filter(|copy| !copy.starts_with("--from=")) {
        let words: Vec<&str> = copy.split_whitespace().collect();
        for source in &words[..words.len() - 1] {
            assert!(at(source).exists(), "{source} is not there");
            let is_out = ignored.lines().any(|line| source.split('/').next() == Some(line));
            assert!(!is_out, "{source} is left out by .dockerignore");
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn the_image_brings_authorities_for_servers_behind_https() {
    let file = read("docker/Dockerfile");
    let (_, last) = file.split_once("FROM scratch\n").unwrap();
    assert!(last.contains("/etc/ssl/certs/ca-certificates.crt"), "{last}");
}

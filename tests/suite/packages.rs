//! The packages of the project. All have the same version. The schema of the Helm chart has the values that
//! its templates read. The files from which the container image is built exist. `packaging/check.sh` renders
//! the chart and builds the packages.

use crate::documentation::read;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tokenweir::config::{Config, ReloadClass};

const CHART: &str = "packaging/helm/tokenweir";

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the paths of the values that the templates of the Helm chart read, such as `a.b`.
fn read_by_templates() -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for file in fs::read_dir(at(CHART).join("templates")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for after in text.split(".Values.").skip(1) {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
            paths.insert(
                after[..end.unwrap_or(after.len())]
                    .trim_end_matches('.')
                    .to_owned(),
            );
        }
    }
    assert!(paths.len() > 20, "{paths:?}");
    paths
}

/// Returns the value at a path of keys such as `a.b`. If `between` is given, such as `properties` in a
/// schema, this key comes before each key of the path.
fn follow<'a>(root: &'a Value, path: &str, between: Option<&str>) -> Option<&'a Value> {
    path.split('.').try_fold(root, |value, key| {
        let value = between.map_or(Some(value), |between| value.get(between))?;
        value.get(key)
    })
}

/// Returns the first word after the text `key`. Fails if the text does not contain `key`.
fn word_after<'a>(text: &'a str, key: &str) -> &'a str {
    let after = text.split_once(key).map(|(_, after)| after).expect(key);
    after.split_whitespace().next().unwrap()
}

#[test]
fn charts_images_and_packages_have_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = read(&format!("{CHART}/Chart.yaml"));
    assert_eq!(word_after(&chart, "\nversion: "), version);
    assert_eq!(
        word_after(&chart, "\nappVersion: "),
        version,
        "the tag of the image"
    );
    // The Debian package and the wheel get their version from `Cargo.toml`.
    let manifest = read("Cargo.toml");
    assert_eq!(
        word_after(&manifest, "\nversion = "),
        format!("\"{version}\"")
    );
}

fn sections(class: ReloadClass) -> BTreeSet<String> {
    let sections = Config::reload_classes()
        .into_iter()
        .filter(|(_, of_section)| *of_section == class);
    sections.map(|(key, _)| key.to_owned()).collect()
}

#[test]
fn charts_and_docs_list_reloadable_keys() {
    let mut applied = sections(ReloadClass::AtOnce);
    let fixed = sections(ReloadClass::AfterRestart);
    assert!(
        applied.len() > 15 && fixed.len() > 10,
        "{applied:?} {fixed:?}"
    );
    let page = read("docs/guides/configuration.md");
    let row = page
        .lines()
        .find(|line| line.starts_with("| `admission`"))
        .unwrap();
    let cells: Vec<BTreeSet<String>> = row
        .split('|')
        .map(|cell| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<BTreeSet<_>>()
        })
        .collect();
    let top_level = |cell: &BTreeSet<String>| {
        cell.iter()
            .filter(|key| !key.contains('.'))
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(top_level(&cells[1]), applied);
    assert_eq!(top_level(&cells[2]), fixed);
    // The chart replaces pods after any change of `limits`, even if a reload would apply it.
    applied.remove("limits");
    let helpers = read(&format!("{CHART}/templates/_helpers.tpl"));
    let (_, omitted) = helpers.split_once("omit $config ").unwrap();
    let omitted = omitted
        .lines()
        .next()
        .unwrap()
        .split('"')
        .skip(1)
        .step_by(2);
    assert_eq!(omitted.map(str::to_owned).collect::<BTreeSet<_>>(), applied);
}

#[test]
fn every_template_value_is_in_the_schema() {
    let values: Value = serde_saphyr::from_str(&read(&format!("{CHART}/values.yaml"))).unwrap();
    let schema: Value =
        serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap();
    for path in read_by_templates() {
        assert!(
            follow(&values, &path, None).is_some(),
            "{path} is not in values.yaml"
        );
        assert!(
            follow(&schema, &path, Some("properties")).is_some(),
            "{path} is not described"
        );
    }
    let described: BTreeSet<&String> = schema["properties"].as_object().unwrap().keys().collect();
    for key in values.as_object().unwrap().keys() {
        assert!(described.contains(key), "{key} is refused by the schema");
    }
}

#[test]
fn the_image_is_built_from_existing_files() {
    let file = read("docker/Dockerfile");
    let ignored = read(".dockerignore");
    let copies = file.lines().filter_map(|line| line.strip_prefix("COPY "));
    let mut seen = 0;
    for copy in copies.filter(|copy| !copy.starts_with("--from=")) {
        let words: Vec<&str> = copy.split_whitespace().collect();
        for source in &words[..words.len() - 1] {
            assert!(at(source).exists(), "{source} does not exist");
            let is_out = ignored
                .lines()
                .any(|line| source.split('/').next() == Some(line));
            assert!(!is_out, "{source} is excluded by .dockerignore");
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn the_container_image_contains_ca_certificates() {
    let file = read("docker/Dockerfile");
    let (_, last) = file.split_once("FROM scratch\n").unwrap();
    assert!(
        last.contains("/etc/ssl/certs/ca-certificates.crt"),
        "{last}"
    );
}

#[test]
fn the_changelog_closes_the_packaged_version() {
    let changes = read("CHANGELOG.md");
    let head = format!("\n## [{}] - ", env!("CARGO_PKG_VERSION"));
    let date = word_after(&changes, &head);
    assert_eq!(date.split('-').count(), 3, "{date}");
    let (before, _) = changes.split_once(&head).unwrap();
    assert!(before.contains("\n## [Unreleased]\n"), "{before}");
}

#[test]
fn releases_publish_what_people_install() {
    let workflow = read(".github/workflows/release.yml");
    for published in [
        "ubuntu-24.04-arm",
        "packaging/static.sh",
        "packaging/deb.sh",
        "packaging/wheel.sh",
        "packaging/helm.sh",
        "packaging/sbom.sh",
        "docker push",
        "helm push",
        "sha256sum",
        "cosign sign ",
        "cosign sign-blob",
        "attest-build-provenance",
    ] {
        assert!(workflow.contains(published), "{published}");
    }
}

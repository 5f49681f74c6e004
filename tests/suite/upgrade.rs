//! Tests that files of version 0.1 are valid after `tokenweir check --upgrade`. `tests/earlier/0.1` has the
//! configurations, rules and dashboards that 0.1 shipped.

use crate::documentation::read;
use crate::support::process::{self, Ended};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokenweir::config::schema;

const EARLIER: &str = "tests/earlier/0.1";

/// Copies a file of 0.1 into a folder of the test.
fn copied(test: &str, name: &str) -> PathBuf {
    let copy = process::folder(test).join(name);
    fs::write(&copy, read(&format!("{EARLIER}/{name}"))).unwrap();
    copy
}

async fn upgrade(file: &Path, flags: &[&str]) -> Ended {
    let arguments = [&["check", "--upgrade"], flags, &[file.to_str().unwrap()]].concat();
    process::run(&arguments, &[]).await
}

fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(EARLIER);
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
    let names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| name(entry).unwrap())
        .collect();
    assert_eq!(names.len(), 8);
    names
}

#[tokio::test]
async fn every_earlier_file_loads_after_the_upgrade() {
    for name in names() {
        let file = copied("upgrade-all", &name);
        let (code, diff, messages) = upgrade(&file, &["--write"]).await;
        let needs_a_person = ["overview.json", "alert-rules.yml"].contains(&name.as_str());
        assert_eq!(code, Some(i32::from(needs_a_person)), "{name}: {messages}");
        let is_present = ["deb.yaml", "values.yaml"].contains(&name.as_str());
        assert_eq!(diff.is_empty(), is_present, "{name}: {diff}");
        let (_, again, _) = upgrade(&file, &[]).await;
        assert_eq!(again, "", "{name} changes a second time");
        if ["tokenweir.yaml", "compose.yaml", "deb.yaml"].contains(&name.as_str()) {
            let arguments = ["check", "--syntax-only", file.to_str().unwrap()];
            let (code, _, errors) = process::run(&arguments, &[]).await;
            assert_eq!(code, Some(0), "{name}: {errors}");
        }
    }
}

#[tokio::test]
async fn the_messages_name_what_a_person_changes() {
    for (name, expected) in [
        (
            "overview.json",
            "write tokenweir_time_to_response_headers_seconds",
        ),
        (
            "alert-rules.yml",
            "`tokenweir_quality_output_drift_ratio` is gone",
        ),
    ] {
        let (_, _, messages) = upgrade(&copied("upgrade-messages", name), &[]).await;
        assert!(messages.contains(expected), "{name}: {messages}");
    }
}

#[tokio::test]
async fn comments_and_layout_stay() {
    let file = copied("upgrade-layout", "tokenweir.yaml");
    let before = fs::read_to_string(&file).unwrap();
    upgrade(&file, &["--write"]).await;
    let after = fs::read_to_string(&file).unwrap();
    let comments = |text: &str| {
        let lines = text
            .lines()
            .map(str::trim_start)
            .filter(|line| line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let after = comments(&after);
    let lost: Vec<String> = comments(&before)
        .into_iter()
        .filter(|comment| !after.contains(comment))
        .collect();
    assert!(
        lost.iter().all(|comment| comment.contains("tokenweir_")),
        "{lost:#?}"
    );
}

#[tokio::test]
async fn without_write_no_file_changes() {
    let file = copied("upgrade-show", "compose.yaml");
    let (code, diff, _) = upgrade(&file, &[]).await;
    assert_eq!(code, Some(0));
    assert!(
        diff.contains("\n-  send_all: true\n+  sampling: all\n"),
        "{diff}"
    );
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        read(&format!("{EARLIER}/compose.yaml"))
    );
}

#[tokio::test]
async fn replacing_a_file_keeps_its_link_and_mode() {
    let file = copied("upgrade-replace", "compose.yaml");
    let link = file.with_file_name("link.yaml");
    let reader = file.with_file_name("reader.yaml");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    fs::hard_link(&file, &reader).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let (code, _, errors) = upgrade(&link, &["--write"]).await;
    assert_eq!(code, Some(0), "{errors}");
    let old = read(&format!("{EARLIER}/compose.yaml"));
    assert_eq!(
        fs::read_to_string(&reader).unwrap(),
        old,
        "written in place"
    );
    assert_ne!(fs::read_to_string(&file).unwrap(), old);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[tokio::test]
async fn a_file_with_mistakes_is_not_shown() {
    let file = process::folder("upgrade-mistake").join("gateway.yaml");
    let text = "watch: { timeout: 1s }\nbackends: [{ url: a:1, api_key: sk-canary }]\n";
    fs::write(&file, text).unwrap();
    let (code, diff, errors) = upgrade(&file, &["--write"]).await;
    assert_eq!(code, Some(64), "{diff}{errors}");
    assert!(
        errors.contains("api_key") && diff.is_empty(),
        "{diff}{errors}"
    );
    assert!(!errors.contains("sk-canary"), "{errors}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

/// The paths of all keys of the configuration, with `[]` for each item of a list.
fn present_keys(schema: &serde_json::Value, path: &str, found: &mut BTreeSet<String>) {
    for option in schema["anyOf"].as_array().into_iter().flatten() {
        present_keys(option, path, found);
    }
    if let Some(items) = schema.get("items") {
        present_keys(items, &format!("{path}[]"), found);
    }
    for (key, value) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        present_keys(value, &path, found);
        found.insert(path);
    }
}

#[test]
fn no_present_key_counts_as_an_earlier_one() {
    let mut present = BTreeSet::new();
    present_keys(schema().as_value(), "", &mut present);
    assert!(present.contains("models[].policy.idle"));
    let renames: serde_json::Value = serde_saphyr::from_str(&read("config/renames.yaml")).unwrap();
    for key in renames["keys"].as_array().unwrap() {
        let from = key["from"].as_str().unwrap();
        assert!(!present.contains(from), "{from}");
        if let Some(to) = key["to"].as_str() {
            assert!(present.contains(to), "{to}");
        }
    }
}

//! Imports point down the floors, every module says what it is for, and no file grows too long.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The longest a source file may be, tests included.
const MAX_LINES: usize = 400;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    files(&root(), &mut found);
    assert!(found.len() > 30);
    let name = |path: &PathBuf| path.strip_prefix(root()).unwrap().display().to_string();
    found.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The floors as `lib.rs` declares them: a blank line begins a new one.
fn floors() -> BTreeMap<String, usize> {
    let lib = fs::read_to_string(root().join("lib.rs")).unwrap();
    let mut floors = BTreeMap::new();
    let mut floor = 0;
    for line in lib.lines() {
        if line.is_empty() {
            floor += 1;
        } else if let Some(room) = line.strip_prefix("pub mod ") {
            floors.insert(room.trim_end_matches(';').to_owned(), floor);
        }
    }
    floors
}

/// The room of a file: its first folder, or its own name.
fn room(file: &str) -> String {
    file.split(['/', '.']).next().unwrap().to_owned()
}

/// The rooms that a line of code names through `crate::`.
fn imports(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or("");
    code.split("crate::")
        .skip(1)
        .map(|rest| {
            rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned()
        })
        .filter(|room| !room.is_empty())
        .collect()
}

#[test]
fn every_import_points_down_the_floors() {
    let floors = floors();
    let mut wrong = Vec::new();
    for (file, source) in sources() {
        if matches!(file.as_str(), "lib.rs" | "main.rs") {
            continue;
        }
        let own = room(&file);
        let Some(own_floor) = floors.get(&own) else { panic!("{own} has no floor in lib.rs") };
        // Tests may use what stands above.
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (number, line) in code.lines().enumerate() {
            for imported in imports(line) {
                let is_below = floors.get(&imported).is_some_and(|floor| floor < own_floor);
                if imported != own && !is_below && !file.ends_with("tests.rs") {
                    wrong.push(format!("{file}:{}: {own} imports {imported}", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "imports that point up or sideways:\n{}", wrong.join("\n"));
}

#[test]
fn the_floors_without_io_know_no_runtime_and_no_socket() {
    let pure = [
        "json",
        "sse",
        "spread",
        "trace_context",
        "openai",
        "headers",
        "http1",
        "record",
        "slo",
        "routing",
        "resilience",
        "access",
        "admission",
        "operations",
        "diagnose",
    ];
    for (file, source) in sources() {
        if pure.contains(&room(&file).as_str()) {
            for outside in ["tokio::", "hyper::", "axum::", "clock::now", "std::net::Tcp"] {
                assert!(!source.contains(outside), "{file} uses {outside}");
            }
        }
    }
}

#[test]
fn every_module_says_what_it_is_for_and_stays_short() {
    for (file, source) in sources() {
        assert!(source.starts_with("//!"), "{file} has no module doc");
        let lines = source.lines().count();
        assert!(lines <= MAX_LINES, "{file} has {lines} lines; look for the better idea");
    }
}

#[test]
fn outside_crates_stay_in_their_rooms() {
    let rooms = [
        ("sha2::", &["access"][..]),
        ("subtle::", &["access", "record"]),
        ("getrandom::", &["app"]),
        ("prometheus::", &["telemetry", "app"]),
        ("opentelemetry", &["telemetry", "sim"]),
        ("rustls::", &["tls"]),
        ("x509_cert", &["tls"]),
        ("axum::", &["admin", "server", "sim"]),
        ("serde_saphyr", &["config", "operations"]),
        ("hickory_resolver", &["discovery"]),
        ("kube::", &["discovery"]),
        ("k8s_openapi", &["discovery"]),
        ("sd_notify", &["app"]),
        ("ratatui::", &["top", "app"]),
        ("clap::", &["cli", "sim", "routing", "main", "app", "config", "operations"]),
    ];
    for (file, source) in sources() {
        for (name, allowed) in rooms {
            let uses = source.lines().any(|line| {
                line.contains(name)
                    && !line.contains("telemetry::prometheus")
                    && !line.trim_start().starts_with("//")
            });
            assert!(!uses || allowed.contains(&room(&file).as_str()), "{file} uses {name}");
        }
    }
}

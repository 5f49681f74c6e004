//! The configuration as a whole: the precedence of its sources, and the reference file with the
//! defaults.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may end so")]

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use tokenweir::cli::{self, Cli};
use tokenweir::config::{Config, ConfigError, LoadedConfig, Overrides, check};

const REFERENCE: &str = include_str!("../../config/tokenweir.yaml");

fn parse(text: &str) -> Result<LoadedConfig, ConfigError> {
    Config::parse(text, Path::new("gateway.yaml"), Overrides::default())
}

/// Every path in a view with its value and its source.
fn leaves(view: &Value) -> Vec<(String, Value, String)> {
    fn walk(path: &str, value: &Value, into: &mut Vec<(String, Value, String)>) {
        let below = |key: &str| format!("{path}.{key}").trim_start_matches('.').to_owned();
        match (value.get("source"), value) {
            (Some(source), value) => {
                let source = source.as_str().unwrap().to_owned();
                into.push((path.to_owned(), value["value"].clone(), source));
            }
            (None, Value::Object(fields)) => {
                fields.iter().for_each(|(key, value)| walk(&below(key), value, into));
            }
            (None, Value::Array(items)) => {
                let items = items.iter().enumerate();
                items.for_each(|(index, item)| walk(&below(&index.to_string()), item, into));
            }
            (None, other) => panic!("{path} has no source: {other}"),
        }
    }
    let mut leaves = Vec::new();
    walk("", &view["config"], &mut leaves);
    leaves
}

// === files ===

#[test]
fn the_error_for_an_unreadable_file_names_it() {
    let folder = tempdir("unreadable");
    let latin1 = folder.join("latin1.yaml");
    std::fs::write(&latin1, b"log:\n  level: \xe9\n").unwrap();
    let endless = folder.join("endless.yaml");
    std::fs::write(&endless, "#".repeat(2 << 20)).unwrap();
    for (file, message) in [
        (folder.join("absent.yaml"), "FILE: no such file"),
        (folder.clone(), "FILE: this is a directory, not a file"),
        (endless, "FILE: too large for a configuration (1MiB)"),
        (
            latin1,
            "FILE:2:10: not UTF-8
  |
2 |   level: \u{fffd}
  |          ^
  = help: write the file in UTF-8",
        ),
    ] {
        let error = Config::load(Some(&file), Overrides::default()).unwrap_err().to_string();
        assert_eq!(error.replace(&file.display().to_string(), "FILE"), message);
    }
}

#[test]
fn a_check_reports_the_same_as_text_and_as_json() {
    let folder = tempdir("check");
    let env = |_: &str| None;
    let good = folder.join("good.yaml");
    std::fs::write(&good, "backends: [{ url: a:1, api_key: { env: KEY } }]").unwrap();
    let good = check(&good, env);
    assert!(good.is_ok());
    assert_eq!(
        good.to_string().split_once(": ").unwrap().1,
        "ok, 1 backend\nnote: the api_key of a:1: the environment variable KEY is not set"
    );
    assert_eq!(good.to_json()["backends"], 1);
    let tiers = folder.join("tiers.yaml");
    let text = "tiers: { names: [paid], keys: [{ key: { env: PAID }, tier: paid }] }\n\
                discovery: [{ dns: a.example, port: 1, api_key: { env: FLEET } }]";
    std::fs::write(&tiers, text).unwrap();
    let tiers = check(&tiers, env).to_string();
    for note in ["tiers.keys[0].key: the environment variable PAID", "discovery[0].api_key: "] {
        assert!(tiers.contains(note), "{tiers}");
    }
    let bad = folder.join("bad.yaml");
    std::fs::write(&bad, "routing:\n  polcy: kv_aware\n").unwrap();
    let bad = check(&bad, env);
    assert!(!bad.is_ok());
    assert!(bad.to_string().contains("unknown key `polcy`"));
    let mut report = bad.to_json();
    report["file"] = Value::Null;
    let help = "did you mean `policy`?";
    let expected = json!({
        "ok": false, "file": null, "line": 2, "column": 3,
        "problem": "unknown key `polcy`", "help": help,
    });
    assert_eq!(report, expected);
}

// === precedence ===

const ARGUMENTS: &str = "TEST_ARGUMENTS";

/// Not a test by itself: prints the configuration that `serve` would load in a process with this
/// environment.
#[test]
#[ignore = "runs as a child of the tests below, with an environment of its own"]
fn child_that_prints_what_serve_loads() {
    let arguments = std::env::var(ARGUMENTS).unwrap();
    match cli::parse(arguments.split(' ').map(OsString::from)) {
        Err(error) => println!("<<<{error}>>>"),
        Ok(Cli { command: cli::CliCommand::Serve(serve) }) => {
            let loaded = Config::load(serve.config.as_deref(), serve.overrides);
            match loaded {
                Ok(loaded) => println!("<<<{}>>>", loaded.view()),
                Err(error) => println!("<<<{error}>>>"),
            }
        }
        Ok(other) => panic!("{other:?}"),
    }
}

fn serve_in_a_child(arguments: &str, variables: &[(&str, &str)]) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let name = "child_that_prints_what_serve_loads";
    let module = module_path!().split_once("::");
    let name = module.map_or(name.to_owned(), |(_, module)| format!("{module}::{name}"));
    child.args(["--exact", &name, "--ignored", "--nocapture"]);
    child.env_clear().env(ARGUMENTS, format!("tokenweir serve {arguments}").trim_end());
    child.envs(variables.iter().copied());
    let output = String::from_utf8(child.output().unwrap().stdout).unwrap();
    let (_, begun) = output.split_once("<<<").unwrap();
    begun.split_once(">>>").unwrap().0.to_owned()
}

/// Source and value of every key that a flag can set: default, file, variable and flag.
#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    let file = tempdir("precedence").join("gateway.yaml");
    let text = "listen: 127.0.0.1:2\nadmin: 127.0.0.1:3\nbackends: [{ url: file:1 }]\n\
                routing: { policy: p2c }\nlog: { level: warn, format: json, access: false }\n\
                drain: { timeout: 2m }\ntracing: { endpoint: 'http://file:4317' }\n";
    std::fs::write(&file, text).unwrap();
    // path, flag, default, file, variable, flag
    let table = [
        ("listen", "--listen", "127.0.0.1:8080", "127.0.0.1:2", "127.0.0.1:12", "127.0.0.1:22"),
        ("admin", "--admin", "127.0.0.1:9090", "127.0.0.1:3", "127.0.0.1:13", "127.0.0.1:23"),
        ("backends.0.url", "--backend", "null", "http://file:1", "http://env:1", "http://flag:1"),
        ("routing.policy", "--policy", "kv_aware", "p2c", "round_robin", "least_requests"),
        ("log.level", "--log-level", "info", "warn", "debug", "trace"),
        ("log.format", "--log-format", "auto", "json", "human", "json"),
        ("log.access", "--access-log", "true", "false", "true", "false"),
        ("drain.timeout", "--drain-timeout", "30s", "2m", "3m", "4m"),
        ("tracing.endpoint", "--otlp-endpoint", "null", "http://file:4317", "http://e:1", "f:1"),
    ];
    let variable =
        |flag: &str| flag.replacen("--", "TOKENWEIR_", 1).replace('-', "_").to_uppercase();
    let names = table.map(|row| variable(row.1));
    let mut variables: Vec<(&str, &str)> =
        names.iter().zip(&table).map(|(name, row)| (name.as_str(), row.4)).collect();
    variables.push(("TOKENWEIR_CONFIG", file.to_str().unwrap()));
    let flags: String = table.map(|row| format!("{}={} ", row.1, row.5)).concat();
    let from_file = format!("--config {}", file.display());
    for (arguments, variables, column) in [
        ("", &[][..], 0),
        (from_file.as_str(), &[], 1),
        ("", &variables, 2),
        (flags.trim_end(), &variables, 3),
    ] {
        let view: Value = serde_json::from_str(&serve_in_a_child(arguments, variables)).unwrap();
        let leaves = leaves(&view);
        for (path, flag, default, file, by_variable, by_flag) in table {
            let sources = [
                "default",
                "file",
                &format!("environment {}", variable(flag)),
                &format!("flag {flag}"),
            ]
            .map(str::to_owned);
            let expected = [default, file, by_variable, by_flag][column];
            let Some((_, value, source)) = leaves.iter().find(|leaf| leaf.0 == path) else {
                assert_eq!((path, column), ("backends.0.url", 0), "no backend is the default");
                continue;
            };
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!((value.as_str(), source), (expected, &sources[column]), "{path}");
        }
    }
}

#[test]
fn the_error_for_an_invalid_variable_names_it() {
    let error = serve_in_a_child("", &[("TOKENWEIR_LISTEN", "8080")]);
    assert!(error.contains("the value is that of the variable TOKENWEIR_LISTEN"), "{error}");
    let error = serve_in_a_child("--listen 8080", &[]);
    assert!(!error.contains("TOKENWEIR_LISTEN"), "{error}");
    let error = serve_in_a_child("--backend a:1", &[("TOKENWEIR_ADMIN", "127.0.0.1:8080")]);
    assert_eq!(error, "TOKENWEIR_ADMIN: listen and admin cannot both be 127.0.0.1:8080");
    let error = serve_in_a_child("--backend a:1 --backend A:1", &[]);
    assert_eq!(error, "--backend: http://A:1 is already the url of backends[0]");
}

#[test]
fn serving_needs_a_backend() {
    let error = Config::load(None, Overrides::default()).unwrap().require_backend().unwrap_err();
    assert_eq!(
        error.to_string(),
        "no backend is configured\nhelp: give --backend http://HOST:PORT, set TOKENWEIR_BACKEND or \
         add `backends` or `discovery` to the configuration file"
    );
    assert!(parse(REFERENCE).unwrap().require_backend().is_ok());
}

// === the reference file ===

#[test]
fn the_reference_file_has_every_key_with_its_default() {
    let documented = parse(REFERENCE).unwrap();
    let backends = documented.config.backends.clone();
    assert_eq!(backends.len(), 1, "one example");
    assert_eq!(backends[0].url.to_string(), "http://127.0.0.1:8101");
    let defaults = Config { backends, ..Config::default() };
    assert_eq!(documented.config, defaults);
    let undocumented: BTreeSet<String> = leaves(&documented.view())
        .into_iter()
        .filter(|(_, _, source)| source != "file")
        .map(|(path, _, _)| path)
        .collect();
    assert_eq!(undocumented, BTreeSet::new());
}

#[test]
fn every_key_of_the_reference_file_has_a_comment() {
    let lines: Vec<&str> = REFERENCE.lines().map(str::trim).collect();
    let is_key = |line: &str| !line.is_empty() && !line.starts_with('#');
    for pair in lines.windows(2).filter(|pair| is_key(pair[1])) {
        // The keys of a backend are explained above the list.
        let is_of_backend = [
            "- url",
            "name",
            "api_key",
            "usage: null",
            "continuous_usage: null",
            "tls: null",
            "weight",
        ]
        .iter()
        .any(|key| pair[1].starts_with(key));
        assert!(pair[0].starts_with('#') || is_of_backend, "{}", pair[1]);
    }
}

#[test]
fn the_yaml_samples_of_the_documentation_are_valid() {
    assert_eq!(samples("text\n```yaml\nlisten: 127.0.0.1:1\n```\n```sh\nx\n```\n").len(), 1);
    for sample in samples(&format!("```yaml\n{REFERENCE}\n```\n")) {
        parse(&sample).unwrap();
    }
}

/// The blocks of a Markdown page that are marked as `yaml`.
fn samples(page: &str) -> Vec<String> {
    let blocks = page.split("```yaml\n").skip(1);
    blocks.filter_map(|rest| Some(rest.split_once("```")?.0.to_owned())).collect()
}

fn tempdir(name: &str) -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("config-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

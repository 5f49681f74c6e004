//! The configuration as a whole: which source of a value takes precedence, and whether the reference file has
//! the defaults.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may end so")]

use crate::support::process::folder;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use tokenweir::app::check::{ConfigCheck, check};
use tokenweir::cli::{self, Cli};
use tokenweir::config::{CheckedFile, Config, ConfigError, LoadedConfig, Overrides};

const REFERENCE: &str = include_str!("../../config/tokenweir.yaml");

/// The reference file, with the sections that options keep in their folders.
fn reference() -> String {
    let options = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/extras")).unwrap();
    let files = options.map(|folder| folder.unwrap().path().join("tokenweir.yaml"));
    let sections = files.filter_map(|file| std::fs::read_to_string(file).ok());
    std::iter::once(REFERENCE.to_owned())
        .chain(sections)
        .collect()
}

fn parse(text: &str) -> Result<LoadedConfig, ConfigError> {
    Config::parse(text, Path::new("gateway.yaml"), Overrides::default())
}

/// Returns every setting in the JSON view of a configuration: its path, its value and its source.
fn leaves(view: &Value) -> Vec<(String, Value, String)> {
    fn walk(path: &str, value: &Value, into: &mut Vec<(String, Value, String)>) {
        let below = |key: &str| format!("{path}.{key}").trim_start_matches('.').to_owned();
        match (value.get("source"), value) {
            (Some(source), value) => {
                let source = source.as_str().unwrap().to_owned();
                into.push((path.to_owned(), value["value"].clone(), source));
            }
            (None, Value::Object(fields)) => {
                fields
                    .iter()
                    .for_each(|(key, value)| walk(&below(key), value, into));
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
fn an_unreadable_file_is_named() {
    let folder = folder("config-unreadable");
    let latin1 = folder.join("latin1.yaml");
    std::fs::write(&latin1, b"log:\n  level: \xe9\n").unwrap();
    let endless = folder.join("endless.yaml");
    std::fs::write(&endless, "#".repeat(2 << 20)).unwrap();
    for (file, message) in [
        (folder.join("absent.yaml"), "FILE: no such file"),
        (folder.clone(), "FILE: this is a directory, not a file"),
        (endless, "FILE: too large: the file may have at most 1MiB"),
        (
            latin1,
            "FILE:2:10: not UTF-8
  |
2 |   level: \u{fffd}
  |          ^
  = help: write the file in UTF-8",
        ),
    ] {
        let error = Config::load(Some(&file), Overrides::default())
            .unwrap_err()
            .to_string();
        assert_eq!(error.replace(&file.display().to_string(), "FILE"), message);
    }
}

/// Checks a configuration file that has this text, without environment variables.
fn check_text(name: &str, text: &str, checked: CheckedFile) -> ConfigCheck {
    let file = folder("config-check").join(name);
    std::fs::write(&file, text).unwrap();
    check(&file, checked, |_| None)
}

#[test]
fn text_and_json_report_the_same_mistakes() {
    let good = "backends: [{ url: a:1 }]\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\n";
    let good = check_text("good.yaml", good, CheckedFile::Config);
    assert!(good.is_ok());
    assert_eq!(
        good.to_string().split_once(": ").unwrap().1,
        "ok, 1 backend"
    );
    let bad = check_text(
        "bad.yaml",
        "routing:\n  polcy: kv_aware\nlog: 3\n",
        CheckedFile::Config,
    );
    assert!(!bad.is_ok() && !bad.is_valid());
    let text = bad.to_string();
    assert!(
        text.contains("unknown key `polcy`") && text.ends_with(": 2 errors"),
        "{text}"
    );
    let mut report = bad.to_json(false);
    assert_eq!(report["errors"].as_array().unwrap().len(), 2, "{report}");
    let first = report["errors"][0].take();
    let expected = json!({
        "file": first["file"], "line": 2, "column": 3,
        "problem": "unknown key `polcy`", "help": "did you mean `policy`?",
    });
    assert_eq!(first, expected);
}

#[test]
fn the_check_fails_for_each_start_problem() {
    let text = "\
listen: 127.0.0.1:0
admin: 127.0.0.1:0
backends:
- { url: 'https://a:1', name: a, api_key: { env: KEY }, tls: { ca: /absent/ca.pem } }
discovery:
- { file: /absent/backends.yaml, api_key: { file: /absent/key } }
webhooks: [{ url: { env: HOOK } }]
tls: { cert: /absent/cert.pem, key: /absent/key.pem }
access: { keys_file: /absent/keys.yaml, admin_token: { env: TOKEN } }
trace_capture: { file: /absent/capture.jsonl }
log: { payloads: { file: /absent/payloads.jsonl } }
";
    let strict = check_text("strict.yaml", text, CheckedFile::Config);
    assert!(!strict.is_ok() && strict.is_valid());
    let shown = strict.to_string();
    for expected in [
        "strict.yaml:4:43: backends.0.api_key: cannot read the api_key of backend `a`: the \
         environment variable KEY is not set",
        "discovery.0.api_key: cannot read the api_key of discovery[0]: the file /absent/key",
        "webhooks.0.url: cannot read the URL of webhooks[0]",
        "access.admin_token: cannot read the admin token",
        "strict.yaml:9:22: access.keys_file: /absent/keys.yaml: no such file",
        "discovery.0.file: /absent/backends.yaml: no such file",
        "strict.yaml:8:6: tls: /absent/cert.pem cannot be read",
        "backends.0.tls: /absent/ca.pem cannot be read",
        "trace_capture.file: cannot write /absent/capture.jsonl: No such file",
        "log.payloads.file: cannot write /absent/payloads.jsonl: No such file",
    ] {
        assert!(shown.contains(expected), "{expected}\n{shown}");
    }
    assert!(shown.contains(": 10 errors"), "{shown}");
    assert!(check_text("text.yaml", text, CheckedFile::ConfigSyntax).is_ok());
}

/// An option that refuses to start refuses the check too.
#[test]
fn the_check_reads_what_options_start_with() {
    let folder = folder("config-check");
    let keys = folder.join("tenants.yaml");
    std::fs::write(&keys, "tenants: [{ name: a, keys: [] }]\n").unwrap();
    let jwks = folder.join("jwks.json");
    std::fs::write(&jwks, "no JWKS").unwrap();
    let usage = folder.join("usage");
    std::fs::write(&usage, "no event\n").unwrap();
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: [{{ url: a:1 }}]\n\
         access: {{ keys_file: '{}' }}\n\
         jwt:\n  issuers:\n  - {{ issuer: x, audiences: [a], jwks_file: /absent/jwks }}\n  \
         - {{ issuer: y, audiences: [a], jwks_file: '{}' }}\n\
         webhooks: [{{ url: 'http://a:1' }}, {{ url: {{ env: HOOK }} }}]\n\
         usage_log: {{ file: '{}', push: {{ url: {{ env: HOOK }} }} }}\n\
         peer_exchange: {{ url: 'redis://a:1', key: {{ env: HOOK }} }}\n",
        keys.display(),
        jwks.display(),
        usage.display(),
    );
    let file = folder.join("options.yaml");
    std::fs::write(&file, text).unwrap();
    let found = check(&file, CheckedFile::Config, |name| {
        (name == "HOOK").then(|| "ftp://secret".to_owned())
    });
    let shown = found.to_string();
    for expected in [
        "options.yaml:7:45: jwt.issuers.0.jwks_file: cannot use the keys of issuers in /absent/jwks",
        "jwt.issuers.1.jwks_file: cannot use the keys of issuers in ",
        "options.yaml:9:42: webhooks.1.url: the URL of webhooks[1] is not an http or https URL",
        "usage_log.file: it has lines that are not of a usage log; write another path",
        "usage_log.push.url: the URL of usage_log.push is not an http or https URL",
        "peer_exchange.key: cannot use the key that the gateways share",
    ] {
        assert!(shown.contains(expected), "{expected}\n{shown}");
    }
    assert!(shown.contains(": 6 errors"), "{shown}");
    assert!(found.is_valid() && !shown.contains("secret"), "{shown}");
}

#[test]
fn variables_and_mistakes_are_in_line_order() {
    let text = "access: { admin_token: { env: ABSENT } }\nlog: 3\n\
                backends: [{ url: a:1, api_key: { env: ABSENT } }]\n";
    let found = check_text("order.yaml", text, CheckedFile::Config);
    let lines: Vec<u64> = found.to_json(false)["errors"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|error| error["line"].as_u64())
        .collect();
    assert!(!found.is_valid() && lines == [1, 2, 3], "{found}");
}

#[test]
fn ports_in_use_are_only_notes() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "backends: [{{ url: a:1 }}]\nlisten: {}\nadmin: 0.0.0.0:0\n",
        other.local_addr().unwrap()
    );
    let found = check_text("port.yaml", &text, CheckedFile::Config);
    assert!(found.is_ok(), "{found}");
    let shown = found.to_string();
    assert!(
        shown.contains("note: cannot listen on 127.0.0.1:"),
        "{shown}"
    );
    assert!(
        shown.contains("note: the admin listener 0.0.0.0:0 has no token"),
        "{shown}"
    );
}

#[test]
fn keys_and_backends_files_are_checked_alone() {
    let keys = "tenants: [{ name: a, tier: any, keys: [] }]\n";
    let found = check_text("keys.yaml", keys, CheckedFile::Keys);
    assert!(found.to_string().ends_with("ok, 1 tenant"), "{found}");
    let found = check_text(
        "bad-keys.yaml",
        "tenants: [{ nam: a }]\n",
        CheckedFile::Keys,
    );
    assert!(
        !found.is_valid() && found.to_string().contains(":1:13: unknown key"),
        "{found}"
    );
    let found = check_text(
        "backends.yaml",
        "- url: a:1\n- url: b:1\n",
        CheckedFile::Backends,
    );
    assert!(found.to_string().ends_with("ok, 2 backends"), "{found}");
    assert!(!check_text("bad-backends.yaml", "- uri: a:1\n", CheckedFile::Backends).is_ok());
}

#[test]
fn printed_configuration_is_valid_without_secrets() {
    let text = "backends: [{ url: a:1, api_key: { env: KEY } }]\nlog: { level: debug }\n";
    let file = folder("config-check").join("print.yaml");
    std::fs::write(&file, text).unwrap();
    let found = check(&file, CheckedFile::Config, |_| {
        Some("sk-printed".to_owned())
    });
    let printed = found.effective_yaml().unwrap();
    assert!(
        printed.contains("env: KEY") && printed.contains("max_wait: "),
        "{printed}"
    );
    assert!(!printed.contains("sk-printed"), "{printed}");
    assert_eq!(parse(&printed).unwrap().config, parse(text).unwrap().config);
}

// === precedence ===

const ARGUMENTS: &str = "TEST_ARGUMENTS";

/// Helper for other tests, which run it in a child process. It prints the configuration that `serve` loads
/// with the arguments in the environment variable [`ARGUMENTS`].
#[test]
#[ignore = "runs as a child of the tests below, with an environment of its own"]
fn child_process_that_prints_the_loaded_configuration() {
    let arguments = std::env::var(ARGUMENTS).unwrap();
    match cli::parse(arguments.split(' ').map(OsString::from)) {
        Err(error) => println!("<<<{error}>>>"),
        Ok(Cli {
            command: cli::CliCommand::Serve(serve),
        }) => match Config::load(serve.config.as_deref(), serve.overrides) {
            Ok(loaded) => println!("<<<{}>>>", loaded.view()),
            Err(error) => println!("<<<{error}>>>"),
        },
        Ok(other) => panic!("{other:?}"),
    }
}

fn serve_in_a_child(arguments: &str, variables: &[(&str, &str)]) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let name = "config::child_process_that_prints_the_loaded_configuration";
    child.args(["--exact", name, "--ignored", "--nocapture"]);
    child
        .env_clear()
        .env(ARGUMENTS, format!("tokenweir serve {arguments}").trim_end());
    child.envs(variables.iter().copied());
    let output = String::from_utf8(child.output().unwrap().stdout).unwrap();
    let (_, begun) = output.split_once("<<<").unwrap();
    begun.split_once(">>>").unwrap().0.to_owned()
}

/// Checks value and source of every key that a flag can set, in four cases: only the default, also the file,
/// also the variable, and also the flag sets the key.
#[test]
#[expect(clippy::too_many_lines, reason = "one table of cases")]
fn flags_override_variables_and_both_the_file() {
    let file = folder("config-precedence").join("gateway.yaml");
    let text = "listen: 127.0.0.1:2\nadmin: 127.0.0.1:3\nbackends: [{ url: file:1 }]\n\
                routing: { policy: p2c }\nlog: { level: warn, format: json, access: false }\n\
                drain: { timeout: 2m }\ntracing: { endpoint: 'http://file:4317' }\n";
    std::fs::write(&file, text).unwrap();
    // Columns: path, flag, default, value in the file, value of the variable, value of the flag.
    let table = [
        (
            "listen",
            "--listen",
            "127.0.0.1:8080",
            "127.0.0.1:2",
            "127.0.0.1:12",
            "127.0.0.1:22",
        ),
        (
            "admin",
            "--admin",
            "127.0.0.1:9090",
            "127.0.0.1:3",
            "127.0.0.1:13",
            "127.0.0.1:23",
        ),
        (
            "backends.0.url",
            "--backend",
            "null",
            "http://file:1",
            "http://env:1",
            "http://flag:1",
        ),
        (
            "routing.policy",
            "--policy",
            "kv_aware",
            "p2c",
            "round_robin",
            "least_requests",
        ),
        ("log.level", "--log-level", "info", "warn", "debug", "trace"),
        (
            "log.format",
            "--log-format",
            "auto",
            "json",
            "human",
            "json",
        ),
        (
            "log.access",
            "--access-log",
            "true",
            "false",
            "true",
            "false",
        ),
        ("drain.timeout", "--drain-timeout", "30s", "2m", "3m", "4m"),
        (
            "tracing.endpoint",
            "--otlp-endpoint",
            "null",
            "http://file:4317",
            "http://e:1",
            "f:1",
        ),
    ];
    let variable = |flag: &str| {
        flag.replacen("--", "TOKENWEIR_", 1)
            .replace('-', "_")
            .to_uppercase()
    };
    let names = table.map(|row| variable(row.1));
    let mut variables: Vec<(&str, &str)> = names
        .iter()
        .zip(&table)
        .map(|(name, row)| (name.as_str(), row.4))
        .collect();
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
                assert_eq!(
                    (path, column),
                    ("backends.0.url", 0),
                    "no backend is the default"
                );
                continue;
            };
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(
                (value.as_str(), source),
                (expected, &sources[column]),
                "{path}"
            );
        }
    }
}

#[test]
fn an_invalid_variable_is_named() {
    let error = serve_in_a_child("", &[("TOKENWEIR_LISTEN", "8080")]);
    assert!(
        error.contains("the value is that of the variable TOKENWEIR_LISTEN"),
        "{error}"
    );
    let error = serve_in_a_child("--listen 8080", &[]);
    assert!(!error.contains("TOKENWEIR_LISTEN"), "{error}");
    let error = serve_in_a_child("--backend a:1", &[("TOKENWEIR_ADMIN", "127.0.0.1:8080")]);
    assert_eq!(
        error,
        "TOKENWEIR_ADMIN: listen and admin cannot both be 127.0.0.1:8080"
    );
    let error = serve_in_a_child("--backend a:1 --backend A:1", &[]);
    assert_eq!(
        error,
        "--backend: http://A:1 is already the url of backends[0]"
    );
}

#[test]
fn the_command_serve_fails_without_a_configured_backend() {
    let error = Config::load(None, Overrides::default())
        .unwrap()
        .require_backend()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no backend is configured\nhelp: give --backend http://HOST:PORT, set TOKENWEIR_BACKEND or \
         add `backends` or `discovery` to the configuration file"
    );
    assert!(parse(REFERENCE).unwrap().require_backend().is_ok());
}

// === the reference file ===

#[test]
fn the_reference_file_has_every_default() {
    let documented = parse(&reference()).unwrap();
    let backends = documented.config.backends.clone();
    assert_eq!(backends.len(), 1, "one example");
    assert_eq!(backends[0].url.to_string(), "http://127.0.0.1:8101");
    let defaults = Config {
        backends,
        ..Config::default()
    };
    assert_eq!(documented.config, defaults);
    let undocumented: BTreeSet<String> = leaves(&documented.view())
        .into_iter()
        .filter(|(_, _, source)| source != "file")
        .map(|(path, _, _)| path)
        .collect();
    assert_eq!(undocumented, BTreeSet::new());
}

#[test]
fn the_production_example_is_valid_and_explained() {
    let loaded = parse(include_str!("../../config/production.yaml")).unwrap();
    let page = include_str!("../../docs/operate/production.md");
    let set = leaves(&loaded.view())
        .into_iter()
        .filter(|(_, _, source)| source == "file");
    for (path, _, _) in set.filter(|(path, _, _)| !path.starts_with("backends.")) {
        assert!(
            page.contains(&format!("| `{path}`")),
            "{path} is not in the table"
        );
    }
}

#[test]
fn every_key_has_a_comment() {
    let lines: Vec<&str> = REFERENCE.lines().map(str::trim).collect();
    let is_key = |line: &str| !line.is_empty() && !line.starts_with('#');
    for pair in lines.windows(2).filter(|pair| is_key(pair[1])) {
        // Keys of a backend have no comment of their own: the text above the list of backends describes them.
        let is_of_backend = [
            "- url",
            "name",
            "metrics_url",
            "api_key",
            "usage: null",
            "gpus: null",
            "gpu_hour_price: null",
            "kv_events: null",
            "tls: null",
            "weight",
            "role: null",
            "drained",
        ]
        .iter()
        .any(|key| pair[1].starts_with(key));
        assert!(pair[0].starts_with('#') || is_of_backend, "{}", pair[1]);
    }
}

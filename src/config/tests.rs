//! Tests of the exact error texts of invalid configurations, and of the redaction of secrets.

use super::{Config, ConfigError, LoadedConfig, Overrides};
use proptest::prelude::*;
use serde_json::json;
use std::path::Path;
use tokenweir_gpu::GpuIndex;

/// Parses the text of a file `gateway.yaml`.
pub(crate) fn parse(text: &str) -> Result<LoadedConfig, ConfigError> {
    Config::parse(text, Path::new("gateway.yaml"), Overrides::default())
}

/// The problem of an invalid configuration. `None`: the configuration is valid.
pub(super) fn problem(text: &str) -> Option<String> {
    parse(text).err().map(|error| error.problem().to_owned())
}

#[test]
fn an_exporter_assigns_indexes_and_mig_instances() {
    let text = "backends: [{ url: a:1, name: a }]\n\
                gpu: { exporters: [{ url: h:9400, backends: [{ name: a, gpus: [0, '1.2'] }] }] }";
    let settings = parse(text).unwrap().config.gpu;
    assert_eq!(
        settings.exporters[0].url.to_string(),
        "http://h:9400/metrics"
    );
    let indexes = settings.exporters[0].rules[0].gpus.clone().unwrap();
    assert_eq!(
        indexes,
        ["0", "1.2"].map(|index| GpuIndex::parse(index).unwrap())
    );
}

/// Texts of invalid configuration files, each with its complete error text.
const INVALID_CONFIGS: &[(&str, &str)] = &[
    (
        "routing:\n  polcy: kv_aware\n",
        "gateway.yaml:2:3: unknown key `polcy`
  |
2 |   polcy: …
  |   ^^^^^
  = help: did you mean `policy`?",
    ),
    (
        "backends:\n  - url: http://vllm-0:8000\n    api_key: sk-hunter2\n",
        "gateway.yaml:3:14: do not write the secret here; write `{ env: NAME }` or \
         `{ file: PATH }` as its location
  |
3 |     api_key: [redacted]
  |              ^",
    ),
];

/// Texts of invalid configuration files, each with the problem and, on a second line, the help. In the error
/// text, carets mark the part between `«` and `»`, and the rest of a line after `‹` is shown as `…`.
const INVALID_VALUES: &[(&str, &str)] = &[
    (
        "listen: 127.0.0.1:8080\n«backend»:\n  - url: http://vllm-0:8000\n",
        "unknown key `backend`\n  = help: did you mean `backends`?",
    ),
    (
        "«alertmanagers»: ‹[{ url: am:9093 }]\n",
        "unknown key `alertmanagers`\n  = help: write `webhooks`: the gateway posts to \
         webhooks in its place",
    ),
    (
        "metrics: { «otlp»: ‹{ interval: 1m } }\n",
        "unknown key `otlp`\n  = help: let the Prometheus receiver of a collector scrape /metrics",
    ),
    (
        "log: { payloads: { «url»: ‹a } }\n",
        "unknown key `url`\n  = help: the built-in patterns of `redact` remain; \
         filter the file in its place",
    ),
    (
        "drain: { «grace»: ‹30s }\n",
        "unknown key `grace`\n  = help: valid here: delay, timeout",
    ),
    (
        "access: { allow: [«kv_transfr»] }\n",
        "unknown value `kv_transfr`\n  = help: did you mean `kv_transfer`?",
    ),
    (
        "routing:\n  policy: «round_robbin»\n",
        "unknown value `round_robbin`\n  = help: did you mean `round_robin`?",
    ),
    (
        "log: {}\n---\n«l»og: {}\n",
        "a second document begins here\n  = help: a configuration is one document; remove the `---`",
    ),
    (
        "access:\n  cache_salt_secret: «{» env: SALT }\n",
        "salts are derived from tenants, which need access.keys_file: set it",
    ),
    (
        "drain:\n  timeout: «30»\n",
        "`30` is not a duration; write a number and its unit, such as 250ms, 2s or 10m",
    ),
    (
        "limits:\n  body: «64K»\n",
        "`64K` is not a size; write whole bytes or a unit, such as 65536, 64KiB or 4MB",
    ),
    (
        "listen: «gateway:8080»\n",
        "`gateway:8080` is not an IP address and a port; write 127.0.0.1:8080, \
         [::1]:8080, localhost:8080, or :8080 for all interfaces",
    ),
    (
        "backends:\n  - url: «http://vllm-0:8000/v1»\n",
        "`http://vllm-0:8000/v1`: leave out `/v1` and the query; the gateway appends \
         the path of each request",
    ),
    ("backends:\n  - «name»: a\n", "the key `url` is missing"),
    (
        "backends:\n  - «http://a:1»\n",
        "expected keys and values here\n  = help: write the URL as the value of a key: \
         `- url: http://127.0.0.1:8000`",
    ),
    (
        "backends:\n  - url: vllm-0:80\n  - url: «http://VLLM-0»\n",
        "http://VLLM-0 is already the url of backends[0]",
    ),
    (
        "backends:\n  - { url: a:1, name: x }\n  - { url: a:2, name: «x» }\n",
        "`x` is already the name of backends[0]",
    ),
    (
        "models:\n  - name: a\n  - { name: b, served_as: c }\n  - name: «a»\n",
        "`a` is already the name of models[0]",
    ),
    (
        "models:\n  - { name: a, served_as: «b» }\n  - { name: b, served_as: c }\n",
        "`b` is itself an alias of `c`; write `c` here",
    ),
    (
        "backends: [{ url: x:1 }, { url: x:2, name: y }]\n\
         models: [{ name: a, backends: [y, «z»] }]\n",
        "unknown backend `z`; `backends` has `x:1`, `y`",
    ),
    (
        "models: [{ name: a, backends: «[»] }]\n",
        "list at least one backend, or write null for all that serve the model",
    ),
    (
        "models: [{ name: a, served_as: «''» }]\n",
        "a model name has 1 to 256 bytes and no control characters",
    ),
    (
        "models: [{ name: a, split: [{ model: b }, { model: «b» }] }]\n",
        "the split has this version already",
    ),
    (
        "models: [{ name: a, split: [{ model: b, weight: «1000001» }] }]\n",
        "a weight is at most 1000000",
    ),
    (
        "models: [{ name: a, split: [{ model: «a» }] }]\n",
        "a version must not be a split model",
    ),
    (
        "models: [{ name: a, split: «[»{ model: b, weight: 0 }] }]\n",
        "a version needs a weight above 0",
    ),
    (
        "models: [{ name: a, served_as: c, split: «[»{ model: b }] }]\n",
        "a split model has only `name`, `split`, `guard` and `rename_response`: write other keys at its versions",
    ),
    (
        "models: [{ name: a, guard: «true» }]\n",
        "this needs `split`",
    ),
    ("tracing:\n  ratio: «1.5»\n", "this must be between 0 and 1"),
    (
        "models: [{ name: a, policy: { continuous_usage: «2» } }]\n",
        "this must be between 0 and 1",
    ),
    (
        "admission:\n  max_waiting: «0»\n",
        "this must be 1 or more, or null for no threshold",
    ),
    (
        "admission:\n  max_kv_usage: «1.0»\n",
        "this must be between 0.01 and 0.99, or null for no threshold",
    ),
    (
        "tiers: { names: [gold] }\nadmission:\n  classes: [gold, «silver»]\n",
        "`silver` is neither a tier of `tiers` nor `default`",
    ),
    (
        "tiers: { names: [gold] }\nadmission:\n  classes: [gold, default, «gold»]\n",
        "`gold` is listed twice: remove one",
    ),
    (
        "admission:\n  tenant_header: «a b»\n",
        "this is not a valid header name",
    ),
    (
        "identities: { session_headers: «[»'a b'] }\n",
        "`a b` is not a valid header name",
    ),
    (
        "trace_capture:\n  sample: «0»\n",
        "this must be more than 0 and at most 1",
    ),
    (
        "usage_log:\n  max_bytes: «64KiB»\n",
        "this must be at least 1MiB",
    ),
    (
        "usage_log:\n  push: «{» url: 'http://a:1' }\n",
        "the push reads the records from usage_log.file: set it",
    ),
    (
        "log:\n  max_file_bytes: «64KiB»\n",
        "this must be at least 1MiB and at least 32 times log.payloads.max_bytes",
    ),
    (
        "trace_capture:\n  file: «''»\n",
        "write the path of a file, or null",
    ),
    (
        "slos:\n  - { name: a, objective: «'ttfb < 1s for 99 %'» }\n",
        "`ttfb` is not a measure of an SLO; did you mean `ttft`?",
    ),
    (
        "slos:\n  - { name: a, tier: «gold», objective: success for 99 % }\n",
        "unknown tier `gold`: `tiers` has no tiers",
    ),
    (
        "metrics:\n  buckets: { tokenweir_queue_seconds: «[»1.0] }\n",
        "there is no histogram `tokenweir_queue_seconds`; did you mean \
         `tokenweir_queue_wait_seconds`?",
    ),
    (
        "admin: «127.0.0.1:8080»\n",
        "listen and admin cannot both be 127.0.0.1:8080",
    ),
    ("log:\n  access: «yes»\n", "expected true or false"),
    (
        "routing:\n  decision_log_size: «100000»\n",
        "this must be at most 16384",
    ),
    ("log: {}\n\n«log»: {}\n", "duplicate key `log`: remove one"),
    ("log: «[»level\n", "unclosed bracket '['"),
];

/// Configuration texts with an invalid setting, each with a part of the expected error text.
const REJECTED_SETTINGS: &[(&str, &str)] = &[
    ("tls: { cert: a.pem }", "needs its `key`"),
    ("tls: { key: a.pem }", "needs its certificate"),
    ("tls: { client_ca: a.pem }", "TLS is off"),
    ("tls: { admin: true }", "TLS is off"),
    (
        "backend_tls: { client_cert: a.pem }",
        "needs its `client_key`",
    ),
    (
        "backend_tls: { client_key: a.pem }",
        "needs its certificate",
    ),
    (
        "backend_tls: { server_name: 'a b' }",
        "`a b` is not a valid server name",
    ),
    (
        "backends: [{ url: 'http://a:1', tls: { ca: a.pem } }]",
        "write https://",
    ),
    ("limits: { keep_alive: 0s }", "1ms or more"),
    ("limits: { connections: 0 }", "more than 0"),
    ("limits: { memory: 1MiB }", "64MiB or more"),
    (
        "backends: [{ url: a:1, name: a }]\n\
         gpu: { exporters: [{ url: h:1, backends: [{ name: b }] }] }",
        "unknown backend `b`",
    ),
    (
        "gpu: { exporters: [{ url: h:1, backends: [{ name: a, gpus: [x] }] }] }",
        "index of a GPU",
    ),
    (
        "gpu: { exporters: [{ url: h:1 }, { url: 'http://H:1/x' }] }",
        "already the host",
    ),
    (
        "gpu: { exporters: [{ url: 'http://u:p@h:1' }] }",
        "user name or password",
    ),
    (
        "webhooks: [{ url: 'http://u:secret@hook:80' }]",
        "write the token in `token`",
    ),
    (
        "webhooks: [{ url: 'ftp://hook:80' }]",
        "must be http:// or https://",
    ),
    (
        "webhooks: [{ token: { env: A } }]",
        "the key `url` is missing",
    ),
    (
        "webhooks: [{ url: a:1, token: abc }]",
        "do not write the secret here",
    ),
];

/// Configuration texts whose settings are valid together.
const ACCEPTED_SETTINGS: [&str; 3] = [
    "tls: { cert: a.pem, key: b.pem, client_ca: c.pem, admin: true }\n\
     backend_tls: { ca: a.pem, client_cert: b.pem, client_key: c.pem }\n\
     backends: [{ url: 'https://a', tls: { ca: d.pem, server_name: 10.0.0.1 } }]\n\
     limits: { memory: 4GiB, connections: 9 }",
    "identities: { mode: plain, user_headers: [x-user], secret: { env: KEY } }",
    "webhooks: [{ url: { env: HOOK } }, { url: 'http://a:1/b', token: { env: T } }]",
];

/// Removes the marks from the text of a file. Returns the text, and the expected error text for the part
/// between the marks. `problem`: the problem and, on a second line, the help.
fn marked_error(marked: &str, problem: &str) -> (String, String) {
    let text = marked.replace(['«', '»', '‹'], "");
    let (before, rest) = marked.split_once('«').unwrap();
    let (place, _) = rest.split_once('»').unwrap();
    let line = before.matches('\n').count() + 1;
    let indent = before.rsplit('\n').next().unwrap().chars().count();
    let source = marked
        .lines()
        .nth(line - 1)
        .unwrap()
        .replace(['«', '»'], "");
    let shortened = source.split_once('‹').map(|(shown, _)| format!("{shown}…"));
    let source = shortened.unwrap_or(source);
    let (problem, help) = problem.split_at(problem.find('\n').unwrap_or(problem.len()));
    let carets = " ".repeat(indent) + &"^".repeat(place.chars().count());
    let column = indent + 1;
    let error = format!(
        "gateway.yaml:{line}:{column}: {problem}\n  |\n{line} | {source}\n  | {carets}{help}"
    );
    (text, error)
}

#[test]
fn an_error_has_position_excerpt_and_help() {
    let owned = |(text, error): &(&str, &str)| ((*text).to_owned(), (*error).to_owned());
    let marked = INVALID_VALUES
        .iter()
        .map(|(text, problem)| marked_error(text, problem));
    for (text, error) in INVALID_CONFIGS.iter().map(owned).chain(marked) {
        assert_eq!(parse(&text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn invalid_settings_are_rejected_with_the_problem() {
    for (text, expected) in REJECTED_SETTINGS {
        let problem = problem(text).unwrap_or_default();
        assert!(problem.contains(expected), "{text}: {problem}");
    }
    for text in ACCEPTED_SETTINGS {
        assert_eq!(problem(text), None, "{text}");
    }
}

#[test]
fn models_are_limited_to_100() {
    let names = |count: usize| {
        let name = |number| format!("  - name: m{number}\n");
        format!("models:\n{}", (0..count).map(name).collect::<String>())
    };
    assert_eq!(parse(&names(100)).unwrap().config.models.len(), 100);
    let error = parse(&names(101)).unwrap_err();
    assert_eq!(
        error.problem(),
        "too many models: at most 100, because each adds time series"
    );
    let same = "models: [{ name: a, served_as: a }, { name: b, served_as: a, backends: [later] }]";
    assert!(
        parse(same).is_ok(),
        "backends may come from the command line"
    );
}

// === secrets ===

#[test]
fn an_error_never_quotes_a_secret() {
    let values = [
        "sk-hunter2",
        "'sk-hunter2'",
        "|\n      sk-hunter2",
        "\n      sk-hunter2",
        "[sk-hunter2]",
        "{ value: sk-hunter2 }",
        "{ env: sk-hunter2 }",
        "{ env: KEY, value: sk-hunter2 }",
        "!!binary sk-hunter2",
        "sk-hunter2: x",
        "\n      env: KEY\n      value: sk-hunter2",
    ];
    let keyed = values.map(|value| format!("backends:\n  - url: a:1\n    api_key: {value}\n"));
    let others = [
        "backends:\n  - url: a:1\n    api_kye: sk-hunter2\n",
        "backends:\n  - url: http://user:sk-hunter2@a:1/v1\n",
        "tracing:\n  endpoint: https://user:sk-hunter2@collector\n",
        "webhooks: [{ url: 'http://user:sk-hunter2@hook:80' }]\n",
    ];
    for text in keyed.iter().map(String::as_str).chain(others) {
        let error = parse(text).unwrap_err();
        assert!(
            !format!("{error} {error:?}").contains("hunter2"),
            "{text}\n{error}"
        );
    }
}

#[test]
fn the_shown_configuration_locates_secrets() {
    let text = "backends:\n  - { url: a:1, api_key: { env: KEY } }\n  \
                - { url: a:2, api_key: { file: /run/secrets/key } }\n";
    let loaded = parse(text).unwrap();
    let keys: Vec<_> = loaded
        .config
        .backends
        .iter()
        .map(|backend| &backend.api_key)
        .collect();
    assert_eq!(
        format!("{keys:?}"),
        r#"[Some(Env("KEY")), Some(File("/run/secrets/key"))]"#
    );
    let api_key = &loaded.view()["config"]["backends"][0]["api_key"];
    assert_eq!(
        *api_key,
        json!({ "env": { "value": "KEY", "source": "file" } })
    );
    let value = keys[0]
        .as_ref()
        .unwrap()
        .resolve(|_| Some("sk-hunter2".to_owned()))
        .unwrap();
    assert_eq!(format!("{value:?}"), "[redacted]");
}

#[test]
fn each_secret_is_listed() {
    let text = "backends: [{ url: a:1, api_key: { env: A } }]\n\
                discovery: [{ dns: 'a.example:1', api_key: { env: B } }]\n\
                access: { admin_token: { env: C }, cache_salt_secret: { env: D } }\n\
                webhooks: [{ url: { env: E } }]\n\
                peer_exchange: { key: { env: F }, password: { env: G } }\n";
    let config: Config = serde_saphyr::from_str(text).unwrap();
    let mut listed: Vec<String> = config
        .secrets()
        .into_iter()
        .map(|listed| listed.path)
        .collect();
    listed.sort();
    let expected = [
        "access.admin_token",
        "access.cache_salt_secret",
        "backends.0.api_key",
        "discovery.0.api_key",
        "peer_exchange.key",
        "peer_exchange.password",
        "webhooks.0.url",
    ];
    assert_eq!(listed, expected);
}

#[test]
fn a_collector_has_a_valid_port() {
    let found = |endpoint: &str| problem(&format!("tracing: {{ endpoint: '{endpoint}' }}\n"));
    for valid in ["http://a:4317", "a:4317", "https://a", "http://[::1]:4317"] {
        assert_eq!(found(valid), None, "{valid}");
    }
    for invalid in ["http://a:431700", "a:0", "http://[::1]:99999"] {
        assert!(found(invalid).unwrap().starts_with("this is not a URL"));
    }
}

#[test]
fn two_options_never_write_one_file() {
    const SAME: &str = "is the same file: write another path";
    const OLD: &str = "overwrite each other";
    let written = [
        ("timeline.file", "timeline: { file: FILE }"),
        ("trace_capture.file", "trace_capture: { file: FILE }"),
        ("log.payloads.file", "log: { payloads: { file: FILE } }"),
        ("quality.file", "quality: { enabled: true, file: FILE }"),
        ("usage_log.file", "usage_log: { file: FILE }"),
        ("shared_limits.file", "shared_limits: { file: FILE }"),
    ];
    for (index, (path, section)) in written.iter().enumerate() {
        for (other_path, other) in &written[..index] {
            for (file, expected) in [("./a", SAME), ("a.old", OLD)] {
                let text = format!(
                    "{}\n{}\n",
                    section.replace("FILE", "a"),
                    other.replace("FILE", file)
                );
                let found = problem(&text).unwrap_or_default();
                assert!(found.contains(expected), "{text}: {found}");
                assert!(found.contains(path) || found.contains(other_path));
            }
            let text = format!(
                "{}\n{}\n",
                section.replace("FILE", "a"),
                other.replace("FILE", "b")
            );
            assert_eq!(problem(&text), None);
        }
    }
}

// === fuzzing ===

proptest! {
    #[test]
    fn any_text_parses_or_gives_a_location(
        text in "([a-z_]{1,8}|listen|backends|api_key|log|url|[-:#&*!|>%@`'\"{}\\[\\], \n\té\u{1b}0-9]){0,40}",
    ) {
        if let Err(error) = parse(&text) {
            prop_assert!(error.to_string().starts_with("gateway.yaml"));
        }
    }
}

/// The problem of a configuration with these keys. `None`: the configuration is valid.
fn quality_problem(quality: &str, log: &str) -> Option<String> {
    problem(&format!(
        "quality: {{ {quality} }}\nlog: {{ payloads: {{ {log} }} }}\n"
    ))
}

#[test]
fn invalid_quality_settings_are_reported() {
    const SAMPLE: &str = "this must be between 0 and 0.05, which is 5 % of all requests";
    assert_eq!(quality_problem("", ""), None);
    let valid = "enabled: true, sample: 0.05, file: a, judge: 'http://judge:1/score'";
    assert_eq!(quality_problem(valid, ""), None);
    assert_eq!(
        quality_problem("enabled: true, sample: 0, window: 1m", ""),
        None
    );
    for (quality, log, expected) in [
        ("sample: 0.06", "", SAMPLE),
        ("sample: 2", "", SAMPLE),
        ("sample: -0.01", "", SAMPLE),
        ("sample: .nan", "", SAMPLE),
        ("file: ''", "", "write the path of a file, or null"),
        (
            "file: a",
            "file: a",
            "log.payloads.file is the same file: write another path",
        ),
        (
            "judge: 'https://a'",
            "",
            "write http://host:port/path, without a user name",
        ),
        (
            "judge: 'http://a:99999/score'",
            "",
            "write http://host:port/path, without a user name",
        ),
        (
            "judge: 'http://u:p@a'",
            "",
            "write http://host:port/path, without a user name",
        ),
        ("window: 0s", "", "this must be more than 0s"),
        (
            "enabled: true, judge: 'http://a'",
            "redact: []",
            "quality samples need redaction: set log.payloads.redact",
        ),
    ] {
        assert_eq!(
            quality_problem(quality, log).as_deref(),
            Some(expected),
            "{quality} {log}"
        );
    }
    assert_eq!(
        quality_problem("enabled: true", "redact: []"),
        None,
        "no destination gets any text"
    );
}

//! Tests of the exact error texts of invalid configurations, and of the redaction of secrets.

use super::{Config, ConfigError, LoadedConfig, Overrides};
use proptest::prelude::*;
use serde_json::json;
use std::path::Path;

fn parse(text: &str) -> Result<LoadedConfig, ConfigError> {
    Config::parse(text, Path::new("gateway.yaml"), Overrides::default())
}

/// Invalid files with their error texts.
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
        "listen: 127.0.0.1:8080\nbackend:\n  - url: http://vllm-0:8000\n",
        "gateway.yaml:2:1: unknown key `backend`
  |
2 | backend:
  | ^^^^^^^
  = help: did you mean `backends`?",
    ),
    (
        "alertmanagers: [{ url: am:9093 }]\n",
        "gateway.yaml:1:1: unknown key `alertmanagers`
  |
1 | alertmanagers: …
  | ^^^^^^^^^^^^^
  = help: write `webhooks`: the gateway posts to webhooks in its place",
    ),
    (
        "metrics: { otlp: { interval: 1m } }\n",
        "gateway.yaml:1:12: unknown key `otlp`
  |
1 | metrics: { otlp: …
  |            ^^^^
  = help: let the Prometheus receiver of a collector scrape /metrics",
    ),
    (
        "log: { payloads: { url: a } }\n",
        "gateway.yaml:1:20: unknown key `url`
  |
1 | log: { payloads: { url: …
  |                    ^^^
  = help: the built-in patterns of `redact` remain; filter the file in its place",
    ),
    (
        "drain: { grace: 30s }\n",
        "gateway.yaml:1:10: unknown key `grace`
  |
1 | drain: { grace: …
  |          ^^^^^
  = help: valid here: delay, timeout",
    ),
    (
        "access: { allow: [kv_transfr] }\n",
        "gateway.yaml:1:19: unknown value `kv_transfr`
  |
1 | access: { allow: [kv_transfr] }
  |                   ^^^^^^^^^^
  = help: did you mean `kv_transfer`?",
    ),
    (
        "access:\n  cache_salt_secret: { env: SALT }\n",
        "gateway.yaml:2:22: salts are derived from tenants, which need access.keys_file: set it
  |
2 |   cache_salt_secret: { env: SALT }
  |                      ^",
    ),
    (
        "routing:\n  policy: round_robbin\n",
        "gateway.yaml:2:11: unknown value `round_robbin`
  |
2 |   policy: round_robbin
  |           ^^^^^^^^^^^^
  = help: did you mean `round_robin`?",
    ),
    (
        "drain:\n  timeout: 30\n",
        "gateway.yaml:2:12: `30` is not a duration; write a number and its unit, such as 250ms, \
         2s or 10m
  |
2 |   timeout: 30
  |            ^^",
    ),
    (
        "limits:\n  body: 64K\n",
        "gateway.yaml:2:9: `64K` is not a size; write whole bytes or a unit, such as 65536, 64KiB \
         or 4MB
  |
2 |   body: 64K
  |         ^^^",
    ),
    (
        "listen: gateway:8080\n",
        "gateway.yaml:1:9: `gateway:8080` is not an IP address and a port; write 127.0.0.1:8080, \
         [::1]:8080, localhost:8080, or :8080 for all interfaces
  |
1 | listen: gateway:8080
  |         ^^^^^^^^^^^^",
    ),
    (
        "backends:\n  - url: http://vllm-0:8000/v1\n",
        "gateway.yaml:2:10: `http://vllm-0:8000/v1`: leave out `/v1` and the query; the gateway \
         appends the path of each request
  |
2 |   - url: http://vllm-0:8000/v1
  |          ^^^^^^^^^^^^^^^^^^^^^",
    ),
    (
        "backends:\n  - name: a\n",
        "gateway.yaml:2:5: the key `url` is missing
  |
2 |   - name: a
  |     ^^^^",
    ),
    (
        "backends:\n  - url: vllm-0:80\n  - url: http://VLLM-0\n",
        "gateway.yaml:3:10: http://VLLM-0 is already the url of backends[0]
  |
3 |   - url: http://VLLM-0
  |          ^^^^^^^^^^^^^",
    ),
    (
        "backends:\n  - { url: a:1, name: x }\n  - { url: a:2, name: x }\n",
        "gateway.yaml:3:23: `x` is already the name of backends[0]
  |
3 |   - { url: a:2, name: x }
  |                       ^",
    ),
    (
        "models:\n  - name: a\n  - { name: b, served_as: c }\n  - name: a\n",
        "gateway.yaml:4:11: `a` is already the name of models[0]
  |
4 |   - name: a
  |           ^",
    ),
    (
        "models:\n  - { name: a, served_as: b }\n  - { name: b, served_as: c }\n",
        "gateway.yaml:2:27: `b` is itself an alias of `c`; write `c` here
  |
2 |   - { name: a, served_as: b }
  |                           ^",
    ),
    (
        "backends: [{ url: x:1 }, { url: x:2, name: y }]\n\
         models: [{ name: a, backends: [y, z] }]\n",
        "gateway.yaml:2:35: unknown backend `z`; `backends` has `x:1`, `y`
  |
2 | models: [{ name: a, backends: [y, z] }]
  |                                   ^",
    ),
    (
        "models: [{ name: a, backends: [] }]\n",
        "gateway.yaml:1:31: list at least one backend, or write null for all that serve the model
  |
1 | models: [{ name: a, backends: [] }]
  |                               ^",
    ),
    (
        "models: [{ name: a, served_as: '' }]\n",
        "gateway.yaml:1:32: a model name has 1 to 256 bytes and no control characters
  |
1 | models: [{ name: a, served_as: '' }]
  |                                ^^",
    ),
    (
        "backends:\n  - url: http://vllm-0:8000\n    api_key: sk-hunter2\n",
        "gateway.yaml:3:14: do not write the secret here; write `{ env: NAME }` or \
         `{ file: PATH }` as its location
  |
3 |     api_key: [redacted]
  |              ^",
    ),
    (
        "tracing:\n  ratio: 1.5\n",
        "gateway.yaml:2:10: this must be between 0 and 1
  |
2 |   ratio: 1.5
  |          ^^^",
    ),
    (
        "models: [{ name: a, policy: { continuous_usage: 2 } }]\n",
        "gateway.yaml:1:49: this must be between 0 and 1
  |
1 | models: [{ name: a, policy: { continuous_usage: 2 } }]
  |                                                 ^",
    ),
    (
        "admission:\n  max_waiting: 0\n",
        "gateway.yaml:2:16: this must be 1 or more, or null for no threshold
  |
2 |   max_waiting: 0
  |                ^",
    ),
    (
        "admission:\n  max_kv_usage: 1.0\n",
        "gateway.yaml:2:17: this must be between 0.01 and 0.99, or null for no threshold
  |
2 |   max_kv_usage: 1.0
  |                 ^^^",
    ),
    (
        "tiers: { names: [gold] }\nadmission:\n  classes: [gold, silver]\n",
        "gateway.yaml:3:19: `silver` is neither a tier of `tiers` nor `default`
  |
3 |   classes: [gold, silver]
  |                   ^^^^^^",
    ),
    (
        "tiers: { names: [gold] }\nadmission:\n  classes: [gold, default, gold]\n",
        "gateway.yaml:3:28: `gold` is listed twice: remove one
  |
3 |   classes: [gold, default, gold]
  |                            ^^^^",
    ),
    (
        "admission:\n  tenant_header: a b\n",
        "gateway.yaml:2:18: this is not a valid header name
  |
2 |   tenant_header: a b
  |                  ^^^",
    ),
    (
        "trace_capture:
  sample: 0\n",
        "gateway.yaml:2:11: this must be more than 0 and at most 1
  |
2 |   sample: 0
  |           ^",
    ),
    (
        "log:
  max_file_bytes: 64KiB\n",
        "gateway.yaml:2:19: this must be at least 1MiB and at least 32 times log.payloads.max_bytes
  |
2 |   max_file_bytes: 64KiB
  |                   ^^^^^",
    ),
    (
        "trace_capture:
  file: ''\n",
        "gateway.yaml:2:9: write the path of a file, or null
  |
2 |   file: ''
  |         ^^",
    ),
    (
        "slos:\n  - { name: a, objective: 'ttfb < 1s for 99 %' }\n",
        "gateway.yaml:2:27: `ttfb` is not a measure of an SLO; did you mean `ttft`?
  |
2 |   - { name: a, objective: 'ttfb < 1s for 99 %' }
  |                           ^^^^^^^^^^^^^^^^^^^^",
    ),
    (
        "slos:\n  - { name: a, tier: gold, objective: success for 99 % }\n",
        "gateway.yaml:2:22: unknown tier `gold`: `tiers` has no tiers
  |
2 |   - { name: a, tier: gold, objective: success for 99 % }
  |                      ^^^^",
    ),
    (
        "metrics:\n  buckets: { tokenweir_queue_seconds: [1.0] }\n",
        "gateway.yaml:2:39: there is no histogram `tokenweir_queue_seconds`; did you mean \
         `tokenweir_queue_wait_seconds`?
  |
2 |   buckets: { tokenweir_queue_seconds: [1.0] }
  |                                       ^",
    ),
    (
        "admin: 127.0.0.1:8080\n",
        "gateway.yaml:1:8: listen and admin cannot both be 127.0.0.1:8080
  |
1 | admin: 127.0.0.1:8080
  |        ^^^^^^^^^^^^^^",
    ),
    (
        "log:\n  access: yes\n",
        "gateway.yaml:2:11: expected true or false
  |
2 |   access: yes
  |           ^^^",
    ),
    (
        "routing:\n  decision_log_size: 100000\n",
        "gateway.yaml:2:22: this must be at most 16384
  |
2 |   decision_log_size: 100000
  |                      ^^^^^^",
    ),
    (
        "routing:\n  shadow: [p2c, random, p2c]\n",
        "gateway.yaml:2:25: `p2c` is listed twice: remove one
  |
2 |   shadow: [p2c, random, p2c]
  |                         ^^^",
    ),
    (
        "log: {}\n\nlog: {}\n",
        "gateway.yaml:3:1: duplicate key `log`: remove one
  |
3 | log: {}
  | ^^^",
    ),
    (
        "log: {}\n---\nlog: {}\n",
        "gateway.yaml:3:1: a second document begins here
  |
3 | log: {}
  | ^
  = help: a configuration is one document; remove the `---`",
    ),
    (
        "log: [level\n",
        "gateway.yaml:1:6: unclosed bracket '['
  |
1 | log: [level
  |      ^",
    ),
];

#[test]
fn an_error_has_a_position_and_help() {
    for (text, message) in INVALID_CONFIGS {
        assert_eq!(parse(text).unwrap_err().to_string(), *message, "{text}");
    }
}

#[test]
fn the_number_of_models_is_limited_and_an_alias_may_equal_its_target() {
    let names = |count: usize| {
        let name = |number| format!("  - name: m{number}\n");
        format!("models:\n{}", (0..count).map(name).collect::<String>())
    };
    assert_eq!(parse(&names(100)).unwrap().config.models.len(), 100);
    let error = parse(&names(101)).unwrap_err();
    assert_eq!(error.problem(), "too many models: at most 100, because each adds time series");
    let same = "models: [{ name: a, served_as: a }, { name: b, served_as: a, backends: [later] }]";
    assert!(parse(same).is_ok(), "backends may come from the command line");
}

// === secrets ===

#[test]
fn a_secret_in_the_file_is_never_quoted() {
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
    ];
    for text in keyed.iter().map(String::as_str).chain(others) {
        let error = parse(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{text}\n{error}");
    }
}

#[test]
fn a_secret_is_shown_by_reference_only() {
    let text = "backends:\n  - { url: a:1, api_key: { env: KEY } }\n  \
                - { url: a:2, api_key: { file: /run/secrets/key } }\n";
    let loaded = parse(text).unwrap();
    let keys: Vec<_> = loaded.config.backends.iter().map(|backend| &backend.api_key).collect();
    assert_eq!(format!("{keys:?}"), r#"[Some(Env("KEY")), Some(File("/run/secrets/key"))]"#);
    let api_key = &loaded.view()["config"]["backends"][0]["api_key"];
    assert_eq!(*api_key, json!({ "env": { "value": "KEY", "source": "file" } }));
    let value = keys[0].as_ref().unwrap().resolve(|_| Some("sk-hunter2".to_owned())).unwrap();
    assert_eq!(format!("{value:?}"), "[redacted]");
}

// === fuzzing ===

proptest! {
    #[test]
    fn any_text_is_a_configuration_or_an_error_with_a_location(
        text in "([a-z_]{1,8}|listen|backends|api_key|log|url|[-:#&*!|>%@`'\"{}\\[\\], \n\té\u{1b}0-9]){0,40}",
    ) {
        if let Err(error) = parse(&text) {
            prop_assert!(error.to_string().starts_with("gateway.yaml"));
        }
    }
}

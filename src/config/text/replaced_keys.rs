//! The keys of earlier versions, and what operators write in their place.

/// The help text for a removed key whose default is the only value now.
const FIXED_DEFAULT: &str = "remove it: its default is fixed now";
/// The help text for a removed key of the external redactors.
const NO_REDACTOR: &str = "the built-in patterns of `redact` remain; filter the file in its place";

/// The help text for a removed key that limited the size of a single file.
const FILE_SIZE: &str = "write `max_file_bytes` of `log`, which holds for each file";

/// Keys of earlier versions: the removed key; a present key of the same section, which identifies the
/// section; and the help text, which names the replacement.
const REPLACED_KEYS: [(&str, &str, &str); 45] = [
    ("headers_count", "body_idle_timeout", FIXED_DEFAULT),
    ("streams_per_connection", "body_idle_timeout", FIXED_DEFAULT),
    ("header", "body_idle_timeout", FIXED_DEFAULT),
    ("header_timeout", "body_idle_timeout", FIXED_DEFAULT),
    ("websocket_idle_timeout", "body_idle_timeout", FIXED_DEFAULT),
    ("interval", "kubernetes", FIXED_DEFAULT),
    ("min_retries_per_second", "budget_ratio", FIXED_DEFAULT),
    ("first_output_buffer_timeout", "budget_ratio", FIXED_DEFAULT),
    ("p99_multiplier", "min_gap", FIXED_DEFAULT),
    ("slow_start", "stuck_after", FIXED_DEFAULT),
    (
        "keys",
        "names",
        "write tenants with a `tier` into `access.keys_file`",
    ),
    ("url_from", "token", "write the location as `url`"),
    ("port", "kubernetes", "write `dns: NAME:PORT`"),
    (
        "metrics_port",
        "kubernetes",
        "write `metrics_url: :PORT/PATH`",
    ),
    (
        "metrics_path",
        "kubernetes",
        "write `metrics_url: :PORT/PATH`",
    ),
    ("topic", "replay_endpoint", "remove it: every topic is read"),
    (
        "baseline_window",
        "judge",
        "remove it: the baseline is 24 times as long as `window`",
    ),
    (
        "channel",
        "username",
        "remove it: the key determines the channel",
    ),
    (
        "session_headers",
        "decision_log_size",
        "write `session_headers` of `identities` in its place",
    ),
    (
        "shadow",
        "decision_log_size",
        "remove it: `tokenweir-lab replay` compares policies on a file of `trace_capture`",
    ),
    (
        "continuous_usage",
        "metrics_url",
        "write `continuous_usage` of `models[].policy` in its place",
    ),
    (
        "cache_salt",
        "keys_file",
        "write its secret as `cache_salt_secret`",
    ),
    (
        "enabled",
        "max_models",
        "write `level: null` for no metrics",
    ),
    (
        "tail_sampling",
        "sampling",
        "write `sampling: head` for no tail sampling",
    ),
    (
        "export_all",
        "sampling",
        "write `sampling: all` to export all spans",
    ),
    (
        "semconv",
        "sampling",
        "set `OTEL_SEMCONV_STABILITY_OPT_IN` to `gen_ai_latest_experimental` for `latest`",
    ),
    ("max_bytes", "sample", FILE_SIZE),
    ("max_file_bytes", "redact", FILE_SIZE),
    ("max_file_bytes", "judge", FILE_SIZE),
    ("interval", "exporters", FIXED_DEFAULT),
    ("timeout", "exporters", FIXED_DEFAULT),
    ("max_page", "exporters", FIXED_DEFAULT),
    ("judge_timeout", "judge", FIXED_DEFAULT),
    ("timeout", "username", FIXED_DEFAULT),
    ("charge_base", "pressure", FIXED_DEFAULT),
    ("charge_per_waiting", "pressure", FIXED_DEFAULT),
    ("charge_max", "pressure", FIXED_DEFAULT),
    ("adapter_seconds", "pressure", FIXED_DEFAULT),
    (
        "ttft_objective_seconds",
        "pressure",
        "remove it: predicted waits are compared as they are",
    ),
    (
        "index_entries",
        "max_blocks",
        "`max_blocks` is the limit in its place",
    ),
    (
        "continuous_usage",
        "kubernetes",
        "write the top-level `continuous_usage` in its place",
    ),
    (
        "alertmanagers",
        "webhooks",
        "write `webhooks`: the gateway posts to webhooks in its place",
    ),
    (
        "otlp",
        "max_models",
        "let the Prometheus receiver of a collector scrape /metrics",
    ),
    ("command", "redact", NO_REDACTOR),
    ("url", "redact", NO_REDACTOR),
];

/// The help text for `field`, an unknown key of a section with the keys `expected`. `None`: no earlier
/// version had the key there.
pub(super) fn replacement(field: &str, expected: &[&str]) -> Option<&'static str> {
    let is_it = |(key, beside, _): &&(&str, &str, &str)| *key == field && expected.contains(beside);
    REPLACED_KEYS
        .iter()
        .find(is_it)
        .map(|(_, _, replacement)| *replacement)
}

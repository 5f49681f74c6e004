//! Rewrites a configuration, rules or a dashboard of an earlier version for this version. The names come from
//! `config/renames.yaml`.

mod keys;
mod lines;
mod queries;

use super::text::error::{ConfigError, Position};
use super::text::file;
use super::text::renames::Renames;
use super::text::yaml::{self, Entry};
use keys::KeyRewriter;
pub use lines::{EditedLines, UpgradeNote};
pub use queries::QueriedMetric;
use queries::QueryRewriter;
use std::path::Path;

/// The top-level keys of files of Prometheus, Alertmanager, Grafana and their operators.
const OTHER_FILES: [&str; 6] = [
    "groups",
    "spec",
    "route",
    "panels",
    "templating",
    "dashboard",
];

/// Kind of a rewritten file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradedKind {
    /// A configuration file of the gateway.
    Configuration,
    /// Values of the Helm chart, which contain a configuration.
    ChartValues,
    /// Rules, dashboards and other files with queries.
    Queries,
}

/// A file rewritten with present names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradedFile {
    /// The lines of the file, before and after the rewrite.
    pub lines: EditedLines,
    /// The changes that the operator has to make, by line.
    pub notes: Vec<UpgradeNote>,
    /// The metrics of the gateway in the new text of a file with queries.
    pub metrics: Vec<QueriedMetric>,
    /// What the file contains, which determines how it was rewritten.
    pub kind: UpgradedKind,
}

/// Reads a file and rewrites its text in memory.
pub fn upgrade_file(file: &Path) -> Result<UpgradedFile, ConfigError> {
    let text = file::read(file)?;
    upgrade(&text).map_err(|line| {
        let position = Position {
            line,
            column: 1,
            len: 1,
        };
        ConfigError::new("neither YAML nor JSON, or too large")
            .at(file, position, &text)
            .without_excerpt()
    })
}

/// Rewrites a text. The error is the number of the first line that cannot be read, from 1.
fn upgrade(text: &str) -> Result<UpgradedFile, usize> {
    let renames = Renames::shipped();
    let entries = yaml::entries(text)?;
    let kind = kind_of(&entries);
    let mut rewriter = QueryRewriter::new(renames).ok_or(1_usize)?;
    let mut rewritten = rewriter.rewrite(text, &starts_of_items(text, &entries));
    let mut notes = std::mem::take(&mut rewriter.notes);
    let mut metrics = Vec::new();
    let mut edits = Vec::new();
    if kind == UpgradedKind::Queries {
        for word in &renames.words {
            rewritten = rewritten.replace(&word.from, &word.to);
        }
        metrics = rewriter.metrics(&rewritten);
    } else {
        let entries = yaml::entries(&rewritten)?;
        let values = yaml::values(&rewritten)?;
        let keys = KeyRewriter::new(&rewritten, &entries, &values, renames).rewrite();
        edits = keys.edits;
        notes.extend(keys.notes);
    }
    notes.sort_by_key(|note| note.line);
    notes.dedup();
    let mut lines = EditedLines::new(text, &rewritten);
    lines.apply(edits);
    Ok(UpgradedFile {
        lines,
        notes,
        metrics,
        kind,
    })
}

/// The index of the first byte of each item of a list, such as a rule or a panel.
fn starts_of_items(text: &str, entries: &[Entry]) -> Vec<usize> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let items = entries.iter().filter(|entry| entry.is_item);
    let start = |item: &Entry| {
        let before = lines.get(..item.start.line - 1).unwrap_or_default();
        before.iter().map(|line| line.len()).sum()
    };
    items.map(start).collect()
}

fn kind_of(entries: &[Entry]) -> UpgradedKind {
    let has = |path: &str| entries.iter().any(|entry| entry.path == path);
    if OTHER_FILES.iter().any(|key| has(key)) {
        UpgradedKind::Queries
    } else if has("config") {
        UpgradedKind::ChartValues
    } else {
        UpgradedKind::Configuration
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse;

    fn upgraded(text: &str) -> UpgradedFile {
        upgrade(text).unwrap_or_else(|line| panic!("line {line} of {text}"))
    }

    #[test]
    fn keys_change_in_every_notation() {
        for (before, after) in [
            (
                "watch:\n  timeout: 1s # short\n",
                "scrape:\n  timeout: 1s # short\n",
            ),
            (
                "health: { failures: 3, slow_start: 30s }\n",
                "circuit_breaker: { consecutive_failures: 3 }\n",
            ),
            (
                "health: { slow_start: 30s, failures: 3 }\n",
                "circuit_breaker: { consecutive_failures: 3 }\n",
            ),
            (
                "\"admission\":\n  \"room\": 5\n",
                "\"admission\":\n  \"queue_capacity\": 5\n",
            ),
            (
                "models: [{ name: a, terms: { idle: 2m } }]\n",
                "models: [{ name: a, policy: { idle: 2m } }]\n",
            ),
            (
                "tracing: { tail: false }\n",
                "tracing: { sampling: head }\n",
            ),
            (
                "discovery:\n  - { dns: vllm.ai, port: 8000, every: 5s } # pods\n",
                "discovery:\n  - { dns: vllm.ai:8000 } # pods\n",
            ),
            (
                "discovery:\n- port: 8000\n  dns: \"vllm.ai\"\n",
                "discovery:\n- # port: 8000  # 0.2: joined\n  dns: \"vllm.ai:8000\"\n",
            ),
            (
                "metrics:\n  # none\n  enabled: false\n  buckets: { tokenweir_inter_chunk_seconds: [1] }\n",
                "metrics:\n  # none\n  level: null\n  buckets: { tokenweir_inter_chunk_latency_seconds: [1] }\n",
            ),
        ] {
            let file = upgraded(before);
            assert_eq!(file.lines.text(), after);
            assert_eq!(file.notes, [], "{before}");
            parse(after).unwrap();
        }
    }

    #[test]
    fn a_key_moves_to_another_section() {
        let before = "routing:\n  policy: session\n  session_headers: [x-user-id]\n";
        let after = "routing:\n  policy: session\n  # session_headers: [x-user-id]  # 0.2: moved to \
                     `identities.session_headers`\nidentities:\n  session_headers: [\"x-user-id\"]\n";
        assert_eq!(upgraded(before).lines.text(), after);
        parse(after).unwrap();
    }

    #[test]
    fn upgrade_keeps_settings_that_protect_data() {
        for text in [
            "access: { cache_salt: { derive: tenant } }\n",
            "log: { payloads: { file: /p, command: [redact] } }\n",
        ] {
            assert_eq!(upgraded(text).lines.text(), text);
            assert!(parse(text).is_err());
        }
        assert_eq!(
            upgraded("access: { cache_salt: { derive: null } }\n")
                .lines
                .text(),
            "# access: { cache_salt: { derive: null } }  # 0.2: no key of it is left\n"
        );
    }

    #[test]
    fn values_of_the_chart_have_a_configuration() {
        let file = upgraded(
            "image: { tag: a }\nconfig:\n  watch: { timeout: 1s }\n  routing: { session_headers: [a] }\n",
        );
        let text = file.lines.text();
        assert!(text.contains("\n  scrape: { timeout: 1s }\n"), "{text}");
        assert_eq!(file.notes.len(), 1, "{:?}", file.notes);
    }

    #[test]
    fn a_section_without_keys_becomes_a_comment() {
        let file = upgraded(
            "tiers:\n  keys:\n    # of a client\n    - { key: { env: A }, tier: gold }\nlisten: a:1\n",
        );
        let after = "# tiers:  # 0.2: no key of it is left\n#   keys:\n";
        assert!(file.lines.text().ends_with("listen: a:1\n"));
        assert!(
            file.lines.text().starts_with(&after[..10]),
            "{}",
            file.lines.text()
        );
        assert_eq!(file.notes.len(), 1);
    }

    #[test]
    fn a_removed_value_with_an_effect_is_noted() {
        let file = upgraded(
            "limits: { header: 128KiB, headers_count: 100 }\nquality: { baseline: 2days }\n",
        );
        let noted: Vec<usize> = file.notes.iter().map(|note| note.line).collect();
        assert_eq!(noted, [1, 2], "{:?}", file.notes);
    }

    #[test]
    fn queries_get_present_names() {
        for (before, after) in [
            (
                "rate(tokenweir_shed_total[5m])",
                "rate(tokenweir_requests_shed_total[5m])",
            ),
            (
                "tokenweir_inter_token_seconds_bucket{le=\"1\"}",
                "tokenweir_inter_token_latency_seconds_bucket{le=\"1\"}",
            ),
            (
                "tokenweir_time_to_mark_seconds_sum{mark=\"headers\"}",
                "tokenweir_time_to_response_headers_seconds_sum",
            ),
            (
                "tokenweir_body_bytes_total{job=\"a\",direction=\"out\"}",
                "tokenweir_response_body_bytes_total{job=\"a\"}",
            ),
            (
                "tokenweir_body_bytes_total{direction=\"in\",job=\"a\"}",
                "tokenweir_request_body_bytes_total{job=\"a\"}",
            ),
            (
                "sum by (ending) (tokenweir_endings_total{ending!~\"ok|ok_client_left_after_end\"})",
                "sum by (termination) (tokenweir_request_terminations_total{termination!~\"ok|ok_client_disconnected_after_end\"})",
            ),
            (
                "tokenweir_failovers_refused_total{reason=\"rule\"}",
                "tokenweir_failovers_denied_total{reason=\"not_retryable\"}",
            ),
            (
                "sum by (signal) (other_signal{signal=\"a\"})",
                "sum by (signal) (other_signal{signal=\"a\"})",
            ),
            (
                "tokenweir_request_body_bytes",
                "tokenweir_request_body_memory_bytes",
            ),
            (
                "tokenweir_request_body_bytes_total",
                "tokenweir_request_body_bytes_total",
            ),
        ] {
            let rules = |query: &str| {
                format!("groups:\n- rules:\n  - alert: A\n    expr: |-\n      {query} > 1\n")
            };
            assert_eq!(upgraded(&rules(before)).lines.text(), rules(after));
            let panel = |query: &str| {
                format!(
                    "{{\"panels\": [{{\"expr\": {}}}]}}",
                    serde_json::json!(query)
                )
            };
            assert_eq!(upgraded(&panel(before)).lines.text(), panel(after));
        }
    }

    #[test]
    fn labels_change_in_texts_of_their_rule() {
        let rule = |label: &str, name: &str, other: &str| {
            format!(
                "groups:\n- rules:\n  - alert: A\n    expr: {name} == 0\n    annotations:\n      summary: \"signal \
                 {{{{ $labels.{label} }}}}\"\n  - alert: B\n    expr: up == 0\n    annotations: {{ summary: \
                 \"{{{{ $labels.{other} }}}}\" }}\n"
            )
        };
        let after = upgraded(&rule("signal", "tokenweir_backend_signal", "signal"))
            .lines
            .text();
        assert_eq!(
            after,
            rule("metric", "tokenweir_backend_metric_available", "signal")
        );
    }

    #[test]
    fn the_diff_shows_changed_lines_with_context() {
        let text = "a: 1\nb: 2\nc: 3\nd: 4\nwatch: 5\ne: 6\nf: 7\ng: 8\nh: 9\n";
        let file = upgraded(text);
        let expected = "--- f.yaml\n+++ f.yaml\n@@ -2,7 +2,7 @@\n b: 2\n c: 3\n d: 4\n-watch: 5\n+scrape: 5\n e: 6\n f: 7\n g: 8\n";
        assert_eq!(file.lines.diff("f.yaml"), expected);
        assert_eq!(upgraded("a: 1\n").lines.diff("f.yaml"), "");
    }
}

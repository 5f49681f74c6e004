//! Finds all mistakes of a file. The parser and the rules stop at the first mistake. Then spaces replace the
//! entry with the mistake, so that the positions of all other entries stay valid, and the text is parsed again.

use super::load::LoadedConfig;
use super::mistake::Mistake;
use super::overrides::Overrides;
use super::root::Config;
use super::text::error::{ConfigError, ConfigLocation, Position, ProblemKind};
use super::text::remaining::RemainingText;
use super::text::{file, yaml};
use std::path::Path;

/// Maximum number of entries that are removed from one file.
const MAX_REMOVALS: usize = 100;

/// All mistakes of a file, and its valid rest.
#[derive(Debug)]
pub struct Mistakes<T> {
    /// The mistakes, in the order of their positions.
    pub errors: Vec<ConfigError>,
    /// The value of the text without the entries that have mistakes. `None`: the text cannot be read at all.
    pub rest: Option<Box<T>>,
}

impl Config {
    /// Like [`Config::load`] without overrides, but returns all mistakes of the file. Mistakes that may follow
    /// from an earlier one are left out.
    pub fn load_all(file: &Path) -> Result<LoadedConfig, Mistakes<LoadedConfig>> {
        Self::parse_all(&file::read(file)?, file)
    }

    /// Like [`Config::load_all`], but with `text` as the content of `file`, which is not read.
    pub fn parse_all(text: &str, file: &Path) -> Result<LoadedConfig, Mistakes<LoadedConfig>> {
        find_all(text, |text| {
            Self::parse_for_paths(text, file, Overrides::default())
        })
    }
}

impl<T> From<ConfigError> for Mistakes<T> {
    fn from(error: ConfigError) -> Self {
        Self {
            errors: vec![error],
            rest: None,
        }
    }
}

/// Parses a text repeatedly with `parse`, which returns the first mistake. Removes the entry with this mistake
/// each time, until the remaining text has no mistake.
pub(super) fn find_all<T>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, Mistake>,
) -> Result<T, Mistakes<T>> {
    let mut remaining = RemainingText::new(text);
    let mut found = Mistakes {
        errors: Vec::new(),
        rest: None,
    };
    for _ in 0..MAX_REMOVALS {
        let mistake = match parse(&remaining.text()) {
            Ok(value) if found.errors.is_empty() => return Ok(value),
            Ok(value) => {
                found.rest = Some(Box::new(value));
                break;
            }
            Err(mistake) => mistake,
        };
        let Some(position) = position(&mistake.error) else {
            found.errors.push(mistake.error);
            break;
        };
        if !remove(&mut remaining, mistake, position, &mut found.errors) {
            break;
        }
    }
    let line_and_column =
        |error: &ConfigError| position(error).map(|position| (position.line, position.column));
    found.errors.sort_by_key(line_and_column);
    Err(found)
}

/// Removes the entry with a mistake, and adds the mistake to `errors` unless it may follow from an earlier
/// mistake. Returns whether the remaining text can be parsed again.
fn remove(
    remaining: &mut RemainingText,
    mistake: Mistake,
    position: Position,
    errors: &mut Vec<ConfigError>,
) -> bool {
    let Mistake { error, paths } = mistake;
    let Ok(entries) = yaml::entries(&remaining.text()) else {
        errors.push(error);
        return remaining.remove_unreadable(position.line);
    };
    let Some(entry) = yaml::entry_at(&entries, position, error.kind()) else {
        errors.push(error);
        return false;
    };
    let is_consequence = remaining.is_damaged(&entries, entry)
        || error.kind() == ProblemKind::MissingKey && remaining.is_item_damaged(&entries, entry)
        || paths
            .iter()
            .any(|path| remaining.is_removed(&entries, path));
    if is_consequence {
        return remaining.remove(&entries, entry);
    }
    errors.push(error.with_whole_line(remaining.original()));
    let is_rule = !paths.is_empty();
    is_rule && remaining.rename(entry) || remaining.remove(&entries, entry)
}

fn position(error: &ConfigError) -> Option<Position> {
    match error.location() {
        Some(ConfigLocation::File(_, position)) => *position,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::files::load_all_keys;
    use crate::config::tests::parse;
    use tokenweir_net::testing::TempFolder;

    /// Writes a text into a file, and returns the first line of each mistake that `load` finds in the file.
    fn first_lines<T>(
        name: &str,
        text: &str,
        load: impl Fn(&Path) -> Result<T, Mistakes<T>>,
    ) -> Vec<String> {
        let folder = TempFolder::new(name);
        let file = folder.write("file", text);
        let loaded = load(&file);
        let errors = loaded.err().map(|found| found.errors).unwrap_or_default();
        let first_line = |error: &ConfigError| error.to_string().lines().next().unwrap().to_owned();
        let shown = errors.iter().map(first_line);
        shown
            .map(|error| error.replace(&format!("{}:", file.display()), ""))
            .collect()
    }

    fn mistakes(name: &str, text: &str) -> Vec<String> {
        first_lines(name, text, Config::load_all)
    }

    /// The line and the column of each mistake.
    fn positions(found: &[String]) -> Vec<&str> {
        found
            .iter()
            .map(|error| error.split(": ").next().unwrap())
            .collect()
    }

    /// The text has mistakes in YAML, in types and against rules. One mapping contains several of them, and
    /// both YAML notations (block and flow) occur.
    #[test]
    fn every_mistake_is_reported_in_line_order() {
        let text = "\
backends:
- url: http://a:1
  wieght: 2
- url: http://b:1/v1
  name: b
- { url: http://c:1, names: c, weight: many, usage: loud }
- url: http://a:1
routng:
  policy: p2c
admission: { max_kv_usage: 1.2, classes: [gold, silver], max_wait: 10 }
drain:
  timeout: 30
log: { level: loud, format: json, access: maybe }
scrape:
  # a comment
  timeout: 0s
  max_page: 0
slos:
- { name: fast, objective: 'ttft < 1' }
- { name: a b, objective: ttft < 1s for 99 % }
cost: { gpu_hour_price: -1, gpus: two }
drain: { delay: 1s }
limits:
  keep_alive: [1s]
  header: 1KiB
  body: 0
routing: { policy: best, decision_log_size: 99999 }
access: { keys_file: '', admin_hosts: [a, 'b:1'], colour: red }
admin: nonsense
";
        let found = mistakes("every", text);
        assert_eq!(
            positions(&found),
            [
                "3:3", "4:8", "6:22", "6:40", "6:53", "7:8", "8:1", "10:28", "10:43", "10:49",
                "10:68", "12:12", "13:15", "13:43", "16:12", "17:13", "19:28", "20:11", "21:25",
                "21:35", "22:1", "24:15", "25:3", "26:9", "27:20", "27:45", "28:22", "28:43",
                "28:51", "29:8",
            ],
            "{found:#?}"
        );
    }

    #[test]
    fn a_syntax_error_hides_no_other_section() {
        for (text, count, others) in [
            ("a: [\nb: }\n", 2, vec!["2:4"]),
            (
                "log: { level: loud\ndrain: { timeout: 1 }\nwrong: 1\n",
                3,
                vec!["2:19", "3:1"],
            ),
            ("listen: 'a\nlimits: { body: 0 }\n", 2, vec!["2:17"]),
            ("log:\n\tlevel: debug\nwrong: 1\n", 2, vec!["3:1"]),
        ] {
            let found = mistakes("syntax", text);
            let positions = positions(&found);
            assert_eq!(positions.len(), count, "{text}{found:#?}");
            assert!(
                others.iter().all(|other| positions.contains(other)),
                "{text}{found:#?}"
            );
        }
    }

    #[test]
    fn consequences_of_a_mistake_are_not_reported() {
        for text in [
            "tiers: { names: ['a b'] }\nadmission: { classes: ['a b'] }\n",
            "tls:\n  cert: a.pem\n  key: [b]\n",
            "tls: { cert: [a], key: b.pem, admin: true }\n",
            "backends:\n- url: [x]\n",
            "backends: [{ url: [x], name: a }]\n",
            "scrape: { min_interval: 5s, max_interval: 10 }\n",
            "discovery: [{ dns: [a], weight: 1 }]\n",
            "backends:\n- url: a:1\n  name: b\n- url: b:1\n  name: [c]\nmodels:\n- name: m\n  \
             backends: [c]\n",
            "backends:\n- url: a:1/v1\n  name: b\n- url: b:1\nmodels:\n- name: m\n  backends: [b]\n",
        ] {
            let found = mistakes("follows", text);
            assert_eq!(found.len(), 1, "{text}{found:#?}");
        }
    }

    #[test]
    fn valid_yaml_and_json_have_no_mistakes() {
        assert_eq!(
            mistakes("valid", "log: { level: debug }\n"),
            Vec::<String>::new()
        );
        assert_eq!(
            mistakes("json", "{\"log\": {\"level\": \"loud\", \"acess\": 1}}").len(),
            2
        );
    }

    #[test]
    fn mistakes_of_a_keys_file_quote_no_values() {
        let text = "\
tenants:
- name: sk-secret-1 x
  limts: { concurrency: 0 }
  keys:
  - { name: k, hash: sk-secret-2 }
- { name: b, models: ['*a'], limits: { concurrency: 0, requests: 2 }, keys: [] }
- { name: b, keys: [{ name: k }] }
";
        let found = first_lines("keys", text, load_all_keys);
        assert_eq!(
            positions(&found),
            ["2:9", "3:3", "5:22", "6:23", "6:53", "6:56", "7:11", "7:21"],
            "{found:#?}"
        );
        assert!(found[1].contains("unknown key `limts`"), "{found:#?}");
        assert!(!found.concat().contains("secret"), "{found:#?}");
    }

    #[test]
    fn an_excerpt_shows_the_line_without_secrets() {
        let text = "admission: { max_wait: 10, max_kv_usage: 3 }\nbackends: [{ api_kye: sk-1, wieght: 2, url: a:1 }]\n";
        let folder = TempFolder::new("excerpt");
        let found = Config::load_all(&folder.write("file", text))
            .unwrap_err()
            .errors;
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(
            shown[1].contains("max_wait: 10, max_kv_usage: 3 }"),
            "{}",
            shown[1]
        );
        assert!(!shown.concat().contains("sk-1"), "{shown:#?}");
    }

    #[test]
    fn the_search_ends_for_truncated_files() {
        let text = include_str!("../../config/tokenweir.yaml");
        for end in (0..text.len().min(6_000))
            .step_by(37)
            .filter(|end| text.is_char_boundary(*end))
        {
            assert!(mistakes("cut", &text[..end]).len() < MAX_REMOVALS);
        }
    }

    #[test]
    fn an_error_names_an_earlier_keys_replacement() {
        for (text, remedy) in [
            ("gpu: { interval: 10ms }", "its default is fixed now"),
            ("limits: { header: 64KiB }", "its default is fixed now"),
            (
                "limits: { header_timeout: 10s }",
                "its default is fixed now",
            ),
            (
                "limits: { websocket_idle_timeout: 5m }",
                "its default is fixed now",
            ),
            (
                "discovery: [{ srv: a, interval: 5s }]",
                "its default is fixed now",
            ),
            (
                "discovery: [{ dns: a, port: 8000 }]",
                "write `dns: NAME:PORT`",
            ),
            (
                "discovery: [{ srv: a, metrics_port: 1 }]",
                "write `metrics_url: :PORT/PATH`",
            ),
            (
                "discovery: [{ srv: a, metrics_path: /m }]",
                "write `metrics_url: :PORT/PATH`",
            ),
            (
                "retry: { min_retries_per_second: 10 }",
                "its default is fixed now",
            ),
            (
                "retry: { first_output_buffer_timeout: 1m }",
                "its default is fixed now",
            ),
            (
                "circuit_breaker: { slow_start: 30s }",
                "its default is fixed now",
            ),
            ("stalls: { p99_multiplier: 10 }", "its default is fixed now"),
            (
                "backends: [{ url: a:1, kv_events: { topic: t } }]",
                "every topic is read",
            ),
            (
                "backends: [{ url: a:1, continuous_usage: 1 }]",
                "`continuous_usage` of `models[].policy`",
            ),
            (
                "quality: { baseline_window: 1day }",
                "24 times as long as `window`",
            ),
            (
                "quality: { max_file_bytes: 1GiB }",
                "`max_file_bytes` of `log`",
            ),
            (
                "log: { payloads: { max_file_bytes: 1GiB } }",
                "`max_file_bytes` of `log`",
            ),
            (
                "trace_capture: { max_bytes: 1GiB }",
                "`max_file_bytes` of `log`",
            ),
            (
                "peer_exchange: { channel: a }",
                "the key determines the channel",
            ),
            (
                "routing: { session_headers: [a] }",
                "`session_headers` of `identities`",
            ),
            (
                "access: { cache_salt: { derive: tenant } }",
                "`cache_salt_secret`",
            ),
            ("metrics: { enabled: false }", "`level: null`"),
            ("tracing: { tail_sampling: false }", "`sampling: head`"),
            ("tracing: { export_all: true }", "`sampling: all`"),
            ("tiers: { keys: [] }", "`access.keys_file`"),
            (
                "webhooks: [{ url: a:1, url_from: { env: A } }]",
                "write the location as `url`",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}

//! A small parser of `PromQL` that finds the metrics and labels in a query. It shares no code with the
//! generator of the queries, so it checks them independently.

/// A metric in a query, with its label matchers as pairs of label and value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) metric: String,
    pub(crate) matchers: Vec<(String, String)>,
}

/// The metrics and labels that occur in a query.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct QueryNames {
    pub(crate) metrics: Vec<Named>,
    /// Labels in `by`, `without`, `on`, `ignoring`, `group_left` and `group_right`.
    pub(crate) labels: Vec<String>,
}

const GROUPINGS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
const KEYWORDS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

pub(crate) fn names(query: &str) -> QueryNames {
    let mut names = QueryNames::default();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_digit() {
            // A number or a duration.
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
        } else if first == '[' {
            rest = rest.split_once(']').unwrap().1;
        } else if first == '"' {
            rest = rest[1..].split_once('"').unwrap().1;
        } else if first.is_ascii_alphabetic() || first == '_' {
            rest = name(rest, &mut names);
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    names
}

/// Reads an identifier with its matchers or grouping labels, and adds it to `names`. Returns the rest of the
/// text.
fn name<'a>(text: &'a str, names: &mut QueryNames) -> &'a str {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let end = text.find(|c| !is_of_name(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let after = rest.trim_start();
    if GROUPINGS.contains(&name) && after.starts_with('(') {
        let (labels, rest) = after[1..].split_once(')').unwrap();
        let labels = labels
            .split(',')
            .map(str::trim)
            .filter(|label| !label.is_empty());
        names.labels.extend(labels.map(str::to_owned));
        return rest;
    }
    // In `sum by (x) (y)`, the identifier `sum` before the grouping is an aggregation and not a metric name.
    let is_aggregation = GROUPINGS[..2]
        .iter()
        .any(|word| after.starts_with(&format!("{word} (")));
    if is_aggregation
        || after.starts_with('(')
        || KEYWORDS.contains(&name)
        || GROUPINGS.contains(&name)
    {
        return rest;
    }
    let (matchers, rest) = match after.strip_prefix('{') {
        Some(inner) => matchers(inner),
        None => (Vec::new(), rest),
    };
    names.metrics.push(Named {
        metric: name.to_owned(),
        matchers,
    });
    rest
}

/// Reads label matchers up to the closing brace. Returns the matchers and the rest of the text.
fn matchers(mut text: &str) -> (Vec<(String, String)>, &str) {
    let mut matchers = Vec::new();
    loop {
        text = text.trim_start_matches([',', ' ', '\n']);
        if let Some(rest) = text.strip_prefix('}') {
            return (matchers, rest);
        }
        let (label, rest) = text.split_once(['=', '!']).unwrap();
        let (value, rest) = rest.split_once('"').unwrap().1.split_once('"').unwrap();
        matchers.push((label.trim().to_owned(), value.to_owned()));
        text = rest;
    }
}

#[test]
fn metrics_and_labels_are_found_in_queries() {
    let query = "histogram_quantile(0.95, sum by (le, slo) (rate(a_bucket{x=~\"b|c\",y!=\"d\"}[5m])))\n\
                 > 2 * (level:e:p95 offset 1h) and on (f) vector(0) unless g";
    let names_in_query = names(query);
    let metrics: Vec<&str> = names_in_query
        .metrics
        .iter()
        .map(|named| named.metric.as_str())
        .collect();
    assert_eq!(metrics, ["a_bucket", "level:e:p95", "g"]);
    let pairs = [("x", "b|c"), ("y", "d")].map(|(label, value)| (label.into(), value.into()));
    assert_eq!(names_in_query.metrics[0].matchers, pairs);
    assert_eq!(names_in_query.labels, ["le", "slo", "f"]);
}

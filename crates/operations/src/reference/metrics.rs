//! The page on the metrics.

use super::cell;
use crate::catalogue::{Catalogue, Kind, Metric};
use std::collections::BTreeMap;
use std::fmt::Write;

const HEAD: &str = "\
<!-- Printed by `tokenweir generate metrics-reference`. Change the catalogue in src/telemetry/catalog. -->

# Metrics

Every metric of `/metrics` on the admin port, from the catalogue of the program. Times are in seconds.
A histogram `NAME` is the series `NAME_bucket`, `NAME_sum` and `NAME_count`; [concepts](concepts.md)
draws what the times are, and [the README](../README.md#metrics) has the rules on counting.

";

const LABELS: &str = "
## Labels

What each can be. A series whose labels are all from closed sets is there from the start, at 0.

| label | values |
|---|---|
";

/// The page.
pub(crate) fn print(metrics: &Catalogue) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
    for row in &metrics.0 {
        let labels: Vec<String> =
            row.labels.iter().map(|label| format!("`{}`", label.name)).collect();
        let (kind, unit) = (kind(row.kind), unit(row));
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "| `{}` | {kind} | {unit} | {} | {} |",
            row.name,
            labels.join(" "),
            cell(row.help)
        );
    }
    page.push_str(LABELS);
    for (name, sets) in labels(metrics) {
        let is_one = sets.len() == 1;
        let sets: Vec<String> = sets.iter().map(|set| set.print(is_one)).collect();
        let _ = writeln!(page, "| `{name}` | {} |", cell(&sets.join("<br>")));
    }
    page.push_str("\n## Bounds\n\nThose of the histograms, where `metrics.buckets` and `slos` say nothing else.\n\n");
    page.push_str("| histogram | bounds |\n|---|---|\n");
    for row in &metrics.0 {
        if let Kind::Histogram(bounds) = row.kind {
            let bounds: Vec<String> = bounds.iter().map(ToString::to_string).collect();
            let _ = writeln!(page, "| `{}` | {} |", row.name, bounds.join(" "));
        }
    }
    page
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    }
}

/// The unit, which the name ends in, as Prometheus has it.
fn unit(row: &Metric) -> &'static str {
    let name = row.name.strip_suffix("_total").unwrap_or(row.name);
    let units = [("_seconds", "seconds"), ("_bytes", "bytes"), ("_tokens", "tokens")];
    let known = units.iter().find(|(end, _)| name.ends_with(end));
    match known {
        Some((_, unit)) => unit,
        None if name.ends_with("_ratio") => "share",
        None => "",
    }
}

/// What the values of a label are, and on which metrics.
struct Set {
    values: String,
    metrics: Vec<&'static str>,
}

impl Set {
    fn print(&self, is_one: bool) -> String {
        if is_one {
            return self.values.clone();
        }
        format!("{} (`{}`)", self.values, self.metrics.join("`, `"))
    }
}

/// What the values of each label are. One name may be used for several sets.
fn labels(metrics: &Catalogue) -> BTreeMap<&'static str, Vec<Set>> {
    let mut labels: BTreeMap<&str, Vec<Set>> = BTreeMap::new();
    for (row, label) in metrics.0.iter().flat_map(|row| row.labels.iter().map(move |it| (row, it)))
    {
        let values = &label.values;
        let sets = labels.entry(label.name).or_default();
        match sets.iter_mut().find(|set| set.values == *values) {
            Some(set) => set.metrics.push(row.name),
            None => sets.push(Set { values: values.clone(), metrics: vec![row.name] }),
        }
    }
    labels
}

//! One panel.

use super::query;
use crate::catalogue::Catalogue;
use serde_json::{Value, json};

/// How a panel shows its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The latest value, large.
    Stat,
    /// Lines over time.
    Lines,
    /// Areas over time that add up.
    Stacked,
    /// A bar over time for each series, from when it holds to when it does not.
    States,
    /// The buckets of a histogram over time, with exemplars.
    Heatmap,
}

/// A panel.
#[derive(Debug, Clone)]
pub struct Panel {
    title: &'static str,
    description: &'static str,
    kind: Kind,
    unit: &'static str,
    thresholds: Thresholds,
    width: u32,
    height: u32,
    queries: Vec<Query>,
}

/// From which value on a colour says something.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Thresholds {
    /// Nothing is good or bad.
    None,
    /// Yellow and red from these values up.
    Above(f64, f64),
    /// Yellow and red below these values.
    Below(f64, f64),
    /// Red below the first and from the second up.
    Outside(f64, f64),
}

#[derive(Debug, Clone)]
struct Query {
    expr: String,
    legend: &'static str,
    has_exemplars: bool,
}

/// Columns of the grid.
pub(super) const COLUMNS: u32 = 24;

// === impl Panel ===

impl Panel {
    fn new(kind: Kind, title: &'static str, unit: &'static str, description: &'static str) -> Self {
        let (width, height) = if kind == Kind::Stat { (COLUMNS / 8, 5) } else { (COLUMNS / 3, 8) };
        let (thresholds, queries) = (Thresholds::None, Vec::new());
        Self { title, description, kind, unit, thresholds, width, height, queries }
    }

    /// The latest value. Units are Grafana's; the description says what is good.
    pub fn stat(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self::new(Kind::Stat, title, unit, description)
    }

    /// Lines over time.
    pub fn lines(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self::new(Kind::Lines, title, unit, description)
    }

    /// Areas that add up.
    pub fn stacked(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self::new(Kind::Stacked, title, unit, description)
    }

    /// When something holds: 1 while it does, 0 while it does not, NaN if that cannot be told.
    pub fn states(title: &'static str, description: &'static str) -> Self {
        Self::new(Kind::States, title, "none", description)
    }

    /// The buckets of a histogram.
    pub fn heatmap(
        metrics: &Catalogue,
        title: &'static str,
        unit: &'static str,
        description: &'static str,
        histogram: &str,
    ) -> Self {
        let buckets = query::of(metrics, &format!("{histogram}_bucket"), "");
        let expr = format!("sum by (le) (increase({buckets}[$__rate_interval]))");
        Self::new(Kind::Heatmap, title, unit, description).asks(expr, "{{le}}").with_exemplars()
    }

    /// One more query, with what its lines are called.
    pub fn asks(mut self, expr: impl Into<String>, legend: &'static str) -> Self {
        self.queries.push(Query { expr: expr.into(), legend, has_exemplars: false });
        self
    }

    /// Half, most and nearly all of a histogram, with the requests behind it.
    pub fn quantiles(self, metrics: &Catalogue, histogram: &str) -> Self {
        [(0.5, "p50"), (0.95, "p95"), (0.99, "p99")]
            .into_iter()
            .fold(self, |panel, (quantile, legend)| {
                panel.asks(query::quantile(metrics, quantile, histogram, ""), legend)
            })
            .with_exemplars()
    }

    /// Shows the requests behind the last query.
    fn with_exemplars(mut self) -> Self {
        if let Some(query) = self.queries.last_mut() {
            query.has_exemplars = true;
        }
        self
    }

    /// What is bad.
    pub fn bad(self, thresholds: Thresholds) -> Self {
        Self { thresholds, ..self }
    }

    /// Columns, of 24.
    pub fn wide(self, width: u32) -> Self {
        Self { width, ..self }
    }

    /// Lines of the grid; a plot has 8.
    pub fn tall(self, height: u32) -> Self {
        Self { height, ..self }
    }

    /// Its title.
    pub fn title(&self) -> &'static str {
        self.title
    }

    /// Its queries.
    pub fn queries(&self) -> impl Iterator<Item = &str> {
        self.queries.iter().map(|query| query.expr.as_str())
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// As Grafana has it, at a place.
    pub(super) fn to_json(&self, id: usize, (x, y): (u32, u32)) -> Value {
        let (w, h) = self.size();
        let targets = (b'A'..).zip(&self.queries).map(|(letter, query)| {
            json!({
                "refId": char::from(letter).to_string(),
                "datasource": datasource(),
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend,
                "exemplar": query.has_exemplars,
                "format": if self.kind == Kind::Heatmap { "heatmap" } else { "time_series" },
                "instant": false,
                "range": true,
            })
        });
        json!({
            "id": id,
            "type": self.kind.as_str(),
            "title": self.title,
            "description": self.description,
            "datasource": datasource(),
            "gridPos": { "x": x, "y": y, "w": w, "h": h },
            "targets": targets.collect::<Vec<_>>(),
            "fieldConfig": { "defaults": self.defaults(), "overrides": [] },
            "options": self.options(),
        })
    }

    fn defaults(&self) -> Value {
        let of_lines = json!({
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": if self.kind == Kind::Stacked { 40 } else { 8 },
            "showPoints": "never",
            "spanNulls": false,
            "stacking": {
                "mode": if self.kind == Kind::Stacked { "normal" } else { "none" },
                "group": "A",
            },
            "thresholdsStyle": {
                "mode": if self.thresholds == Thresholds::None { "off" } else { "dashed" },
            },
        });
        let custom = match self.kind {
            Kind::Lines | Kind::Stacked => of_lines,
            Kind::States => json!({ "lineWidth": 0, "fillOpacity": 80, "spanNulls": false }),
            Kind::Stat | Kind::Heatmap => json!({}),
        };
        let has_colors = matches!(self.kind, Kind::Stat | Kind::States);
        json!({
            "unit": self.unit,
            "min": 0,
            "color": { "mode": if has_colors { "thresholds" } else { "palette-classic" } },
            "thresholds": { "mode": "absolute", "steps": self.thresholds.to_json() },
            "mappings": if self.kind == Kind::States { states() } else { json!([]) },
            "custom": custom,
        })
    }

    fn options(&self) -> Value {
        match self.kind {
            Kind::Stat => json!({
                "colorMode": "value",
                "graphMode": "area",
                "justifyMode": "auto",
                "textMode": "auto",
                "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
            }),
            Kind::Lines | Kind::Stacked => json!({
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
            Kind::States => json!({
                "alignValue": "left",
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": false },
                "mergeValues": true,
                "rowHeight": 0.8,
                "showValue": "auto",
                "tooltip": { "mode": "single", "sort": "none" },
            }),
            Kind::Heatmap => json!({
                "calculate": false,
                "cellGap": 1,
                "color": { "mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5 },
                "exemplars": { "color": "rgba(31,120,193,0.9)" },
                "filterValues": { "le": 1e-9 },
                "legend": { "show": true },
                "rowsFrame": { "layout": "auto" },
                "tooltip": { "mode": "single", "yHistogram": true },
                "yAxis": { "axisPlacement": "left", "unit": self.unit },
            }),
        }
    }
}

/// What states are called, and their colours.
fn states() -> Value {
    let state = |text: &str, color: &str| json!({ "text": text, "color": color });
    json!([
        { "type": "value", "options": { "0": state("no", "green"), "1": state("found", "red") } },
        {
            "type": "special",
            "options": { "match": "null+nan", "result": state("cannot tell", "gray") },
        },
    ])
}

/// Where all panels ask: what the variable says.
pub(super) fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

// === impl Kind ===

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::Lines | Self::Stacked => "timeseries",
            Self::States => "state-timeline",
            Self::Heatmap => "heatmap",
        }
    }
}

// === impl Thresholds ===

impl Thresholds {
    fn to_json(self) -> Value {
        let step = |color: &str, value: Option<f64>| json!({ "color": color, "value": value });
        match self {
            Self::None => json!([step("green", None)]),
            Self::Above(warn, bad) => {
                json!([step("green", None), step("yellow", Some(warn)), step("red", Some(bad))])
            }
            Self::Below(warn, bad) => {
                json!([step("red", None), step("yellow", Some(bad)), step("green", Some(warn))])
            }
            Self::Outside(low, high) => {
                json!([step("red", None), step("green", Some(low)), step("red", Some(high))])
            }
        }
    }
}

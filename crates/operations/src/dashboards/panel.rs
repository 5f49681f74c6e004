//! The panels of a dashboard, and their conversion to Grafana's format.

use super::query;
use crate::catalogue::MetricCatalogue;
use serde_json::{Value, json};
use std::borrow::Cow;

/// The kind of display of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PanelKind {
    /// A panel of the type `stat` of Grafana: only the latest value, in large digits.
    Stat,
    /// Lines over time.
    Lines,
    /// Stacked areas over time.
    Stacked,
    /// A state timeline: a bar for each series, coloured by its value over time.
    States,
    /// A heatmap of the buckets of a histogram over time, with exemplars.
    Heatmap,
}

/// A panel of a dashboard.
#[derive(Debug, Clone)]
pub struct Panel {
    title: &'static str,
    description: &'static str,
    kind: PanelKind,
    /// The unit of the values, by its id in Grafana.
    unit: &'static str,
    thresholds: Thresholds,
    /// Width in grid columns.
    width: u32,
    /// Height in grid rows.
    height: u32,
    queries: Vec<PanelQuery>,
}

/// The values at which the colour of a panel changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Thresholds {
    /// The colour does not depend on the value.
    None,
    /// Yellow from the first value up, and red from the second value up.
    Above(f64, f64),
    /// Yellow below the first value, and red below the second value.
    Below(f64, f64),
    /// Red below the first value and from the second value up, green between them.
    Outside(f64, f64),
}

/// A query of a panel.
#[derive(Debug, Clone)]
struct PanelQuery {
    /// The Prometheus query.
    expr: String,
    /// The name of each series, with templates such as `{{backend}}`.
    legend: Cow<'static, str>,
    /// Whether the panel shows the exemplars of the metric.
    has_exemplars: bool,
}

/// Number of columns of Grafana's grid.
pub(super) const GRID_COLUMNS: u32 = 24;

// === impl Panel ===

impl Panel {
    fn new(
        kind: PanelKind,
        title: &'static str,
        unit: &'static str,
        description: &'static str,
    ) -> Self {
        let (width, height) =
            if kind == PanelKind::Stat { (GRID_COLUMNS / 8, 5) } else { (GRID_COLUMNS / 3, 8) };
        let (thresholds, queries) = (Thresholds::None, Vec::new());
        Self { title, description, kind, unit, thresholds, width, height, queries }
    }

    /// Creates a panel with the latest value. `unit` is the id of a unit in Grafana.
    pub fn stat(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self::new(PanelKind::Stat, title, unit, description)
    }

    /// Creates a panel with lines over time.
    pub fn lines(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self::new(PanelKind::Lines, title, unit, description)
    }

    /// Creates a panel with stacked areas over time.
    pub fn stacked(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self::new(PanelKind::Stacked, title, unit, description)
    }

    /// Creates a state timeline. Each series is 1 while a condition holds, 0 while it does not
    /// hold, and NaN while that is unknown.
    pub fn states(title: &'static str, description: &'static str) -> Self {
        Self::new(PanelKind::States, title, "none", description)
    }

    /// Creates a heatmap of the buckets of a histogram, with exemplars.
    pub fn heatmap(
        metrics: &MetricCatalogue,
        title: &'static str,
        unit: &'static str,
        description: &'static str,
        histogram: &str,
    ) -> Self {
        let buckets = query::filtered_metric(metrics, &format!("{histogram}_bucket"), "");
        let expr = format!("sum by (le) (increase({buckets}[$__rate_interval]))");
        Self::new(PanelKind::Heatmap, title, unit, description)
            .with_query(expr, "{{le}}")
            .with_exemplars()
    }

    /// Adds a query. `legend` is the name of its series, with templates such as `{{backend}}`.
    pub fn with_query(
        mut self,
        expr: impl Into<String>,
        legend: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (expr, legend) = (expr.into(), legend.into());
        self.queries.push(PanelQuery { expr, legend, has_exemplars: false });
        self
    }

    /// Adds the rate of a counter by `label`. The value of the label is the name of the series.
    pub fn with_rate_by(
        self,
        metrics: &MetricCatalogue,
        label: &str,
        counter: &str,
        matchers: &str,
    ) -> Self {
        let legend = format!("{{{{{label}}}}}");
        self.with_query(query::rate_by(metrics, label, counter, matchers), legend)
    }

    /// Adds the maximum of a gauge by `label`. The value of the label is the name of the series.
    pub fn with_gauge_by(self, metrics: &MetricCatalogue, label: &str, gauge: &str) -> Self {
        let legend = format!("{{{{{label}}}}}");
        self.with_query(query::gauge_by(metrics, label, gauge), legend)
    }

    /// Adds queries of the quantiles p50, p95 and p99 of a histogram. The last query has exemplars.
    pub fn quantiles(self, metrics: &MetricCatalogue, histogram: &str) -> Self {
        [(0.5, "p50"), (0.95, "p95"), (0.99, "p99")]
            .into_iter()
            .fold(self, |panel, (quantile, legend)| {
                panel.with_query(query::quantile(metrics, quantile, histogram, ""), legend)
            })
            .with_exemplars()
    }

    /// Shows the exemplars of the last query.
    fn with_exemplars(mut self) -> Self {
        if let Some(query) = self.queries.last_mut() {
            query.has_exemplars = true;
        }
        self
    }

    /// Sets the values at which the colour changes.
    pub fn with_thresholds(self, thresholds: Thresholds) -> Self {
        Self { thresholds, ..self }
    }

    /// Sets the width in grid columns. The grid has 24 columns.
    pub fn with_width(self, width: u32) -> Self {
        Self { width, ..self }
    }

    /// Sets the height in grid rows. The default is 5 for the latest value and 8 for other panels.
    pub fn with_height(self, height: u32) -> Self {
        Self { height, ..self }
    }

    /// The title of the panel.
    pub fn title(&self) -> &'static str {
        self.title
    }

    /// The Prometheus queries of the panel.
    pub fn queries(&self) -> impl Iterator<Item = &str> {
        self.queries.iter().map(|query| query.expr.as_str())
    }

    /// The width in grid columns and the height in grid rows.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// The panel as JSON in Grafana's format. `id` is unique in the dashboard, and `(x, y)` is the
    /// position on the grid.
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
                "format": if self.kind == PanelKind::Heatmap { "heatmap" } else { "time_series" },
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
            "fieldConfig": { "defaults": self.field_defaults(), "overrides": [] },
            "options": self.panel_options(),
        })
    }

    fn field_defaults(&self) -> Value {
        let line_style = json!({
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": if self.kind == PanelKind::Stacked { 40 } else { 8 },
            "showPoints": "never",
            "spanNulls": false,
            "stacking": {
                "mode": if self.kind == PanelKind::Stacked { "normal" } else { "none" },
                "group": "A",
            },
            "thresholdsStyle": {
                "mode": if self.thresholds == Thresholds::None { "off" } else { "dashed" },
            },
        });
        let custom = match self.kind {
            PanelKind::Lines | PanelKind::Stacked => line_style,
            PanelKind::States => json!({ "lineWidth": 0, "fillOpacity": 80, "spanNulls": false }),
            PanelKind::Stat | PanelKind::Heatmap => json!({}),
        };
        let has_colors = matches!(self.kind, PanelKind::Stat | PanelKind::States);
        json!({
            "unit": self.unit,
            "min": 0,
            "color": { "mode": if has_colors { "thresholds" } else { "palette-classic" } },
            "thresholds": { "mode": "absolute", "steps": self.thresholds.to_json() },
            "mappings": if self.kind == PanelKind::States { state_mappings() } else { json!([]) },
            "custom": custom,
        })
    }

    fn panel_options(&self) -> Value {
        match self.kind {
            PanelKind::Stat => json!({
                "colorMode": "value",
                "graphMode": "area",
                "justifyMode": "auto",
                "textMode": "auto",
                "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
            }),
            PanelKind::Lines | PanelKind::Stacked => json!({
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
            PanelKind::States => json!({
                "alignValue": "left",
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": false },
                "mergeValues": true,
                "rowHeight": 0.8,
                "showValue": "auto",
                "tooltip": { "mode": "single", "sort": "none" },
            }),
            PanelKind::Heatmap => json!({
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

/// The texts and colours of the values of a state timeline: 0, 1 and NaN.
fn state_mappings() -> Value {
    let state = |text: &str, color: &str| json!({ "text": text, "color": color });
    json!([
        { "type": "value", "options": { "0": state("no", "green"), "1": state("found", "red") } },
        {
            "type": "special",
            "options": { "match": "null+nan", "result": state("undetermined", "gray") },
        },
    ])
}

/// The JSON reference to the data source of all panels and variables: the Prometheus server that
/// the viewer chooses with the variable `datasource`.
pub(super) fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

// === impl PanelKind ===

impl PanelKind {
    /// The panel type in Grafana.
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
    /// The steps of the thresholds as JSON. Each step is the lowest value of a colour; the first
    /// has no value.
    fn to_json(self) -> Value {
        let step = |color: &str, value: Option<f64>| json!({ "color": color, "value": value });
        match self {
            Self::None => json!([step("green", None)]),
            Self::Above(yellow, red) => {
                json!([step("green", None), step("yellow", Some(yellow)), step("red", Some(red))])
            }
            Self::Below(yellow, red) => {
                json!([step("red", None), step("yellow", Some(red)), step("green", Some(yellow))])
            }
            Self::Outside(low, high) => {
                json!([step("red", None), step("green", Some(low)), step("red", Some(high))])
            }
        }
    }
}

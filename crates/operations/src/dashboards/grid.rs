//! Dashboards, their rows and their variables, and the layout of panels on Grafana's grid.

use super::panel::{GRID_COLUMNS, Panel, datasource};
use serde_json::{Value, json};

/// A dashboard of Grafana.
#[derive(Debug, Clone)]
pub struct Dashboard {
    pub(super) uid: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) variables: Vec<DashboardVariable>,
    pub(super) rows: Vec<DashboardRow>,
}

/// A row of a dashboard: panels under one title.
#[derive(Debug, Clone)]
pub struct DashboardRow {
    pub(super) title: &'static str,
    pub(super) panels: Vec<Panel>,
}

/// A variable of a dashboard. The viewer chooses its value, and queries refer to it by `$name`.
#[derive(Debug, Clone, Copy)]
pub struct DashboardVariable {
    name: &'static str,
    label: &'static str,
    /// The Prometheus query of the possible values.
    query: &'static str,
    /// Whether the viewer can choose several values, or all.
    is_multi: bool,
}

/// The version of the dashboard format: that of Grafana 11, which later versions also read.
const GRAFANA_SCHEMA_VERSION: u32 = 39;

// === impl Dashboard ===

impl Dashboard {
    /// The panels of all rows.
    pub fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.rows.iter().flat_map(|row| &row.panels)
    }

    /// The Prometheus queries of the values of the variables.
    pub fn variable_queries(&self) -> impl Iterator<Item = &'static str> {
        self.variables.iter().map(|variable| variable.query)
    }

    /// Renders the dashboard as the text of a JSON file.
    pub fn print(&self) -> String {
        // Serialisation of a `Value` cannot fail.
        let mut text = serde_json::to_string_pretty(&self.to_json()).unwrap_or_default();
        text.push('\n');
        text
    }

    fn to_json(&self) -> Value {
        let data_source = json!({
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
            "hide": 0,
        });
        let variables: Vec<Value> = [data_source]
            .into_iter()
            .chain(self.variables.iter().copied().map(DashboardVariable::to_json))
            .collect();
        json!({
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["tokenweir"],
            "schemaVersion": GRAFANA_SCHEMA_VERSION,
            "version": 1,
            "editable": true,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": { "from": "now-1h", "to": "now" },
            "timezone": "browser",
            "templating": { "list": variables },
            "annotations": { "list": ANNOTATIONS.map(DashboardAnnotation::to_json) },
            "links": [{
                "title": "tokenweir",
                "type": "dashboards",
                "tags": ["tokenweir"],
                "asDropdown": false,
                "includeVars": true,
                "keepTime": true,
            }],
            "panels": self.layout_panels(),
        })
    }

    /// The panels as JSON, each at its grid position. A panel that does not fit beside the previous
    /// panels begins a new line. The rows after the first [`OPEN_ROWS`] are collapsed: Grafana
    /// queries their panels only when the viewer opens them.
    fn layout_panels(&self) -> Vec<Value> {
        let mut panels = Vec::new();
        let (mut id, mut y) = (0, 0);
        for (index, row) in self.rows.iter().enumerate() {
            let is_collapsed = index >= OPEN_ROWS;
            let row_position = json!({ "x": 0, "y": y, "w": GRID_COLUMNS, "h": 1 });
            let row_id = id + 1;
            (id, y) = (row_id, y + 1);
            let mut inner = Vec::new();
            let (mut x, mut top, mut line_height) = (0, y, 0);
            for panel in &row.panels {
                let (width, height) = panel.size();
                if x + width > GRID_COLUMNS {
                    (x, top, line_height) = (0, top + line_height, 0);
                }
                id += 1;
                inner.push(panel.to_json(id, (x, top)));
                x += width;
                line_height = line_height.max(height);
            }
            // A collapsed row takes one line, whatever its panels take when it is open.
            y = if is_collapsed { y } else { top + line_height };
            let nested = if is_collapsed { std::mem::take(&mut inner) } else { Vec::new() };
            panels.push(json!({
                "id": row_id,
                "type": "row",
                "title": row.title,
                "collapsed": is_collapsed,
                "panels": nested,
                "gridPos": row_position,
            }));
            panels.append(&mut inner);
        }
        panels
    }
}

/// Number of rows of a dashboard that are open at first.
const OPEN_ROWS: usize = 3;

/// Marks in all panels of the times at which a query has a value.
#[derive(Debug, Clone, Copy)]
struct DashboardAnnotation {
    name: &'static str,
    /// The Prometheus query, which is evaluated every 30 s.
    expr: &'static str,
    color: &'static str,
    /// The texts of a mark, with templates such as `{{backend}}`.
    title: &'static str,
    text: &'static str,
}

/// Annotations of all dashboards. A process loads its configuration at its start too, so the last one
/// also marks restarts and deployments.
const ANNOTATIONS: [DashboardAnnotation; 3] = [
    DashboardAnnotation {
        name: "Alerts",
        expr: "ALERTS{alertname=~\"Tokenweir.+\",alertstate=\"firing\"}",
        color: "red",
        title: "{{alertname}}",
        text: "{{backend}} {{gen_ai_request_model}} {{slo}}",
    },
    DashboardAnnotation {
        name: "Drains",
        expr: "tokenweir_backend_state{state=\"drained\"} == 1",
        color: "blue",
        title: "drained",
        text: "{{backend}}",
    },
    DashboardAnnotation {
        name: "Starts and reloads",
        expr: "tokenweir_build_info and on (job, instance) \
               time() - tokenweir_config_last_reload_success_timestamp_seconds < 30",
        color: "purple",
        title: "configuration loaded",
        text: "{{instance}}, version {{version}}",
    },
];

/// The Prometheus queries of the annotations of all dashboards.
pub fn annotation_queries() -> impl Iterator<Item = &'static str> {
    ANNOTATIONS.iter().map(|annotation| annotation.expr)
}

impl DashboardAnnotation {
    fn to_json(self) -> Value {
        json!({
            "name": self.name,
            "datasource": datasource(),
            "enable": true,
            "expr": self.expr,
            "iconColor": self.color,
            "step": "30s",
            "titleFormat": self.title,
            "textFormat": self.text,
        })
    }
}

// === impl DashboardVariable ===

impl DashboardVariable {
    /// The variable `$gateway`, with any number of gateways.
    pub(super) const GATEWAYS: Self = Self {
        name: "gateway",
        label: "Gateway",
        query: "label_values(tokenweir_requests_in_flight, instance)",
        is_multi: true,
    };
    /// The variable `$model`, with any number of models.
    pub(super) const MODELS: Self = Self {
        name: "model",
        label: "Model",
        query: "label_values(tokenweir_requests_total, gen_ai_request_model)",
        is_multi: true,
    };
    /// The variable `$backend`, with any number of backends.
    pub(super) const BACKENDS: Self =
        Self { name: "backend", label: "Backend", query: BACKENDS_QUERY, is_multi: true };
    /// The variable `$backend`, with one backend.
    pub(super) const BACKEND: Self =
        Self { name: "backend", label: "Backend", query: BACKENDS_QUERY, is_multi: false };

    fn to_json(self) -> Value {
        let mut variable = json!({
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": datasource(),
            "query": { "query": self.query, "refId": self.name },
            "definition": self.query,
            "refresh": 2,
            "sort": 1,
            "hide": 0,
            "multi": self.is_multi,
            "includeAll": self.is_multi,
            "current": {},
        });
        if self.is_multi {
            variable["allValue"] = json!(".*");
            variable["current"] = json!({ "text": "All", "value": "$__all" });
        }
        variable
    }
}

/// The Prometheus query of the names of all backends.
const BACKENDS_QUERY: &str = "label_values(tokenweir_backend_up, backend)";

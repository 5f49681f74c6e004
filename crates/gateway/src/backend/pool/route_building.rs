//! Builds the routes of a pool from the configuration and the model lists of its backends.

use crate::backend::Backend;
use crate::backend::routes::model_labels::ModelLabelTable;
use crate::backend::routes::{ModelListInterner, RouteRule, RouteTable};
use std::sync::Arc;
use tokenweir_engine::model::ServedModel;
use tokenweir_protocol::clock;

/// Builds the routes to `backends` from the configured rules and the models that each backend
/// lists, and assigns model labels. `backends_left`: whether backends left the pool.
pub(super) fn build_routes(
    rules: &[RouteRule],
    backends: &[Arc<Backend>],
    labels: &mut ModelLabelTable,
    backends_left: bool,
) -> RouteTable {
    let advertised = backends.iter().map(|backend| backend.health.load_state().models.clone());
    let advertised: Vec<Option<Arc<[ServedModel]>>> = advertised.collect();
    labels.update(
        rules.iter().map(RouteRule::name),
        ModelListInterner::distinct_models(&advertised),
        backends_left,
        clock::now(),
    );
    RouteTable::new(rules, &advertised, labels)
}

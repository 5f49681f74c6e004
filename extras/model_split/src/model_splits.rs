//! The option as a whole: the splits of the configuration, as an option of requests and as a sink of records.

use super::evidence::Evidence;
use super::note::SplitNote;
use super::split::Split;
use super::verdict::{VersionTakenOut, verdict_about};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_diagnose::GatewayConditions;
use tokenweir_gateway::backend::routes::{ModelConfig, RouteTable};
use tokenweir_gateway::proxy::option::RequestOption;
use tokenweir_gateway::proxy::{ProxyContext, ReadRequest, conversation_hash};
use tokenweir_option::DiagnosisHooks;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::RequestRecord;
use tokenweir_request::slo::Objective;

/// The models whose requests are split over versions.
#[derive(Debug, Default)]
pub struct ModelSplits(ArcSwap<Configured>);

/// The models of a configuration, and the objectives by which the guards compare versions.
#[derive(Debug, Default, PartialEq)]
pub struct SplitSettings {
    /// All configured models, with and without versions.
    pub models: Vec<ModelConfig>,
    /// The objectives for which the guards compare versions.
    pub objectives: Vec<Objective>,
}

/// The splits of a configuration, and their state.
#[derive(Debug, Default)]
struct Configured {
    settings: SplitSettings,
    /// The splits by the model name that clients use.
    splits: HashMap<Arc<str>, Arc<Split>>,
}

impl ModelSplits {
    /// Applies a configuration to new requests. If it has changed, versions that were taken out get requests again.
    pub(crate) fn set_models(&self, settings: SplitSettings) {
        if self.0.load().settings == settings {
            return;
        }
        let mut splits = HashMap::new();
        let models = settings.models.iter();
        for model in models.filter(|model| !model.split.is_empty()) {
            let is_guarded = model.guard.unwrap_or(!settings.objectives.is_empty());
            let split = Arc::new(Split::new(model, is_guarded));
            splits.insert(split.name.clone(), split);
        }
        self.0.store(Arc::new(Configured { settings, splits }));
    }

    /// The splits, by the name that clients use.
    pub(super) fn splits(&self) -> Vec<Arc<Split>> {
        let mut splits: Vec<Arc<Split>> = self.0.load().splits.values().cloned().collect();
        splits.sort_by(|one, other| one.name.cmp(&other.name));
        splits
    }
}

impl RequestOption for ModelSplits {
    fn version(
        &self,
        context: &ProxyContext,
        routes: &RouteTable,
        record: &mut RequestRecord,
        request: &ReadRequest<'_>,
        body: &[u8],
    ) -> Option<Arc<str>> {
        let name = request.fields.model.as_deref()?;
        let split = self.0.load().splits.get(name)?.clone();
        let conversation = conversation_hash(&context.settings, record, request, body);
        let conversation = conversation.unwrap_or_else(|| fastrand::u64(..));
        // Only the backend that created the previous response has stored it.
        let previous = context.state.stored_responses.previous_model(record);
        let held = previous.and_then(|model| split.find(model.name()));
        let is_served = |name: &str| !routes.lookup(Some(name)).backends.is_empty();
        let version = held.or_else(|| split.choose(conversation, is_served))?;
        let version = version.name.clone();
        if !routes.is_expected(Some(&version)) {
            // A reload has changed the splits, and not yet the routes.
            return None;
        }
        record.notes.set(SplitNote {
            split,
            version: version.clone(),
            conversation,
        });
        Some(version)
    }
}

/// Reports the versions that the guards have taken out.
impl DiagnosisHooks for ModelSplits {
    fn complete_conditions(&self, gateway: &mut GatewayConditions, _: Instant) {
        let splits = self.splits();
        let taken_out = splits.iter().flat_map(|split| split.taken_out());
        let taken_out: Vec<VersionTakenOut> = taken_out.collect();
        gateway.verdicts.extend(verdict_about(&taken_out));
    }
}

/// Compares the versions of a model by their finished requests.
impl Sink for ModelSplits {
    fn finished(&self, records: &[&RequestRecord]) {
        let configured = self.0.load();
        for record in records {
            let Some(note) = record.notes.get::<SplitNote>() else {
                continue;
            };
            if let Some(version) = note.split.find(&note.version) {
                let objectives = &configured.settings.objectives;
                let evidence = Evidence::of(record, note.conversation, objectives);
                let ended = record.timings.end();
                note.split.count(version, evidence, ended);
            }
        }
    }
}

//! Routing by KV events as an option.

use crate::learning::CacheKnowledge;
use crate::rows::{self, KnowledgeStatus};
use crate::settings::{KvEventsSettings, TASK};
use tokenweir_option::prelude::*;

/// Routing by KV events as an option.
#[derive(Default)]
pub struct KvEventsOption(pub(crate) OnceLock<Arc<CacheKnowledge>>);

impl GatewayOption for KvEventsOption {
    type Settings = KvEventsSettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn start(
        self: &Arc<Self>,
        settings: KvEventsSettings,
        _: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        self.0.get_or_init(|| CacheKnowledge::new(settings));
        parts.drivers.push(self.clone());
        Ok(())
    }

    fn add_status(&self, status: &mut StatusSnapshot, _: Instant) {
        if let Some(knowledge) = self.0.get() {
            status.blocks.add(KnowledgeStatus {
                index_bytes: knowledge.spaces.bytes(),
                learning: knowledge.learning_counts(),
            });
        }
    }
}

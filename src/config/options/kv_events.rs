//! The section `kv_events`: KV events of backends.

use tokenweir_gateway::backend::facets::kv_events::KvEventsSettings;
use tokenweir_settings::{ConfigSection, ReloadClass};

/// The section `kv_events`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = KvEventsSettings;
    // The first backend fixes the sizes of the tables.
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;
}

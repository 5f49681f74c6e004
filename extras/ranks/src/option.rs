//! Data-parallel ranks as an option.

use crate::probe::RankProbes;
use crate::rows;
use tokenweir_option::prelude::*;

impl GatewayOption for RankProbes {
    type Settings = ();
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;

    fn start(
        self: &Arc<Self>,
        _settings: (),
        _: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        parts.drivers.push(self.clone());
        Ok(())
    }
}

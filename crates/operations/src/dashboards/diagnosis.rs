//! What diagnosis finds: which condition holds at which replica, and since when.

use super::grid::Row;
use super::panel::Panel;
use super::query::gauge_by;
use crate::catalogue::Catalogue;

const VERDICT: &str = "tokenweir_verdict";

pub(super) fn row(metrics: &Catalogue) -> Row {
    let told = gauge_by(metrics, "backend, verdict", VERDICT);
    Row {
        title: "Diagnosis",
        panels: vec![
            Panel::states(
                "What is the matter",
                "A bar for each condition that held at a replica, from when it was found to when it was \
                 gone. Good is an empty panel, beside one that says that everything can be told. \
                 `tokenweir diagnose` has the evidence and what to do.",
            )
            .asks(format!("{told} == 1"), "{{backend}} {{verdict}}")
            .wide(16),
            Panel::lines(
                "Conditions that cannot be told",
                "none",
                "Of each replica: of those it is not known whether they hold. A few always, where a \
                 replica does not tell all that they need; many in the first minutes of a gateway.",
            )
            .asks(format!("count by (backend) (\n  {told}\n  unless {told} >= 0\n)"), "{{backend}}"),
        ],
    }
}

/// The same of one replica: every condition has its bar, and says whether it holds.
pub(super) fn of_one(metrics: &Catalogue) -> Row {
    Row {
        title: "Diagnosis",
        panels: vec![
            Panel::states(
                "What is the matter",
                "Each condition that is looked for. Good is no bar that says `found`; what cannot be \
                 told is said to be so. `tokenweir diagnose` has the evidence and what to do.",
            )
            .asks(gauge_by(metrics, "verdict", VERDICT), "{{verdict}}")
            .wide(24)
            .tall(12),
        ],
    }
}

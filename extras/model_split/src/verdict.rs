//! The verdict about versions that the guard of a split has taken out.

use serde::Serialize;
use std::sync::Arc;
use tokenweir_diagnose::{DiagnosisRule, Evidence, Verdict, VerdictSeverity};

/// The rule of the verdict.
pub(crate) const VERSION_TAKEN_OUT: DiagnosisRule = DiagnosisRule {
    name: "version_taken_out",
    severity: "warning",
    meaning: "A version of a split model gets no requests, because it was worse than the others.",
    evidence: "The guard of the model compared its share of bad requests with that of the others. The cause states \
               the version, the fault and both shares.",
    remedy: "Give the version the weight 0, repair it, and give it a weight again: a change of `models` lets it \
             get requests.",
    disproof: "model_splits in /status has taken_out: null for the version.",
    ..DiagnosisRule::GATEWAY
};

/// A version of a split model that gets no requests, because it was worse than the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct VersionTakenOut {
    /// The name of the split model.
    #[serde(skip)]
    pub(crate) model: Arc<str>,
    /// The name of the version.
    #[serde(skip)]
    pub(crate) version: Arc<str>,
    /// In what the version was worse, such as `empty_answers`.
    pub(crate) fault: &'static str,
    /// The share of bad requests of the version, from 0 to 1.
    pub(crate) share: f64,
    /// The share of bad requests of the others.
    pub(crate) share_of_others: f64,
}

/// The verdict of [`VERSION_TAKEN_OUT`]. `None`: no version was taken out.
pub(crate) fn verdict_about(versions: &[VersionTakenOut]) -> Option<Verdict> {
    let first = versions.first()?;
    let causes = versions.iter().map(|version| {
        let fault = version.fault.replace('_', " ");
        let share = 100.0 * version.share;
        let others = 100.0 * version.share_of_others;
        let VersionTakenOut { model, version, .. } = version;
        format!("{version} of {model}: {fault} {share:.0} %, at the others {others:.0} %")
    });
    let cause = causes.collect::<Vec<_>>().join("; ");
    let share = |measure, share| Evidence::new(measure, share, "ratio", 0.0);
    let found = VERSION_TAKEN_OUT.verdict(VerdictSeverity::Warning);
    Some(found.because(cause).with([
        share("bad_share", first.share),
        share("bad_share_of_others", first.share_of_others),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_was_taken_out_is_named() {
        let version = VersionTakenOut {
            model: "chat".into(),
            version: "chat-v2".into(),
            fault: "empty_answers",
            share: 0.254,
            share_of_others: 0.01,
        };
        let found = verdict_about(&[version]).unwrap();
        let expected = "chat-v2 of chat: empty answers 25 %, at the others 1 %";
        assert_eq!(found.cause.as_deref(), Some(expected));
        assert_eq!(found.severity, VerdictSeverity::Warning);
        assert!(verdict_about(&[]).is_none());
    }
}

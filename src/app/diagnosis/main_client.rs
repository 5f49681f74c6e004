//! Names the client that causes most of the work in the verdicts about too much work.

use tokenweir_api::{ClientSummary, main_client};
use tokenweir_diagnose::{Diagnosis, Verdict, VerdictSeverity};

/// The rules whose condition a single client can cause.
const RULES_ABOUT_WORK: [&str; 4] =
    ["shedding", "prefill_starvation", "kv_thrashing", "kv_backlog"];

/// Adds a sentence about the client to the causes of these verdicts.
pub(super) fn name_main_client(diagnosis: &mut Diagnosis, ranked: &[ClientSummary]) {
    let Some(sentence) = main_client(ranked) else { return };
    let is_about_work = |verdict: &&mut Verdict| {
        verdict.severity > VerdictSeverity::Info && RULES_ABOUT_WORK.contains(&&*verdict.verdict)
    };
    for verdict in diagnosis.verdicts.iter_mut().filter(is_about_work) {
        let cause = match &verdict.cause {
            Some(cause) => format!("{cause}; {sentence}"),
            None => sentence.clone(),
        };
        verdict.cause = Some(cause.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::rank_clients;

    #[test]
    fn only_verdicts_about_too_much_work_name_the_client() {
        let verdict = |name: &'static str, cause: Option<&'static str>| Verdict {
            verdict: name.into(),
            cause: cause.map(Into::into),
            ..Verdict::default()
        };
        let mut diagnosis = Diagnosis {
            verdicts: vec![
                verdict("shedding", Some("every backend is full")),
                verdict("kv_thrashing", None),
                verdict("backend_down", Some("refused")),
            ],
            ..Diagnosis::default()
        };
        let client = |address: &str, prompt_tokens| ClientSummary {
            address: Some(address.to_owned()),
            prompt_tokens,
            ..ClientSummary::default()
        };
        name_main_client(
            &mut diagnosis,
            &rank_clients(vec![client("10.0.0.1", 2_800), client("10.0.0.2", 7_200)]),
        );
        let causes: Vec<_> = diagnosis.verdicts.iter().map(|it| it.cause.as_deref()).collect();
        let sentence = "72 % of the prompt tokens of the last minute are of client 10.0.0.2";
        let both = format!("every backend is full; {sentence}");
        assert_eq!(causes, [Some(&*both), Some(sentence), Some("refused")]);
    }
}

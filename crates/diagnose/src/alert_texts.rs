//! The texts of verdicts for alerts. A text stays the same while its verdict holds, because a changed number in
//! a label would start a new time series.

use super::verdict::{AlertText, Verdict};
use std::collections::HashMap;

/// The text of each verdict that holds. The key is the name of the verdict and the name of the backend.
#[derive(Debug, Default)]
pub(super) struct AlertTexts(HashMap<(String, String), AlertText>);

/// Maximum length of a cause and of a remedy, in characters.
const MAX_CHARACTERS: usize = 300;

impl AlertTexts {
    pub(super) fn of(&mut self, verdicts: &[Verdict]) -> Vec<AlertText> {
        let mut texts = HashMap::new();
        for verdict in verdicts {
            let key = (verdict.verdict.to_string(), verdict.backend.clone());
            let text = self.0.remove(&key).unwrap_or_else(|| AlertText {
                verdict: verdict.verdict.clone(),
                backend: verdict.backend.clone(),
                cause: shortened(verdict.cause_or_meaning()),
                remedy: shortened(&verdict.remedy),
            });
            texts.insert(key, text);
        }
        self.0 = texts;
        self.0.values().cloned().collect()
    }
}

/// The first [`MAX_CHARACTERS`] characters of a text, without a full stop at the end.
fn shortened(text: &str) -> String {
    let beginning: String = text.chars().take(MAX_CHARACTERS).collect();
    beginning.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_while_its_verdict_holds() {
        let verdict = |cause: &'static str| Verdict {
            verdict: "shedding".into(),
            cause: Some(cause.into()),
            remedy: "Add backends.".into(),
            ..Verdict::default()
        };
        let mut texts = AlertTexts::default();
        assert_eq!(
            texts.of(&[verdict("72 % of one client")])[0].remedy,
            "Add backends"
        );
        let later = texts.of(&[verdict("74 % of one client")]);
        assert_eq!(later[0].cause, "72 % of one client");
        assert_eq!(texts.of(&[]), []);
        assert_eq!(texts.of(&[verdict("9 %")])[0].cause, "9 %");
    }
}

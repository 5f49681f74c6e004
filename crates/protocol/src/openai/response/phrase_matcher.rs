//! Searches streamed response text for phrases, such as those of model refusals.
//!
//! The matcher stores no text, only one automaton state per choice. It reads the escaped bytes of JSON strings,
//! so phrases are escaped as in JSON. It reads at most 256 bytes of each string, because a refusal is at the
//! beginning of a response.

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, BuildError};

/// An automaton that finds a set of phrases, without regard to the case of ASCII letters.
#[derive(Debug)]
pub struct PhraseMatcher {
    automaton: NFA,
}

/// The automaton state at the end of the text that was searched so far. `None`: no text was searched.
#[derive(Debug, Clone, Copy, Default)]
pub struct MatchState(Option<StateID>);

impl PhraseMatcher {
    /// Builds the automaton. Fails if it would be too large.
    pub fn new(phrases: &[String]) -> Result<Self, BuildError> {
        let escape_as_json = |phrase: &String| {
            let quoted = serde_json::Value::from(phrase.as_str()).to_string();
            quoted.trim_matches('"').to_owned()
        };
        let mut builder = NFA::builder();
        builder.ascii_case_insensitive(true);
        Ok(Self {
            automaton: builder.build(phrases.iter().map(escape_as_json))?,
        })
    }

    /// Searches the next piece of a text. Returns whether a phrase ends in this piece.
    pub fn read(&self, text: &[u8], match_state: &mut MatchState) -> bool {
        let start = || self.automaton.start_state(Anchored::No).ok();
        let Some(mut state) = match_state.0.or_else(start) else {
            return false;
        };
        let mut is_found = false;
        for byte in text {
            state = self.automaton.next_state(Anchored::No, state, *byte);
            is_found |= self.automaton.is_match(state);
        }
        match_state.0 = Some(state);
        is_found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_is_found_across_splits() {
        let phrases = ["I cannot help", "désolé", "say \"no\""].map(String::from);
        let phrases = PhraseMatcher::new(&phrases).unwrap();
        let text = b"Well, i CANNOT help with that.";
        for cut in 0..text.len() {
            let mut match_state = MatchState::default();
            let first = phrases.read(&text[..cut], &mut match_state);
            assert!(
                first | phrases.read(&text[cut..], &mut match_state),
                "{cut}"
            );
        }
        assert!(!phrases.read(b"I can. Not help", &mut MatchState::default()));
        assert!(phrases.read(br#"I say \"NO\"."#, &mut MatchState::default()));
        assert!(phrases.read("désolé".as_bytes(), &mut MatchState::default()));
    }
}

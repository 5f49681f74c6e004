//! Phrases that are looked for in answers as they pass. No text is kept: one state of an automaton
//! is, for each choice. The bytes of JSON texts are read as they stand, so phrases are written as
//! JSON writes them; of a text of more than 256 bytes, only those are read: a refusal begins early.

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, BuildError};

/// What is looked for, in any case of its ASCII letters.
#[derive(Debug)]
pub struct Phrases {
    automaton: NFA,
}

/// How far a text has been read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress(Option<StateID>);

impl Phrases {
    /// Looks for these. Fails if they are too many.
    pub fn new(phrases: &[String]) -> Result<Self, BuildError> {
        let as_json = |phrase: &String| {
            let quoted = serde_json::Value::from(phrase.as_str()).to_string();
            quoted.trim_matches('"').to_owned()
        };
        let mut builder = NFA::builder();
        builder.ascii_case_insensitive(true);
        Ok(Self { automaton: builder.build(phrases.iter().map(as_json))? })
    }

    /// Reads more of a text. Whether it now has one of the phrases in it.
    pub fn read(&self, text: &[u8], progress: &mut Progress) -> bool {
        let start = || self.automaton.start_state(Anchored::No).ok();
        let Some(mut state) = progress.0.or_else(start) else { return false };
        let mut is_found = false;
        for byte in text {
            state = self.automaton.next_state(Anchored::No, state, *byte);
            is_found |= self.automaton.is_match(state);
        }
        progress.0 = Some(state);
        is_found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_is_found_however_its_text_is_cut() {
        let phrases = ["I cannot help", "désolé", "say \"no\""].map(String::from);
        let phrases = Phrases::new(&phrases).unwrap();
        let text = b"Well, i CANNOT help with that.";
        for cut in 0..text.len() {
            let mut progress = Progress::default();
            let first = phrases.read(&text[..cut], &mut progress);
            assert!(first | phrases.read(&text[cut..], &mut progress), "{cut}");
        }
        assert!(!phrases.read(b"I can. Not help", &mut Progress::default()));
        assert!(phrases.read(br#"I say \"NO\"."#, &mut Progress::default()));
        assert!(phrases.read("désolé".as_bytes(), &mut Progress::default()));
    }
}

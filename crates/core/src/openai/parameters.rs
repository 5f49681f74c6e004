//! How an answer is to be generated, as far as spans tell it. None of it is acted on, so a value
//! that is wrong is left out here, and refused by the replica.

use crate::json::Value;

/// How an answer is to be generated. Absent ones were not asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parameters {
    /// `temperature`
    pub temperature: Option<f64>,
    /// `top_p`
    pub top_p: Option<f64>,
    /// `top_k`
    pub top_k: Option<f64>,
    /// `frequency_penalty`
    pub frequency_penalty: Option<f64>,
    /// `presence_penalty`
    pub presence_penalty: Option<f64>,
    /// `seed`
    pub seed: Option<i64>,
    /// What the answer is to be: `text` or `json`.
    pub output: Option<&'static str>,
    /// How hard the model is to think, in one of the words that are known.
    pub reasoning: Option<&'static str>,
    /// The answer that a Responses request goes on from.
    pub previous_response: Option<Box<str>>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parameter {
    Temperature,
    TopP,
    TopK,
    FrequencyPenalty,
    PresencePenalty,
    Seed,
    OutputFormat,
    Reasoning,
    PreviousResponse,
}

/// The words for how hard a model is to think.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

impl Parameters {
    /// Keeps a value.
    pub(super) fn read(&mut self, parameter: Parameter, value: Value<'_>) {
        match parameter {
            Parameter::Temperature => self.temperature = value.as_real(),
            Parameter::TopP => self.top_p = value.as_real(),
            Parameter::TopK => self.top_k = value.as_real(),
            Parameter::FrequencyPenalty => self.frequency_penalty = value.as_real(),
            Parameter::PresencePenalty => self.presence_penalty = value.as_real(),
            Parameter::Seed => self.seed = value.as_integer(),
            Parameter::OutputFormat => {
                self.output = match value.as_text().as_deref() {
                    Some("text") => Some("text"),
                    Some("json_object" | "json_schema") => Some("json"),
                    _ => None,
                }
            }
            Parameter::Reasoning => {
                let word = value.as_text();
                self.reasoning = EFFORTS.into_iter().find(|known| Some(*known) == word.as_deref());
            }
            Parameter::PreviousResponse => {
                self.previous_response = value.as_text().map(Into::into);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::request::Peek;

    fn read(body: &str) -> Parameters {
        Peek::of(body.as_bytes()).unwrap().parameters
    }

    #[test]
    fn each_shape_of_a_parameter_is_read() {
        let chat = read(
            r#"{"temperature":0.7,"top_p":1,"top_k":-1,"frequency_penalty":0.5,
            "presence_penalty":-2e-1,"seed":-42,"reasoning_effort":"low",
            "response_format":{"type":"json_schema","json_schema":{"type":"no"}}}"#,
        );
        let expected = Parameters {
            temperature: Some(0.7),
            top_p: Some(1.0),
            top_k: Some(-1.0),
            frequency_penalty: Some(0.5),
            presence_penalty: Some(-0.2),
            seed: Some(-42),
            output: Some("json"),
            reasoning: Some("low"),
            previous_response: None,
        };
        assert_eq!(chat, expected);
        let responses = read(
            r#"{"reasoning":{"effort":"high"},"text":{"format":{"type":"text"}},
            "previous_response_id":"resp_1"}"#,
        );
        assert_eq!((responses.reasoning, responses.output), (Some("high"), Some("text")));
        assert_eq!(responses.previous_response.as_deref(), Some("resp_1"));
    }

    #[test]
    fn what_is_wrong_or_stands_twice_is_the_replicas_to_refuse() {
        let wrong = r#"{"temperature":"hot","seed":1.5,"top_p":1e999,"reasoning_effort":"hard",
            "response_format":null,"top_k":[1]}"#;
        assert_eq!(read(wrong), Parameters::default());
        assert_eq!(read(r#"{"temperature":1,"temperature":2}"#).temperature, Some(2.0));
    }
}

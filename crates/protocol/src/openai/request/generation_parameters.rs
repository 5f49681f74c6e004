//! The sampling and output parameters of a request, for trace spans.
//!
//! The gateway does not act on these parameters. It treats an invalid value as absent, because the backend
//! rejects it.

use crate::json::JsonValue;

/// The sampling and output parameters of a request. A parameter is `None` if the request does not
/// have it or its value is invalid.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationParameters {
    /// The field `temperature`, at least 0.
    pub temperature: Option<f64>,
    /// The field `top_p`, from 0 to 1.
    pub top_p: Option<f64>,
    /// The field `top_k`, a number of tokens.
    pub top_k: Option<f64>,
    /// The field `frequency_penalty`, from −2 to 2.
    pub frequency_penalty: Option<f64>,
    /// The field `presence_penalty`, from −2 to 2.
    pub presence_penalty: Option<f64>,
    /// The field `seed`, with which sampling is repeatable.
    pub seed: Option<i64>,
    /// The requested output format: `text`, or `json` with or without a schema.
    pub output: Option<&'static str>,
    /// The requested reasoning effort. `None`: the request has none, or one that the gateway does not know.
    pub reasoning: Option<&'static str>,
    /// `stop` or `stop_sequences`, up to `MAX_STOP_SEQUENCES`. Empty: the request has none.
    pub stop_sequences: Vec<Box<str>>,
    /// `previous_response_id`: the stored response that a Responses request continues.
    pub previous_response: Option<Box<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GenerationParameter {
    Temperature,
    TopP,
    TopK,
    FrequencyPenalty,
    PresencePenalty,
    Seed,
    OutputFormat,
    Reasoning,
    PreviousResponseId,
    StopSequences,
}

/// Maximum number of stop sequences of a request that are stored. OpenAI allows 4, and vLLM any number.
const MAX_STOP_SEQUENCES: usize = 16;
/// Length in bytes to which a stop sequence is cut.
const MAX_STOP_SEQUENCE_BYTES: usize = 256;

const REASONING_EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

impl GenerationParameters {
    /// Stores the value of a parameter, and replaces an earlier value of the same parameter.
    pub(super) fn read(&mut self, parameter: GenerationParameter, value: JsonValue<'_>) {
        match parameter {
            GenerationParameter::Temperature => self.temperature = value.as_real(),
            GenerationParameter::TopP => self.top_p = value.as_real(),
            GenerationParameter::TopK => self.top_k = value.as_real(),
            GenerationParameter::FrequencyPenalty => self.frequency_penalty = value.as_real(),
            GenerationParameter::PresencePenalty => self.presence_penalty = value.as_real(),
            GenerationParameter::Seed => self.seed = value.as_integer(),
            GenerationParameter::OutputFormat => {
                self.output = match value.as_text().as_deref() {
                    Some("text") => Some("text"),
                    Some("json_object" | "json_schema") => Some("json"),
                    _ => None,
                }
            }
            GenerationParameter::Reasoning => {
                let effort = value.as_text();
                self.reasoning = REASONING_EFFORTS
                    .into_iter()
                    .find(|name| Some(*name) == effort.as_deref());
            }
            GenerationParameter::PreviousResponseId => {
                self.previous_response = value.as_text().map(Into::into);
            }
            GenerationParameter::StopSequences => match value.as_text() {
                Some(text) if self.stop_sequences.len() < MAX_STOP_SEQUENCES => {
                    let length = text.floor_char_boundary(MAX_STOP_SEQUENCE_BYTES);
                    self.stop_sequences.push(text[..length].into());
                }
                Some(_) => {}
                None => self.stop_sequences.clear(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::request_fields::RequestFields;

    fn parse_parameters(body: &str) -> GenerationParameters {
        RequestFields::parse(body.as_bytes()).unwrap().parameters
    }

    #[test]
    fn the_parameters_of_each_api_are_read() {
        let chat = parse_parameters(
            r#"{"temperature":0.7,"top_p":1,"top_k":-1,"frequency_penalty":0.5,
            "presence_penalty":-2e-1,"seed":-42,"reasoning_effort":"low",
            "response_format":{"type":"json_schema","json_schema":{"type":"no"}}}"#,
        );
        let expected = GenerationParameters {
            temperature: Some(0.7),
            top_p: Some(1.0),
            top_k: Some(-1.0),
            frequency_penalty: Some(0.5),
            presence_penalty: Some(-0.2),
            seed: Some(-42),
            output: Some("json"),
            reasoning: Some("low"),
            stop_sequences: Vec::new(),
            previous_response: None,
        };
        assert_eq!(chat, expected);
        let responses = parse_parameters(
            r#"{"reasoning":{"effort":"high"},"text":{"format":{"type":"text"}},
            "previous_response_id":"resp_1"}"#,
        );
        assert_eq!(
            (responses.reasoning, responses.output),
            (Some("high"), Some("text"))
        );
        assert_eq!(responses.previous_response.as_deref(), Some("resp_1"));
    }

    #[test]
    fn stop_sequences_are_a_text_or_an_array() {
        for (body, expected) in [
            (r#"{"stop":"END"}"#, &["END"][..]),
            (r#"{"stop":["a","b"]}"#, &["a", "b"]),
            (r#"{"stop_sequences":["x"]}"#, &["x"]),
            (r#"{"stop":null}"#, &[]),
            (r#"{"stop":[]}"#, &[]),
            (r#"{"stop":["a"],"stop":["b"]}"#, &["b"]),
        ] {
            let parsed = parse_parameters(body).stop_sequences;
            let texts: Vec<&str> = parsed.iter().map(|text| &**text).collect();
            assert_eq!(texts, expected, "{body}");
        }
        let many = format!(r#"{{"stop":[{}"z"]}}"#, r#""a","#.repeat(100));
        assert_eq!(
            parse_parameters(&many).stop_sequences.len(),
            MAX_STOP_SEQUENCES
        );
    }

    #[test]
    fn invalid_values_are_ignored_and_the_last_counts() {
        let invalid = r#"{"temperature":"hot","seed":1.5,"top_p":1e999,"reasoning_effort":"hard",
            "response_format":null,"top_k":[1]}"#;
        assert_eq!(parse_parameters(invalid), GenerationParameters::default());
        let twice = parse_parameters(r#"{"temperature":1,"temperature":2}"#);
        assert_eq!(twice.temperature, Some(2.0));
    }
}

//! Load scenarios: the arrival process and the token counts of the requests of a run.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use tokenweir_protocol::named_enum;

/// The load of a run: when requests are sent, and how many tokens they have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadScenario {
    /// Name of the scenario.
    pub name: String,
    /// The process that determines the send times.
    pub arrivals: ArrivalProcess,
    /// Prompt tokens of each request. `None`: the prompt tokens of the trace are used.
    pub prompt: Option<TokenRange>,
    /// Output tokens of each request. `None`: the output tokens of the trace are used.
    pub output: Option<TokenRange>,
}

/// The process that determines the send times of requests. Rates are in requests per second. All
/// variants except `Closed` are open loops: a request is sent at its planned time, whether or not
/// earlier requests have ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ArrivalProcess {
    /// Independent arrivals: the times between requests are exponentially distributed.
    Poisson {
        /// Mean number of requests per second.
        rate: f64,
    },
    /// Arrivals with a constant time between requests.
    Constant {
        /// Number of requests per second.
        rate: f64,
    },
    /// Bursts of simultaneous requests, with a constant time between bursts.
    Bursts {
        /// Mean number of requests per second: the burst size divided by the time between bursts.
        rate: f64,
        /// Requests per burst.
        size: u32,
    },
    /// The send times of a recorded trace.
    Recorded {
        /// Factor by which the trace is accelerated: 2 sends its requests in half of the time.
        speed: f64,
    },
    /// Closed loop: each simulated user sends its next request when its previous one has ended.
    Closed {
        /// Number of simulated users, which is the number of concurrent requests.
        users: u32,
    },
}

/// A uniform distribution of token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRange {
    /// Minimum number of tokens, at least 1.
    pub min: u32,
    /// Maximum number of tokens.
    pub max: u32,
}

named_enum! {
    /// The built-in scenarios of `tokenweir-lab bench`.
    pub enum ScenarioPreset {
        /// One request per second on average. It measures the latency of a server without load.
        LowLoad = "low-load",
        /// 64 users in a closed loop, so that 64 requests are always in progress. It measures the
        /// maximum throughput.
        Saturation = "saturation",
        /// Requests with long prompts. It measures prefill.
        LongPrompts = "long-prompts",
        /// Requests with long outputs. It measures decode and the effect of growing KV usage.
        LongOutputs = "long-outputs",
        /// Bursts of 32 simultaneous requests. It measures queueing.
        Burst = "burst",
    }
}

impl ScenarioPreset {
    /// The scenario of the preset.
    pub fn scenario(self) -> LoadScenario {
        let (arrivals, prompt, output) = match self {
            Self::LowLoad => (ArrivalProcess::Poisson { rate: 1.0 }, (128, 512), (64, 192)),
            Self::Saturation => (
                ArrivalProcess::Closed { users: 64 },
                (256, 1_024),
                (64, 256),
            ),
            Self::LongPrompts => (
                ArrivalProcess::Poisson { rate: 1.0 },
                (4_000, 7_500),
                (32, 96),
            ),
            Self::LongOutputs => (
                ArrivalProcess::Poisson { rate: 1.0 },
                (64, 256),
                (1_000, 2_000),
            ),
            Self::Burst => (
                ArrivalProcess::Bursts {
                    rate: 4.0,
                    size: 32,
                },
                (256, 1_024),
                (64, 256),
            ),
        };
        let token_range = |(min, max)| Some(TokenRange { min, max });
        let prompt = token_range(prompt);
        let output = token_range(output);
        LoadScenario {
            name: self.as_str().to_owned(),
            arrivals,
            prompt,
            output,
        }
    }
}

impl FromStr for ScenarioPreset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::NAMES.join(", ");
        let preset = Self::ALL.into_iter().find(|preset| preset.as_str() == text);
        preset.ok_or_else(|| format!("unknown scenario; expected one of {names}"))
    }
}

impl LoadScenario {
    /// Whether two scenarios send the same load. Their names may differ.
    pub fn is_same_load(&self, other: &Self) -> bool {
        let load = |scenario: &Self| (scenario.arrivals, scenario.prompt, scenario.output);
        load(self) == load(other)
    }
}

impl fmt::Display for LoadScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = |range: Option<TokenRange>| {
            range.map_or("the trace's".to_owned(), |range| range.to_string())
        };
        let prompt = tokens(self.prompt);
        let output = tokens(self.output);
        write!(
            f,
            "{}, {prompt} prompt tokens, {output} output tokens",
            self.arrivals
        )
    }
}

impl ArrivalProcess {
    /// Whether the process is an open loop: the send times do not depend on earlier requests.
    pub const fn is_open(self) -> bool {
        !matches!(self, Self::Closed { .. })
    }
}

impl fmt::Display for ArrivalProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poisson { rate } => write!(f, "open loop, {rate} requests per second (Poisson)"),
            Self::Constant { rate } => {
                write!(f, "open loop, {rate} requests per second (constant)")
            }
            Self::Bursts { rate, size } => {
                write!(
                    f,
                    "open loop, {rate} requests per second in bursts of {size}"
                )
            }
            Self::Recorded { speed } => {
                write!(f, "open loop, the trace at {speed} times its speed")
            }
            Self::Closed { users } => write!(f, "closed loop, {users} users"),
        }
    }
}

impl TokenRange {
    /// Draws a random token count from the range, with equal probabilities.
    pub fn draw(self, random: &mut fastrand::Rng) -> u32 {
        random.u32(self.min..=self.max)
    }
}

impl FromStr for TokenRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        let parse_tokens = |text: &str| text.trim().parse().ok();
        let range = parse_tokens(min)
            .zip(parse_tokens(max))
            .map(|(min, max)| Self { min, max });
        let range = range.filter(|range| 1 <= range.min && range.min <= range.max);
        range
            .filter(|range| range.max <= MAX_TOKENS)
            .ok_or("expected a token count such as 512 or a range such as 200-800")
    }
}

impl fmt::Display for TokenRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            return self.min.fmt(f);
        }
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// Maximum number of tokens of a prompt or an output in a scenario.
const MAX_TOKENS: u32 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_are_a_number_or_range() {
        assert_eq!("512".parse(), Ok(TokenRange { min: 512, max: 512 }));
        assert_eq!("200-800".parse(), Ok(TokenRange { min: 200, max: 800 }));
        for invalid in ["", "0", "8-2", "a", "-5", "1-2-3", "99999999999"] {
            assert!(invalid.parse::<TokenRange>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn unknown_names_list_all_scenarios() {
        for preset in ScenarioPreset::ALL {
            assert_eq!(preset.as_str().parse(), Ok(preset));
            assert_eq!(preset.scenario().name, preset.as_str());
        }
        assert!(
            "heavy"
                .parse::<ScenarioPreset>()
                .unwrap_err()
                .contains("long-prompts")
        );
    }
}

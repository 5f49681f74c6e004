//! A load as data: the arrival process and the token counts of requests.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadScenario {
    /// Name of the scenario.
    pub name: String,
    /// The arrival process.
    pub arrivals: ArrivalProcess,
    /// Prompt tokens. `None`: as in the trace.
    pub prompt: Option<TokenRange>,
    /// Output tokens. `None`: as in the trace.
    pub output: Option<TokenRange>,
}

/// The send times of requests. Rates are in requests per second. All variants except `Closed` are
/// open loops: a request is sent when it is due, independent of earlier requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ArrivalProcess {
    /// Independent arrivals.
    Poisson {
        /// Mean rate.
        rate: f64,
    },
    /// Arrivals at constant distances.
    Constant {
        /// Exact rate.
        rate: f64,
    },
    /// Bursts of simultaneous requests at constant distances.
    Bursts {
        /// Mean rate.
        rate: f64,
        /// Requests per burst.
        size: u32,
    },
    /// Send times of a trace.
    Recorded {
        /// Factor by which the trace is accelerated.
        speed: f64,
    },
    /// Closed loop: each user sends the next request when the previous response has ended.
    Closed {
        /// Number of users.
        users: u32,
    },
}

/// A uniform distribution of token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRange {
    /// Minimum, at least 1.
    pub min: u32,
    /// Maximum.
    pub max: u32,
}

/// The named scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScenarioPreset {
    /// One chat per second: the latency without other requests.
    LowLoad,
    /// 64 concurrent users: the maximum throughput.
    Saturation,
    /// Long prompts: prefill.
    LongPrompts,
    /// Long outputs: decode, and growing KV caches.
    LongOutputs,
    /// Bursts of requests: queueing.
    Burst,
}

impl ScenarioPreset {
    /// All presets.
    pub const ALL: [Self; 5] =
        [Self::LowLoad, Self::Saturation, Self::LongPrompts, Self::LongOutputs, Self::Burst];

    /// Name of the preset.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LowLoad => "low-load",
            Self::Saturation => "saturation",
            Self::LongPrompts => "long-prompts",
            Self::LongOutputs => "long-outputs",
            Self::Burst => "burst",
        }
    }

    /// The scenario of the preset.
    pub fn scenario(self) -> LoadScenario {
        let (arrivals, prompt, output) = match self {
            Self::LowLoad => (ArrivalProcess::Poisson { rate: 1.0 }, (128, 512), (64, 192)),
            Self::Saturation => (ArrivalProcess::Closed { users: 64 }, (256, 1_024), (64, 256)),
            Self::LongPrompts => (ArrivalProcess::Poisson { rate: 1.0 }, (4_000, 7_500), (32, 96)),
            Self::LongOutputs => (ArrivalProcess::Poisson { rate: 1.0 }, (64, 256), (1_000, 2_000)),
            Self::Burst => {
                (ArrivalProcess::Bursts { rate: 4.0, size: 32 }, (256, 1_024), (64, 256))
            }
        };
        let lengths = |(least, most)| Some(TokenRange { min: least, max: most });
        let (prompt, output) = (lengths(prompt), lengths(output));
        LoadScenario { name: self.name().to_owned(), arrivals, prompt, output }
    }
}

impl FromStr for ScenarioPreset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let known = Self::ALL.into_iter().find(|preset| preset.name() == text);
        known.ok_or_else(|| format!("unknown scenario; expected one of {names}"))
    }
}

impl ArrivalProcess {
    /// Whether send times are independent of earlier requests.
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
                write!(f, "open loop, {rate} requests per second in bursts of {size}")
            }
            Self::Recorded { speed } => {
                write!(f, "open loop, the trace at {speed} times its speed")
            }
            Self::Closed { users } => write!(f, "closed loop, {users} users"),
        }
    }
}

impl TokenRange {
    /// Draws a random token count.
    pub fn draw(self, random: &mut fastrand::Rng) -> u32 {
        random.u32(self.min..=self.max)
    }
}

impl FromStr for TokenRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse().ok();
        let lengths =
            number(least).zip(number(most)).map(|(least, most)| Self { min: least, max: most });
        let lengths = lengths.filter(|range| 1 <= range.min && range.min <= range.max);
        lengths
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

/// Maximum number of tokens of a prompt or output.
const MAX_TOKENS: u32 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_are_one_number_or_a_range() {
        assert_eq!("512".parse(), Ok(TokenRange { min: 512, max: 512 }));
        assert_eq!("200-800".parse(), Ok(TokenRange { min: 200, max: 800 }));
        for wrong in ["", "0", "8-2", "a", "-5", "1-2-3", "99999999999"] {
            assert!(wrong.parse::<TokenRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_scenario_is_found_by_its_name_and_the_error_for_an_unknown_name_lists_all() {
        for preset in ScenarioPreset::ALL {
            assert_eq!(preset.name().parse(), Ok(preset));
            assert_eq!(preset.scenario().name, preset.name());
        }
        assert!("heavy".parse::<ScenarioPreset>().unwrap_err().contains("long-prompts"));
    }
}

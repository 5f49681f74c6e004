//! What a load is like, as data: when requests are intended to be sent and how long they are.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// Tokens of prompts. `None`: as the trace says.
    pub prompt: Option<Lengths>,
    /// Tokens of answers. `None`: as the trace says.
    pub output: Option<Lengths>,
}

/// When requests are sent. Rates are in requests a second. All but the last are open: a request is
/// sent when it is due, whatever became of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Arrivals {
    /// Independent of each other.
    Poisson {
        /// On the mean.
        rate: f64,
    },
    /// All as far apart.
    Constant {
        /// Exactly.
        rate: f64,
    },
    /// Several at once, and then none for a while.
    Bursts {
        /// On the mean.
        rate: f64,
        /// Requests at once.
        size: u32,
    },
    /// As a trace says.
    Recorded {
        /// So many times faster.
        speed: f64,
    },
    /// Closed: each user sends the next request when the last one was answered.
    Closed {
        /// How many.
        users: u32,
    },
}

/// A number of tokens: any from the least to the most is as likely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lengths {
    /// The fewest; at least 1.
    pub least: u32,
    /// The most.
    pub most: u32,
}

/// The scenarios that have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// One chat a second: what a request takes when nobody else is there.
    LowLoad,
    /// As many as the server can: its throughput.
    Saturation,
    /// Documents: prefill.
    LongPrompts,
    /// Reports: decode, and KV cache that grows.
    LongOutputs,
    /// Many at once, and then none: the queue.
    Burst,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::LowLoad, Self::Saturation, Self::LongPrompts, Self::LongOutputs, Self::Burst];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LowLoad => "low-load",
            Self::Saturation => "saturation",
            Self::LongPrompts => "long-prompts",
            Self::LongOutputs => "long-outputs",
            Self::Burst => "burst",
        }
    }

    /// What it is.
    pub fn scenario(self) -> Scenario {
        let (arrivals, prompt, output) = match self {
            Self::LowLoad => (Arrivals::Poisson { rate: 1.0 }, (128, 512), (64, 192)),
            Self::Saturation => (Arrivals::Closed { users: 64 }, (256, 1_024), (64, 256)),
            Self::LongPrompts => (Arrivals::Poisson { rate: 1.0 }, (4_000, 7_500), (32, 96)),
            Self::LongOutputs => (Arrivals::Poisson { rate: 1.0 }, (64, 256), (1_000, 2_000)),
            Self::Burst => (Arrivals::Bursts { rate: 4.0, size: 32 }, (256, 1_024), (64, 256)),
        };
        let lengths = |(least, most)| Some(Lengths { least, most });
        let (prompt, output) = (lengths(prompt), lengths(output));
        Scenario { name: self.name().to_owned(), arrivals, prompt, output }
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let known = Self::ALL.into_iter().find(|preset| preset.name() == text);
        known.ok_or_else(|| format!("there are {names}"))
    }
}

impl Arrivals {
    /// Whether requests are sent whatever became of those before.
    pub const fn is_open(self) -> bool {
        !matches!(self, Self::Closed { .. })
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poisson { rate } => write!(f, "open loop, {rate} a second (Poisson)"),
            Self::Constant { rate } => write!(f, "open loop, {rate} a second, evenly"),
            Self::Bursts { rate, size } => {
                write!(f, "open loop, {rate} a second in bursts of {size}")
            }
            Self::Recorded { speed } => {
                write!(f, "open loop, {speed} times as fast as recorded")
            }
            Self::Closed { users } => write!(f, "closed loop, {users} users"),
        }
    }
}

impl Lengths {
    /// One of them.
    pub fn draw(self, random: &mut fastrand::Rng) -> u32 {
        random.u32(self.least..=self.most)
    }
}

impl FromStr for Lengths {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse().ok();
        let lengths = number(least).zip(number(most)).map(|(least, most)| Self { least, most });
        let lengths = lengths.filter(|it| 1 <= it.least && it.least <= it.most);
        lengths.filter(|it| it.most <= MOST).ok_or("expected tokens such as 512 or 200-800")
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most {
            return self.least.fmt(f);
        }
        write!(f, "{} to {}", self.least, self.most)
    }
}

/// The longest prompt or answer that is asked for, in tokens.
const MOST: u32 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_one_number_or_a_range() {
        assert_eq!("512".parse(), Ok(Lengths { least: 512, most: 512 }));
        assert_eq!("200-800".parse(), Ok(Lengths { least: 200, most: 800 }));
        for wrong in ["", "0", "8-2", "a", "-5", "1-2-3", "99999999999"] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_scenario_is_found_by_its_name_and_a_wrong_one_gets_the_list() {
        for preset in Preset::ALL {
            assert_eq!(preset.name().parse(), Ok(preset));
            assert_eq!(preset.scenario().name, preset.name());
        }
        assert!("heavy".parse::<Preset>().unwrap_err().contains("long-prompts"));
    }
}

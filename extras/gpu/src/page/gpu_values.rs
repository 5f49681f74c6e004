//! The values of one GPU, and the groups of values that the page of an exporter can lack.

use super::throttle_reason::ThrottleReasons;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The index of a GPU on its host, and of its MIG instance. Written as `0`, or `0.2` for instance 2.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "ListedGpu", into = "ListedGpu")]
pub struct GpuIndex {
    /// The index of the GPU, as in `CUDA_VISIBLE_DEVICES`.
    pub gpu: u16,
    /// The id of the MIG instance. `None`: the whole GPU.
    pub instance: Option<u16>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum ListedGpu {
    /// A number, for a whole GPU.
    Index(u16),
    /// An index as text, with a MIG instance.
    Text(String),
}

/// The values of one GPU. `None` in a field: the page does not have the value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct GpuValues {
    /// Share of time in which the GPU computed, 0 to 1.
    pub utilization: Option<f64>,
    /// Used memory, in bytes.
    pub memory_used_bytes: Option<f64>,
    /// Free memory, in bytes.
    pub memory_free_bytes: Option<f64>,
    /// Temperature of the GPU, in degrees Celsius.
    pub temperature_celsius: Option<f64>,
    /// Temperature of the memory of the GPU, in degrees Celsius.
    pub memory_temperature_celsius: Option<f64>,
    /// Power draw, in watts.
    pub power_watts: Option<f64>,
    /// Clock of the streaming multiprocessors, in hertz.
    pub clock_hertz: Option<f64>,
    /// Why the GPU lowers its clock now. If the page has only `DCGM_EXP_CLOCK_EVENTS_COUNT`: in the
    /// window of that metric, 5 minutes by default.
    pub throttle_reasons: Option<ThrottleReasons>,
    /// Time in which the GPU lowered its clock since the start of the driver, in seconds, in the
    /// order of [`THROTTLE_CAUSES`].
    pub throttled_seconds: [Option<f64>; THROTTLE_CAUSES.len()],
    /// Number of corrected memory errors since the start of the driver.
    pub corrected_errors: Option<f64>,
    /// Number of memory errors that could not be corrected since the start of the driver.
    pub uncorrected_errors: Option<f64>,
    /// Code of the last XID error. 0: there was no XID error. The code stays after the error.
    pub last_xid: Option<f64>,
}

/// The causes of [`GpuValues::throttled_seconds`], as DCGM divides them.
pub const THROTTLE_CAUSES: [&str; 6] = [
    "power",
    "thermal",
    "sync_boost",
    "board_limit",
    "low_utilization",
    "reliability",
];

/// A group of values that the page of an exporter can lack. It is serialized in the form in which
/// `/status` lists a missing group.
#[derive(Debug, Serialize)]
pub struct GpuSignal {
    /// The name of the group in `/status`.
    #[serde(rename = "signal")]
    pub name: &'static str,
    /// The DCGM fields to add to the counters file of the exporter (`--collectors`).
    pub fields: &'static str,
    /// The effect on the gateway if no GPU of a page has the values.
    #[serde(rename = "impact")]
    pub missing_impact: &'static str,
    /// Whether the values of a GPU include this group.
    #[serde(skip)]
    pub is_available: fn(&GpuValues) -> bool,
}

/// The groups of values. dcgm-exporter exports the first four and XID errors by default.
pub const GPU_SIGNALS: [GpuSignal; 7] = [
    GpuSignal {
        name: "utilization",
        missing_impact: "a GPU without work while requests wait is not detected",
        fields: "DCGM_FI_DEV_GPU_UTIL",
        is_available: |values| values.utilization.is_some(),
    },
    GpuSignal {
        name: "memory",
        missing_impact: "growth of GPU memory is not detected",
        fields: "DCGM_FI_DEV_FB_USED, DCGM_FI_DEV_FB_FREE",
        is_available: |values| {
            values.memory_used_bytes.is_some() && values.memory_free_bytes.is_some()
        },
    },
    GpuSignal {
        name: "temperature",
        missing_impact: "the temperature is not shown",
        fields: "DCGM_FI_DEV_GPU_TEMP",
        is_available: |values| values.temperature_celsius.is_some(),
    },
    GpuSignal {
        name: "power",
        missing_impact: "the power draw is not shown",
        fields: "DCGM_FI_DEV_POWER_USAGE",
        is_available: |values| values.power_watts.is_some(),
    },
    GpuSignal {
        name: "throttling",
        missing_impact: "a lowered clock is neither a verdict nor a slow cause",
        fields: "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        is_available: |values| {
            values.throttle_reasons.is_some() || values.throttled_seconds[1].is_some()
        },
    },
    GpuSignal {
        name: "ecc_errors",
        missing_impact: "memory errors are not detected",
        fields: "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        is_available: |values| values.uncorrected_errors.is_some(),
    },
    GpuSignal {
        name: "xid_errors",
        missing_impact: "errors that the driver reports are not detected",
        fields: "DCGM_FI_DEV_XID_ERRORS",
        is_available: |values| values.last_xid.is_some(),
    },
];

impl GpuIndex {
    /// Parses `0` or `0.2`. `None`: the text has another form, or a number above 65,535.
    pub fn parse(text: &str) -> Option<Self> {
        let (gpu, instance) = match text.split_once('.') {
            Some((gpu, instance)) => (gpu, Some(parse_number(instance)?)),
            None => (text, None),
        };
        Some(Self {
            gpu: parse_number(gpu)?,
            instance,
        })
    }
}

impl TryFrom<ListedGpu> for GpuIndex {
    type Error = &'static str;

    fn try_from(listed: ListedGpu) -> Result<Self, Self::Error> {
        match listed {
            ListedGpu::Index(gpu) => Ok(Self {
                gpu,
                instance: None,
            }),
            ListedGpu::Text(text) => Self::parse(&text)
                .ok_or("write the index of a GPU, or index.instance such as \"0.2\""),
        }
    }
}

impl From<GpuIndex> for ListedGpu {
    fn from(index: GpuIndex) -> Self {
        match index.instance {
            Some(_) => Self::Text(index.to_string()),
            None => Self::Index(index.gpu),
        }
    }
}

/// Parses a number without a sign. `u16::from_str` also accepts `+1`.
fn parse_number(text: &str) -> Option<u16> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

impl fmt::Display for GpuIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instance {
            Some(instance) => write!(f, "{}.{instance}", self.gpu),
            None => write!(f, "{}", self.gpu),
        }
    }
}

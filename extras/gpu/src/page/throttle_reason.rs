//! Why a GPU lowers its clock: the bits of DCGM's clock event reasons.
//!
//! Source of the bits and of the names in `DCGM_EXP_CLOCK_EVENTS_COUNT`: `dcgm_fields.h`, and
//! `clock_events_collector.go` of dcgm-exporter. The reasons `gpu_idle`, `clocks_setting` and
//! `display_clocks` are left out, because they do not slow down a GPU under load.

use serde::{Serialize, Serializer};
use tokenweir_protocol::named_enum;

named_enum! {
    /// Why a GPU lowers its clock.
    pub enum ThrottleReason {
        /// The power limit. Many GPUs reach it in normal operation under full load.
        PowerCap = "power_cap",
        /// The hardware halves the clock or more, for any reason.
        HwSlowdown = "hw_slowdown",
        /// Another GPU of the same sync boost group is slower.
        SyncBoost = "sync_boost",
        /// The driver keeps the temperature of the GPU or of its memory below its limit.
        SwThermal = "sw_thermal",
        /// The hardware halves the clock or more, because the temperature is too high.
        HwThermal = "hw_thermal",
        /// The power supply asked the hardware to halve the clock or more.
        HwPowerBrake = "hw_power_brake",
    }
}

/// A set of [`ThrottleReason`]s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThrottleReasons(u8);

impl ThrottleReason {
    /// The bit of the reason in `DCGM_FI_DEV_CLOCKS_EVENT_REASONS`.
    const fn bit(self) -> u8 {
        match self {
            Self::PowerCap => 0x04,
            Self::HwSlowdown => 0x08,
            Self::SyncBoost => 0x10,
            Self::SwThermal => 0x20,
            Self::HwThermal => 0x40,
            Self::HwPowerBrake => 0x80,
        }
    }

    /// Whether the reason is a fault of cooling or of the power supply. The power limit and sync
    /// boost are no faults.
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::PowerCap | Self::SyncBoost)
    }
}

impl ThrottleReasons {
    /// Reads the reasons from a value of `DCGM_FI_DEV_CLOCKS_EVENT_REASONS`. Bits of other reasons are
    /// ignored.
    pub fn from_bits(value: f64) -> Self {
        let all = ThrottleReason::ALL
            .iter()
            .fold(0, |bits, reason| bits | reason.bit());
        // The cast saturates if the number is negative or too large.
        Self((value as u64 & u64::from(all)) as u8)
    }

    /// Adds the reason with this name in the label `clock_event`. Unknown names are ignored.
    pub fn add_named(&mut self, name: &[u8]) {
        let named = ThrottleReason::ALL
            .iter()
            .find(|reason| reason.as_str().as_bytes() == name);
        // Older versions of dcgm-exporter name the reason `PowerCap` differently.
        let named = named.or((name == b"sw_power_cap").then_some(&ThrottleReason::PowerCap));
        if let Some(reason) = named {
            self.0 |= reason.bit();
        }
    }

    /// Whether the set has this reason.
    pub const fn has(self, reason: ThrottleReason) -> bool {
        self.0 & reason.bit() != 0
    }

    /// Whether the set has a fault of cooling or of the power supply.
    pub fn has_fault(self) -> bool {
        ThrottleReason::ALL
            .iter()
            .any(|reason| reason.is_fault() && self.has(*reason))
    }
}

impl Serialize for ThrottleReasons {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let present = ThrottleReason::ALL
            .iter()
            .filter(|reason| self.has(**reason));
        serializer.collect_seq(present.map(|reason| reason.as_str()))
    }
}

//! The parser of the metrics pages of dcgm-exporter, NVIDIA's exporter of GPU metrics.
//!
//! Names, units and labels are those of the exporter's `etc/default-counters.csv`, `METRICS.md` and
//! templates. For a value that it does not have, DCGM writes a large number (a blank value), which the parser
//! ignores.

use super::gpu_values::{GpuIndex, GpuValues};
use super::throttle_reason::ThrottleReasons;
use tokenweir_engine::dialect::{MetricSample, lines};

/// The GPUs of one page of dcgm-exporter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuPage {
    /// The GPUs, in the order of the page, at most [`MAX_GPUS`].
    pub gpus: Vec<GpuReading>,
    /// Whether the page has more than [`MAX_GPUS`] GPUs. The gateway ignores the GPUs after that number.
    pub is_truncated: bool,
}

/// The values of one GPU on a page of dcgm-exporter, with the names of its host and pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuReading {
    /// The index of the GPU on its host.
    pub index: GpuIndex,
    /// The label `Hostname`: the host of the exporter, or the name of the exporter's pod. `None`: the page
    /// does not have the label.
    pub host_name: Option<Box<str>>,
    /// The Kubernetes pods that use the GPU. Empty outside of Kubernetes.
    pub pods: Vec<Box<str>>,
    /// The values that the page has for the GPU.
    pub values: GpuValues,
}

/// Maximum number of GPUs and MIG instances of one page. Eight GPUs have up to 56 instances.
pub const MAX_GPUS: usize = 128;
/// Maximum number of pods of one GPU. Several pods share a GPU with time slicing.
const MAX_PODS: usize = 16;
/// Maximum length of a host name or of a pod name, in bytes. A longer name is ignored.
const MAX_NAME_BYTES: usize = 253;
/// DCGM's blank value of 64-bit floating-point fields, `DCGM_FP64_BLANK`. Blank values of 64-bit
/// integers are larger.
const BLANK: f64 = 140_737_488_355_328.0;
/// DCGM's blank values of 32-bit integers, `DCGM_INT32_BLANK` and the values above it.
const BLANK_32: std::ops::RangeInclusive<f64> = 2_147_483_632.0..=2_147_483_647.0;
const MIB: f64 = 1_048_576.0;

/// The field of [`GpuValues`] in which the value of a metric is stored.
enum ValueTarget {
    /// A field, and the factor that converts the value of the metric to the unit of the field.
    Field(fn(&mut GpuValues) -> &mut Option<f64>, f64),
    /// A field that is set only if no preferred metric has set it before.
    Fallback(fn(&mut GpuValues) -> &mut Option<f64>),
    /// The time for which the GPU was slowed by the throttle cause with this index, in seconds. The unit on
    /// the page depends on the version of dcgm-exporter.
    ThrottledTime(usize),
    /// The current throttle reasons, as bits.
    ThrottleBits,
    /// The number of events of the throttle reason in the label `clock_event`.
    ThrottleEvents,
}

/// The metrics that the gateway reads, and where it stores each value.
const METRICS: [(&str, ValueTarget); 20] = [
    (
        "DCGM_FI_DEV_GPU_UTIL",
        ValueTarget::Field(|gpu| &mut gpu.utilization, 0.01),
    ),
    // For a MIG instance, DCGM has no GPU_UTIL but only this metric.
    (
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        ValueTarget::Fallback(|gpu| &mut gpu.utilization),
    ),
    (
        "DCGM_FI_DEV_FB_USED",
        ValueTarget::Field(|gpu| &mut gpu.memory_used_bytes, MIB),
    ),
    (
        "DCGM_FI_DEV_FB_FREE",
        ValueTarget::Field(|gpu| &mut gpu.memory_free_bytes, MIB),
    ),
    (
        "DCGM_FI_DEV_GPU_TEMP",
        ValueTarget::Field(|gpu| &mut gpu.temperature_celsius, 1.0),
    ),
    (
        "DCGM_FI_DEV_MEMORY_TEMP",
        ValueTarget::Field(|gpu| &mut gpu.memory_temperature_celsius, 1.0),
    ),
    (
        "DCGM_FI_DEV_POWER_USAGE",
        ValueTarget::Field(|gpu| &mut gpu.power_watts, 1.0),
    ),
    (
        "DCGM_FI_DEV_SM_CLOCK",
        ValueTarget::Field(|gpu| &mut gpu.clock_hertz, 1e6),
    ),
    (
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        ValueTarget::ThrottleBits,
    ),
    // The name of the previous metric before DCGM 3.3.
    (
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        ValueTarget::ThrottleBits,
    ),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT", ValueTarget::ThrottleEvents),
    ("DCGM_FI_DEV_POWER_VIOLATION", ValueTarget::ThrottledTime(0)),
    (
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        ValueTarget::ThrottledTime(1),
    ),
    (
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
        ValueTarget::ThrottledTime(2),
    ),
    (
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
        ValueTarget::ThrottledTime(3),
    ),
    (
        "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
        ValueTarget::ThrottledTime(4),
    ),
    (
        "DCGM_FI_DEV_RELIABILITY_VIOLATION",
        ValueTarget::ThrottledTime(5),
    ),
    (
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        ValueTarget::Field(|gpu| &mut gpu.corrected_errors, 1.0),
    ),
    (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        ValueTarget::Field(|gpu| &mut gpu.uncorrected_errors, 1.0),
    ),
    (
        "DCGM_FI_DEV_XID_ERRORS",
        ValueTarget::Field(|gpu| &mut gpu.last_xid, 1.0),
    ),
];

impl GpuPage {
    /// Parses a page of dcgm-exporter. `None`: the page has no value of a GPU.
    pub fn read(page: &[u8]) -> Option<Self> {
        let mut parsed = Self::default();
        // Older versions of dcgm-exporter state violations (times of slowing) in microseconds, newer versions
        // in nanoseconds. The help text before the samples states the unit.
        let mut violation_unit = 1e-6;
        for line in lines(page) {
            match line.strip_prefix(b"# HELP ") {
                Some(help) => {
                    let is_nanoseconds = help.trim_ascii_end().ends_with(b"(in ns).");
                    violation_unit = if is_nanoseconds { 1e-9 } else { 1e-6 };
                }
                None => drop(parsed.read_sample(line, violation_unit)),
            }
        }
        (!parsed.gpus.is_empty()).then_some(parsed)
    }

    /// The groups of values that no GPU of the page has.
    pub fn missing_signals(&self) -> impl Iterator<Item = &'static super::GpuSignal> {
        let is_missing = |signal: &&super::GpuSignal| {
            !self
                .gpus
                .iter()
                .any(|gpu| (signal.is_available)(&gpu.values))
        };
        super::GPU_SIGNALS.iter().filter(is_missing)
    }

    /// Stores the value of a sample. `None`: the line is no sample of a known metric of a GPU.
    fn read_sample(&mut self, line: &[u8], violation_unit: f64) -> Option<()> {
        let name_end = line.iter().position(|byte| *byte == b'{')?;
        let (name, labels_and_value) = line.split_at(name_end);
        let (_, target) = METRICS.iter().find(|(known, _)| known.as_bytes() == name)?;
        let sample = MetricSample::parse(labels_and_value)?;
        let number = sample.number().filter(|number| is_value(*number))?;
        let index = |label| GpuIndex::parse(std::str::from_utf8(sample.label(label)?).ok()?);
        let index = GpuIndex {
            instance: index("GPU_I_ID").map(|instance| instance.gpu),
            ..index("gpu")?
        };
        let gpu = self.reading_of(index)?;
        gpu.add_names(&sample);
        let values = &mut gpu.values;
        match target {
            ValueTarget::Field(field, factor) => *field(values) = Some(number * factor),
            ValueTarget::Fallback(field) => drop(field(values).get_or_insert(number)),
            ValueTarget::ThrottledTime(cause) => {
                values.throttled_seconds[*cause] = Some(number * violation_unit);
            }
            ValueTarget::ThrottleBits => {
                values.throttle_reasons = Some(ThrottleReasons::from_bits(number));
            }
            ValueTarget::ThrottleEvents => {
                let reasons = values.throttle_reasons.get_or_insert_default();
                if number > 0.0 {
                    reasons.add_named(sample.label("clock_event").unwrap_or_default());
                }
            }
        }
        Some(())
    }

    /// The reading of a GPU. A GPU that is not in the list yet is added. `None`: the list is full.
    fn reading_of(&mut self, index: GpuIndex) -> Option<&mut GpuReading> {
        // A page lists the GPUs of each metric in the same order, so the search is short.
        let position = self.gpus.iter().position(|gpu| gpu.index == index);
        let position = position.unwrap_or(self.gpus.len());
        if position == MAX_GPUS {
            self.is_truncated = true;
            return None;
        }
        if position == self.gpus.len() {
            self.gpus.push(GpuReading {
                index,
                ..GpuReading::default()
            });
        }
        self.gpus.get_mut(position)
    }
}

impl GpuReading {
    /// Stores the host and the pod of a sample.
    fn add_names(&mut self, sample: &MetricSample<'_>) {
        let name = |label| sample.label(label).and_then(readable_name);
        if self.host_name.is_none() {
            self.host_name = name("Hostname").map(Into::into);
        }
        // If the page passed through Prometheus, the label `pod` of the exporter has the name `exported_pod`.
        let pod = name("exported_pod").or_else(|| name("pod"));
        if let Some(pod) = pod
            && self.pods.len() < MAX_PODS
            && !self.pods.iter().any(|known| **known == *pod)
        {
            self.pods.push(pod.into());
        }
    }
}

fn is_value(number: f64) -> bool {
    (0.0..BLANK).contains(&number) && !BLANK_32.contains(&number)
}

/// The text of a label value. `None`: the text is empty, too long, or has characters that names of
/// hosts and pods cannot have.
fn readable_name(value: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let is_name = (1..=MAX_NAME_BYTES).contains(&value.len()) && value.iter().all(is_plain);
    if is_name {
        std::str::from_utf8(value).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::ThrottleReason;

    fn read(page: &str) -> Vec<GpuReading> {
        GpuPage::read(page.as_bytes())
            .map(|page| page.gpus)
            .unwrap_or_default()
    }

    #[test]
    fn blank_and_negative_gpu_values_count_as_unknown() {
        for blank in [
            "9223372036854775794",
            "140737488355328",
            "2147483632",
            "-1",
            "NaN",
            "x",
        ] {
            let gpus = read(&format!("DCGM_FI_DEV_GPU_TEMP{{gpu=\"0\"}} {blank}\n"));
            assert!(gpus.is_empty(), "{blank}: {gpus:?}");
        }
    }

    #[test]
    fn the_help_text_has_the_throttled_times_unit() {
        for (unit, expected) in [("us", 2.0), ("ns", 0.002)] {
            let page = format!(
                "# HELP DCGM_FI_DEV_THERMAL_VIOLATION Throttling duration (in {unit}).\n\
                 DCGM_FI_DEV_THERMAL_VIOLATION{{gpu=\"0\"}} 2000000"
            );
            assert_eq!(
                read(&page)[0].values.throttled_seconds[1],
                Some(expected),
                "{unit}"
            );
        }
    }

    #[test]
    fn throttle_reasons_are_bits_or_event_counts() {
        let bits = read("DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu=\"0\"} 69\n");
        let events = read(
            "DCGM_EXP_CLOCK_EVENTS_COUNT{gpu=\"0\",clock_event=\"hw_thermal\"} 2\n\
             DCGM_EXP_CLOCK_EVENTS_COUNT{gpu=\"0\",clock_event=\"sw_power_cap\"} 1\n\
             DCGM_EXP_CLOCK_EVENTS_COUNT{gpu=\"0\",clock_event=\"sync_boost\"} 0\n",
        );
        for gpus in [bits, events] {
            let reasons = gpus[0].values.throttle_reasons.unwrap();
            let present: Vec<&str> = ThrottleReason::ALL
                .iter()
                .filter(|reason| reasons.has(**reason))
                .map(|reason| reason.as_str())
                .collect();
            assert_eq!(present, ["power_cap", "hw_thermal"]);
            assert!(reasons.has_fault());
        }
        let power_only = read("DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu=\"0\"} 5\n");
        assert!(!power_only[0].values.throttle_reasons.unwrap().has_fault());
    }

    #[test]
    fn a_hostile_page_has_bounded_numbers() {
        let lines =
            |line: &dyn Fn(u32) -> String| (0..500).map(line).collect::<Vec<_>>().join("\n");
        let many = lines(&|n| format!("DCGM_FI_DEV_GPU_TEMP{{gpu=\"{n}\"}} 30"));
        let page = GpuPage::read(many.as_bytes()).unwrap();
        assert_eq!((page.gpus.len(), page.is_truncated), (MAX_GPUS, true));
        let pods = lines(&|n| format!("DCGM_FI_DEV_GPU_TEMP{{gpu=\"0\",pod=\"p{n}\"}} 30"));
        assert_eq!(read(&pods)[0].pods.len(), MAX_PODS);
        let long = "x".repeat(300);
        let names =
            format!("DCGM_FI_DEV_GPU_TEMP{{gpu=\"0\",Hostname=\"{long}\",pod=\"a<b>\"}} 30\n");
        assert_eq!(
            (&read(&names)[0].host_name, read(&names)[0].pods.len()),
            (&None, 0)
        );
        for index in ["70000", "-1", "+1", "a", "", "1.2.3"] {
            assert!(read(&format!("DCGM_FI_DEV_GPU_TEMP{{gpu=\"{index}\"}} 30")).is_empty());
        }
    }

    #[test]
    fn a_page_without_gpus_is_no_exporter_page() {
        for page in [
            "",
            "vllm:num_requests_running 1\n",
            "<html>{}</html>",
            "DCGM_FI_DEV_GPU_TEMP{",
        ] {
            assert_eq!(GpuPage::read(page.as_bytes()), None, "{page}");
        }
    }
}

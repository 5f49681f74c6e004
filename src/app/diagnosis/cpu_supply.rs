//! Reads how much CPU time the process of the gateway gets: the delays of its timers, the CPU limit of its
//! control group, and the pressure on the CPUs of the machine. Unreadable values are unknown.

use std::fs;
use std::path::PathBuf;
use tokenweir_diagnose::CpuSupply;
use tokenweir_gateway::telemetry::Telemetry;
use tokenweir_protocol::clock;

/// The folder of control groups.
const GROUPS: &str = "/sys/fs/cgroup";
const PRESSURE: &str = "/proc/pressure/cpu";
const OWN_GROUP: &str = "/proc/self/cgroup";
/// Maximum length of a file that is read, in bytes.
const MAX_BYTES: u64 = 4 << 10;

pub(super) fn read(telemetry: &Telemetry) -> CpuSupply {
    let delays = &telemetry.timer_delays;
    CpuSupply {
        timers: delays.timers(),
        late_seconds: delays.late().as_secs_f64(),
        pauses: delays.pauses(),
        pause_seconds: delays.paused().as_secs_f64(),
        longest_pause_seconds: delays.take_longest_pause().as_secs_f64(),
        wall_seconds: clock::unix_time().as_secs_f64(),
        throttled_seconds: throttled_seconds(),
        waiting_share: read_text(PRESSURE.into()).and_then(|text| waiting_share(&text)),
    }
}

/// Seconds for which the CPU limit has stopped the processes of the control group.
fn throttled_seconds() -> Option<f64> {
    let own = read_text(OWN_GROUP.into()).unwrap_or_default();
    let inner = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default();
    let paths = [
        format!("{GROUPS}/{inner}/cpu.stat"),
        format!("{GROUPS}/cpu.stat"),
        format!("{GROUPS}/cpu/cpu.stat"),
    ];
    paths
        .into_iter()
        .filter_map(|path| read_text(path.into()))
        .find_map(|text| throttled_time(&text))
}

/// The throttled time in a `cpu.stat` file of version 2 (microseconds) or 1 (nanoseconds).
fn throttled_time(text: &str) -> Option<f64> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<f64>().ok()
    };
    let micros = value("throttled_usec ").map(|micros| micros / 1e6);
    micros.or_else(|| value("throttled_time ").map(|nanos| nanos / 1e9))
}

/// The share of `some avg10` in a pressure file.
fn waiting_share(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let percent = line
        .split(' ')
        .find_map(|field| field.strip_prefix("avg10="))?;
    let percent: f64 = percent.parse().ok()?;
    Some(percent / 100.0)
}

fn read_text(path: PathBuf) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    let file = fs::File::open(path).ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_read() {
        let second = "usage_usec 9\nnr_periods 8\nnr_throttled 7\nthrottled_usec 2500000\n";
        let first = "nr_periods 8\nnr_throttled 7\nthrottled_time 2500000000\n";
        for text in [first, second] {
            assert_eq!(throttled_time(text), Some(2.5));
        }
        assert_eq!(throttled_time("usage_usec 9\n"), None, "no limit");
    }

    #[test]
    fn the_pressure_is_a_share() {
        let text = "some avg10=42.50 avg60=1.00 avg300=0.10 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(waiting_share(text), Some(0.425));
        assert_eq!(waiting_share(""), None);
    }
}

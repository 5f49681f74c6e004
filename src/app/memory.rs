//! How much memory the process may use: that of its control group, or that of the machine.

use std::fs;
use std::path::Path;

/// Bytes that the process may use. `None`: it cannot be found out.
pub(crate) fn available() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_group = of_groups(&groups, Path::new("/sys/fs/cgroup"));
    let of_machine = of_machine(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    of_group.into_iter().chain(of_machine).min()
}

/// The least limit of the control groups of a process and of those above them. `groups` is
/// `/proc/self/cgroup`, `root` where the hierarchy is mounted: version 2, or the memory controller of
/// version 1. In a container the path of the group can be that of the host, and is not there.
fn of_groups(groups: &str, root: &Path) -> Option<usize> {
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = Path::new(path.trim_start_matches('/'));
        // `max` is no number, and means no limit.
        let limit = |group: &Path| -> Option<usize> {
            fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse().ok()
        };
        group.ancestors().filter_map(limit).min()
    });
    limits.min()
}

fn of_machine(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files, removed when it is dropped.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("tokenweir-{name}-{}", std::process::id()));
            for (file, text) in files {
                let file = root.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_least_limit_of_a_group_and_of_those_above_it_counts() {
        let v2 = Folder::with(
            "cgroup2",
            &[("a/memory.max", "2048\n"), ("a/b/memory.max", "max\n"), ("memory.max", "4096\n")],
        );
        assert_eq!(of_groups("0::/a/b\n", &v2.0), Some(2_048));
        assert_eq!(of_groups("0::/\n", &v2.0), Some(4_096));
        assert_eq!(of_groups("0::/kubepods/of/the/host\n", &v2.0), Some(4_096));
        let v1 = Folder::with("cgroup1", &[("memory/a/memory.limit_in_bytes", "1024\n")]);
        assert_eq!(of_groups("3:cpu,cpuacct:/a\n2:memory:/a\n", &v1.0), Some(1_024));
        assert_eq!(of_groups("3:cpu,cpuacct:/a\n", &v1.0), None);
        assert_eq!(of_groups("", &v1.0), None);
    }

    #[test]
    fn the_memory_of_the_machine_is_read_in_bytes() {
        assert_eq!(of_machine("MemTotal:       16 kB\nMemFree: 1 kB\n"), Some(16 << 10));
        assert_eq!(of_machine(""), None);
        #[cfg(target_os = "linux")]
        assert!(available().unwrap() > 1 << 20);
    }
}

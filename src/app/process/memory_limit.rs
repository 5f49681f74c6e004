//! Finds the memory limit of the process: the lower of its cgroup limit and the machine's memory.

use std::fs;
use std::path::Path;

/// Returns the memory that the process may use, in bytes. `None`: neither limit is known.
pub(crate) fn available_bytes() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let cgroup = cgroup_limit(&groups, Path::new("/sys/fs/cgroup"));
    let machine = machine_memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    cgroup.into_iter().chain(machine).min()
}

/// Finds the lowest memory limit of the cgroups of a process and of their ancestors, in bytes. `None`: no
/// limit. `groups` is the content of `/proc/self/cgroup`. `root` is the mount point of cgroup v2, or the
/// directory that contains the mount point of the v1 memory controller. In a container, `groups` may contain
/// the path of the cgroup on the host. This path does not exist in the container, so the limits of its existing
/// ancestors apply.
fn cgroup_limit(groups: &str, root: &Path) -> Option<usize> {
    let limits = groups.lines().filter_map(|line| {
        let (_, controllers_and_path) = line.split_once(':')?;
        let (controllers, path) = controllers_and_path.split_once(':')?;
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers
                .split(',')
                .any(|controller| controller == "memory") =>
            {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = Path::new(path.trim_start_matches('/'));
        // `max` does not parse as a number, and means no limit.
        let limit = |group: &Path| -> Option<usize> {
            fs::read_to_string(root.join(group).join(file))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        group.ancestors().filter_map(limit).min()
    });
    limits.min()
}

/// Reads the memory of the machine in bytes from the content of `/proc/meminfo`. `None`: unknown format.
fn machine_memory(meminfo: &str) -> Option<usize> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_net::testing::TempFolder;

    #[test]
    fn the_lowest_limit_of_all_cgroups_applies() {
        let v2 = TempFolder::new("cgroup2");
        v2.write("a/memory.max", "2048\n");
        v2.write("a/b/memory.max", "max\n");
        v2.write("memory.max", "4096\n");
        assert_eq!(cgroup_limit("0::/a/b\n", v2.path()), Some(2_048));
        assert_eq!(cgroup_limit("0::/\n", v2.path()), Some(4_096));
        assert_eq!(
            cgroup_limit("0::/kubepods/of/the/host\n", v2.path()),
            Some(4_096)
        );
        let v1 = TempFolder::new("cgroup1");
        v1.write("memory/a/memory.limit_in_bytes", "1024\n");
        assert_eq!(
            cgroup_limit("3:cpu,cpuacct:/a\n2:memory:/a\n", v1.path()),
            Some(1_024)
        );
        assert_eq!(cgroup_limit("3:cpu,cpuacct:/a\n", v1.path()), None);
        assert_eq!(cgroup_limit("", v1.path()), None);
    }

    #[test]
    fn the_memory_is_read_in_bytes() {
        assert_eq!(
            machine_memory("MemTotal:       16 kB\nMemFree: 1 kB\n"),
            Some(16 << 10)
        );
        assert_eq!(machine_memory(""), None);
        #[cfg(target_os = "linux")]
        assert!(available_bytes().unwrap() > 1 << 20);
    }
}

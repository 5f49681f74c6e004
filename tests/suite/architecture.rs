//! Rules for source files: imports point to lower layers and form no cycle, every module has a description,
//! no file is too long, and no folder has too many files.

use crate::support::import_graph::ImportGraph;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tokenweir::app::options::background_tasks;

/// Maximum number of lines of a source file. Tests do not count.
const MAX_LINES: usize = 520;

/// The only crate whose modules may import each other: its load estimates use the formula of its policy
/// `kv_aware`, which reads the estimates of each candidate.
const MODULE_CYCLES: &str = "routing";

/// The crates with layered modules: a source directory, and its layers from the lowest to the
/// highest. A module imports only from lower layers and from the modules before it in its own
/// layer.
const LAYERED: &[(&str, &[&[&str]])] = &[
    (
        "crates/kv_events/src",
        &[
            &["key_hash", "decoder", "encoder"],
            &["groups"],
            &["residency"],
            &["correlation"],
            &["zmtp"],
        ],
    ),
    (
        "crates/net/src",
        &[
            &["testing", "file_watcher", "supervise"],
            &["tls"],
            &[
                "file_descriptors",
                "request_stream",
                "resource_exhaustion",
                "send_error",
            ],
            &["connection"],
            &["idle_pool"],
            &["backend_body"],
            &["client"],
            &["page_fetcher"],
        ],
    ),
    (
        "crates/gateway/src",
        &[
            &["status"],
            &["metric"],
            &["backend"],
            &["telemetry"],
            &["local_routes"],
            &["proxy"],
            &["server"],
        ],
    ),
    (
        "src",
        &[
            &["options"],
            &["config"],
            &["admin"],
            &["app"],
            &["commands", "cli"],
        ],
    ),
];

/// Maximum number of source files directly in a folder.
const MAX_FILES: usize = 12;

/// Modules of the gateway whose code must not name an option on the path of a request. Options attach to them.
const PATH_OF_REQUESTS: [&str; 3] = ["proxy", "server", "telemetry"];

/// Words by which the code would name an option on the path of a request.
const PROXY_FEATURES: [&str; 4] = ["continuation", "prefill_leg", "PrefillLeg", "resum"];

fn repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Reads the Rust sources below a directory. Returns the relative path and the text of each file.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    files(folder, &mut found);
    let name = |path: &PathBuf| path.strip_prefix(folder).unwrap().display().to_string();
    found
        .iter()
        .map(|path| (name(path), fs::read_to_string(path).unwrap()))
        .collect()
}

/// The source folder of each crate, by the name of the crate. `tokenweir` is the program.
fn folders() -> BTreeMap<String, PathBuf> {
    let mut folders = BTreeMap::from([("tokenweir".to_owned(), repository_root().join("src"))]);
    folders.insert(
        "tokenweir-lab".to_owned(),
        repository_root().join("lab/src"),
    );
    for crates in ["crates", "extras", "lab/crates"] {
        for entry in fs::read_dir(repository_root().join(crates)).unwrap() {
            let entry = entry.unwrap();
            folders.insert(
                entry.file_name().into_string().unwrap(),
                entry.path().join("src"),
            );
        }
    }
    assert!(folders.len() > 10);
    folders
}

/// The sources of each crate, by the name of the crate: the relative path and the text of each file.
fn crates() -> BTreeMap<String, Vec<(String, String)>> {
    folders()
        .into_iter()
        .map(|(name, folder)| (name, sources(&folder)))
        .collect()
}

/// Returns the module of a file: its first directory, or the name of a file that is in no directory.
fn module_of(file: &str) -> String {
    file.split(['/', '.']).next().unwrap().to_owned()
}

fn import_graph(folder: &Path) -> ImportGraph {
    ImportGraph::of_crate(&|file| fs::read_to_string(folder.join(file)).ok())
}

#[test]
fn modules_import_only_from_lower_layers() {
    let mut wrong = Vec::new();
    for (folder, layers) in LAYERED {
        let layer_of = |file: &str| {
            let layer = layers
                .iter()
                .position(|layer| layer.contains(&module_of(file).as_str()));
            layer.unwrap_or_else(|| panic!("{folder}/{file} has no layer"))
        };
        let mut imports = import_graph(&repository_root().join(folder)).imports();
        imports.remove("lib.rs");
        for (file, imported) in imports {
            let own_layer = layer_of(&file);
            for (other, paths) in imported {
                if layer_of(&other) > own_layer {
                    wrong.push(format!("{folder}/{file} imports {other}: {paths:?}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "imports from a higher layer:\n{}",
        wrong.join("\n")
    );
}

/// The parts of the program that may name an option: the list of options, the sources of backends, and the core
/// sections with keys of options.
const USERS_OF_OPTIONS: &[&str] = &[
    "app/discovery_sources/",
    "config/backends/discovery.rs",
    "config/backends/section.rs",
    "config/references.rs",
    "config/sections/responses/streams.rs",
    "config/sections/telemetry/log.rs",
    "config/tests.rs",
    "options.rs",
];

/// Words by which the code would name an option. Words that the core also uses, such as `sleep`, are not
/// included.
const NAMES_OF_OPTIONS: [&str; 18] = [
    "anary",
    "continuation",
    "Continuation",
    "jwt",
    "Jwt",
    "kv_event",
    "KvEvent",
    "payload_log",
    "PayloadLog",
    "peer_exchange",
    "PeerExchange",
    "prefill_leg",
    "PrefillLeg",
    "resum",
    "trace_capture",
    "TraceCapture",
    "usage_log",
    "ebhook",
];

/// The names of the options, which are the names of their folders.
fn options() -> Vec<String> {
    let options: Vec<String> = fs::read_dir(repository_root().join("extras"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(options.len() > 4);
    options
}

/// The lines of code in a file, without comments and unit tests.
fn code_lines(source: &str) -> impl Iterator<Item = &str> {
    let code = source.split("#[cfg(test)]").next().unwrap();
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn no_core_crate_depends_on_an_option() {
    for entry in fs::read_dir(repository_root().join("crates")).unwrap() {
        let manifest = entry.unwrap().path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        for option in options() {
            let dependency = format!("\ntokenweir-{}", option.replace('_', "-"));
            assert!(
                !text.contains(&dependency),
                "{} needs the option {option}",
                manifest.display()
            );
        }
    }
}

#[test]
fn each_option_is_optional_and_in_the_list() {
    let manifest = fs::read_to_string(repository_root().join("Cargo.toml")).unwrap();
    let list = fs::read_to_string(repository_root().join("src/options.rs")).unwrap();
    for option in options() {
        // The redaction is part of both logs, and discovery is not a `GatewayOption`, so neither counts.
        if option == "redaction" || option == "discovery" {
            continue;
        }
        let package = option.replace('_', "-");
        let feature = format!("\"dep:tokenweir-{package}\"");
        assert!(manifest.contains(&feature), "{option} has no feature");
        let line = format!("tokenweir_{option}::");
        assert!(list.contains(&line), "{option} is not in the list");
    }
}

#[test]
fn composition_and_admin_listener_name_no_option() {
    for (file, source) in sources(&repository_root().join("src")) {
        if !["app", "admin"].contains(&module_of(&file).as_str()) {
            continue;
        }
        let named = code_lines(&source)
            .find(|line| NAMES_OF_OPTIONS.iter().any(|name| line.contains(name)));
        assert_eq!(named, None, "{file} names an option");
    }
}

/// The crates besides options that may use the diagnosis, because they show or check verdicts.
const USERS_OF_DIAGNOSIS: &[&str] = &[
    "api",
    "diagnose",
    "doctor",
    "operations",
    "option",
    "tokenweir",
    "top",
];

#[test]
fn the_core_uses_no_option_and_no_diagnosis() {
    let options = options();
    for (name, sources) in crates() {
        for (file, source) in sources {
            for option in &options {
                let is_user = options.contains(&name)
                    || name == "tokenweir"
                        && USERS_OF_OPTIONS.iter().any(|user| file.starts_with(user));
                let is_used = source.contains(&format!("tokenweir_{option}::"))
                    || source.contains(&format!("use tokenweir_{option}"));
                assert!(
                    is_user || !is_used,
                    "{name}/{file} uses the option {option}"
                );
            }
            let is_user = options.contains(&name) || USERS_OF_DIAGNOSIS.contains(&name.as_str());
            let is_used = source.contains("tokenweir_diagnose");
            assert!(is_user || !is_used, "{name}/{file} uses the diagnosis");
        }
    }
}

#[test]
fn files_and_modules_have_no_import_cycles() {
    for (name, folder) in folders() {
        let graph = import_graph(&folder);
        let cycles = graph.cycles().concat();
        assert!(
            cycles.is_empty(),
            "files of {name} import each other:\n{}",
            cycles.join("\n")
        );
        let cycles = graph.module_cycles().concat();
        assert!(
            cycles.is_empty() || name == MODULE_CYCLES,
            "modules of {name} import each other:\n{}",
            cycles.join("\n")
        );
    }
}

/// Words by which code names an option that knows the backends.
const BACKEND_OPTIONS: [&str; 8] = [
    "kv_event",
    "KvEvent",
    "peer_exchange",
    "PeerExchange",
    "SleepSettings",
    "wake_up",
    "data_parallel_rank",
    "RankFacet",
];

#[test]
fn the_backends_of_the_gateway_name_no_option() {
    for (file, source) in sources(&repository_root().join("crates/gateway/src/backend")) {
        let mut lines = code_lines(&source);
        let named = lines.find(|line| BACKEND_OPTIONS.iter().any(|name| line.contains(name)));
        assert_eq!(named, None, "{file} names an option");
    }
}

#[test]
fn the_path_of_a_request_names_no_option() {
    for (file, source) in sources(&repository_root().join("crates/gateway/src")) {
        if !PATH_OF_REQUESTS.contains(&module_of(&file).as_str()) || file.ends_with("tests.rs") {
            continue;
        }
        let mut lines = code_lines(&source);
        let named = lines.find(|line| PROXY_FEATURES.iter().any(|name| line.contains(name)));
        assert_eq!(named, None, "{file} names an option");
    }
}

#[test]
fn each_background_task_is_listed_once() {
    let tasks = background_tasks();
    let listed: BTreeSet<&str> = tasks.iter().map(|task| task.as_str()).collect();
    assert_eq!(listed.len(), tasks.len());
    let mut declared = 0;
    for (name, sources) in crates() {
        for (file, source) in sources {
            let constructor = match (name.as_str(), file.as_str()) {
                ("net", "supervise.rs") => "Self::new(\"",
                _ => "BackgroundTask::new(\"",
            };
            for declaration in source.split(constructor).skip(1) {
                let task = declaration.split('"').next().unwrap();
                assert!(listed.contains(task), "{name}/{file} declares {task}");
                declared += 1;
            }
        }
    }
    assert_eq!(declared, listed.len());
}

#[test]
fn a_folder_has_a_limited_number_of_files() {
    for (name, sources) in crates() {
        let mut counts = BTreeMap::new();
        for (file, _) in &sources {
            let folder = Path::new(&name)
                .join(file)
                .parent()
                .unwrap()
                .display()
                .to_string();
            *counts.entry(folder).or_insert(0) += 1;
        }
        for (folder, count) in counts {
            assert!(
                count <= MAX_FILES,
                "{folder} has {count} files; group them in folders"
            );
        }
    }
}

#[test]
fn modules_without_io_have_no_runtime() {
    let with_clock = ["batch_queue", "clock", "limits", "observe"];
    for (name, sources) in crates() {
        if !matches!(
            name.as_str(),
            "protocol"
                | "engine"
                | "routing"
                | "request"
                | "diagnose"
                | "kv_events"
                | "operations"
                | "tune"
                | "api"
        ) {
            continue;
        }
        for (file, source) in sources {
            let module = module_of(&file);
            let is_free = (matches!(name.as_str(), "protocol" | "request")
                && with_clock.contains(&module.as_str()))
                || (name == "kv_events" && module == "zmtp");
            for outside in [
                "tokio::",
                "hyper::",
                "axum::",
                "clock::now",
                "std::net::Tcp",
            ] {
                assert!(
                    is_free || !source.contains(outside),
                    "{name}/{file} uses {outside}"
                );
            }
        }
    }
}

#[test]
fn every_file_has_a_description_and_bounded_length() {
    for (name, sources) in crates() {
        for (file, source) in sources {
            assert!(source.starts_with("//!"), "{name}/{file} has no module doc");
            let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let lines = code.lines().count();
            let is_test = file.contains("tests");
            assert!(
                is_test || lines <= MAX_LINES,
                "{name}/{file} has {lines} lines; split it"
            );
        }
    }
}

#[test]
fn external_crates_are_used_only_where_allowed() {
    let rooms = [
        ("prometheus::", &["telemetry", "app"][..]),
        ("opentelemetry", &["telemetry"]),
        ("axum::", &["admin", "server"]),
        ("serde_saphyr", &["config"]),
        ("hickory_resolver", &[]),
        ("kube::", &[]),
        ("k8s_openapi", &[]),
        ("sd_notify", &["app"]),
        ("ratatui::", &["commands"]),
        ("clap::", &["cli", "commands", "config", "main"]),
    ];
    let folders = ["src", "crates/gateway/src"].map(|folder| repository_root().join(folder));
    for (file, source) in folders.iter().flat_map(|folder| sources(folder)) {
        for (name, allowed) in rooms {
            let uses = source.lines().any(|line| {
                line.contains(name)
                    && !line.contains("telemetry::prometheus")
                    && !line.trim_start().starts_with("//")
            });
            assert!(
                !uses || allowed.contains(&module_of(&file).as_str()),
                "{file} uses {name}"
            );
        }
    }
}

#[test]
fn the_path_of_a_chunk_names_no_option() {
    let folder = repository_root().join("crates/request/src/observe");
    let options = [
        "continuation",
        "Splice",
        "splice",
        "interrupt",
        "resum",
        "UsageFilter",
        "UsageSplitter",
    ];
    for file in [
        "observed_body",
        "exchange",
        "exchange/response",
        "attempt_response",
        "observer",
    ] {
        let source = fs::read_to_string(folder.join(file).with_extension("rs")).unwrap();
        for line in source
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            let named = options.into_iter().find(|option| line.contains(option));
            assert!(
                named.is_none(),
                "{file}.rs names {named:?}, which belongs into stages.rs"
            );
        }
    }
}

#[test]
fn the_architecture_document_names_existing_files_and_functions() {
    let document = fs::read_to_string(repository_root().join("ARCHITECTURE.md")).unwrap();
    let sources: Vec<(String, String)> = ["src", "crates", "extras", "lab", "tests", "benches"]
        .into_iter()
        .flat_map(|folder| {
            let with_folder = move |(file, source)| (format!("{folder}/{file}"), source);
            sources(&repository_root().join(folder))
                .into_iter()
                .map(with_folder)
        })
        .collect();
    let names_file = |token: &str| {
        // ARCHITECTURE.md abbreviates crates: `routing/` stands for `crates/routing/src/` and so on.
        let (first, rest) = token.split_once('/').unwrap_or((token, ""));
        let path = match first {
            "gateway" | "protocol" | "engine" | "routing" | "request" | "net" => {
                format!("{first}/src/{rest}")
            }
            _ => token.to_owned(),
        };
        let ends = |file: &str, end: &str| file.ends_with(&format!("/{end}"));
        sources
            .iter()
            .any(|(file, _)| file == token || ends(file, token) || ends(file, &path))
    };
    let names_item = |owner: &str, item: &str| {
        let mut sources = sources.iter().filter(|(_, source)| source.contains(owner));
        sources.any(|(_, source)| {
            // The last of these prefixes finds the variants of enums.
            ["fn ", "const ", "struct ", "enum ", "\n    "]
                .iter()
                .any(|keyword| source.contains(&format!("{keyword}{item}")))
        })
    };
    let mut checked = 0;
    for token in document.split('`').skip(1).step_by(2) {
        let is_name = token
            .chars()
            .all(|char| char.is_alphanumeric() || "_:/.".contains(char));
        // A path that contains `NAME` stands for several files, so it is not checked.
        let has_extension = Path::new(token)
            .extension()
            .is_some_and(|found| found == "rs");
        let is_file = is_name && has_extension && !token.contains("NAME");
        let item = token.split_once("::").filter(|(owner, _)| {
            is_name && owner.starts_with(char::is_uppercase) && !owner.contains('/')
        });
        let exists = match item {
            Some((owner, item)) => names_item(owner, item),
            None => !is_file || names_file(token),
        };
        assert!(
            exists,
            "ARCHITECTURE.md names `{token}`, which does not exist"
        );
        checked += usize::from(is_file || item.is_some());
    }
    assert!(checked > 100, "{checked} names were found");
}

//! Finds the imports between the source files of a crate. Test code is left out.
//!
//! A path in the code counts as an import of the file that declares the item. Re-exports and modules on the
//! path are followed. A declaration `mod x;`, and a path that ends at a module, are not imports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Tokens<'a> = &'a [String];
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// For each importing file or module: the files or modules that it imports, and for each of them the paths or
/// files that show the import.
pub(crate) type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

#[derive(Debug, Default)]
struct Module {
    /// The file that contains the module, relative to the source folder.
    file: String,
    /// For each name that a `use` declares, the path that it stands for.
    aliases: BTreeMap<String, Vec<String>>,
    /// The paths that the code of the module names, in `use` declarations and elsewhere.
    paths: BTreeSet<Vec<String>>,
}

/// The modules of a crate, by path. The path of the crate itself is empty.
#[derive(Debug, Default)]
pub(crate) struct ImportGraph {
    modules: BTreeMap<Vec<String>, Module>,
}

impl ImportGraph {
    /// Reads `lib.rs` and all modules that it declares. `read` returns the text of a file, by its path in the
    /// source folder.
    pub(crate) fn of_crate(read: Read<'_>) -> Self {
        let mut graph = Self::default();
        graph.read_file(read, Path::new("lib.rs"), &[]);
        graph
    }

    /// The groups of files that import each other, directly or through other files. Each group is a list of
    /// imports, such as `importing file -> imported file: paths`.
    pub(crate) fn cycles(&self) -> Vec<Vec<String>> {
        cycles_of(&self.imports())
    }

    /// The groups of modules in the same folder that import each other. A module is a file of the folder, or
    /// a subfolder with its files. Each group is a list of imports, such as `importing module -> imported
    /// module: files`.
    pub(crate) fn module_cycles(&self) -> Vec<Vec<String>> {
        let imports = self.imports();
        let folders: BTreeSet<&Path> = imports
            .keys()
            .flat_map(|file| Path::new(file).ancestors().skip(1))
            .collect();
        let cycles = |folder: &Path| {
            let mut modules = Imports::new();
            for (file, imported) in &imports {
                let Some(own) = module_in(folder, file) else {
                    continue;
                };
                for other in imported.keys() {
                    if let Some(module) = module_in(folder, other).filter(|module| *module != own) {
                        let files = modules.entry(own.clone()).or_default();
                        files
                            .entry(module)
                            .or_default()
                            .insert(format!("{file} -> {other}"));
                    }
                }
            }
            cycles_of(&modules)
        };
        folders.into_iter().flat_map(cycles).collect()
    }

    /// Returns for each file the files that it imports, and the paths in its code that show it.
    pub(crate) fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (position, module) in &self.modules {
            let of_file = imports.entry(module.file.clone()).or_default();
            for path in &module.paths {
                for file in self.declaring_files(position, path) {
                    if file != module.file {
                        let reasons = of_file.entry(file.to_owned()).or_default();
                        reasons.insert(path.join("::"));
                    }
                }
            }
        }
        imports
    }

    /// Returns the files that declare what `module` names by `path`: those of all names of a prelude, or the one
    /// of an item.
    fn declaring_files(&self, module: &[String], path: &[String]) -> Vec<&str> {
        let Some((_, prelude)) = path.split_last().filter(|(last, _)| *last == "*") else {
            return self.declaring_file(module, path, 0).into_iter().collect();
        };
        let mut position = module.to_vec();
        for name in prelude {
            match name.as_str() {
                "crate" => position.clear(),
                "super" => drop(position.pop()),
                name => position.push(name.to_owned()),
            }
        }
        // The prelude of another crate is no module of this one.
        let names = self.modules.get(&position).map(|it| it.aliases.keys());
        let names = names.into_iter().flatten().map(std::slice::from_ref);
        names
            .filter_map(|name| self.declaring_file(&position, name, 0))
            .collect()
    }

    /// Returns the file that declares the item with the path `path`, which `module` uses. `None`: the path
    /// ends at a module, or begins with an external crate or a type.
    fn declaring_file(&self, module: &[String], path: &[String], depth: usize) -> Option<&str> {
        let (mut position, mut is_local) = (module.to_vec(), false);
        for (index, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" => position.clear(),
                "self" => {}
                "super" => drop(position.pop()),
                _ => {
                    let child = [position.as_slice(), std::slice::from_ref(name)].concat();
                    let own = &self.modules[&position];
                    if self.modules.contains_key(&child) {
                        position = child;
                    } else if let Some(alias) = own.aliases.get(name).filter(|_| depth < 20) {
                        let whole = [alias, &path[index + 1..]].concat();
                        return self.declaring_file(&position, &whole, depth + 1);
                    } else {
                        return is_local.then_some(own.file.as_str());
                    }
                }
            }
            is_local = true;
        }
        None
    }

    /// Reads a file and the files of the modules that it declares. Returns whether the file exists.
    fn read_file(&mut self, read: Read<'_>, file: &Path, position: &[String]) -> bool {
        let Some(text) = read(file) else { return false };
        let is_folder = matches!(
            file.file_name().unwrap().to_str(),
            Some("lib.rs" | "mod.rs")
        );
        let folder = if is_folder {
            file.with_file_name("")
        } else {
            file.with_extension("")
        };
        self.read_module(
            read,
            (file, &folder),
            position,
            &without_tests(&tokens(&text)),
        );
        true
    }

    fn read_module(
        &mut self,
        read: Read<'_>,
        (file, folder): (&Path, &Path),
        position: &[String],
        tokens: Tokens<'_>,
    ) {
        let mut module = Module {
            file: file.display().to_string(),
            ..Module::default()
        };
        let mut at = 0;
        while at < tokens.len() {
            let (token, rest) = (tokens[at].as_str(), &tokens[at + 1..]);
            let follows = |index: usize, text| rest.get(index).is_some_and(|next| next == text);
            if token == "use" && !follows(0, "<") {
                read_use(rest, Vec::new(), &mut module);
                at += rest.iter().position(|token| token == ";").unwrap();
            } else if token == "mod" && follows(1, ";") {
                let child = [position, &rest[..1]].concat();
                let files = [format!("{}.rs", rest[0]), format!("{}/mod.rs", rest[0])];
                let is_found = |file: &String| self.read_file(read, &folder.join(file), &child);
                assert!(
                    files.iter().any(is_found),
                    "{} has no file",
                    child.join("::")
                );
                at += 1;
            } else if token == "mod" && follows(1, "{") {
                let child = [position, &rest[..1]].concat();
                let length = item_length(rest);
                self.read_module(read, (file, folder), &child, &rest[2..length - 1]);
                at += length;
            } else if is_name(token) && (at == 0 || tokens[at - 1] != "::") {
                let mut path = vec![tokens[at].clone()];
                while tokens.get(at + 1).is_some_and(|next| next == "::")
                    && tokens.get(at + 2).is_some_and(|next| is_name(next))
                {
                    at += 2;
                    path.push(tokens[at].clone());
                }
                if path.len() > 1 {
                    module.paths.insert(path);
                }
            }
            at += 1;
        }
        self.modules.insert(position.to_vec(), module);
    }
}

/// Returns the module of `folder` that contains a file. `None`: the file is in another folder, or it is the
/// file that declares the modules of `folder`.
fn module_in(folder: &Path, file: &str) -> Option<String> {
    let below = Path::new(file).strip_prefix(folder).ok()?;
    let first = folder.join(below.components().next()?).with_extension("");
    let is_module = !matches!(first.file_name()?.to_str()?, "lib" | "main" | "mod");
    is_module.then(|| first.display().to_string())
}

/// Returns the groups of files or modules that import each other, directly or through others. Each group is a
/// list of its imports.
fn cycles_of(imports: &Imports) -> Vec<Vec<String>> {
    let reachable = |start: &str| {
        let (mut found, mut next) = (BTreeSet::new(), vec![start.to_owned()]);
        while let Some(from) = next.pop() {
            for imported in imports.get(&from).into_iter().flat_map(BTreeMap::keys) {
                if found.insert(imported.clone()) {
                    next.push(imported.clone());
                }
            }
        }
        found
    };
    let reach: BTreeMap<_, _> = imports
        .keys()
        .map(|from| (from.clone(), reachable(from)))
        .collect();
    let reaches = |a: &String, b: &String| reach.get(a).is_some_and(|found| found.contains(b));
    let mut groups: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for (from, imported) in imports {
        let Some(first) = reach[from].iter().find(|other| reaches(other, from)) else {
            continue;
        };
        for (other, reasons) in imported.iter().filter(|(other, _)| reaches(other, from)) {
            let reasons: Vec<_> = reasons.iter().cloned().collect();
            groups
                .entry(first)
                .or_default()
                .push(format!("{from} -> {other}: {}", reasons.join(", ")));
        }
    }
    groups.into_values().collect()
}

/// Reads one tree of a `use` declaration and adds its names and paths to the module. Returns the tokens after
/// the tree.
fn read_use<'a>(mut tokens: Tokens<'a>, mut path: Vec<String>, module: &mut Module) -> Tokens<'a> {
    loop {
        if tokens[0] == "*" {
            assert_eq!(
                path.last().map(String::as_str),
                Some("prelude"),
                "{} imports all names of {}",
                module.file,
                path.join("::")
            );
            path.push("*".to_owned());
            module.paths.insert(path);
            return &tokens[1..];
        }
        match tokens[0].as_str() {
            "::" => tokens = &tokens[1..],
            "{" => {
                while tokens[0] != "}" {
                    tokens = &tokens[1..];
                    if tokens[0] != "}" {
                        tokens = read_use(tokens, path.clone(), module);
                    }
                }
                return &tokens[1..];
            }
            name if is_name(name) && name != "as" => {
                path.push(name.to_owned());
                tokens = &tokens[1..];
            }
            _ => break,
        }
    }
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let mut alias = path.last().cloned();
    if tokens[0] == "as" {
        alias = Some(tokens[1].clone());
        tokens = &tokens[2..];
    }
    module
        .aliases
        .extend(alias.map(|alias| (alias, path.clone())));
    module.paths.insert(path);
    tokens
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the number of tokens of the item that begins here. An item ends with its first `;` or with the end
/// of its block.
fn item_length(tokens: Tokens<'_>) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(token.as_str(), "}" | ";") {
            return index + 1;
        }
    }
    tokens.len()
}

/// Returns the tokens without the items that a condition such as `#[cfg(test)]` limits to tests.
fn without_tests(tokens: Tokens<'_>) -> Vec<String> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let rest = &tokens[at..];
        let condition = rest
            .iter()
            .position(|token| token == "]")
            .map_or(rest, |end| &rest[..end]);
        let is_condition = condition
            .iter()
            .zip(["#", "[", "cfg"])
            .all(|(token, of)| token == of);
        let names = |name| condition.iter().any(|token| token == name);
        if is_condition && names("test") && !names("not") {
            at += condition.len() + 1;
            at += item_length(&tokens[at..]);
        } else {
            kept.push(rest[0].clone());
            at += 1;
        }
    }
    kept
}

/// Returns the names and punctuation of a source text, without comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let raw = rest.trim_start_matches('b').strip_prefix('r').map(|raw| {
            let hashes = raw.len() - raw.trim_start_matches('#').len();
            (hashes, &raw[hashes..])
        });
        let mut length = first.len_utf8();
        if let Some((hashes, raw)) = raw.filter(|(_, raw)| raw.starts_with('"')) {
            let end = format!("\"{}", "#".repeat(hashes));
            length = rest.len() - raw.len() + 1 + raw[1..].find(&end).unwrap() + end.len();
        } else if rest.starts_with("//") {
            length = rest.find('\n').unwrap_or(rest.len());
        } else if first == '"' {
            length = literal_length(rest, '"');
        } else if first == '\'' && is_character(rest) {
            length = literal_length(rest, '\'');
        } else if first.is_alphanumeric() || first == '_' {
            let end = |c: char| !c.is_alphanumeric() && c != '_';
            length = rest.find(end).unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
        } else if rest.starts_with("::") {
            length = 2;
            tokens.push("::".to_owned());
        } else if !first.is_whitespace() {
            tokens.push(first.to_string());
        }
        rest = &rest[length..];
    }
    tokens
}

/// Whether the quotation mark at the beginning of `text` starts a character literal. Otherwise it starts a
/// lifetime.
fn is_character(text: &str) -> bool {
    text[1..].starts_with('\\') || text.chars().nth(2) == Some('\'')
}

fn literal_length(text: &str, end: char) -> usize {
    let mut is_escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        if c == end && !is_escaped {
            return index + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

#[test]
fn a_re_export_counts_as_its_source() {
    let crate_with = |child: &str| {
        let child = child.to_owned();
        let graph = ImportGraph::of_crate(&move |file: &Path| match file.to_str().unwrap() {
            "lib.rs" => Some("mod folder; pub use folder::Child;".to_owned()),
            "folder/mod.rs" => Some(
                "mod child; mod shared; pub use child::Child; use shared::Value; pub struct Own;"
                    .to_owned(),
            ),
            "folder/child.rs" => Some(child.clone()),
            "folder/shared.rs" => Some("pub struct Value;".to_owned()),
            _ => None,
        });
        graph.cycles()
    };
    let none: [Vec<String>; 0] = [];
    assert_eq!(crate_with("use super::{Value, shared};"), none);
    assert_eq!(crate_with("fn f() { crate::folder::Value }"), none);
    assert_eq!(
        crate_with("// super::Own\n#[cfg(test)]\nmod tests { use super::super::Own; }"),
        none
    );
    for child in [
        "use super::Own;",
        "fn f(of: &'static str) -> super::Own {}",
        "use crate::{folder::Own as O};",
    ] {
        let cycle = &crate_with(child)[0];
        assert!(
            cycle[0].starts_with("folder/child.rs -> folder/mod.rs: "),
            "{cycle:?}"
        );
        assert_eq!(
            cycle[1..],
            ["folder/mod.rs -> folder/child.rs: child::Child"]
        );
    }
}

#[test]
fn a_prelude_imports_all_its_sources() {
    let graph = ImportGraph::of_crate(&|file: &Path| match file.to_str().unwrap() {
        "lib.rs" => Some("mod a; mod b; mod prelude;".to_owned()),
        "prelude.rs" => Some("pub use crate::b::B;".to_owned()),
        "a.rs" => Some("use crate::prelude::*; use other::prelude::*; pub struct A;".to_owned()),
        "b.rs" => Some("use crate::a::A; pub struct B;".to_owned()),
        _ => None,
    });
    let expected = [
        "a.rs -> b.rs: crate::prelude::*",
        "b.rs -> a.rs: crate::a::A",
    ];
    assert_eq!(graph.cycles(), [expected]);
}

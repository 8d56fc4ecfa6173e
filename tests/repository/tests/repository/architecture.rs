//! Checks the import table of ARCHITECTURE.md against the `crate::` paths in the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::{published, read, reexports, root, rust_files};

/// The import table of ARCHITECTURE.md.
struct ImportTable {
    /// The modules that every module may use.
    common: BTreeSet<String>,
    /// Each other module, and what it may use besides itself and the common modules.
    rows: BTreeMap<String, BTreeSet<String>>,
}

impl ImportTable {
    fn read() -> Self {
        let text = read("ARCHITECTURE.md");
        let (_, section) = text.split_once("## Import rules\n").unwrap();
        let section = section.split("\n## ").next().unwrap();
        let (_, common) = section.split_once("Every module may use ").unwrap();
        let common = quoted(common.split('.').next().unwrap()).collect();
        let mut rows = BTreeMap::new();
        for line in section.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.split('|').collect();
            for module in quoted(cells[1]) {
                let former = rows.insert(module, quoted(cells[2]).collect());
                assert!(former.is_none(), "a module has two rows: {line}");
            }
        }
        Self { common, rows }
    }

    fn allows(&self, module: &str, used: &str) -> bool {
        let in_row = self.rows.get(module).is_some_and(|row| row.contains(used));
        used == module || self.common.contains(used) || in_row
    }
}

/// Returns the words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

fn source() -> PathBuf {
    root().join("jobqueue/src")
}

/// Returns the module of a file: the first part of its path below `src`.
fn module(file: &Path) -> String {
    let below = file.strip_prefix(source()).unwrap();
    let first = below.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// Returns the names after `crate::` in code, without comments and documentation. Types that the crate root
/// re-exports count for the module they come from.
fn uses(text: &str, roots: &BTreeMap<String, String>) -> BTreeSet<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String =
        code.map(|line| line.split(" // ").next().unwrap_or(line)).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` in a macro is the user's view.
        if code[..at].ends_with('$') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let names: Vec<&str> = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap().split(',').collect(),
            None => vec![rest],
        };
        for name in names {
            let name = name.trim();
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            let name = &name[..end];
            found.insert(roots.get(name).cloned().unwrap_or_else(|| name.to_owned()));
        }
    }
    found
}

/// Returns the module from which each re-export of the crate root comes.
fn roots() -> BTreeMap<String, String> {
    reexports(&read("jobqueue/src/lib.rs"))
}

/// Returns the modules of a crate below that the crate root imports or re-exports.
fn modules_of(crate_below: &str) -> BTreeSet<String> {
    let library = read("jobqueue/src/lib.rs");
    let lists = library.lines().map(|line| line.trim_start_matches("pub "));
    let lists = lists.filter_map(|line| line.strip_prefix(&format!("use {crate_below}::{{")));
    let names = lists.filter_map(|line| line.split_once('}')).flat_map(|(names, _)| names.split(", "));
    names.map(str::to_owned).collect()
}

/// A reader of the documentation's first page has to take in every name of it.
#[test]
fn the_crate_root_has_at_most_thirty_names() {
    let names = roots();
    assert!(names.contains_key("Queue") && names.contains_key("Worker"), "{names:?}");
    let modules = modules_of("jobqueue_message");
    let others = names.keys().filter(|name| !modules.contains(*name) && *name != "__private").count();
    assert!(others <= 30, "{others} names at the root of `jobqueue`; give the new ones a module");
}

/// Guarantee 20: no payload is in the output of `Debug`. `debug_fields!` lists the fields that are shown.
#[test]
fn no_public_type_that_holds_raw_data_derives_debug() {
    let derived = Regex::new(
        r"(?m)^#\[derive\([^)]*\bDebug\b[^)]*\)\]\n(?:#\[.*\]\n)*pub (?:struct|enum) (\w+)([^;{]*;|[^{]*\{[\s\S]*?^\})",
    )
    .unwrap();
    let raw = Regex::new(r"\b(?:Bytes|RawValue)\b").unwrap();
    let (mut seen, mut wrong) = (0, Vec::new());
    for folder in ["crates/message/src", "crates/storage/src", "crates/admin/src", "jobqueue/src"] {
        for file in rust_files(&root().join(folder)) {
            let text = fs::read_to_string(file).unwrap();
            for found in derived.captures_iter(&text) {
                seen += 1;
                let mut fields = found[2].lines().filter(|line| !line.trim_start().starts_with("//"));
                if fields.any(|line| raw.is_match(line)) {
                    wrong.push(found[1].to_owned());
                }
            }
        }
    }
    assert!(seen > 100, "{seen} types");
    assert!(wrong.is_empty(), "`Debug` of these types shows payloads: {wrong:?}");
}

#[test]
fn the_places_to_look_first_exist() {
    let text = read("ARCHITECTURE.md");
    let (_, section) = text.split_once("## Where to look first\n").unwrap();
    let rows = section.split("\n## ").next().unwrap();
    let places: Vec<_> = quoted(rows).filter(|path| path.contains("/src/")).collect();
    assert!(places.len() > 15, "{places:?}");
    let missing: Vec<_> = places.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Programs and people compare reasons by these pages.
#[test]
fn every_reason_of_a_dead_letter_is_documented() {
    let source = read("crates/message/src/job/reason.rs");
    let codes: Vec<_> =
        source.lines().filter_map(|line| line.strip_suffix("\";")?.split_once(" = \"")).collect();
    assert!(codes.len() > 10, "{codes:?}");
    for page in ["docs/wire-format.md", "jobqueue/src/docs/dead_letters.md"] {
        let text = read(page);
        let missing: Vec<_> = codes.iter().filter(|(_, code)| !text.contains(&format!("`{code}`"))).collect();
        assert!(missing.is_empty(), "{page}: {missing:?}");
    }
}

#[test]
fn modules_use_only_what_the_table_allows() {
    // The compiler keeps the port from what is above; the table also says who uses the modules of messages.
    let (port, messages) = (modules_of("jobqueue_storage"), modules_of("jobqueue_message"));
    let mut roots = roots();
    roots.retain(|name, _| !messages.contains(name));
    let table = ImportTable::read();
    let (mut wrong, mut unseen) =
        (Vec::new(), table.rows.keys().chain(&table.common).collect::<BTreeSet<_>>());
    for file in rust_files(&source()) {
        let module = module(&file);
        if module == "lib" || file.file_name().unwrap() == "tests.rs" {
            continue;
        }
        if !table.rows.contains_key(&module) && !table.common.contains(&module) {
            wrong.push(format!("the module `{module}` is not in the table"));
            continue;
        }
        unseen.remove(&module);
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for used in uses(text, &roots) {
            // The crate's own macros.
            let is_known = used.is_empty() || used == "jobqueue_derive" || port.contains(&used);
            if !is_known && !table.allows(&module, &used) {
                wrong.push(format!("{} uses `{used}`", file.strip_prefix(source()).unwrap().display()));
            }
        }
    }
    unseen.retain(|module| !messages.contains(*module));
    wrong.extend(unseen.iter().map(|module| format!("the table names `{module}`, which is no module")));
    assert!(wrong.is_empty(), "the import table is broken:\n{}", wrong.join("\n"));
}

/// A reader finds all methods of these types in two files at most; what else is done with them are functions
/// of the module that it concerns.
#[test]
fn the_queues_core_and_the_leased_job_have_few_impl_blocks() {
    for name in ["QueueCore", "LeasedJob"] {
        let has_methods = |file: &PathBuf| {
            fs::read_to_string(file).unwrap().lines().any(|line| line == format!("impl {name} {{"))
        };
        let files: Vec<PathBuf> = rust_files(&source()).into_iter().filter(has_methods).collect();
        assert!((1..=2).contains(&files.len()), "methods of `{name}` are in {files:?}");
    }
}

/// A queue that is created elsewhere keeps the group logs of a deleted queue of its name.
#[test]
fn queues_are_created_in_one_place() {
    let folders = ["jobqueue", "crates/admin", "crates/cli", "crates/dashboard"];
    let files = folders.into_iter().flat_map(|folder| rust_files(&root().join(folder).join("src")));
    let creates = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.any(|line| line.contains(".create_queue(") || line.contains("::create_queue("))
    };
    let is_test = |file: &PathBuf| {
        let mut parts = file.strip_prefix(root()).unwrap().iter();
        parts.any(|part| part == "tests" || part == "tests.rs")
    };
    let creating: Vec<PathBuf> = files.filter(|file| creates(file) && !is_test(file)).collect();
    // The dashboard calls the method of the operator, which uses the first.
    let allowed = ["jobqueue/src/queue_core/open.rs", "crates/dashboard/src/browser/pages/queue.rs"];
    assert_eq!(creating, allowed.map(|file| root().join(file)));
}

/// The published crates that run in no simulated world.
const NOT_SIMULATED: &[&str] =
    &["jobqueue-derive", "crates/cli", "crates/conformance", "crates/dashboard", "crates/opentelemetry"];

/// The sources of randomness, which make a run differ from the last one, and the modules or crates that may
/// use each.
const CHANCE: &[(&str, &[&str])] = &[
    ("rand::r", &["runtime", "testing"]),
    ("RngExt", &["runtime", "testing"]),
    ("Uuid::new_v4()", &["runtime"]),
    ("Uuid::now_v7()", &["runtime"]),
    // It wakes those who wait in a random order. Service Bus and tokens of Entra ID are in no seeded world.
    ("sync::watch", &["servicebus", "entra"]),
    ("tokio::spawn(", &["runtime", "testing", "entra"]),
    ("handle.spawn(", &["runtime"]),
    ("tasks.spawn(", &["runtime"]),
    ("pollers.spawn(", &["runtime"]),
];

/// A simulated world can only repeat a run if all randomness comes from its seed.
#[test]
fn chance_is_taken_and_tasks_are_started_in_one_place() {
    let mut wrong = Vec::new();
    let simulated = published().into_iter().filter(|folder| !NOT_SIMULATED.contains(&&**folder));
    let files = simulated.flat_map(|folder| {
        let source = root().join(&folder).join("src");
        rust_files(&source).into_iter().map(move |file| (folder.clone(), source.clone(), file))
    });
    for (folder, source, file) in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let below = file.strip_prefix(&source).unwrap();
        let module = below.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        let (places, shown) = ([module, folder.trim_start_matches("crates/")], file.display().to_string());
        if file.file_name().unwrap() == "tests.rs" {
            continue;
        }
        let lines: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for (number, line) in lines.iter().enumerate() {
            let taken = CHANCE
                .iter()
                .filter(|(what, at)| line.contains(what) && !places.iter().any(|place| at.contains(place)));
            wrong.extend(taken.map(|(what, at)| format!("{shown}: `{what}` belongs to {at:?}")));
            let is_biased = lines.get(number + 1).is_some_and(|next| next.contains("biased;"));
            if line.contains("select! {") && !is_biased {
                wrong.push(format!("{shown}: `select!` without `biased`"));
            }
        }
    }
    assert!(wrong.is_empty(), "a seed does not repeat:\n{}", wrong.join("\n"));
}

#[test]
fn the_library_contains_no_unsafe_code() {
    for folder in published() {
        let library = read(&format!("{folder}/src/lib.rs"));
        assert!(library.contains("#![forbid(unsafe_code)]"), "{folder} does not forbid unsafe code");
    }
}

#[test]
fn files_are_small() {
    let files = published().into_iter().flat_map(|folder| rust_files(&root().join(folder).join("src")));
    let mut lengths: Vec<usize> =
        files.map(|file| fs::read_to_string(file).unwrap().lines().count()).collect();
    lengths.sort_unstable();
    assert!(lengths[lengths.len() / 2] < 200, "the median file has {} lines", lengths[lengths.len() / 2]);
    let nine_in_ten = lengths[lengths.len() * 9 / 10];
    assert!(nine_in_ten < 400, "one file in ten has {nine_in_ten} lines or more");
}

/// Modules of the port that are hidden: their types are no promise.
const HIDDEN: &[&str] = &["certainty.rs", "json_blob.rs", "listing.rs"];

/// Returns the types of a file that other crates can construct or match without `..`.
fn exhaustive_types(text: &str) -> impl Iterator<Item = String> {
    let items = text.split("\n\n").filter(|item| !item.contains("#[non_exhaustive]\npub "));
    items.filter_map(|item| {
        let (_, rest) = item.split_once("\npub enum ").or_else(|| item.split_once("\npub struct "))?;
        let body = rest.split("\n}").next().unwrap_or_default();
        let mut fields = body.lines().filter_map(|line| line.strip_prefix("    "));
        let has_public = body.contains("\n    pub ");
        let has_private =
            fields.any(|field| field.starts_with(char::is_lowercase) && !field.starts_with("pub "));
        let name = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
        (item.contains("\npub enum ") || has_public && !has_private).then_some(name)
    })
}

#[test]
fn exhaustive_types_of_the_port_are_those_of_the_decision() {
    let decision = read("docs/decisions/0031-types-that-may-grow-are-non-exhaustive.md");
    let (_, list) = decision.split_once("these types of the port: ").unwrap();
    let listed: BTreeSet<String> = quoted(list.split('.').next().unwrap()).collect();
    let mut found = BTreeSet::new();
    for file in rust_files(&root().join("crates/storage/src")) {
        if !HIDDEN.iter().any(|hidden| file.ends_with(hidden)) {
            found.extend(exhaustive_types(&fs::read_to_string(&file).unwrap()));
        }
    }
    assert_eq!(found, listed);
}

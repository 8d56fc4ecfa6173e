//! In no crate do modules use each other in a circle, and hardly any files; and crates depend only on those
//! below them.
//!
//! A use is a path that begins with `crate`, `self` or `super`. Code of tests does not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::{published, read, reexports, root, rust_files};

/// The most files that may use each other in a circle.
const MOST_FILES: usize = 5;

/// The published crates from the bottom up. A crate depends only on crates of lower floors.
const FLOORS: &[&[&str]] = &[
    &["jobqueue-derive", "jobqueue-entra", "jobqueue-storage"],
    &["jobqueue-azure", "jobqueue-message", "jobqueue-postgres", "jobqueue-servicebus", "jobqueue-sqlite"],
    &["jobqueue", "jobqueue-postgres-drivers"],
    &["jobqueue-admin", "jobqueue-conformance", "jobqueue-opentelemetry", "jobqueue-testing"],
    &["jobqueue-dashboard"],
    &["jobqueue-cli"],
];

type Graph = BTreeMap<String, BTreeSet<String>>;

/// The uses in one crate, between its modules and between its files.
struct Uses {
    modules: Graph,
    files: Graph,
}

impl Uses {
    fn of(folder: &str) -> Self {
        let source = root().join(folder).join("src");
        let path =
            |file: &std::path::PathBuf| file.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
        let names: Vec<String> =
            rust_files(&source).iter().map(path).filter(|name| is_product(name)).collect();
        let by_module: BTreeMap<Vec<&str>, &str> = names.iter().map(|name| (module(name), &**name)).collect();
        let reexported = reexports(&read(&format!("{folder}/src/lib.rs")));
        let mut uses = Self { modules: Graph::new(), files: Graph::new() };
        for name in names.iter().filter(|name| !module(name).is_empty()) {
            let here = module(name);
            for used in paths(&product_code(&read(&format!("{folder}/src/{name}")))) {
                let mut full = absolute(&here, &used);
                let from_root = full.first().and_then(|first| reexported.get(*first));
                let is_module = full.first().is_some_and(|first| by_module.contains_key(&vec![*first][..]));
                let top = if is_module {
                    full.first().map(|first| (*first).to_owned())
                } else {
                    from_root.cloned()
                };
                if let Some(top) = top.filter(|top| *top != here[0]) {
                    uses.modules.entry(here[0].to_owned()).or_default().insert(top);
                }
                while !full.is_empty() && !by_module.contains_key(&full) {
                    full.pop();
                }
                let file = by_module.get(&full).filter(|file| !full.is_empty() && *file != name);
                uses.files.entry(name.clone()).or_default().extend(file.map(|file| (*file).to_owned()));
            }
        }
        uses
    }
}

/// Returns whether a file is compiled for users, and written by us.
fn is_product(name: &str) -> bool {
    let is_test = name.split('/').any(|part| part == "tests" || part == "tests.rs");
    !is_test && !name.ends_with("_tests.rs") && !name.ends_with("generated.rs")
}

/// Returns the path of a file's module; that of the crate's root is empty.
fn module(file: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    parts.pop_if(|last| *last == "mod");
    if parts == ["lib"] || parts == ["main"] { Vec::new() } else { parts }
}

/// Returns the code of a file without comments, and without the items that are for tests only.
fn product_code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("#[cfg(test)]") || line.trim_start().starts_with("#[cfg(all(test") {
            let indent = &line[..line.len() - line.trim_start().len()];
            let mut item = lines.by_ref().skip_while(|line| line.trim_start().starts_with("#["));
            if item.find(|line| line.ends_with([';', '{', '}'])).is_some_and(|line| line.ends_with('{')) {
                item.find(|line| line.trim_end_matches(';') == format!("{indent}}}"));
            }
            continue;
        }
        code.push_str(line.split("//").next().unwrap());
        code.push('\n');
    }
    code
}

/// Returns the paths in code that begin with `crate`, `self` or `super`, with the branches of trees in
/// braces.
fn paths(code: &str) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    for first in ["crate", "self", "super"] {
        for (at, _) in code.match_indices(first) {
            let before = code[..at].chars().next_back();
            // `$crate::` in a macro is the user's view; `super` within a path belongs to its beginning.
            if before.is_some_and(|before| before.is_alphanumeric() || "_$:".contains(before)) {
                continue;
            }
            if let Some(rest) = code[at + first.len()..].strip_prefix("::") {
                branches(rest, &mut vec![first], &mut found);
            }
        }
    }
    found
}

/// Reads the rest of a path, and collects its branches; returns the text after it.
fn branches<'c>(rest: &'c str, prefix: &mut Vec<&'c str>, found: &mut Vec<Vec<&'c str>>) -> &'c str {
    if let Some(mut rest) = rest.strip_prefix('{') {
        loop {
            rest = branches(rest.trim_start_matches([',', ' ', '\n']), prefix, found);
            // `as` gives a branch another name.
            rest = rest.trim_start_matches(|c: char| c != ',' && c != '}');
            if let Some(rest) = rest.trim_start_matches([',', ' ', '\n']).strip_prefix('}') {
                return rest;
            }
            if rest.is_empty() {
                return rest;
            }
        }
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    prefix.push(name);
    let rest = match rest.strip_prefix("::") {
        Some(more) if more.starts_with(|c: char| c == '{' || c == '_' || c.is_alphabetic()) => {
            branches(more, prefix, found)
        }
        _ => {
            found.push(prefix.clone());
            rest
        }
    };
    prefix.pop();
    rest
}

/// Returns a path from the crate's root.
fn absolute<'c>(here: &[&'c str], path: &[&'c str]) -> Vec<&'c str> {
    let ups = path.iter().take_while(|part| **part == "super").count();
    let kept = if path[0] == "crate" { 0 } else { here.len().saturating_sub(ups) };
    let rest = path.iter().skip(if ups > 0 { ups } else { 1 }).filter(|part| **part != "self");
    here[..kept].iter().chain(rest).copied().collect()
}

/// Returns the sets of nodes that reach each other, the largest first.
fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached = |from: &String| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(node) = open.pop() {
            for next in graph.get(node).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let all: BTreeMap<&String, BTreeSet<String>> = graph.keys().map(|node| (node, reached(node))).collect();
    let mut found = BTreeSet::new();
    for (node, others) in &all {
        let returns = |other: &&String| all.get(other).is_some_and(|reached| reached.contains(*node));
        let circle: BTreeSet<String> = others.iter().filter(returns).cloned().collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

#[test]
fn modules_use_each_other_in_no_circle() {
    let mut wrong = Vec::new();
    for folder in published() {
        let circles = circles(&Uses::of(&folder).modules);
        wrong.extend(circles.iter().map(|circle| format!("{folder}: {circle:?}")));
    }
    assert!(wrong.is_empty(), "modules use each other in a circle:\n{}", wrong.join("\n"));
}

#[test]
fn at_most_five_files_use_each_other_in_a_circle() {
    let mut wrong = Vec::new();
    for folder in published() {
        let circles = circles(&Uses::of(&folder).files);
        let large = circles.iter().filter(|circle| circle.len() > MOST_FILES);
        wrong.extend(large.map(|circle| format!("{folder}: {} files: {circle:?}", circle.len())));
    }
    assert!(wrong.is_empty(), "files use each other in a circle:\n{}", wrong.join("\n"));
}

#[test]
fn crates_depend_only_on_those_below() {
    let floor = |name: &str| FLOORS.iter().position(|floor| floor.contains(&name));
    let mut wrong = Vec::new();
    let mut unseen: BTreeSet<&str> = FLOORS.iter().copied().flatten().copied().collect();
    for folder in published() {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        let name = manifest.split("name = \"").nth(1).unwrap().split('"').next().unwrap();
        unseen.remove(name);
        let mut counts = false;
        for line in manifest.lines() {
            if line.starts_with('[') {
                counts = line.ends_with("dependencies]") && !line.contains("dev-");
            }
            let used = line.split(['.', ' ', '=']).next().unwrap();
            if counts && used.starts_with("jobqueue") && (floor(used) >= floor(name) || floor(used).is_none())
            {
                wrong.push(format!("{name} depends on {used}"));
            }
        }
        if floor(name).is_none() {
            wrong.push(format!("{name} has no floor"));
        }
    }
    wrong.extend(unseen.iter().map(|name| format!("{name} has a floor, and is no published crate")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn uses_and_circles_are_recognised() {
    let code = product_code(
        "use crate::a::{self, b::{C, D as E}};\nuse super::super::f;\n// use crate::no;\n#[cfg(test)]\nmod tests {\n    use crate::g;\n}\nlet x = self::h::i(crate::j::<K>());\n$crate::l::m();",
    );
    let found: BTreeSet<String> =
        paths(&code).iter().map(|path| absolute(&["x", "y", "z"], path).join("::")).collect();
    let expected = ["a", "a::b::C", "a::b::D", "j", "x::f", "x::y::z::h::i"];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    let edge =
        |(from, to): (&str, &[&str])| (from.to_owned(), to.iter().map(|to| (*to).to_owned()).collect());
    let edges: [(&str, &[&str]); 4] = [("a", &["b", "d"]), ("b", &["c"]), ("c", &["a"]), ("d", &["e"])];
    assert_eq!(circles(&edges.into_iter().map(edge).collect()), [["a", "b", "c"].map(str::to_owned).into()]);
}

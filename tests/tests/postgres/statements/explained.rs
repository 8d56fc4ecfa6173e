//! Statements as the server has executed them, and as the crate has them in its source.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The settings of a server that logs how it executes each statement, those within functions included.
pub(super) const SETTINGS: [&str; 8] = [
    "fsync=off",
    "autovacuum=off",
    "shared_preload_libraries=auto_explain",
    "auto_explain.log_min_duration=0",
    "auto_explain.log_nested_statements=on",
    "auto_explain.log_analyze=on",
    "auto_explain.log_buffers=on",
    "auto_explain.log_format=json",
];

/// A statement that was executed.
pub(super) struct Explained {
    pub(super) text: String,
    /// The rows of its answer.
    pub(super) rows: u64,
    /// The rows that it has read from tables.
    read: u64,
    /// The pages that it has looked at, those of indexes included. The statements of its functions are logged
    /// by themselves.
    pages: u64,
}

impl Explained {
    /// Returns all statements of a log.
    pub(super) fn all(log: &str) -> Vec<Self> {
        let (mut all, mut lines) = (Vec::new(), log.lines().peekable());
        while let Some(line) = lines.next() {
            if !line.ends_with("plan:") {
                continue;
            }
            let mut plan = String::new();
            while let Some(next) = lines.next_if(|next| next.starts_with('\t')) {
                plan.push_str(next);
            }
            let plan: Value = serde_json::from_str(&plan).unwrap();
            let top = &plan["Plan"];
            all.push(Self {
                text: normal(plan["Query Text"].as_str().unwrap()),
                rows: number(top, "Actual Rows"),
                read: read(top),
                pages: pages(top) - pages_of_functions(top),
            });
        }
        all
    }

    /// Returns a report if the statement has read more than some rows and pages, and a number of each for a
    /// row of its answer.
    pub(super) fn excess(&self) -> Option<String> {
        let Self { text, rows, read, pages } = self;
        let is_frugal = *read <= 1_000 + 2 * rows && *pages <= 750 + 20 * rows;
        (!is_frugal).then(|| format!("{read} rows and {pages} pages were read for {rows} rows: {text}"))
    }
}

/// Returns the rows that the scans of a plan have read.
fn read(node: &Value) -> u64 {
    let below = node["Plans"].as_array().into_iter().flatten().map(read).sum();
    if node["Relation Name"].is_null() || node["Node Type"] == "ModifyTable" {
        return below;
    }
    let removed = number(node, "Rows Removed by Filter") + number(node, "Rows Removed by Index Recheck");
    below + (number(node, "Actual Rows") + removed) * number(node, "Actual Loops")
}

fn pages(node: &Value) -> u64 {
    number(node, "Shared Hit Blocks") + number(node, "Shared Read Blocks")
}

/// Returns the pages that the scans of functions have looked at. The first call on a connection reads the
/// catalogue, too: to compile the function and to plan its statements.
fn pages_of_functions(node: &Value) -> u64 {
    if node["Node Type"] == "Function Scan" {
        return pages(node);
    }
    node["Plans"].as_array().into_iter().flatten().map(pages_of_functions).sum()
}

fn number(node: &Value, field: &str) -> u64 {
    node[field].as_f64().unwrap_or(0.0).ceil() as u64
}

/// Returns the parts of statements in the crate's source, without its tests: its literals that name a table.
pub(super) fn of_source() -> Vec<String> {
    let mut parts = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/postgres/src");
    for file in files(&folder) {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines: Vec<_> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let named = |part: &String| {
            ["FROM", "INTO", "UPDATE", "JOIN"].iter().any(|word| part.contains(&format!("{word} jobqueue.")))
        };
        parts.extend(literals(&lines.join("\n")).iter().map(|part| normal(part)).filter(named));
    }
    assert!(parts.len() > 40, "the literals are not found any more: {parts:?}");
    parts
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            all.push(path);
        }
    }
    all
}

/// Returns the literals of a code.
fn literals(code: &str) -> Vec<String> {
    let (mut all, mut characters) = (Vec::new(), code.chars());
    while let Some(character) = characters.next() {
        match character {
            // A character, or a lifetime.
            '\'' => {
                let mut rest = characters.clone();
                if rest.next() == Some('"') && rest.next() == Some('\'') {
                    characters = rest;
                }
            }
            '"' => {
                let mut literal = String::new();
                while let Some(character) = characters.next().filter(|character| *character != '"') {
                    literal.extend(match character {
                        '\\' => characters.next().filter(|escaped| *escaped != '\n'),
                        character => Some(character),
                    });
                }
                all.push(literal);
            }
            _ => {}
        }
    }
    all
}

/// Returns a text with single spaces.
fn normal(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

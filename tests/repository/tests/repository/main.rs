//! The repository itself: its structure, packages, links, prose and the matrix of its tests. Nothing of the
//! library is linked.

#![allow(clippy::unwrap_used)] // A step that fails fails its test.

mod architecture;
mod circles;
mod fault_profile;
mod judge;
mod links;
mod matrix;
mod other_crates;
mod packaging;
mod prose;
mod sql;

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Returns the content of a file, by its path from the root.
fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the folders of the workspace's packages.
fn members() -> Vec<String> {
    let workspace = read("Cargo.toml");
    let members = workspace.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    members.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the folders of the published crates.
fn published() -> Vec<String> {
    let is_public = |member: &String| !read(&format!("{member}/Cargo.toml")).contains("publish = false");
    let mut published: Vec<String> = members().into_iter().filter(is_public).collect();
    // Its dependencies need a newer compiler than the members.
    published.push("crates/postgres-drivers".to_owned());
    assert!(published.len() > 3, "{published:?}");
    published
}

/// Returns the Rust files below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Returns the names that a crate's root re-exports, each with the module from which it comes.
fn reexports(library: &str) -> std::collections::BTreeMap<String, String> {
    let mut found = std::collections::BTreeMap::new();
    for statement in library.split(';').filter_map(|statement| statement.trim().split("pub use ").nth(1)) {
        let module = statement.split("::").next().unwrap().trim().to_owned();
        let names = statement.split_once('{').map_or_else(
            || vec![statement.rsplit("::").next().unwrap()],
            |(_, list)| list.trim_end_matches('}').split(',').collect(),
        );
        found.extend(names.into_iter().map(|name| (name.trim().to_owned(), module.clone())));
    }
    found
}

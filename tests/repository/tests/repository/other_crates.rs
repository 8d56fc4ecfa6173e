//! `jobqueue` in one dependency graph with the crates that bring SQLite themselves: the guide's table,
//! resolved by Cargo.
//!
//! Cargo reads the registry's index for it. Without a network it uses what the machine has.

use std::process::Command;

const PAGE: &str = include_str!("../../../../jobqueue/src/docs/other_crates.md");

/// Returns the columns "beside" and "chosen" of the guide's table.
fn rows() -> Vec<(&'static str, &'static str)> {
    let section = PAGE.split("\n# ").find(|section| section.starts_with("SQLite\n")).unwrap();
    let lines = section.lines().filter_map(|line| line.strip_prefix("| "));
    let columns = lines.map(|line| {
        let mut columns = line.split(" | ");
        (columns.next().unwrap(), columns.next().unwrap())
    });
    columns.skip(1).collect()
}

/// Resolves a package that depends on `jobqueue` and on `neighbour`; returns its Cargo.lock.
fn resolve(neighbour: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let jobqueue = crate::root().join("jobqueue");
    let manifest = format!(
        "[package]\nname = \"beside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\njobqueue = {{ path = {jobqueue:?} }}\n{neighbour}\n"
    );
    std::fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::create_dir(folder.path().join("src")).unwrap();
    std::fs::write(folder.path().join("src/lib.rs"), "").unwrap();
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO")).arg("generate-lockfile").args(arguments).current_dir(&folder).output()
    };
    let mut output = run(&[]).unwrap();
    if !output.status.success() {
        output = run(&["--offline"]).unwrap();
    }
    assert!(output.status.success(), "{neighbour}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(folder.path().join("Cargo.lock")).unwrap()
}

fn versions<'a>(lock: &'a str, package: &str) -> Vec<&'a str> {
    let head = format!("[[package]]\nname = \"{package}\"\nversion = \"");
    lock.split(&head).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn check(beside: &str, chosen: &str) {
    let lock = resolve(beside.strip_prefix('`').map_or("", |code| code.trim_end_matches('`')));
    let rusqlite = versions(&lock, "rusqlite");
    assert!(
        matches!(rusqlite[..], [one] if one.starts_with(&format!("{chosen}."))),
        "{beside}: {rusqlite:?}"
    );
    assert_eq!(versions(&lock, "libsqlite3-sys").len(), 1, "{beside}");
}

#[test]
fn each_row_of_the_guides_table_resolves_as_it_says() {
    let rows = rows();
    assert_eq!(rows.len(), 7, "{rows:?}");
    for (beside, chosen) in rows {
        check(beside, chosen);
    }
}

#[test]
fn all_databases_of_one_program_resolve_together() {
    for neighbours in
        ["sqlx = \"0.9\"\ndiesel = \"2\"\nsea-orm = \"2\"", "sqlx = \"0.8\"\ndiesel = \"2\"\nsea-orm = \"1\""]
    {
        let lock = resolve(neighbours);
        assert_eq!(versions(&lock, "libsqlite3-sys").len(), 1, "{neighbours}");
    }
}

/// The example is a workspace of its own, since sqlx bounds the version of SQLite.
#[test]
fn transaction_of_sqlx_takes_a_job_and_its_end() {
    let folder = crate::root().join("examples/drivers");
    let run = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--locked"])
        .current_dir(&folder)
        .env("CARGO_TARGET_DIR", crate::root().join("target/drivers"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let source = crate::read("examples/drivers/src/bin/sqlite.rs");
    let promised = source.split("//! ```text\n").nth(2).unwrap().split("//! ```").next().unwrap();
    assert_eq!(String::from_utf8(run.stdout).unwrap(), promised.replace("//! ", ""));
}

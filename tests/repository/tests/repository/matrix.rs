//! Checks the matrix of `tests/README.md`: every number has a row, and the rows agree with the comments above
//! tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{members, published, root, rust_files};

/// Numbers of faults that no case has.
const UNUSED_FAULTS: [u32; 10] = [5, 17, 36, 46, 63, 67, 74, 81, 93, 100];

/// The numbers that must have a row.
fn expected() -> BTreeSet<String> {
    let invariants = (1..=21).map(|number| format!("I{number}")).chain(["I12a".into(), "I12b".into()]);
    let faults =
        (1..=114).filter(|number| !UNUSED_FAULTS.contains(number)).map(|number| format!("F{number}"));
    invariants.chain(faults).chain((1..=9).map(|number| format!("Q{number}"))).collect()
}

/// The roots of the crates that `cargo test --workspace` compiles with their tests.
fn crate_roots() -> Vec<PathBuf> {
    let mut roots = Vec::new();
    for member in members().iter().map(|member| root().join(member)) {
        roots.extend([member.join("src/lib.rs"), member.join("src/main.rs")]);
        let programs = fs::read_dir(member.join("tests")).into_iter().flatten();
        for path in programs.map(|entry| entry.unwrap().path()) {
            roots.push(if path.is_dir() { path.join("main.rs") } else { path });
        }
    }
    roots.retain(|path| path.is_file() && path.extension().is_some_and(|extension| extension == "rs"));
    roots
}

/// Collects a file and the modules that it declares, in the order of their declarations.
fn collect_modules(file: &Path, is_root: bool, found: &mut BTreeMap<PathBuf, String>) {
    let Ok(text) = fs::read_to_string(file) else { return };
    let (folder, stem) = (file.parent().unwrap(), file.file_stem().unwrap());
    let inside = if is_root || stem == "mod" { folder.to_owned() } else { folder.join(stem) };
    let mut path_attribute = None;
    for line in text.lines().map(str::trim) {
        if let Some(path) = line.strip_prefix("#[path = \"") {
            path_attribute = path.split('"').next();
        } else if let Some(name) = line.strip_suffix(';').and_then(|line| line.split("mod ").nth(1)) {
            let path = path_attribute.take();
            let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            let declares = line.starts_with("mod ") || line.starts_with("pub");
            match path {
                _ if !is_word || !declares => {}
                Some(path) => collect_modules(&folder.join(path), false, found),
                None => {
                    collect_modules(&inside.join(format!("{name}.rs")), false, found);
                    collect_modules(&inside.join(name).join("mod.rs"), false, found);
                }
            }
        }
    }
    found.insert(file.to_owned(), text);
}

/// Returns the numbers that a comment names.
fn codes(comment: &str) -> impl Iterator<Item = &str> {
    let words = comment.split(|character: char| !character.is_ascii_alphanumeric());
    words.filter(|word| {
        let digits = word.strip_prefix(['I', 'F', 'Q']).unwrap_or_default();
        let digits = digits.strip_suffix(['a', 'b']).unwrap_or(digits);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[derive(Debug)]
struct Test {
    /// Returns `file::test`, with the path of the file from the root of the repository.
    name: String,
    codes: BTreeSet<String>,
}

/// Returns the tests of a file that are run, each with the numbers in the comments above it.
fn tests_in(file: &str, text: &str) -> Vec<Test> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut tests = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let declaration = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        let Some(name) = declaration.and_then(|rest| rest.split('(').next()) else { continue };
        let above = || lines[..at].iter().rev();
        let attributes: Vec<_> = above().take_while(|line| line.starts_with("#[")).collect();
        let is_test = attributes.iter().any(|line| line.starts_with("#[test]") || line.contains("::test"));
        if is_test && !attributes.iter().any(|line| line.starts_with("#[ignore")) {
            let comments = above().skip(attributes.len()).take_while(|line| line.starts_with("//"));
            let codes = comments.flat_map(|line| codes(line)).map(str::to_owned).collect();
            tests.push(Test { name: format!("{file}::{name}"), codes });
        }
    }
    tests
}

fn all_tests() -> Vec<Test> {
    let mut files = BTreeMap::new();
    crate_roots().iter().for_each(|file| collect_modules(file, true, &mut files));
    let shown = |path: &Path| path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
    files.iter().flat_map(|(path, text)| tests_in(&shown(path), text)).collect()
}

/// The tests of each row, by the row's number.
fn rows(matrix: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut rows = BTreeMap::<String, BTreeSet<String>>::new();
    let mut row = String::new();
    for line in matrix.lines() {
        if let Some(rest) = line.strip_prefix("- **") {
            row = rest.split("**").next().unwrap().to_owned();
            assert!(rows.insert(row.clone(), BTreeSet::new()).is_none(), "{row} has two rows");
        } else if let Some(test) = line.strip_prefix("  - `") {
            rows.get_mut(&row)
                .expect("a test stands below a row")
                .insert(test.trim_end_matches('`').to_owned());
        }
    }
    rows
}

/// Returns whether a test stands beside the code that it tests. There no comment names a number: only the row
/// names the test.
fn is_beside_code(test: &str) -> bool {
    !test.starts_with("tests/")
}

/// Returns the matrix with rewritten lists of tests.
fn blessed(matrix: &str, tests: &BTreeMap<String, BTreeSet<String>>) -> String {
    let (mut lines, rows) = (Vec::new(), rows(matrix));
    for line in matrix.lines().filter(|line| !line.starts_with("  - `")) {
        lines.push(line.to_owned());
        let Some(row) = line.strip_prefix("- **").and_then(|rest| rest.split("**").next()) else { continue };
        let beside_code = rows[row].iter().filter(|test| is_beside_code(test));
        let named: BTreeSet<&String> = tests.get(row).into_iter().flatten().chain(beside_code).collect();
        lines.extend(named.iter().map(|test| format!("  - `{test}`")));
    }
    lines.join("\n") + "\n"
}

/// The names of the tests above which each number stands.
fn tests_by_code() -> BTreeMap<String, BTreeSet<String>> {
    let mut by_code = BTreeMap::<String, BTreeSet<String>>::new();
    for test in all_tests() {
        for code in test.codes {
            by_code.entry(code).or_default().insert(test.name.clone());
        }
    }
    by_code
}

/// Reads the matrix. Rewrites its lists first if asked to.
fn matrix() -> &'static str {
    static MATRIX: OnceLock<String> = OnceLock::new();
    MATRIX.get_or_init(|| {
        let path = root().join("tests/README.md");
        let matrix = fs::read_to_string(&path).unwrap();
        if std::env::var_os("JOBQUEUE_BLESS").is_none_or(|value| value != "1") {
            return matrix;
        }
        let matrix = blessed(&matrix, &tests_by_code());
        fs::write(&path, &matrix).unwrap();
        matrix
    })
}

#[test]
fn matrix_and_comments_above_tests_agree() {
    let (rows, by_code) = (rows(matrix()), tests_by_code());
    let beside_code: BTreeSet<String> =
        all_tests().into_iter().map(|test| test.name).filter(|test| is_beside_code(test)).collect();
    let mut wrong = Vec::new();
    for code in rows.keys().chain(by_code.keys()).collect::<BTreeSet<_>>() {
        let (none, Some(row)) = (BTreeSet::new(), rows.get(code)) else {
            wrong.push(format!("{code} has no row, but these tests name it: {:?}", by_code[code]));
            continue;
        };
        let above = by_code.get(code).unwrap_or(&none);
        wrong.extend(
            row.difference(above)
                .filter(|test| !beside_code.contains(*test))
                .map(|test| format!("{code} names {test}: no such test, or without that number")),
        );
        wrong.extend(above.difference(row).map(|test| format!("{code} lacks {test}")));
    }
    assert!(
        wrong.is_empty(),
        "run this test with JOBQUEUE_BLESS=1, or mend the comments:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_invariant_and_fault_has_a_row_with_tests() {
    let (matrix, rows) = (matrix(), rows(matrix()));
    let expected = expected();
    let found: BTreeSet<String> = rows.keys().cloned().collect();
    assert_eq!(found.symmetric_difference(&expected).collect::<Vec<_>>(), Vec::<&String>::new());
    let is_unbuilt =
        |row: &str| matrix.lines().any(|l| l.starts_with(&format!("- **{row}**")) && l.contains("not built"));
    let untested: Vec<_> = rows.iter().filter(|(row, tests)| tests.is_empty() != is_unbuilt(row)).collect();
    assert!(untested.is_empty(), "either tests or \"not built\": {untested:?}");
}

/// The library is read without the matrix.
#[test]
fn numbers_of_the_matrix_stand_only_in_tests() {
    let sources = published().into_iter().flat_map(|folder| rust_files(&root().join(folder)));
    let (mut found, expected) = (Vec::new(), expected());
    for file in sources {
        let text = fs::read_to_string(&file).unwrap();
        let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
        let named = comments.filter(|comment| codes(comment).any(|code| expected.contains(code)));
        found.extend(named.map(|comment| format!("{}: {comment}", file.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn test_names_carry_no_numbers_of_the_matrix() {
    let starts_with_a_code = |name: &str| {
        let first = name.split('_').next().unwrap_or_default().to_ascii_uppercase();
        name.contains('_') && codes(&first).count() > 0
    };
    let tests = all_tests();
    assert!(tests.len() > 500, "only {} tests were found", tests.len());
    let coded = tests.iter().map(|test| test.name.rsplit("::").next().unwrap());
    assert_eq!(coded.filter(|name| starts_with_a_code(name)).collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn the_tests_that_the_page_of_defects_names_exist() {
    let page = fs::read_to_string(root().join("tests/defects.md")).unwrap();
    let (mut file, mut count) = (PathBuf::new(), 0);
    for (path, test) in page.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::")) {
        if path.ends_with(".rs") {
            let beside = root().join("tests/tests").join(path);
            file = if beside.is_file() { beside } else { root().join(path) };
        } else if !path.is_empty() {
            // A name of the library.
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(text.contains(&format!("fn {test}(")), "{} has no test {test}", file.display());
        count += 1;
    }
    assert!(count > 80, "{count}");
}

//! The SQL of the PostgreSQL storage: it calls by schema, whatever the path of the session has.

use regex::Regex;

use crate::{root, rust_files};

/// Words of SQL that look like a call.
const FORMS: [&str; 5] = ["ARRAY", "coalesce", "extract", "greatest", "least"];

/// The functions of the schema set a path of their own, which a test of the storage checks. The path of a
/// statement is that of the session, which a pooler and the application's transaction share with others.
/// Operators have arguments of their exact types, or are called by schema too.
#[test]
fn statements_call_functions_by_their_schema() {
    let comment_or_text = Regex::new(r#"(?s)'"'|//[^\n]*|"((?:[^"\\]|\\.)*)""#).unwrap();
    let call = Regex::new(r"[\w.:]*\w\(").unwrap();
    let mut calls = 0;
    let mut found = Vec::new();
    for file in rust_files(&root().join("crates/postgres/src")) {
        let source = std::fs::read_to_string(&file).unwrap();
        let source = source.split("#[cfg(test)]").next().unwrap();
        let texts = comment_or_text.captures_iter(source).filter_map(|found| found.get(1));
        let found_calls = texts.flat_map(|text| {
            let text = text.as_str();
            call.find_iter(text)
                .map(move |found| (found.as_str().trim_end_matches('('), &text[found.end()..]))
        });
        for (name, rest) in found_calls {
            let arguments = rest.split(['(', ')']).next().unwrap();
            calls += 1;
            let has_schema = name.starts_with("jobqueue.") || name.starts_with("pg_catalog.");
            // The grammar itself makes that of several lists one of `pg_catalog`.
            let is_of_lists = name == "unnest" && arguments.contains(',');
            if !(has_schema || is_of_lists || FORMS.contains(&name) || name.contains("::")) {
                found.push(format!("{}: {name}", file.display()));
            }
        }
    }
    assert!(calls > 50, "{calls}");
    assert!(found.is_empty(), "name the schema of these, `pg_catalog.` for PostgreSQL's own: {found:#?}");
}

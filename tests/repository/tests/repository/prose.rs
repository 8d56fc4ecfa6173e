//! Checks that documentation has plain sentences, and names the terms of the field; see CONTRIBUTING.md.

use std::fs;

use crate::root;

/// The folders that are not yet rewritten.
const NOT_YET: &[&str] = &[];

/// The words that begin a clause without a subject.
const HEADLESS: &[&str] =
    &["What", "Whether", "How", "Who", "That", "Where", "When", "Why", "Which", "Whose", "Whoever"];

/// Words of former names, each with the word to use instead.
const FORMER: &[(&str, &str)] = &[
    ("bell", "notifier"),
    ("bells", "notifiers"),
    ("doors", "joining"),
    ("superfluous", "duplicate"),
    ("twin", "duplicate"),
    ("withdraw", "cancel"),
    ("withdrawn", "cancelled"),
    ("excuse", "release without counting"),
    ("excused", "uncounted"),
    ("excuses", "explains"),
    ("bury", "dead-letter"),
    ("buried", "dead-lettered"),
    ("grave", "dead letter"),
    ("graveyard", "dead letters"),
    ("calm", "ready"),
    ("spared", "throttled"),
    ("caution", "fallback"),
    ("shelf", "message table"),
    ("keeper", "lease renewer"),
    ("foreign", "external"),
];

/// Returns all Rust sources of the repository that are rewritten, except the ui tests, with their paths in it.
fn sources() -> Vec<(String, String)> {
    let mut folders = vec![root().to_owned()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let place = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
            let is_left_out = NOT_YET.contains(&place.as_str());
            if entry.file_type().unwrap().is_dir() {
                if !is_left_out
                    && !name.starts_with('.')
                    && !["target", "ui", "node_modules"].contains(&&*name)
                {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") {
                sources.push((place, fs::read_to_string(path).unwrap()));
            }
        }
    }
    sources.sort();
    sources
}

/// Returns the text of a line of documentation.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
}

fn is_headless(line: &str) -> bool {
    HEADLESS.contains(&line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default())
}

/// Returns the number of first lines of documentation in `text`, and those that are headless.
fn first_lines(text: &str) -> (usize, Vec<&str>) {
    let mut first = 0;
    let mut headless = Vec::new();
    let mut was_doc = false;
    for line in text.lines() {
        let doc = doc(line);
        if let Some(doc) = doc.filter(|doc| !was_doc && !doc.is_empty()) {
            first += 1;
            headless.extend(Some(doc).filter(|doc| is_headless(doc)));
        }
        was_doc = doc.is_some();
    }
    (first, headless)
}

/// Returns the lower-case words of all identifiers in a line of code; comments and texts have none.
fn words(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default().split("r#\"").next().unwrap_or_default();
    let code: String = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in code.chars() {
        if !c.is_alphanumeric() || c.is_uppercase() && was_lower {
            words.push(String::new());
        }
        if let (Some(word), true) = (words.last_mut(), c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn first_lines_of_documentation_are_sentences() {
    let sources = sources();
    let (mut first, mut found) = (0, Vec::new());
    for (place, text) in &sources {
        let (count, headless) = first_lines(text);
        first += count;
        found.extend(headless.into_iter().map(|line| format!("{place}: {line}")));
    }
    assert!(first > 1_000, "only {first} first lines were found");
    let share = 100.0 * found.len() as f64 / first as f64;
    assert!(
        share < 2.0,
        "{share:.1} % of {first} first lines have no subject; begin each with a verb in the third person, or a noun with \
         its article:\n{}",
        found.join("\n")
    );
}

#[test]
fn the_guarantees_are_twenty_statements_in_order() {
    let page = fs::read_to_string(root().join("jobqueue/src/docs/guarantees.md")).unwrap();
    let number = |line: &str| line.split_once(". **").and_then(|(number, _)| number.parse::<u32>().ok());
    assert!(page.lines().filter_map(number).eq(1..=20), "a number of the list is missing or stands twice");
}

#[test]
fn names_use_the_words_of_the_field() {
    let mut found = Vec::new();
    for (place, text) in &sources() {
        // This test names the words.
        let lines = text.lines().enumerate().filter(|_| !place.ends_with("repository/prose.rs"));
        for (number, line) in lines {
            for word in words(line) {
                let former = FORMER.iter().find(|(former, _)| *former == word);
                found
                    .extend(former.map(|(word, new)| format!("{place}:{}: `{word}`: say {new}", number + 1)));
            }
        }
    }
    assert!(found.is_empty(), "former words in names:\n{}", found.join("\n"));
}

#[test]
fn headless_lines_and_former_words_are_recognised() {
    let text = "/// What the storage says.\nfn a() {}\n/// Returns a number.\n/// What follows is no first line.\nfn b() {}";
    assert_eq!(first_lines(text), (2, vec!["What the storage says."]));
    assert_eq!(
        words("let old_bell = TouchBell(\"doors\"); // twin"),
        ["let", "old", "bell", "touch", "bell"]
    );
}

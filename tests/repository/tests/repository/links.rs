//! The files of an open repository: their links, and names that they must not contain.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{env, fs};

use regex::{Captures, Regex};

use crate::{published, read, root};

/// Files besides the READMEs of published crates that name the repository's address.
const LINKING: &[&str] = &["SECURITY.md", "CODE_OF_CONDUCT.md", ".github/ISSUE_TEMPLATE/config.yml"];

/// An address of the repository, or of one of its files.
static OUR_LINK: LazyLock<Regex> = LazyLock::new(|| {
    let forge = r"/(?:blob|raw)/main/(?P<path>[^\s)>#]+)|/security/advisories/new|/issues";
    Regex::new(&format!(r"(?P<base>https://[^\s)>]+?)(?P<rest>{forge})|(?P<home>\[jobqueue\]: \S+)")).unwrap()
});
static LINK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\]\(([^)\s]+)|^\[[^\]]+\]: (\S+)").unwrap());

/// The READMEs of published crates. A registry shows them, where no relative link leads anywhere.
fn readmes() -> Vec<String> {
    let readme =
        |member: String| match read(&format!("{member}/Cargo.toml")).contains("readme = \"../README.md\"") {
            true => "README.md".to_owned(),
            false => format!("{member}/README.md"),
        };
    let readmes: Vec<String> = published().into_iter().map(readme).collect();
    assert!(readmes.len() >= 2 && readmes.iter().any(|file| file == "README.md"), "{readmes:?}");
    readmes
}

fn linking() -> Vec<String> {
    readmes().into_iter().chain(LINKING.iter().map(|&file| file.to_owned())).collect()
}

/// Returns the one line that says where the repository is.
fn repository() -> String {
    let manifest = read("Cargo.toml");
    let line = manifest.lines().find_map(|line| line.strip_prefix("repository = \"")).unwrap();
    line.trim_end_matches('"').to_owned()
}

#[test]
fn links_lead_to_the_declared_repository() {
    let repository = repository();
    for file in linking() {
        let text = read(&file);
        let wanted = OUR_LINK.replace_all(&text, |link: &Captures<'_>| match link.name("rest") {
            Some(rest) => format!("{repository}{}", rest.as_str()),
            None => format!("[jobqueue]: {repository}"),
        });
        if env::var_os("JOBQUEUE_BLESS").is_some() {
            fs::write(root().join(&file), wanted.as_ref()).unwrap();
        } else {
            assert_eq!(text, wanted, "{file}: accept by JOBQUEUE_BLESS=1");
        }
    }
}

#[test]
fn links_name_files_that_exist() {
    let mut seen = 0;
    for file in linking() {
        let text = read(&file);
        for path in OUR_LINK.captures_iter(&text).filter_map(|link| link.name("path")) {
            assert!(root().join(path.as_str()).exists(), "{file} links to {}", path.as_str());
            seen += 1;
        }
    }
    assert!(seen >= 10, "the test sees {seen} links only");
}

#[test]
fn readmes_of_published_crates_have_no_relative_links() {
    for file in readmes() {
        for line in read(&file).lines() {
            for link in LINK.captures_iter(line) {
                let target = link.get(1).or(link.get(2)).unwrap().as_str();
                assert!(target.starts_with("https://") || target.starts_with('#'), "{file}: {target}");
            }
        }
    }
}

/// The links within the guide, and from its pages into itself, that name a heading.
#[test]
fn links_of_the_guide_name_headings_that_exist() {
    let link =
        Regex::new(r"\]\((?:crate::guide::(?P<page>\w+)|(?P<file>[\w/.-]+)\.md)?#(?P<heading>[\w-]+)\)")
            .unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(root().join("jobqueue/src/docs")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        for named in link.captures_iter(&text) {
            let target = match (named.name("page"), named.name("file")) {
                (Some(page), _) => path.with_file_name(format!("{}.md", page.as_str())),
                (_, Some(file)) => path.with_file_name(format!("{}.md", file.as_str())),
                _ => path.clone(),
            };
            let (target_text, heading) = (fs::read_to_string(&target).unwrap(), &named["heading"]);
            let is_there = headings(&target_text).any(|there| there == heading);
            assert!(is_there, "{} links to #{heading} of {}", path.display(), target.display());
            seen += 1;
        }
    }
    assert!(seen >= 50, "the test sees {seen} links only");
}

/// Returns the names by which rustdoc and a forge link to the headings of a page.
fn headings(page: &str) -> impl Iterator<Item = String> {
    let headings = page.lines().filter(|line| line.starts_with('#') && !line.starts_with("#["));
    headings.filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')).map(|title| {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    })
}

/// Checks that no file names a registry: cargo's own configuration chooses the source of crates.
#[test]
fn no_registry_is_named() {
    let hosts =
        [["crates", ".io"], ["docs", ".rs"], ["lib", ".rs/crates"], ["npmjs", ".com"], ["npmjs", ".org"]];
    let hosts = hosts.iter().chain(&[["py", "pi.org"]]).map(|parts| parts.concat()).collect::<Vec<_>>();
    let mut files = Vec::new();
    texts(root(), &mut files);
    assert!(files.len() > 300, "the test sees {} files only", files.len());
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for host in &hosts {
            assert!(!text.contains(host), "{} names {host}", file.display());
        }
    }
}

/// Checks that each undone fix of tests/mutants still has its place in the code, and that the tests that it
/// names exist.
#[test]
#[cfg(target_os = "linux")] // The text of the code is the same everywhere.
fn every_mutant_fits_the_code() {
    let script = root().join("tests/mutants/tests.py");
    let checked = std::process::Command::new("python3").arg(script).arg("--check").output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// Returns all files of the repository except build products and files that tools write.
fn texts(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        let left_out = name.starts_with("target")
            || [".git", "node_modules", "wip", ".venv", "Cargo.lock"].contains(&&*name);
        match entry.file_type().unwrap() {
            _ if left_out => {}
            kind if kind.is_dir() => texts(&path, files),
            kind if kind.is_file() => files.push(path),
            _ => {}
        }
    }
}

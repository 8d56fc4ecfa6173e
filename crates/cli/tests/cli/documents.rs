//! Completions, manual pages and help.

use std::process::Command;

use crate::support::Sandbox;

#[test]
fn bash_completes_commands_options_and_values() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("jobqueue.bash");
    std::fs::write(&file, sandbox.ok(&["completions", "bash"])).unwrap();
    let complete = |words: &str| {
        let script = format!(
            "source '{}'; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _jobqueue jobqueue \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[*]}}\"",
            file.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("jobqueue que"), "queues queue");
    assert_eq!(complete("jobqueue dead red"), "redrive");
    assert_eq!(complete("jobqueue dead redrive --dry"), "--dry-run");
    assert_eq!(complete("jobqueue queues --output nd"), "ndjson");
}

#[test]
fn completions_exist_for_each_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(sandbox.ok(&["completions", shell]).contains("redrive"), "{shell}");
    }
}

#[test]
fn manual_has_a_page_for_each_command() {
    let sandbox = Sandbox::new();
    let page = sandbox.ok(&["man"]);
    assert!(page.contains(".TH jobqueue 1") && page.contains("Exit codes"), "{page}");
    let folder = sandbox.path("man");
    sandbox.ok(&["man", "--to", folder.to_str().unwrap()]);
    for name in ["jobqueue", "jobqueue-queues", "jobqueue-dead-redrive", "jobqueue-queue-settings-plan"] {
        let page = std::fs::read_to_string(folder.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH DESCRIPTION"), "{name}: {page}");
    }
}

// incident 33, 7
#[test]
fn help_has_an_example_that_reads_the_output() {
    let sandbox = Sandbox::with_mails(0, 1);
    let help = sandbox.ok(&["dead", "list", "--help"]);
    let (_, example) = help.split_once("For example, `jobqueue ").expect(&help);
    let (command, _) = example.split_once("` prints").unwrap();
    let (command, filter) = command.split_once(" | ").unwrap();
    let output = sandbox.ok(&command.split_whitespace().collect::<Vec<_>>());
    let document: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!((filter, &document["letters"][0]["id"]), ("jq -r '.letters[].id'", &"dead-0".into()));
}

/// Follows the lists of commands in the help texts, from the top command to the last subcommand.
#[test]
fn help_of_each_command_describes_each_argument() {
    let sandbox = Sandbox::new();
    let (mut paths, mut seen) = (vec![Vec::<String>::new()], 0);
    while let Some(path) = paths.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = sandbox.ok(&words);
        let mut section = "";
        for (index, line) in help.lines().enumerate() {
            if !line.starts_with(' ') {
                section = line;
            } else if section == "Commands:" && line.starts_with("  ") && !line.starts_with("   ") {
                let name = line.split_whitespace().next().unwrap();
                if name != "help" {
                    paths.push([&path[..], &[name.to_owned()]].concat());
                }
            }
            let is_option = line.trim_start().starts_with('-') && section == "Options:";
            if is_option {
                let next = help.lines().nth(index + 1).unwrap_or_default();
                let has_text = line.trim().contains("  ") || next.starts_with("          ");
                assert!(has_text, "{path:?} does not describe {line}");
            }
        }
        assert!(!help.contains("  [env: JOBQUEUE_STORAGE"), "{help}");
        seen += 1;
    }
    assert!(seen > 20, "the test sees only {seen} help texts");
}

// newcomers, O16: an option of the command was one among ten that all commands have.
#[test]
fn options_of_a_command_are_apart_from_those_of_all_commands() {
    let help = Sandbox::new().ok(&["dead", "purge", "--help"]);
    let (own, global) = help.split_once("Global options:").unwrap();
    assert!(own.contains("--dry-run") && !own.contains("--storage"), "{own}");
    assert!(global.contains("--storage") && !global.contains("--dry-run"), "{global}");
}

#[test]
fn each_command_is_in_the_readme_and_in_the_guide() {
    let readme = include_str!("../../README.md");
    let guide = include_str!("../../../../jobqueue/src/docs/operating.md");
    for command in jobqueue_cli::command().get_subcommands() {
        let name = command.get_name();
        assert!(readme.contains(&format!("`{name}")), "README: {name}");
        assert!(guide.contains(&format!("jobqueue {name}")), "guide: {name}");
    }
}

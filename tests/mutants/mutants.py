"""Mutants: undone fixes, all built into one copy of the sources and switched on by the environment variable JOBQUEUE_MUTANT.

An entry of a `.toml` file names the edits that undo a fix. `MUTANT` in the new text becomes the switch. A mutant whose place in the code
is gone is an error: mend its entry, or remove it with its fix.
"""

import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/mutants"
SWITCH = '''//! Switches mutants on.

use std::sync::LazyLock;

static NAMES: LazyLock<String> = LazyLock::new(|| std::env::var("JOBQUEUE_MUTANT").unwrap_or_default());

pub(crate) fn is(name: &str) -> bool {
    NAMES.split(',').any(|one| one == name)
}
'''


def read(file):
    return tomllib.loads((FOLDER / file).read_text())["mutant"]


def everything():
    """The mutants of both files, in the order in which their edits are made."""
    return read("world.toml") + read("tests.toml")


def mutated():
    """The files that mutants change, by path."""
    texts, problems = {}, []
    for mutant in everything():
        for edit in mutant.get("edit", []):
            path, name = edit["file"], mutant["name"]
            if edit.keys() != {"file", "from", "to"}:
                # A merge can lose the line that begins an entry.
                problems.append(f"{name}: an edit has other keys: {sorted(edit)}")
            text = texts.get(path) or (ROOT / path).read_text()
            # Other mutants may have changed the place already: the text from which this one goes on is still there.
            if text.count(edit["from"]) != 1:
                problems.append(f"{name}: {path} has {text.count(edit['from'])} times: {edit['from']!r}")
                continue
            texts[path] = text.replace(edit["from"], edit["to"].replace("MUTANT", f'crate::mutant::is("{name}")'))
    if problems:
        sys.exit("\n".join(problems))
    return texts


def tree(target):
    """A copy of the sources with all mutants; files that are the same keep their times, for the next build."""
    copy = target / "mutants"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    changed = mutated()
    for source in {path.split("/src/")[0] + "/src" for path in changed}:
        library = f"{source}/lib.rs"
        changed[library] = changed.get(library, (ROOT / library).read_text()) + "\nmod mutant;\n"
        changed[f"{source}/mutant.rs"] = SWITCH
    paths = {path for path in listed.stdout.split("\n") if path and (ROOT / path).is_file()} | set(changed)
    for old in copy.rglob("*"):
        if old.is_file() and old.relative_to(copy).as_posix() not in paths:
            old.unlink()
    for path in paths:
        source = ROOT / path
        data = changed[path].encode() if path in changed else source.read_bytes()
        to = copy / path
        if not to.is_file() or to.read_bytes() != data:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)
    return copy


def target_folder():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def apart(copy):
    """Settings that give the mutated crates files of their own. Cargo names the files of a crate by its place in the workspace, and would take those
    of the copy for those of the sources, whose tests would then run mutated code. Any setting does that differs from that of the sources."""
    members = tomllib.loads((copy / "Cargo.toml").read_text())["workspace"]["members"]
    names = [tomllib.loads((copy / member / "Cargo.toml").read_text())["package"]["name"] for member in members]
    return [f"profile.dev.package.{name}.codegen-units=17" for name in names]


def build(programs, settings=()):
    """Builds test programs with all mutants; returns their paths by name. The unit tests of a crate have its name, as in Rust."""
    target = target_folder()
    copy = tree(target)
    command = ["cargo", "test", "--locked", "--workspace", "--all-features", "--no-run"]
    tests = [program for program in programs if not program.startswith("jobqueue")]
    command += [] if len(tests) == len(programs) else ["--lib"]
    for program in tests:
        command += ["--test", program]
    for setting in [*settings, *apart(copy)]:
        command += ["--config", setting]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    built = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    found = re.findall(r"Executable .*\((.*/([a-z_0-9]+)-[0-9a-f]+)\)", built.stderr)
    paths = {name: copy / path for path, name in found}
    if built.returncode or not set(programs) <= set(paths):
        sys.exit(built.stderr)
    return paths

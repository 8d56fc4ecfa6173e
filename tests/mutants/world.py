#!/usr/bin/env python3
"""Shows that the seeded worlds find the defects that were mended: undoes each fix and counts the worlds until one fails.

All mutants of world.toml are built into one copy of the sources, below the target folder, and switched on one at a time by the
environment variable JOBQUEUE_MUTANT. A mutant whose place in the code is gone is an error: mend its entry, or remove it with its fix.

    python3 tests/mutants/world.py                       every mutant, at most 20,000 worlds each
    python3 tests/mutants/world.py NAME... --first 50000 these, from another seed on
    python3 tests/mutants/world.py --check               only whether each entry still fits the code
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SWITCH = '''//! Switches one mutant on.

use std::sync::LazyLock;

static NAME: LazyLock<String> = LazyLock::new(|| std::env::var("JOBQUEUE_MUTANT").unwrap_or_default());

pub(crate) fn is(name: &str) -> bool {
    *NAME == name
}
'''


def mutated(mutants):
    """The files that mutants change, by path."""
    texts, problems = {}, []
    for mutant in mutants:
        for edit in mutant["edit"]:
            path, name = edit["file"], mutant["name"]
            text = texts.get(path) or (ROOT / path).read_text()
            # Other mutants may have changed the place already: the text from which this one goes on is still there.
            if text.count(edit["from"]) != 1:
                problems.append(f"{name}: {path} has {text.count(edit['from'])} times: {edit['from']!r}")
                continue
            texts[path] = text.replace(edit["from"], combined(edit, name))
    if problems:
        sys.exit("\n".join(problems))
    return texts


def combined(edit, name):
    return edit["to"].replace("MUTANT", f'crate::mutant::is("{name}")')


def tree(target, mutants):
    """A copy of the sources with all mutants; files that are the same keep their times, for the next build."""
    copy = target / "world-mutants"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    changed = mutated(mutants)
    library = "jobqueue/src/lib.rs"
    changed[library] = (ROOT / library).read_text() + "\nmod mutant;\n"
    changed["jobqueue/src/mutant.rs"] = SWITCH
    for path in set(listed.stdout.split("\n")) | set(changed):
        source = ROOT / path
        if not path or not (path in changed or source.is_file()):
            continue
        data = changed[path].encode() if path in changed else source.read_bytes()
        to = copy / path
        if not to.is_file() or to.read_bytes() != data:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)
    return copy


def build(copy, target, level):
    command = ["cargo", "test", "--locked", "--workspace", "--all-features", "--test", "world", "--no-run"]
    command += ["--config", f"profile.dev.package.jobqueue.opt-level={level}"]
    command += ["--config", f"profile.dev.package.jobqueue-tests.opt-level={level}"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    built = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    found = re.search(r"Executable .*\((.*)\)", built.stderr)
    if built.returncode or not found:
        sys.exit(built.stderr)
    return copy / found[1]


def hunt(program, mutant, first, most):
    """Runs worlds until one fails; returns how many it took (None if none did), and what was found."""
    settings = {"JOBQUEUE_MUTANT": mutant, "JOBQUEUE_FIRST": first, "JOBQUEUE_WORLDS": most}
    settings |= {"JOBQUEUE_SHRINK": 0, "JOBQUEUE_THREADS": 1, "JOBQUEUE_FAILURES": 1, "RUST_BACKTRACE": 0}
    environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}
    command = [program, "worlds_of_all_features", "--nocapture"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT / "tests")
    found = re.search(r"^seed (\d+): ([^:]*): ", ran.stderr, re.MULTILINE)
    if not found and ran.returncode:
        raise RuntimeError(f"{mutant}: the worlds did not run\n{ran.stderr[-2000:]}")
    if not found:
        return None, ""
    seed = int(found[1])
    if mutant and hunt(program, "", seed, 1)[0]:
        raise RuntimeError(f"seed {seed} fails without a mutant, too: mend that first")
    return seed - first + 1, found[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutants; all if none is named")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--most", type=int, default=20_000, help="the most worlds for a mutant (default 20,000)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    parser.add_argument("--opt-level", type=int, default=1, help="0 builds faster, 1 runs four times as fast (default 1)")
    parser.add_argument("--check", action="store_true", help="builds and runs nothing")
    options = parser.parse_args()
    mutants = tomllib.loads((ROOT / "tests/mutants/world.toml").read_text())["mutant"]
    unknown = set(options.names) - {mutant["name"] for mutant in mutants}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    if options.check:
        mutated(mutants)
        return
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    begun = time.monotonic()
    program = build(tree(target, mutants), target, options.opt_level)
    print(f"built in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    asked = [mutant for mutant in mutants if not options.names or mutant["name"] in options.names]
    print("| what is undone | worlds | found as |\n|---|--:|---|", flush=True)
    survived = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        hunts = [(mutant, pool.submit(hunt, program, mutant["name"], options.first, options.most)) for mutant in asked]
        for mutant, hunted in hunts:
            worlds, what = hunted.result()
            survived += worlds is None
            worlds = f"more than {options.most:,}" if worlds is None else f"{worlds:,}"
            print(f"| `{mutant['name']}`: {mutant['undoes']} | {worlds} | {what} |", flush=True)
    sys.exit(f"{survived} not found" if survived else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Shows that tests fail without the fixes that they guard: runs each test of an entry of tests.toml with the entry's mutant.

    python3 tests/mutants/tests.py            every entry
    python3 tests/mutants/tests.py NAME...    these
    python3 tests/mutants/tests.py --check    only whether each entry still fits the code, and whether its tests exist

A test counts as failed also when it does not end within five minutes. Each must pass without a mutant.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True

import mutants

LONGEST = 300


def place(test):
    """The file of a test, relative to the root, and its name there: `<file>::<name>`, below tests/tests unless in another package."""
    file, name = test.split("::", 1)
    inside = file.startswith(("jobqueue", "crates/", "tests/"))
    return (file if inside else f"tests/tests/{file}"), name


def package(file):
    """The folder of the package that a file below `src` or `tests` belongs to."""
    return file.split("/src/" if "/src/" in file else "/tests/")[0]


def program(test):
    """The test program that holds the test."""
    file, _ = place(test)
    if file.startswith("crates/conformance/src/"):
        return "conformance"
    if "/src/" in file:
        return package(file).replace("crates/", "jobqueue_").replace("-", "_")
    return file.split("/tests/")[1].split("/")[0].removesuffix(".rs")


def check(entries):
    mutants.mutated()
    problems = []
    names = {mutant["name"] for mutant in mutants.everything() if mutant.get("edit")}
    for entry in entries:
        for name in [entry["name"], *entry.get("with", [])] if "edit" not in entry else entry.get("with", []):
            if name not in names and not (name == entry["name"] and "with" in entry):
                problems.append(f"{entry['name']}: there is no mutant {name}")
        for test in entry["tests"]:
            file, name = place(test)
            source = mutants.ROOT / file
            if not source.is_file() or not re.search(rf"\bfn {name.split('::')[-1]}\(", source.read_text()):
                problems.append(f"{entry['name']}: there is no test {test}")
    if problems:
        sys.exit("\n".join(problems))


def full_names(path, test):
    """The names by which the program knows the test."""
    listed = subprocess.run([path, "--list"], capture_output=True, text=True, check=True, cwd=mutants.ROOT / "tests").stdout
    file, name = place(test)
    names = re.findall(r"^(\S+): test$", listed, re.MULTILINE)
    found = [one for one in names if one == name or one.endswith(f"::{name}")]
    if program(test) == "conformance":
        # Each storage has the promise; the mutants are of this one.
        found = [one for one in found if one.startswith("sqlite::")]
    elif "/src/" in file:
        module = file.split("/src/")[1].removesuffix(".rs").removesuffix("/tests").removesuffix("_tests").removesuffix("/mod").replace("/", "::")
        found = [one for one in found if one.startswith("" if module == "lib" else module)]
    else:
        # The folder is the program; below it, folders and files are modules.
        modules = file.split("/tests/", 1)[1].removesuffix(".rs").removesuffix("/mod").removesuffix("/main").split("/")[1:]
        found = [one for one in found if one.startswith("::".join([*modules, ""]))]
    if not found:
        sys.exit(f"{path} does not know {test}")
    return found


def run(path, test, names, switched):
    """Runs tests; returns whether they failed, and how."""
    # The folder of the copy's packages: some tests read files of theirs.
    file, _ = place(test)
    folder = mutants.target_folder() / "mutants" / ("tests" if program(test) == "conformance" else package(file))
    environment = {**os.environ, "JOBQUEUE_MUTANT": ",".join(switched), "RUST_BACKTRACE": "0"}
    try:
        ran = subprocess.run([path, "--exact", *names], env=environment, capture_output=True, text=True, cwd=folder, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return True, f"no end within {LONGEST} s"
    output = ran.stdout + ran.stderr
    if "0 passed; 0 failed" in output:
        sys.exit(f"no test ran: {names}")
    said = re.search(r"panicked at [^\n]*\n([^\n]*)", output) or re.search(r"^(error:[^\n]*|test failed[^\n]*)", output, re.MULTILINE)
    return ran.returncode != 0, said[1].strip()[:150] if said and ran.returncode else ""


def show(path, entry, test):
    """Returns whether a test passes and fails as it must, and how it fails with the mutant."""
    names = full_names(path, test)
    if run(path, test, names, [])[0]:
        return False, "**it fails without a mutant, too**"
    failed, how = run(path, test, names, [entry["name"], *entry.get("with", [])])
    return failed, how if failed else "**nothing: it passes**"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="entries; all if none is named")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (default 2)")
    parser.add_argument("--check", action="store_true", help="builds and runs nothing")
    options = parser.parse_args()
    entries = mutants.read("tests.toml")
    unknown = set(options.names) - {entry["name"] for entry in entries}
    if unknown:
        sys.exit(f"no such entry: {', '.join(sorted(unknown))}")
    check(entries)
    if options.check:
        return
    asked = [entry for entry in entries if not options.names or entry["name"] in options.names]
    begun = time.monotonic()
    paths = mutants.build(sorted({program(test) for entry in asked for test in entry["tests"]}))
    print(f"built in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    print("| what is undone | test | fails with |\n|---|---|---|", flush=True)
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        shown = [(entry, test, pool.submit(show, paths[program(test)], entry, test)) for entry in asked for test in entry["tests"]]
        for entry, test, done in shown:
            is_shown, how = done.result()
            wrong += not is_shown
            print(f"| `{entry['name']}` | `{test}` | {how} |", flush=True)
    sys.exit(f"{wrong} tests do not show their fix" if wrong else 0)


if __name__ == "__main__":
    main()

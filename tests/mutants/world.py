#!/usr/bin/env python3
"""Shows that the seeded worlds find the defects that were mended: undoes each fix of world.toml and counts the worlds until one fails.

    python3 tests/mutants/world.py                       every mutant, at most 20,000 worlds each
    python3 tests/mutants/world.py NAME... --first 50000 these, from another seed on
    python3 tests/mutants/world.py --check               only whether each entry still fits the code
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


# The test and the variable with its number of worlds, by the storage that a mutant names.
STORAGES = {
    "memory": ("worlds_of_all_features", "JOBQUEUE_WORLDS"),
    "servicebus": ("worlds_on_service_bus_keep", "JOBQUEUE_SERVICEBUS_WORLDS"),
    "servicebus with sessions": ("worlds_on_service_bus_with_sessions", "JOBQUEUE_SERVICEBUS_WORLDS"),
}


def hunt(program, mutant, storage, first, most):
    """Runs worlds until one fails; returns how many it took (None if none did), and what was found."""
    test, worlds = STORAGES[storage]
    settings = {"JOBQUEUE_MUTANT": mutant, "JOBQUEUE_FIRST": first, worlds: most}
    settings |= {"JOBQUEUE_SHRINK": 0, "JOBQUEUE_THREADS": 1, "JOBQUEUE_FAILURES": 1, "RUST_BACKTRACE": 0}
    environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}
    command = [program, test, "--nocapture"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=mutants.ROOT / "tests")
    found = re.search(r"^seed (\d+): ([^:]*): ", ran.stderr, re.MULTILINE)
    if not found and ran.returncode:
        raise RuntimeError(f"{mutant}: the worlds did not run\n{ran.stderr[-2000:]}")
    if not found:
        return None, ""
    seed = int(found[1])
    if mutant and hunt(program, "", storage, seed, 1)[0]:
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
    listed = mutants.read("world.toml")
    unknown = set(options.names) - {mutant["name"] for mutant in listed}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    if options.check:
        mutants.mutated()
        return
    begun = time.monotonic()
    # The published crates too: `-p NAME` each.
    published = subprocess.run([".ci/published"], capture_output=True, text=True, check=True, cwd=mutants.ROOT).stdout.split()[1::2]
    level = [f"profile.dev.package.{package}.opt-level={options.opt_level}" for package in [*published, "jobqueue-tests"]]
    program = mutants.build(["world"], level)["world"]
    print(f"built in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    asked = [mutant for mutant in listed if not options.names or mutant["name"] in options.names]
    print("| what is undone | worlds | found as |\n|---|--:|---|", flush=True)
    survived = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        hunts = [(mutant, pool.submit(hunt, program, mutant["name"], mutant.get("storage", "memory"), options.first, options.most)) for mutant in asked]
        for mutant, hunted in hunts:
            worlds, what = hunted.result()
            survived += worlds is None
            worlds = f"more than {options.most:,}" if worlds is None else f"{worlds:,}"
            print(f"| `{mutant['name']}`: {mutant['undoes']} | {worlds} | {what} |", flush=True)
    sys.exit(f"{survived} not found" if survived else 0)


if __name__ == "__main__":
    main()

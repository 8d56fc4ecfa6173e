"""The PostgreSQL of `benches/run --postgres` and `benches/crash --postgres`: one server, and a new database for each store."""

import contextlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import threading

import table
from systems import ROOT, SERVER, WORK

BEGIN, END = "<!-- postgres: begin -->", "<!-- postgres: end -->"
SHORT, LONG = ["send-one", "send-tasks", "send-all", "process", "mixed", "latency"], ["latency-other"]
# So many that the quickest needs some seconds, and how many times fewer the slower ones get.
JOBS = {"send-one": 2_000, "send-tasks": 30_000, "send-all": 60_000, "process": 40_000, "mixed": 24_000}
SLOWNESS = {"apalis-postgres": 10, "awa": 10, "graphile_worker": 5, "riverqueue": 10}


class Server:
    """The server that syncs each commit. It ends with this object, or with this process."""

    def __enter__(self):
        program = ROOT / "target" / "release" / SERVER
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = self.answer()
        self.lock, self.numbers = threading.Lock(), itertools.count()
        return self

    def __exit__(self, *_):
        self.process.communicate()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the server has ended")
        return json.loads(line)

    def ask(self, command, name):
        with self.lock:
            print(command, name, file=self.process.stdin, flush=True)
            return self.answer()

    @contextlib.contextmanager
    def database(self):
        """Yields the name of a new database, and the environment of a program that uses it."""
        name = f"bench_{next(self.numbers)}"
        yield name, {"BENCH_POSTGRES": self.ask("create", name)}
        self.ask("drop", name)

    def spent(self, command, environment):
        """Returns what the server spends while a program uses a new database."""
        with self.database() as (name, database):
            before = self.ask("spent", name)
            subprocess.run(command, env=os.environ | environment | database, check=True, stderr=subprocess.DEVNULL)
            after = self.ask("spent", name)
        return {what: after[what] - before[what] for what in after}


def store(server):
    """A context with the environment of a program and its new store, which is a file if there is no server."""
    return contextlib.nullcontext(("", {})) if server is None else server.database()


def jobs(name, phase):
    return ["--jobs", str(JOBS[phase] // SLOWNESS.get(name, 1))] if phase in JOBS else []


def count_costs(server, systems, quick, figures) -> None:
    """Counts what a job costs the server: of what more jobs cost more, so that opening the store does not count."""
    for name, _, program, environment in systems:
        print(f"costs, {name}", file=sys.stderr)
        few, many = (50, 150) if quick else (500, 3_000)
        command = [str(program), "all", "--phase", "mixed", "--directory", str(WORK), "--jobs"]
        try:
            fewer, more = (server.spent([*command, str(count)], environment) for count in (few, many))
        except subprocess.CalledProcessError:
            print(f"{name} failed: no costs", file=sys.stderr)
            continue
        for what in ("log", "commits", "dead_rows"):
            results = figures["systems"][name]["results"]
            results.setdefault(f"job_{what}", []).append((more[what] - fewer[what]) / (many - few))


def write(docs: pathlib.Path, figures) -> None:
    server = f"PostgreSQL {figures['postgres']} with the settings of a new installation."
    measured = f"{server}\n{table.circumstances(figures)}\n\n{table.text(figures)}"
    table.replace(docs / "benchmarks.md", BEGIN, END, measured)

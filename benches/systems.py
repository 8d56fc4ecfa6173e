"""The systems that `benches/run` measures and `benches/crash` kills, how they are built, and whether they sync."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "target" / "bench"
PEERS = ROOT / "benches" / "peers"
PEER_TARGET = ROOT / "target" / "peers"


def peer(name):
    return PEERS / name, PEER_TARGET / "release" / f"bench-{name}"


# Name in the table, project, program, environment.
SYSTEMS = [
    ("jobqueue", ROOT, ROOT / "target/release/jobqueue-bench", {}),
    ("bare loop", *peer("bare"), {}),
    ("effectum, FULL", *peer("effectum"), {}),
    ("effectum, NORMAL", *peer("effectum"), {"BENCH_DURABILITY": "normal"}),
    ("apalis-sqlite", *peer("apalis-sqlite"), {}),
    ("riverqueue", *peer("riverqueue"), {}),
    ("durare", *peer("durare"), {}),
    # It writes its log to where the harness writes.
    ("duroxide", *peer("duroxide"), {"RUST_LOG": "off"}),
]
# The same for `--postgres`.
POSTGRES = [
    ("jobqueue", ROOT, ROOT / "target/release/jobqueue-bench", {}),
    ("bare loop", *peer("bare-postgres"), {}),
    ("apalis-postgres", *peer("apalis-postgres"), {}),
    ("awa", *peer("awa"), {}),
    ("graphile_worker", *peer("graphile-worker"), {}),
    ("riverqueue", *peer("riverqueue"), {}),
]
SERVER = "jobqueue-bench-postgres"


def build(systems, postgres=False) -> None:
    for project in dict.fromkeys(project for _, project, _, _ in systems):
        print(f"building {project.relative_to(ROOT) if project != ROOT else 'jobqueue-bench'}", file=sys.stderr)
        if project == ROOT:
            command, environment = ["cargo", "build", "--release", "--locked", "-p", "jobqueue-bench"], {}
            command += ["-p", SERVER, "--features", "jobqueue-bench/postgres"] if postgres else []
        else:
            command, environment = ["cargo", "build", "--release", "--locked"], {"CARGO_TARGET_DIR": str(PEER_TARGET)}
        subprocess.run(command, cwd=project, env=os.environ | environment, check=True)


def syncs_per_send(program, environment, server=None):
    """The syncs that the kernel, or the server, sees for each send that was answered, one after the other; None without strace."""
    if server is None and shutil.which("strace") is None:
        print("syncs are not counted: there is no strace", file=sys.stderr)
        return None
    few, many = 50, 250
    # Those of opening the store do not count.
    return (syncs(program, environment, many, server) - syncs(program, environment, few, server)) / (many - few)


def syncs(program, environment, jobs, server) -> int:
    with tempfile.TemporaryDirectory(dir=WORK) as store:
        send = [str(program), "send", "--store", store, "--jobs", str(jobs)]
        if server is not None:
            return server.spent(send, environment)["syncs"]
        trace = pathlib.Path(store) / "trace"
        command = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", str(trace), *send]
        subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
        rows = [line.split() for line in trace.read_text().splitlines()]
        return sum(int(row[3]) for row in rows if row and row[-1] in ("fsync", "fdatasync"))

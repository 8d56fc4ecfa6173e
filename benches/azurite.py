"""The Azure part of `benches/run`: measures on Azurite, and writes the second table."""

import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import table

BEGIN, END = "<!-- azurite: begin -->", "<!-- azurite: end -->"
PACKAGE = "jobqueue-bench-azure"
# These give the same figures each time, so that once is enough; the others are repeated.
ONCE, REPEATED = ["requests", "idle", "celery"], ["short", "offloaded64k", "offloaded1m", "processor"]
SYSTEMS = [("jobqueue", "jobqueue"), ("sdk", "bare loop on the SDK"), ("celery", "Celery")]

# Key, name in the table, unit.
ROWS = [
    ("requests_short", "requests a job, 200 bytes", "transactions"),
    ("requests_64k", "requests a job, 64 KiB in a blob", "transactions"),
    ("requests_1m", "requests a job, 1 MiB in a blob", "transactions"),
    ("requests_start", "requests to open a queue and start", "transactions"),
    ("send_short", "send, 16 tasks, 200 bytes", "jobs/s"),
    ("process_short", "process, 64 at once, 200 bytes", "jobs/s"),
    ("process_16", "process, 16 at once, 200 bytes", "jobs/s"),
    ("total_short", "send and process, 200 bytes", "ms a job"),
    ("total_64k", "send and process, 64 KiB", "ms a job"),
    ("total_1m", "send and process, 1 MiB", "ms a job"),
    ("cpu_short", "processor time, send and process, 200 bytes", "µs a job"),
    ("instructions_short", "instructions, send and process, 200 bytes", "thousand a job"),
]
# What the framework may take more than the bare loop is told for these.
RATIOS = ["requests_short", "total_short", "total_64k", "total_1m", "cpu_short", "instructions_short"]


def run(root: pathlib.Path, options) -> None:
    work = root / "target" / "bench"
    program = root / "target" / "release" / PACKAGE
    if options.table_only:
        write(root, json.loads((work / "azurite.json").read_text()))
        return
    if not options.no_build:
        subprocess.run(["cargo", "build", "--release", "--locked", "-p", PACKAGE], cwd=root, check=True)
    figures = {"results": {}, "load": []}
    if options.keep and (work / "azurite.json").exists():
        figures = json.loads((work / "azurite.json").read_text())
    for number in range(1 if options.quick else options.rounds):
        for phase in REPEATED + (ONCE if number == 0 else []):
            print(f"round {number + 1}, {phase}", file=sys.stderr)
            measure(program, work, phase, options.quick, figures)
        (work / "azurite.json").write_text(json.dumps(figures, indent=1))
    count_instructions(program, work, options.quick, figures)
    (work / "azurite.json").write_text(json.dumps(figures, indent=1))
    if options.quick:
        print(text(figures))
    else:
        write(root, figures)


def measure(program, work, phase, quick, figures) -> None:
    out = work / "one.json"
    command = [str(program), "all", "--phase", phase, "--json", str(out)] + (["--quick"] if quick else [])
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    report = json.loads(out.read_text())
    figures["machine"] = report["machine"]
    figures["versions"] = report["versions"]
    figures["load"].append(os.getloadavg()[0])
    for key, figure in report["results"].items():
        figures["results"].setdefault(key, []).append(figure["value"])


def count_instructions(program, work, quick, figures) -> None:
    """Of what some jobs more cost, so that the start does not count."""
    if shutil.which("valgrind") is None:
        print("instructions are not counted: there is no valgrind", file=sys.stderr)
        return
    fewer, more = (50, 100) if quick else (500, 1_500)
    for system in ("jobqueue", "sdk"):
        print(f"instructions, {system}", file=sys.stderr)
        counted = [instructions(program, work, system, jobs) for jobs in (fewer, more)]
        each = (counted[1] - counted[0]) / (more - fewer) / 1_000
        figures["results"][f"{system}.instructions_short"] = [each]


def instructions(program, work, system, jobs) -> int:
    out = work / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", str(program), "canned"]
    command += ["--system", system, "--jobs", str(jobs)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    totals = [line.split()[1] for line in out.read_text().splitlines() if line.startswith(("summary:", "totals:"))]
    return int(totals[0])


def text(figures) -> str:
    results = figures["results"]
    lines = ["| what | unit | " + " | ".join(name for _, name in SYSTEMS) + " | to the bare loop |"]
    lines.append("|---|---|" + "--:|" * (len(SYSTEMS) + 1))
    for key, name, unit in ROWS:
        cells = [cell(results.get(f"{system}.{key}")) for system, _ in SYSTEMS]
        lines.append(f"| {name} | {unit} | " + " | ".join(cells) + f" | {ratio(results, key)} |")
    gets, others, budget = (results.get(f"jobqueue.idle_{what}", [0])[0] for what in ("gets", "others", "budget"))
    lines += ["", f"A worker without work for a minute, at the default `max_idle_delay` of 5 seconds, asked {gets:.0f} times for"]
    lines += [f"messages (the pauses allow {budget:.0f}, and none was shorter than due) and {others:.0f} times for settings."]
    return "\n".join(lines)


def cell(values) -> str:
    if not values:
        return "–"
    if len(set(values)) == 1:
        value = values[0]
        return f"{value:.3f}" if value < 10 else table.number(value)
    return table.cell(values)


def ratio(results, key) -> str:
    """The middle of the ratios of rounds, each of which measured both in turn."""
    if key not in RATIOS:
        return ""
    pairs = list(zip(results.get(f"jobqueue.{key}", []), results.get(f"sdk.{key}", [])))
    if f"jobqueue.ratio_{key}" in results:
        ratios = results[f"jobqueue.ratio_{key}"]
    else:
        ratios = [ours / theirs for ours, theirs in pairs]
    if not ratios:
        return "–"
    middle = f"{statistics.median(ratios):.3f}"
    return middle if len(ratios) == 1 else f"**{middle}** ({min(ratios):.3f}–{max(ratios):.3f})"


def write(root: pathlib.Path, figures) -> None:
    machine, load = figures["machine"], figures["load"]
    versions = ", ".join(f"{what} {version}" for what, version in figures["versions"].items())
    measured = (
        f"Measured on {datetime.date.today()}: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB;"
        f" load average after each run {statistics.median(load):.1f} ({min(load):.1f}–{max(load):.1f}).\n"
        f"{versions}.\nMedian (lowest–highest) of rounds.\n\n{text(figures)}"
    )
    page = root / "docs" / "benchmarks.md"
    table.replace(page, BEGIN, END, measured)

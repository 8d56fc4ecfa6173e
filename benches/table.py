"""The table and the plot of `benches/run`."""

import datetime
import pathlib
import statistics

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

# Key, name in the table, unit, whether more is better.
ROWS = [
    ("send_one", "send, one by one", "jobs/s", True),
    ("send_tasks", "send, 64 tasks", "jobs/s", True),
    ("send_all", "`send_all` of 1,000", "jobs/s", True),
    ("process_64", "process, 64 at once", "jobs/s", True),
    ("process_best", "process, best setting", "jobs/s", True),
    ("mixed", "mixed, 64 senders and 64 handlers", "jobs/s", True),
    ("process_depth_10k", "process, 10 thousand waiting", "jobs/s", True),
    ("process_depth_1m", "process, a million waiting", "jobs/s", True),
    ("mixed_depth_10k", "mixed, 10 thousand waiting", "jobs/s", True),
    ("mixed_depth_1m", "mixed, a million waiting", "jobs/s", True),
    ("latency_p50", "latency, p50", "ms", False),
    ("latency_p99", "latency, p99", "ms", False),
    ("latency_other_p50", "latency, other process, p50", "ms", False),
    ("latency_other_p99", "latency, other process, p99", "ms", False),
    ("idle_cpu", "idle worker", "% of a core", False),
    ("memory_1m", "memory, a million waiting", "MiB", False),
    ("leases_cpu", "10,000 leases, beyond the requests", "% of a core", False),
    ("order_send", "in order, one key: send, one by one", "jobs/s", True),
    ("order_process", "in order, one key: process", "jobs/s", True),
    ("order_after_stall", "in order, one key: 200 jobs behind one that was late by 15 s", "jobs/s", True),
    ("leases_requests_cpu", "10,000 leases, the requests alone", "% of a core", False),
    ("job_log", "a job, sent and processed: written to the log", "bytes", False),
    ("job_commits", "a job, sent and processed: commits", "", False),
    ("job_dead_rows", "a job, sent and processed: dead rows before vacuum", "", False),
]


def number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"


def cell(values) -> str:
    if not values:
        return "–"
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"**{middle}** ({number(min(values))}–{number(max(values))})"


def ordered(systems):
    """jobqueue first, then the limit, then the peers."""
    known = ["jobqueue", "bare loop"]
    return dict(sorted(systems.items(), key=lambda item: (known.index(item[0]) if item[0] in known else len(known), item[0])))


def text(figures) -> str:
    systems = ordered(figures["systems"])
    names = list(systems)
    lines = ["| phase | unit | " + " | ".join(names) + " |", "|---|---|" + "--:|" * len(names)]
    for key, name, unit, _ in ROWS:
        cells = [cell(systems[system]["results"].get(key)) for system in names]
        if any(value != "–" for value in cells):
            lines.append(f"| {name} | {unit} | " + " | ".join(cells) + " |")
    if "jobqueue" in systems and len(names) > 1:
        lines += ["", *ratios(systems, [name for name in names if name != "jobqueue"])]
    return "\n".join(lines)


def ratios(systems, others):
    yield "How many times as good as each (above 1 is better, for times and costs too), by medians:"
    yield ""
    yield "| phase | " + " | ".join(f"to {name}" for name in others) + " |"
    yield "|---|" + "--:|" * len(others)
    for key, name, _, more_is_better in ROWS:
        own = systems["jobqueue"]["results"].get(key)
        cells = []
        for other in others:
            theirs = systems[other]["results"].get(key)
            if own and theirs and statistics.median(own) > 0 and statistics.median(theirs) > 0:
                ratio = statistics.median(own) / statistics.median(theirs)
                cells.append(f"{ratio if more_is_better else 1 / ratio:.2f}")
            else:
                cells.append("–")
        if any(value != "–" for value in cells):
            yield f"| {name} | " + " | ".join(cells) + " |"


def circumstances(figures) -> str:
    machine, syncs, load = figures["machine"], figures["syncs"], figures["load"]
    lines = [
        f"Measured on {datetime.date.today()}: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB,"
        f" Linux {machine['kernel']}. `fdatasync` of a 4 KiB block, measured before each run:"
        f" {statistics.median(syncs):,.0f} a second ({min(syncs):,.0f}–{max(syncs):,.0f});"
        f" load average after each run {statistics.median(load):.1f} ({min(load):.1f}–{max(load):.1f}).",
        "Median (lowest–highest) of all rounds.",
        "",
        "| system | versions | an answer means | syncs a send, counted | settings |",
        "|---|---|---|--:|---|",
    ]
    for name, system in ordered(figures["systems"]).items():
        versions = ", ".join(f"{what} {version}" for what, version in system["versions"].items())
        syncs = figures.get("syncs_per_send", {}).get(name)
        counted = "–" if syncs is None else f"{syncs:.2f}"
        lines.append(f"| {name} | {versions} | {system['durability']} | {counted} | {system['settings']} |")
    return "\n".join(lines)


def write(docs: pathlib.Path, figures) -> None:
    replace(docs / "benchmarks.md", BEGIN, END, f"{circumstances(figures)}\n\n{text(figures)}")
    (docs / "benchmarks.svg").write_text(plot(figures))


def replace(page: pathlib.Path, begin: str, end: str, measured: str) -> None:
    """Puts new figures between two markers of a page."""
    before, rest = page.read_text().split(begin)
    after = rest.split(end)[1]
    page.write_text(f"{before}{begin}\n{measured}\n{end}{after}")


def plot(figures) -> str:
    """Bars of the throughput phases, each phase on a scale of its own."""
    rows = [row for row in ROWS[:6]]
    systems = list(ordered(figures["systems"]).items())
    colours = ["#1f6feb", "#8b949e", "#d29922", "#e3b341", "#a371f7", "#3fb950", "#f85149", "#db61a2"]
    height, left, width = 16, 230, 420
    parts, y = [], 10
    for key, name, unit, _ in rows:
        medians = [(system, statistics.median(data["results"][key])) for system, data in systems if data["results"].get(key)]
        if not medians:
            continue
        most = max(value for _, value in medians)
        parts.append(f'<text x="10" y="{y + 13}" font-weight="bold">{name.replace("`", "")}</text>')
        for index, (system, data) in enumerate(systems):
            values = data["results"].get(key)
            if not values:
                continue
            value = statistics.median(values)
            bar = max(1, value / most * width)
            colour = colours[index % len(colours)]
            parts.append(f'<rect x="{left + 130}" y="{y}" width="{bar:.0f}" height="{height - 3}" fill="{colour}"/>')
            parts.append(f'<text x="{left + 124}" y="{y + 11}" text-anchor="end">{system}</text>')
            parts.append(f'<text x="{left + 136 + bar:.0f}" y="{y + 11}">{number(value)} {unit}</text>')
            y += height
        y += 12
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {y}" width="900" height="{y}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )

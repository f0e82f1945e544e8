"""Hostile files: bad files over all readers, and sound ones with bytes changed; each must be read, or refused in words.

Files are read by processes with limits of time and memory, as `instep` reads them; some of them by the command line.
`python -m benchmarks.hostile FOLDER [SEED]` prints every failure; its seed changes the mutations.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness import Row, row, with_progress
from hostile_corpus import written_cases
from hostile_pool import MAX_CPU_S, MAX_MB, Case, run_cases
from hostile_targets import Target, targets

MUTATED, MUTATED_QUICK = 10_000, 1_000
COMMANDS, COMMANDS_QUICK = 60, 8
FAILURES = {
    "traceback": "tracebacks", "crash": "crashes of the process",
    "hang": f"longer than {MAX_CPU_S:g} s of the processor", "memory": f"more than {MAX_MB} MiB beyond the libraries",
    "outside": "files outside opened, or code run", "words": "refused, but not in one sentence",
}  # fmt: skip


def run(out: Path, quick: bool = False, seed: int = 0) -> list[Row]:
    """Read all bad files; one row per number."""
    print(f"seed {seed}")
    found = [target for target in targets().values() if target.installed]
    absent = sorted({f"{t.name} (needs {t.needs})" for t in targets().values() if not t.installed})
    print(f"{len(found)} readers; not installed: {', '.join(absent) or 'none'}")
    samples = write_samples(found, out / "samples")
    written = written_cases(found, samples, out / "written", seed)
    mutated = mutated_cases(found, MUTATED_QUICK if quick else MUTATED, seed)
    commands = chosen_commands(found, written, COMMANDS_QUICK if quick else COMMANDS, seed)
    rows = [*counted("bad files", written, out, samples), *counted("mutated files", mutated, out, samples)]
    failed = [words for target, case in commands if (words := command_failure(target, case))]
    print("\n".join(failed))
    return [
        row("readers", len(found)), row("bad files", len(written), at_least=700),
        row("mutated files", len(mutated), at_least=None if quick else MUTATED), *rows,
        row(f"{len(commands)} bad files given to commands: not one sentence and exit 2", len(failed), at_most=0),
    ]  # fmt: skip


def write_samples(found: Sequence[Target], folder: Path) -> Path:
    """Sound files for each reader, each in a folder of its own."""
    for target in found:
        (folder / target.folder).mkdir(parents=True)
        target.sample(folder / target.folder)
    return folder


def mutated_cases(found: Sequence[Target], count: int, seed: int) -> list[Case]:
    """Cases of sound files with bytes changed, the same number for each reader."""
    each = -(-count // len(found))
    names = [target.name for target in found for _ in range(each)]
    return [Case(name, "mutated", seed=seed * 1_000_003 + k, refuse=False) for k, name in enumerate(names)]


def counted(what: str, cases: Sequence[Case], out: Path, samples: Path) -> list[Row]:
    """Read all cases; how many failed in each way."""
    outcomes = list(with_progress(what, len(cases), run_cases(cases, samples, workers=os.cpu_count() or 1)))
    failed = [one for one in outcomes if one.failed]
    lines = [json.dumps(asdict(one)) for one in failed]
    print(f"{what}: {len(failed)} failures")
    for one in {(one.case.target, one.case.kind, one.result): one for one in failed}.values():
        print(f"  {one.case.target} / {one.case.kind}: {one.result}; {one.words[:160]}")
    (out / f"{what.replace(' ', '_')}.jsonl").write_text("".join(line + "\n" for line in lines))
    count = Counter(one.result for one in failed)
    rows = [row(f"{what}: {words}", count[kind], at_most=0) for kind, words in FAILURES.items()]
    if any(case.refuse for case in cases):
        rows.append(row(f"{what}: read although they must be refused", count["read"], at_most=0))
    slowest = max(outcomes, key=lambda one: one.cpu_s)
    largest = max(outcomes, key=lambda one: one.peak_mb)
    return [
        *rows,
        row(f"{what}: refused", sum(one.result == "refused" for one in outcomes)),
        row(f"{what}: longest", slowest.cpu_s, "s", at_most=MAX_CPU_S),
        row(f"{what}: most memory beyond the libraries", largest.peak_mb, "MiB", at_most=MAX_MB),
    ]


def chosen_commands(found: Sequence[Target], cases: Sequence[Case], count: int, seed: int) -> list[tuple[Target, Case]]:
    """Some of the bad files that a command reads, over all readers that have one."""
    by_name = {target.name: target for target in found if target.command}
    picked = [case for case in cases if case.target in by_name and case.refuse]
    random.Random(seed).shuffle(picked)
    return [(by_name[case.target], case) for case in picked[:count]]


def command_failure(target: Target, case: Case) -> str:
    """What is wrong with how a command ends for a bad file; empty where it is one sentence and exit code 2."""
    words = target.command.replace("{folder}", case.folder).split()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "instep.app.cli", *words], capture_output=True, text=True, timeout=300, check=False,
            cwd=case.folder,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{case.target} / {case.kind}: the command does not end"
    if done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.strip():
        return ""
    last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    return f"{case.target} / {case.kind}: instep {' '.join(words)}: exit {done.returncode}: {last[:200]}"


if __name__ == "__main__":
    for one in run(Path(sys.argv[1]), quick=True, seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0):
        print(one["name"], one["value"], "" if one["ok"] is None else "met" if one["ok"] else "missed")

"""Looks for bytes that a parser stumbles over, led by which lines of edgepeer they reach: `make fuzz`.

    fuzz.py                 each parser for FUZZ_SECONDS (20), one after the other
    fuzz.py NAME [OPTION]   one of them, with libFuzzer's own options; a file's name instead repeats what it found

What was found reaching anything new stays in build/fuzz/NAME, and the next run goes on from there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import atheris

KEPT = Path("build/fuzz")


def one(name: str, options: list[str]) -> None:
    with atheris.instrument_imports(include=["edgepeer"]):
        from parsers import parsers

    with tempfile.TemporaryDirectory() as root, parsers(Path(root)) as by_name:
        parser = by_name[name]
        kept = KEPT / name
        kept.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(parser.seeds):
            (kept / f"seed-{number}").write_bytes(seed)
        places = [] if any(Path(each).is_file() for each in options) else [str(kept)]
        atheris.Setup([sys.argv[0], *options, *places], parser)
        atheris.Fuzz()


def each() -> int:
    from parsers import parsers

    seconds, failed = os.environ.get("FUZZ_SECONDS", "20"), 0
    with tempfile.TemporaryDirectory() as root, parsers(Path(root)) as by_name:
        names = list(by_name)
    for name in names:
        (KEPT / name).mkdir(parents=True, exist_ok=True)
        options = [f"-max_total_time={seconds}", "-max_len=6000", "-timeout=10", f"-artifact_prefix={KEPT}/{name}-"]
        run = subprocess.run([sys.executable, __file__, name, *options], capture_output=True, text=True, check=False)
        done = re.findall(r"Done (\d+) runs", run.stderr)
        print(f"{name:<17} {int(done[0]):>9,} executions" if done else f"{name:<17} FAILED", flush=True)
        if run.returncode:
            failed += 1
            print(run.stdout + run.stderr[-6000:], flush=True)
    return failed


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(sys.argv[1], sys.argv[2:])
    else:
        sys.exit(each())

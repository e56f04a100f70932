"""What building edgepeer needs code for: nothing, unless EDGEPEER_COMPILED=1 is in the environment.

Then mypyc, which is part of mypy, compiles the machine without I/O and the simulator around it, from the same sources:

    EDGEPEER_COMPILED=1 pip install .

What they do is the same, to the last bit and event (`make check-compiled`); a C compiler is needed. Never
into a checkout (`pip install -e`): there compiled modules would hide later changes of their sources.
"""

import os
import tomllib
from pathlib import Path

from setuptools import setup

COMPILED = ("edgepeer/topology", "edgepeer/protocol", "edgepeer/simulation")
LEFT_OUT = {
    "edgepeer/simulation/drawing.py",  # mypyc reads a constant that others are made of before it is set
    "edgepeer/simulation/isolation_plot.py",  # only draws
    "edgepeer/simulation/soak.py",  # passes functions on to processes
}


def compilable(source: Path) -> bool:
    """What declares msgspec's structs is not, and need not be: they are of C already."""
    return str(source) not in LEFT_OUT and source.name != "__init__.py" and "(msgspec.Struct" not in source.read_text()


def compiled() -> dict[str, object]:
    try:
        from mypyc.build import mypycify
    except ImportError:  # a first pass, in which pip asks what building needs: also the types of what is imported
        project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
        return {"setup_requires": ["mypy>=1.18", *project["dependencies"]]}
    sources = [source for package in COMPILED for source in sorted(Path(package).glob("*.py")) if compilable(source)]
    level = os.environ.get("MYPYC_OPT_LEVEL", "3")
    checked = ["--config-file=", "--ignore-missing-imports", *map(str, sources)]  # `make types` is strict, not this
    return {"ext_modules": mypycify(checked, opt_level=level, debug_level="0", group_name="edgepeer")}


setup(**(compiled() if os.environ.get("EDGEPEER_COMPILED") == "1" else {}))

"""`edgepeer version`: which edgepeer this is, and which of the optional libraries it finds."""

from __future__ import annotations

import click

__all__ = ["command"]

_OPTIONAL = {
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "keras": ("keras",),
    "scikit-learn": ("scikit-learn",),
    "amqtt": ("amqtt",),
    "cryptography": ("cryptography",),
    "matplotlib": ("matplotlib",),
}


def command() -> click.Command:
    """The verb as click knows it."""
    return click.command("version", epilog="\b\nExamples:\n\b\n  $ edgepeer version")(version)


def version() -> None:
    """Print the version, and which of the optional libraries are here."""
    import platform

    print(f"edgepeer {_installed('edgepeer')} (Python {platform.python_version()}, {platform.machine()})")
    for name, distributions in _OPTIONAL.items():
        found = next((text for text in map(_installed, distributions) if text), None)
        print(f"  {name:13} {found or 'not installed'}")


def _installed(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None

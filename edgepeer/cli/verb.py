"""What a verb of the command line is, and how every verb is run.

A verb is a settings struct, a function of it, and examples. Its flags follow from the struct's fields.
Loading of settings, logging, error lines and exit codes are the same for all verbs.

Exit codes: 0 done; 1 failed, with one line on standard error; 2 used or configured wrongly, nothing was
started; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import click

from edgepeer.cli.logs import setup_logging
from edgepeer.enrol.strings import hidden
from edgepeer.errors import ConfigError, EdgepeerError, first_error
from edgepeer.printable import one_line
from edgepeer.settings import Setting, VerbSettings, load_settings, settings_of, variable

__all__ = ["FAILED", "INTERRUPTED", "MISUSED", "Verb"]

_log = logging.getLogger(__name__)

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130

_TOLD: Final = (EdgepeerError, MemoryError)
"""What is nobody's mistake in the program, and takes one line."""

_S = TypeVar("_S", bound=VerbSettings)


@dataclass(frozen=True, kw_only=True)
class Verb(Generic[_S]):
    """One verb of the command line: its settings, its texts, and what it does."""

    kind: type[_S]
    """Its settings; flags, variables and TOML keys follow from the fields."""
    about: str
    """What it does, for `--help`; the first line stands in the list of verbs."""
    examples: Sequence[tuple[str, str]]
    """(what it does, command line) pairs for `--help`."""
    run: Callable[[_S], int]
    """Does it, and returns the exit code. Raises EdgepeerError where it fails."""

    def command(self) -> click.Command:
        """The verb as click knows it."""

        def callback(**given: Any) -> None:
            config = given.pop("config")
            # What was not given is not a setting; the other sources and the defaults have their say.
            flags = {name: value for name, value in given.items() if value is not None and value != ()}
            context = click.get_current_context()
            words = {each.name for each in context.command.params if isinstance(each, click.Argument) and each.name}
            context.exit(self.execute(flags, config=config, words=words))

        config = click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="TOML file with settings, instead of edgepeer.toml.",
        )
        return click.Command(
            self.kind.verb,
            callback=callback,
            params=[*(_option(name, setting) for name, setting in settings_of(self.kind).items()), config],
            help=self.about,
            epilog=self._epilog(),
        )

    def execute(self, flags: dict[str, object], *, config: Path | None = None, words: Collection[str] = ()) -> int:
        """Load the settings, run the verb, say in one line what went wrong; returns the exit code. `words`: which of
        the flags were given without one."""
        as_json = False
        try:
            settings = load_settings(self.kind, flags=flags, config=config, words=words)
            as_json = settings.log_json
            setup_logging(settings.log_level, as_json=as_json)
            return self.run(settings)
        except _TOLD as error:
            return _complain(error, as_json=as_json)
        except BaseExceptionGroup as group:
            # A task group wraps what its tasks raise; the first of ours says what happened.
            ours, others = group.split(_TOLD)
            if ours is None or others is not None:
                raise
            return _complain(first_error(ours), as_json=as_json)
        except KeyboardInterrupt:
            return INTERRUPTED

    def _epilog(self) -> str:
        shown = "\n\n".join(f"\b\n  # {what}\n  $ {line}" for what, line in self.examples)
        settings = settings_of(self.kind)
        name = next(iter(settings))
        return (
            f"\b\nExamples:\n{shown}\n\n"
            f"Every option can also stand in edgepeer.toml, as {name} = ... under [{self.kind.verb}], or in "
            f"the environment, as {variable(self.kind, name)}; a flag is stronger than both, and the "
            "environment stronger than the file."
        )


def _option(name: str, setting: Setting) -> click.Option:
    text = setting.help
    if setting.plain is not bool and setting.default not in (None, ()):
        default = ",".join(map(str, setting.default)) if setting.plain is tuple else setting.default
        text += f" [{default:g}]" if isinstance(default, float) else f" [{default}]"
    if setting.plain is bool:
        return click.Option([name, f"{setting.flag}/--no-{setting.flag[2:]}"], default=None, help=text)
    # Values arrive as text and are checked where those of the other sources are, by the same words.
    return click.Option(
        [name, setting.flag],
        metavar=setting.metavar,
        multiple=setting.plain is tuple or setting.joined,
        default=None,
        help=text,
    )


def _complain(error: BaseException, *, as_json: bool) -> int:
    text = " ".join(hidden(str(error)).split())
    line = f"out of memory: {text}".rstrip(": ") if isinstance(error, MemoryError) else text or type(error).__name__
    status = MISUSED if isinstance(error, ConfigError) else FAILED
    if as_json:
        _log.error("%s", one_line(line), extra={"fields": {"exit_code": status}})
    else:
        print(f"edgepeer: {one_line(line)}", file=sys.stderr)
    return status

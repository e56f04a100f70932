"""What signals do to a verb, whenever they come."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import edgepeer.cli
from edgepeer.cli.signals import run


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_cleaning_up_is_not_cut_short(second: signal.Signals, code: int) -> None:
    done: list[str] = []

    async def main() -> None:
        handled = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.set)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), second)
            os.kill(os.getpid(), signal.SIGUSR1)  # handled after that
            await handled.wait()
            done.append("cleaned up")

    with pytest.raises(BaseException) as ended:  # noqa: PT011
        run(main())
    assert done == ["cleaned up"]
    assert ended.type is (KeyboardInterrupt if second == signal.SIGINT else SystemExit)
    assert getattr(ended.value, "code", 130) == code


def test_ctrl_c_while_a_verb_is_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(edgepeer.cli, "import_module", interrupted)
    monkeypatch.setattr("sys.argv", ["edgepeer", "status"])
    with pytest.raises(SystemExit) as ended:
        edgepeer.cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")

"""Scenario files: the library is sound, ships, and what a user gets wrong is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from edgepeer.cli.emulate import VERB
from edgepeer.emulation.faults.plan import plan_of
from edgepeer.emulation.faults.scenarios import find_scenario, library, with_scenario
from edgepeer.emulation.faults.texts import SHAPES, write
from edgepeer.emulation.jobs import emulated_job, peers_of
from edgepeer.errors import ConfigError
from edgepeer.settings import EmulateSettings


def test_the_library() -> None:
    names = [scenario.name for scenario in library()]
    assert names == sorted(names)
    assert set(names) == {
        "broker-outage", "demo", "flaky-links", "kill-inner", "kill-leaf", "kill-root", "one-link",
        "one-link-one-way", "partition", "pause-resume", "rolling-restart", "root-both-links", "soft-errors",
        "straggler", "two-parallel", "two-serial",
    }  # fmt: skip
    for scenario in library():
        assert scenario.about.endswith("."), scenario.name
        assert len(scenario.about) < 120, scenario.name


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(__file__).parent.glob(
    "../../edgepeer/emulation/faults/library/*.toml"
)))  # fmt: skip
def test_each_can_happen_to_the_default_fleet_and_to_its_smallest(name: str) -> None:
    scenario = find_scenario(name)
    assert scenario in library()
    usual = with_scenario(EmulateSettings(scenario=name))
    for peers in {peers_of(usual), scenario.peers}:
        assert plan_of(replace(usual, peers=peers, rounds=max(200, scenario.rounds)))
    if scenario.rounds > 200:
        with pytest.raises(ConfigError, match=rf"needs {scenario.rounds} rounds or more: rounds = 200; add --rounds "):
            plan_of(EmulateSettings(scenario=name))
    emulated_job(usual)
    if scenario.peers > 1:
        said = rf"scenario = {name}: needs {scenario.peers} peers or more: peers = {scenario.peers - 1}"
        with pytest.raises(ConfigError, match=said):
            plan_of(replace(usual, peers=scenario.peers - 1))


def test_settings_of_a_scenario_are_weaker_than_what_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('about = "Mine."\npeers = 9\n[settings]\nmodel = "linear"\nrounds = 30\n')
    name = str(file)
    found = with_scenario(EmulateSettings(scenario=name))
    assert (found.model, found.rounds, found.peers) == ("linear", 30, 9)
    found = with_scenario(EmulateSettings(scenario=name, model="mlp-plain", rounds=20, peers=8))
    assert (found.model, found.rounds, found.peers) == ("mlp-plain", 20, 8)
    plain = EmulateSettings(rounds=20)
    assert with_scenario(plain) is plain


def test_peers_that_nobody_has_counted() -> None:
    assert peers_of(EmulateSettings()) == 7
    assert peers_of(EmulateSettings(peers=3)) == 3
    assert peers_of(EmulateSettings(split="codenet:m=2,n=2,t=1")) == 12
    assert peers_of(with_scenario(EmulateSettings(scenario="soft-errors"))) == 13
    with pytest.raises(
        ConfigError, match=r"^split = none:m=9,n=9: takes 81 peers, and an emulation has at most 64; take fewer "
    ):
        peers_of(EmulateSettings(split="none:m=9,n=9"))


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert VERB.execute({"list_scenarios": "true"}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [scenario.name for scenario in library()]
    assert all(line.endswith(scenario.about) for line, scenario in zip(lines, library(), strict=True))


def test_a_file_and_flags_together(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('about = "Mine."\nkill = ["4@20"]\n')
    plan = plan_of(EmulateSettings(scenario=str(file), restart=("4@25",), cut=("1-0@3..",)))
    assert [(fault.kind, write(fault)) for fault in plan] == [
        ("cut", "1-0@3.."), ("kill", "4@20"), ("restart", "4@25"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("about = ", "scenario bad: is not TOML: "),
        ("about = 3", "scenario bad: about must be one line of text"),
        ("peers = 0", "scenario bad: peers = 0: must be an integer from 1"),
        ("rounds = 0.5", "scenario bad: rounds = 0.5: must be an integer from 1"),
        ("peers = 65", "scenario bad: peers = 65: must be an integer from 1 to 64"),
        (f"cut = {'[' * 3000}", "scenario bad: has lists in lists without end"),
        ("peers = true", "scenario bad: peers = True: must be an integer from 1"),
        ("Cut = []", f"scenario bad: Cut is unknown; allowed are about, peers, rounds, settings, {', '.join(SHAPES)}"),
        ("settings = 3", "scenario bad: settings must be a table, [settings]"),
        ("[settings]\nreport = 'x'", "scenario bad: settings report is unknown; allowed are model, model_config, "),
        ("[settings]\nrounds = 0", "rounds = 0 (from scenario bad): must be an integer from 1 to 10000000"),
        ('kill = "4@20"', "scenario bad: kill must be a list of texts, such as kill = [...]"),
        ("kill = [4]", "scenario bad: kill must be a list of texts"),
        ('kill = ["4"]', "scenario bad: kill = 4: must be PEER@ROUND"),
        ("kill = [" + 1001 * '"1@1",' + "]", "scenario bad: more than 1000 faults"),
    ],
)
def test_malformed(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        find_scenario(str(file))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_none_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^scenario = one-lnk: must be a file, or one of broker-outage, demo, "):
        find_scenario("one-lnk")
    with pytest.raises(ConfigError, match=r"^scenario = .*none\.toml: can't read it: No such file or directory$"):
        find_scenario(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.toml: can't read it: is not text$"):
        find_scenario(str(tmp_path / "binary.toml"))

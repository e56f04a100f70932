"""Settings: bounds, sources and their order, and refusals in one line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeer.errors import ConfigError
from edgepeer.settings import (
    BrokerSettings,
    EmulateSettings,
    PeerSettings,
    TrainSettings,
    VerbSettings,
    find_config,
    load_settings,
    settings_of,
    variable,
)
from edgepeer.settings.model import COMMON
from edgepeer.settings.verbs import VERBS


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "edgepeer.toml"


def refusal(kind: type[VerbSettings], config: Path | None = None, environ=None, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(kind, flags=flags, environ=environ or {"XDG_CONFIG_HOME": "/nonexistent"}, config=config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flags_beat_environment_beats_file(config: Path) -> None:
    config.write_text('[common]\nfabric = "file"\n[train]\npeers = 2\nrounds = 3\nbatch_size = 4\n')
    environ = {"EDGEPEER_TRAIN_ROUNDS": "30", "EDGEPEER_TRAIN_BATCH_SIZE": "40"}
    settings = load_settings(TrainSettings, flags={"batch_size": "400"}, environ=environ, config=config)
    assert (settings.fabric, settings.peers, settings.rounds, settings.batch_size) == ("file", 2, 30, 400)


def test_own_table_and_variable_beat_common(config: Path) -> None:
    config.write_text('[common]\nfabric = "a"\nlog_level = "debug"\n[peer]\nfabric = "b"\n')
    assert load_settings(PeerSettings, environ={}, config=config).fabric == "b"
    environ = {"EDGEPEER_FABRIC": "c", "EDGEPEER_PEER_FABRIC": "d"}
    assert load_settings(PeerSettings, environ=environ, config=config).fabric == "d"
    environ = {"EDGEPEER_FABRIC": "c"}
    assert load_settings(PeerSettings, environ=environ, config=config).fabric == "c"


def test_an_emulation_stays_off_the_common_broker(config: Path) -> None:
    config.write_text('[common]\nbroker = "mqtt://greenhouse"\nlog_json = true\n')
    settings = load_settings(EmulateSettings, environ={"EDGEPEER_BROKER": "mqtt://other"}, config=config)
    assert (settings.broker, settings.fabric, settings.log_json) == ("embedded", "emulation", True)


@pytest.mark.parametrize(
    ("kind", "flags", "said"),
    [
        (EmulateSettings, {"peers": "0"}, "peers = 0 (from --peers): must be an integer from 1 to 64"),
        (EmulateSettings, {"peers": "7.5"}, "peers = 7.5 (from --peers): must be an integer from 1 to 64"),
        (
            EmulateSettings,
            {"broker": "hive"},
            "broker = hive (from --broker): must be embedded, mosquitto or mqtt://[user:password@]host[:port]",
        ),
        (TrainSettings, {"trainer": "jax"}, "trainer = jax (from --trainer): must be one of keras, numpy"),
        (
            TrainSettings,
            {"learning_rate": "nan"},
            "learning_rate = nan (from --learning-rate): must be a number from 1e-30 to 100",
        ),
        (
            PeerSettings,
            {"listen": "127.0.0.1:65536"},
            "listen = 127.0.0.1:65536 (from --listen): must be host:port, port 0 being any free one",
        ),
        (
            PeerSettings,
            {"advertise": ["here"]},
            "advertise = ['here'] (from --advertise): must be host:port, at most 16 of them",
        ),
        (
            PeerSettings,
            {"state_dir": ""},
            "state_dir =  (from --state-dir): must be a path, ~NAME being the home of somebody here",
        ),
        (
            PeerSettings,
            {"state_dir": "~nobody-of-that-name/x"},
            "state_dir = ~nobody-of-that-name/x (from --state-dir): must be a path, ~NAME being the home of somebody "
            "here",
        ),
        # As the command line gives what may be said several times.
        (
            PeerSettings,
            {"models": ("a.b", "c")},
            "models = a.b,c (from --models): must be names of top-level packages, at most 64",
        ),
        (
            PeerSettings,
            {"broker": ("mqtt://a", "mqtt://me:s3cret@b:x")},
            "broker = mqtt://***@b:x (from --broker): must be mqtt:// or mqtts://[user:password@]host[:port], or "
            "several with commas between",
        ),
    ],
)
def test_refusals_of_flags(kind: type[VerbSettings], flags: dict[str, object], said: str) -> None:
    assert refusal(kind, **flags) == said


def test_refusals_of_the_environment() -> None:
    said = refusal(EmulateSettings, environ={"EDGEPEER_EMULATE_PEERS": "0"})
    assert said == "peers = 0 (from EDGEPEER_EMULATE_PEERS): must be an integer from 1 to 64"
    assert refusal(PeerSettings, environ={"EDGEPEER_PEER_LISTN": "x"}).startswith(
        "EDGEPEER_PEER_LISTN is unknown in the environment; allowed are EDGEPEER_PEER_ID, "
    )
    for unknown in ("EDGEPEER_BROKR", "EDGEPEER_PEERS_LISTEN", "EDGEPEER_", "EDGEPEER_CONFIG_FILE"):
        assert refusal(PeerSettings, environ={unknown: "secret"}) == (
            f"{unknown} is unknown in the environment; allowed are EDGEPEER_BROKER, EDGEPEER_FABRIC, "
            "EDGEPEER_FLEET, EDGEPEER_LOG_LEVEL, EDGEPEER_LOG_JSON, EDGEPEER_CONFIG, EDGEPEER_PEER_..."
        )
    others = {"EDGEPEER_TRAIN_ROUNDS": "3", "EDGEPEER_BROKER": "mqtt://b", "EDGEPEER_MNIST": "/x", "EDGEPEERS": "y"}
    load_settings(BrokerSettings, environ=others | {"XDG_CONFIG_HOME": "/nonexistent"})
    said = refusal(PeerSettings, environ={"EDGEPEER_LOG_JSON": "maybe"})
    assert said == "log_json = maybe (from EDGEPEER_LOG_JSON): must be true or false"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[peers]\n", "[peers] is unknown; allowed are [common], [broker], [peer], [train], [emulate], [status]"),
        ("[peer]\nlistn = 1\n", "[peer] listn is unknown; allowed are peer_id, "),
        ("[status]\nlistn = 1\n", "[status] listn is unknown; allowed are json, "),
        ("[common]\npeers = 1\n", "[common] peers is unknown; allowed are broker, fabric, fleet, log_level, log_json"),
        ("peer = 1\n", "peer must be a table, as in [peer]"),
        ("[peer\n", "is not TOML: "),
        (f"[peer]\nfanout = {'9' * 5000}\n", "is not TOML: Exceeds the limit"),
        (f"[peer]\nfanout = 0x{'f' * 5000}\n", "[peer]): must be auto, or an integer from 1 to 64"),
        (f"x = {'[' * 5000}", "is not of settings: it has lists in lists without end"),
        ("[peer]\nfanout = '2'\n", ""),
        ("[peer]\nfanout = true\n", "[peer]): must be auto, or an integer from 1 to 64"),
        ("[peer]\nfabric = 3\n", "[peer]): must be 1 to 63 letters"),
        ("[peer]\nadvertise = [1]\n", "[peer]): must be host:port"),
    ],
)
def test_refusals_of_the_file(config: Path, text: str, said: str) -> None:
    config.write_text(text)
    if said:
        found = refusal(PeerSettings, config=config)
        assert said in found
        assert str(config) in found
    else:
        assert load_settings(PeerSettings, environ={}, config=config).fanout == 2


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    assert refusal(PeerSettings, config=missing) == f"config = {missing}: can't read it: No such file or directory"
    assert refusal(PeerSettings, config=tmp_path) == f"config = {tmp_path}: can't read it: Is a directory"
    missing.write_bytes(b"\xff\xfe")
    assert refusal(PeerSettings, config=missing).startswith(f"config = {missing}: is not TOML: ")


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    """As some editors write it."""
    (config := tmp_path / "edgepeer.toml").write_text("[peer]\nfanout = 3\n", encoding="utf-8-sig")
    assert load_settings(PeerSettings, environ={}, config=config).fanout == 3


def test_a_directory_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may have the HOME of who has started it; what can't be looked into holds no settings of ours."""
    real = os.stat

    def stat(path: object, *more: object, **named: object) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "locked")):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *more, **named)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.chdir(tmp_path)
    assert find_config({"XDG_CONFIG_HOME": str(tmp_path / "locked")}) is None
    state = tmp_path / "locked" / "state"
    said = refusal(PeerSettings, state_dir=str(state))
    assert said == f"state_dir = {state}: can't look into it: permission denied"
    said = refusal(PeerSettings, fleet=str(state))
    assert said == f"{state}/fleet.toml: can't read it: permission denied; start as the user whose it is"


def test_which_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    monkeypatch.chdir(here)
    environ = {"XDG_CONFIG_HOME": str(home)}
    assert find_config(environ) is None
    (home / "edgepeer.toml").touch()
    assert find_config(environ) == home / "edgepeer.toml"
    (here / "edgepeer.toml").touch()
    assert find_config(environ) == Path("edgepeer.toml")
    assert find_config(environ | {"EDGEPEER_CONFIG": "x.toml"}) == Path("x.toml")
    assert find_config(environ | {"EDGEPEER_CONFIG": "~/x.toml"}) == Path.home() / "x.toml"
    with pytest.raises(ConfigError, match="EDGEPEER_CONFIG = ~no-such-user/x: there is no such user's home"):
        find_config(environ | {"EDGEPEER_CONFIG": "~no-such-user/x"})


@pytest.mark.parametrize(
    "value", ["mqtt://u:hunter2@h:99999", "mqtt://u:hunter2/x@h", "u:hunter2@h", "http://u:hunter2@h\n"]
)
def test_no_password_is_shown(value: str) -> None:
    assert "hunter2" not in refusal(PeerSettings, broker=value)


def test_a_secret_is_not_shown() -> None:
    assert refusal(BrokerSettings, password="s" * 600).startswith("password = (hidden) (from --password): must be")


def test_a_login_needs_both() -> None:
    assert refusal(BrokerSettings, username="u") == "password is not set, but username is: give both, or neither"
    assert refusal(BrokerSettings, password="p") == "username is not set, but password is: give both, or neither"
    assert load_settings(BrokerSettings, flags={"username": "u", "password": "p"}, environ={}).password == "p"


def test_lists_and_paths() -> None:
    environ = {"EDGEPEER_PEER_ADVERTISE": "a:1, [::1]:2", "EDGEPEER_PEER_STATE_DIR": "~/x", "EDGEPEER_PEER_ID": "pi"}
    settings = load_settings(PeerSettings, environ=environ)
    assert settings.advertise == ("a:1", "[::1]:2")
    assert settings.state_dir == Path("~/x").expanduser()
    assert settings.peer_id == "pi"
    assert load_settings(PeerSettings, flags={"advertise": ["b:3"]}, environ=environ).advertise == ("b:3",)


@pytest.mark.parametrize("kind", VERBS)
def test_every_setting_is_described_and_its_default_allowed(kind: type[VerbSettings]) -> None:
    for name, setting in settings_of(kind).items():
        assert setting.help.endswith("."), name
        assert setting.allowed, name
        assert setting.metavar, name
        if isinstance(setting.default, (int, float, str)):
            assert setting.parse(str(setting.default), "default") == setting.default
    names = list(settings_of(kind))
    assert len({variable(kind, name) for name in names}) == len(names)
    assert set(kind.apart) <= set(COMMON)


@given(st.data())
def test_any_text_is_taken_or_refused_in_one_line(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(VERBS))
    setting = data.draw(st.sampled_from(list(settings_of(kind).values())))
    text = data.draw(st.text() | st.sampled_from(["0", "-1", "1e400", "inf", "9" * 30, "null", "true", "127.0.0.1:0"]))
    try:
        assert setting.parse(text, "TEST") is not None
        return
    except ConfigError as error:
        said = str(error)
    assert f"{setting.name} = " in said
    assert said.isprintable()
    assert len(said) < 400


def test_several_brokers_in_a_flag_a_variable_or_a_file(tmp_path: Path) -> None:
    both = "mqtt://a,mqtt://u:p,w@b:1"
    config = tmp_path / "edgepeer.toml"
    config.write_text('[common]\nbroker = ["mqtt://a", "mqtt://u:p,w@b:1"]\n')
    given = [
        load_settings(PeerSettings, flags={"broker": ("mqtt://a", "mqtt://u:p,w@b:1")}, environ={}),
        load_settings(PeerSettings, flags={"broker": (both,)}, environ={}),
        load_settings(PeerSettings, environ={"EDGEPEER_BROKER": both}),
        load_settings(PeerSettings, environ={}, config=config),
    ]
    assert [settings.broker for settings in given] == [both] * 4
    for wrong in (("mqtt://a", "b"), ("mqtt://a", ""), ("mqtt://a", 3)):
        assert "or several with commas between" in refusal(PeerSettings, broker=wrong)

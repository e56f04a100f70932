"""`edgepeer fleet` and `edgepeer join` as a user meets them: help, one-line errors, tables and JSON."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fleets import Fleet
from ports import free_port

import edgepeer.cli
from edgepeer.cli import fleet, join
from edgepeer.cli.fleet import serving
from edgepeer.cli.fleet.telling import bring
from edgepeer.cli.verb import Verb
from edgepeer.enrol.household import Household
from edgepeer.enrol.registrar import Registrar
from edgepeer.enrol.strings import JoinString
from edgepeer.errors import Expired, TrustError
from edgepeer.fabric.broker import EmbeddedBroker
from edgepeer.fabric.rights import patterns
from edgepeer.settings import settings_of
from edgepeer.settings.fleets import seconds
from edgepeer.trust.certificates import make_key
from edgepeer.trust.directory import is_joined
from edgepeer.trust.identity import Identity
from edgepeer.trust.names import Role

ALL = (*fleet.VERBS, join.VERB)
PLACED = {"name", "member", "host", "string"}
"""Arguments, not flags."""


class Run:
    """`edgepeer ...`, run in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        self._monkeypatch.setattr(sys, "argv", ["edgepeer", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            edgepeer.cli.main()
        written = self._capsys.readouterr()
        return int(caught.value.code or 0), written.out, written.err

    def json(self, *arguments: object) -> Any:
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in [name for name in os.environ if name.startswith("EDGEPEER_")]:
        monkeypatch.delenv(name)
    return Run(monkeypatch, capsys)


@pytest.fixture
def founded(run: Run, tmp_path: Path) -> Run:
    assert run("fleet", "init", "greenhouse", "--broker", "127.0.0.1:1", "--home", "f")[0] == 0
    return run


def words(verb: Verb[Any]) -> list[str]:
    name = verb.kind.verb
    if name == "fleet-operator-add":
        return ["fleet", "operator", "add"]
    return ["fleet", name.removeprefix("fleet-")] if name.startswith("fleet-") else [name]


@pytest.mark.parametrize("verb", ALL, ids=lambda verb: verb.kind.verb)
def test_help_names_every_setting_and_teaches_by_example(verb: Verb[Any], run: Run) -> None:
    code, text, _ = run(*words(verb), "--help")
    assert code == 0
    command = " ".join(["edgepeer", *words(verb)])
    for setting in settings_of(verb.kind).values():
        assert setting.flag in text or setting.name in PLACED
    assert f"$ {command}" in text
    for _, line in verb.examples:
        assert line.startswith(command)
        assert set(re.findall(r"--[a-z-]+", line)) <= {setting.flag for setting in settings_of(verb.kind).values()}


def test_the_lists_of_verbs(run: Run) -> None:
    code, text, _ = run("fleet", "--help")
    assert code == 0
    for name in ("init", "token", "list", "evict", "move", "operator", "rotate-ca", "serve"):
        assert re.search(rf"^  {name} +\w.*\w\.$", text, re.MULTILINE), name
    text = run("--help")[1]
    for name in ("fleet", "join"):
        assert re.search(rf"^  {name} +\w.*\w\.$", text, re.MULTILINE), name


STRING = JoinString(bytes(16), bytes(4), b"s" * 16).text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["fleet", "init"], 2, "say how it is called and where devices find its broker, as in: edgepeer fleet init "),
        (["fleet", "init", "a/b", "--broker", "h"], 2, "name = a/b (from the command line): must be 1 to 63 letters"),
        (
            ["fleet", "init", "a", "--broker", "mqtt://h"],
            2,
            "broker = mqtt://h: must be a host, host:port, or mqtts://host:port",
        ),
        (["fleet", "init", "a", "--broker", "h", "--service", "h:0"], 2, "service = h:0: must be a host, or host:port"),
        (["fleet", "init", "a", "--broker", "h:0"], 2, "broker = h:0: must be a host, or host:port"),
        (
            ["fleet", "init", "a", "--broker", "h", "--lifetime", "0"],
            2,
            "lifetime = 0 (from --lifetime): must be an",
        ),
        (
            ["fleet", "init", "b", "--broker", "h", "--home", "f"],
            2,
            "fleet greenhouse lives there, with broker mqtts://",
        ),
        (["fleet", "init", "a", "--broker", "h", "--home", "file/x"], 2, "can't make it: not a directory; say another"),
        (["fleet", "token"], 2, "there is no fleet here: `edgepeer fleet init NAME --broker HOST` makes one"),
        (["fleet", "token", "--ttl", "1"], 2, "ttl = 1 (from --ttl): must be a number and s, m, h or d, such as 90s"),
        (["fleet", "token", "--home", "f", "--id", "../p"], 2, "id = ../p (from --id): must be 1 to 63 letters"),
        (["fleet", "token", "--home", "f", "--id", "p", "--uses", "2"], 2, "uses = 2: only one device can be p"),
        (["fleet", "token", "--home", "f", "--withdraw", "p7"], 2, "no token p7 lets anybody in"),
        (["fleet", "token", "--role", "king"], 2, "role = king (from --role): must be one of peer, viewer, broker"),
        (["fleet", "evict", "--home", "f"], 2, "say whom, as in: edgepeer fleet evict p7"),
        (["fleet", "evict", "p\x1b[1m", "--home", "f"], 2, r"nobody is called p\x1b[1m; members are @"),
        (
            ["fleet", "move", "--home", "f"],
            2,
            "say where its broker is by now, as in: edgepeer fleet move --broker 192",
        ),
        (
            ["fleet", "move", "--home", "f", "--broker", "mqtt://h"],
            2,
            "broker = mqtt://h: must be a host, host:port, or",
        ),
        (["fleet", "move", "--home", "f", "--broker", ",".join(["h"] * 17)], 2, "broker: 17 addresses, at most 16"),
        (["fleet", "move", "--home", "f", "--broker", "h", "--service", "h:0"], 2, "service = h:0: must be"),
        (
            ["fleet", "move", "--home", "f", "--broker", "h"],
            2,
            "service: devices look for `edgepeer fleet serve` at 127.0.0.1:7701, where the broker was: say --service "
            "h:7701 if it has moved, too, or --service 127.0.0.1:7701 if it is there still",
        ),
        (["fleet", "move", "--home", "g", "--broker", "h"], 2, "there is no fleet here"),
        (["join", "127.0.0.1:1", "--dir", "f/operator"], 1, "enrolment at 127.0.0.1:1: connection refused; is"),
        (["join", "127.0.0.1:1", "--dir", "f/operator", "--again"], 2, "say where, and with which join string"),
        (["join", "127.0.0.1:1", "--dir", "f/operator", "--id", "bob"], 2, "say where, and with which join string"),
        (["join", "--dir", "f/operator"], 2, "say where, and with which join string"),
        (["fleet", "operator", "add", "--home", "f"], 2, "say who, as in: edgepeer fleet operator add bob"),
        (["fleet", "rotate-ca", "--home", "f", "--finish"], 2, "no rotation is under way"),
        (["fleet", "rotate-ca", "--home", "f", "--force"], 2, "force: only with --finish"),
        (
            ["fleet", "serve", "--home", "f", "--listen", "203.0.113.9:1"],
            2,
            "listen = 203.0.113.9:1: not an address",
        ),
        (["join"], 2, "say where, and with which join string, as in: edgepeer join raspberrypi.local epj1-..."),
        (["join", "h"], 2, "say where, and with which join string"),
        (["join", "h", STRING, "--stdin"], 2, "say where, and with which join string"),
        (
            ["join", "h", STRING[:-1]],
            2,
            "must be epj1- and 58 letters and digits (these are 62 characters)",
        ),
        (["join", f"h {STRING}"], 2, "say where, and with which join string"),
        (["join", f"h {STRING}", STRING], 2, "the host comes first, then the string"),
        (["join", "h", STRING, "--id", STRING], 2, "the host comes first, then the string"),
        (["join", "h", STRING, "--dir", "f", "--log-level", STRING], 2, "log_level = epj1-..."),
        (["join", STRING[1:], STRING], 2, "the host comes first, then the string"),
        (["join", STRING, "h"], 2, "the host comes first, then the string, as in: edgepeer join raspberrypi.local"),
        (["join", "h:x", STRING], 2, "host = h:x: must be a host, or host:port"),
        (
            ["join", "127.0.0.1:1", STRING, "--dir", "d"],
            1,
            "enrolment at 127.0.0.1:1: connection refused; is",
        ),
        (
            ["join", "127.0.0.1:1", f" edgepeer join 127.0.0.1:1 {STRING} ", "--dir", "d"],
            1,
            "enrolment at 127.0.0.1:1: connection refused; is",
        ),
        (
            ["join", "127.0.0.1:1", STRING, "--dir", "file/x"],
            2,
            "file/x: can't write there: not a directory",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], code: int, said: str, founded: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    found, out, err = founded(*arguments)
    assert said in err
    assert err.startswith("edgepeer: ")
    assert err.count("\n") == 1
    assert (found, out) == (code, "")
    assert STRING[20:] not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["join", "join", "h", STRING], "Got unexpected extra argument (epj1-...)"),
        (["join", "edgepeer", "join", "h", STRING.upper()], "Got unexpected extra arguments (h epj1-...)"),
        (["join", "h", f"--string{STRING}"], "No such option"),
        (["join", "h", STRING[:20], STRING[20:]], "Got unexpected extra argument (epj1-...)"),
        (["join", "h", STRING[:35], STRING[35:]], "Got unexpected extra argument (epj1-...)"),
        ([STRING], "No such command 'epj1-...'"),
        (["fleet", STRING], "No such command 'epj1-...'"),
    ],
)
def test_where_a_string_stands_that_none_should_it_is_not_shown(arguments: list[str], said: str, run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert STRING[35:] not in err.lower()


def test_the_line_for_the_service_has_its_port(run: Run) -> None:
    """What one is to paste serves where devices look."""
    out = run("fleet", "init", "a", "--broker", "h", "--service", "hub:7702", "--home", "f")[1]
    assert "they look for it at hub:7702:\n  edgepeer fleet serve --listen 0.0.0.0:7702 --home " in out
    out = run("fleet", "init", "b", "--broker", "h", "--home", "g")[1]
    assert "they look for it at h:7701:\n  edgepeer fleet serve --home " in out


def test_a_fleet_is_founded_and_founded_again(founded: Run, tmp_path: Path) -> None:
    home = tmp_path / "f"
    kept = {path: path.read_bytes() for path in (*home.rglob("*.toml"), *home.rglob("[kc]*.pem"))}
    fields = founded.json("fleet", "init", "greenhouse", "--broker", "127.0.0.1:1", "--home", "f")
    assert len(kept) == 6
    assert kept == {path: path.read_bytes() for path in kept}
    assert fields["urls"] == ["mqtts://127.0.0.1:1"]
    assert fields["service"] == "127.0.0.1:7701"
    assert Identity.load(Path(fields["broker"])).holder.common_name == "broker:broker"
    assert Identity.load(Path(fields["operator"])).holder.common_name.startswith("@")
    assert (home.stat().st_mode & 0o777, (home / "fleet.db").stat().st_mode & 0o777) == (0o700, 0o600)
    (home / "operator" / "certificate.pem").unlink()  # as where power was lost
    assert founded("fleet", "init", "greenhouse", "--broker", "127.0.0.1:1", "--home", "f")[0] == 0
    Identity.load(home / "operator")


def test_a_fleet_moves(founded: Run, tmp_path: Path) -> None:
    members = [tmp_path / "f" / name for name in ("operator", "broker")]
    certificates = [Identity.load(each).certificate for each in members]
    code, out, err = founded("fleet", "move", "--home", "f", "--broker", "a,b:1", "--service", "a:7701")
    assert (code, err) == (0, "")
    assert out.startswith("fleet greenhouse: broker mqtts://a:8883,mqtts://b:1, service a:7701\n")
    assert out.endswith("\n  edgepeer join a\n")
    for each in members:
        assert Identity.load(each).where.broker == ("mqtts://a:8883", "mqtts://b:1")
        assert Identity.load(each).where.service == "a:7701"
    assert founded("fleet", "token", "--home", "f")[1].startswith("edgepeer join a epj1-")
    # The service need not be said where it can't have moved with the broker.
    assert founded.json("fleet", "move", "--home", "f", "--broker", "a:2") == {
        "fabric": "greenhouse",
        "urls": ["mqtts://a:2"],
        "service": "a:7701",
        "changed": True,
    }
    assert not founded.json("fleet", "move", "--home", "f", "--broker", "a:2")["changed"]
    out = founded("fleet", "move", "--home", "f", "--broker", "c", "--service", "a:7701")[1]
    assert "edgepeer join" not in out
    assert founded.json("fleet", "move", "--home", "f", "--broker", "d")["service"] == "a:7701"
    assert [Identity.load(each).certificate for each in members] == certificates
    assert "fleet move" in founded("fleet", "init", "greenhouse", "--broker", "127.0.0.1:1", "--home", "f")[2]
    assert founded("fleet", "init", "greenhouse", "--broker", "d", "--service", "a:7701", "--home", "f")[0] == 0


def test_tokens_are_lines_to_be_pasted(founded: Run) -> None:
    code, out, err = founded("fleet", "token", "--home", "f", "--uses", 3, "--ttl", "2d")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"edgepeer join 127\.0\.0\.1 epj1-[a-z2-7]{58}\n", out)
    fields = founded.json("fleet", "operator", "add", "bob", "--home", "f")
    assert fields["command"] == f"edgepeer join 127.0.0.1 {fields['string']}"
    tokens = founded.json("fleet", "list", "--home", "f")["tokens"]
    assert [(token["role"], token["id"], token["uses"]) for token in tokens] == [
        ("operator", "bob", 1),
        ("peer", None, 3),
    ]
    out = founded("fleet", "list", "--home", "f")[1]
    assert "lets 3 devices in, peer, for another 2 days" in out
    assert "lets one device in as bob, operator, for another 60 min" in out
    assert "broker:broker" in out


def test_a_token_is_taken_back(founded: Run) -> None:
    token = founded.json("fleet", "token", "--home", "f", "--uses", 50)["token"]
    other = founded.json("fleet", "token", "--home", "f")["token"]
    code, out, err = founded("fleet", "token", "--home", "f", "--withdraw", token)
    assert (code, err) == (0, "")
    assert out.startswith(f"token {token} lets nobody in any more; who has come with it is in: edgepeer fleet list")
    code, out, err = founded("fleet", "token", "--home", "f", "--withdraw", token)
    assert (code, err) == (2, f"edgepeer: no token {token} lets anybody in; those that do are {other}\n")
    assert founded.json("fleet", "token", "--home", "f", "--withdraw", other) == {"withdrawn": other}
    assert founded.json("fleet", "list", "--home", "f")["tokens"] == []


def test_a_line_with_a_blank_behind_it_is_read_as_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"edgepeer join h {STRING} \n"))
    code, _, err = run("join", "127.0.0.1:1", "--stdin", "--dir", tmp_path / "d")
    assert (code, "connection refused" in err) == (1, True)


def test_who_is_evicted_while_no_broker_runs_is_out_all_the_same(founded: Run, tmp_path: Path) -> None:
    code, out, err = founded("fleet", "evict", "broker:broker", "--home", "f", "--timeout", "0.2")
    assert code == 0
    assert re.search(r"evicted broker:broker: certificate [0-9a-f]+ counts no more", out)
    assert f"if the broker is a mosquitto: restart it, with {tmp_path}/f/broker/revoked.pem as its crlfile" in out
    assert "not told yet: broker mqtts://127.0.0.1:1: connection refused" in err
    states = {each["name"]: each["state"] for each in founded.json("fleet", "list", "--home", "f")["members"]}
    assert states["broker:broker"] == "evicted"
    assert Identity.load(tmp_path / "f" / "operator").evictions.number == 2
    assert b"BEGIN X509 CRL" in (tmp_path / "f" / "broker" / "revoked.pem").read_bytes()


@pytest.mark.parametrize("lost", ["removed", "emptied"])
def test_no_authority_is_made_beside_members_of_one_that_is_lost(founded: Run, tmp_path: Path, lost: str) -> None:
    """They would be strangers to all who joined by it, and `init` had said that all is well."""
    path = tmp_path / "f" / "fleet.db"
    kept = path.read_bytes()
    path.unlink() if lost == "removed" else path.write_bytes(b"")
    code, _, err = founded("fleet", "init", "greenhouse", "--broker", "127.0.0.1:1", "--home", "f")
    assert (code, err.count("\n")) == (2, 1)
    assert (
        f"{tmp_path}/f/broker and {tmp_path}/f/operator are of a fleet whose authority, fleet.db, is not there: " in err
    )
    path.write_bytes(kept)
    assert founded("fleet", "init", "greenhouse", "--broker", "127.0.0.1:1", "--home", "f")[0] == 0


def test_members_of_another_authority_than_the_one_beside_them_are_named(founded: Run, tmp_path: Path) -> None:
    assert founded("fleet", "init", "greenhouse", "--broker", "127.0.0.1:1", "--home", "g")[0] == 0
    shutil.copy(tmp_path / "g" / "fleet.db", tmp_path / "f" / "fleet.db")
    _, _, err = founded("fleet", "evict", "broker:broker", "--home", "f", "--timeout", "0.2")
    for member in ("broker", "operator"):
        assert f"{tmp_path}/f/{member}: an eviction list is signed by no authority of this fleet: the fleet.db" in err


def test_an_eviction_counts_and_is_told_though_the_brokers_directory_takes_nothing(
    founded: Run, tmp_path: Path
) -> None:
    """It belongs to mosquitto, say. Else the fleet would never hear of it, and who looks would think that it failed."""
    (tmp_path / "f" / "broker" / "revoked.pem").unlink()
    (tmp_path / "f" / "broker" / "revoked.pem").mkdir()  # nobody can write that, not even root
    with contextlib.closing(Registrar.open(tmp_path / "f")) as registrar:
        registrar.admit(Role.PEER, "p7", make_key().public_key())
    code, out, err = founded("fleet", "evict", "p7", "--home", "f", "--timeout", "0.2")
    assert (code, "evicted p7: certificate " in out) == (0, True), err
    assert re.search("/f/broker/revoked.pem: can't be written: is a directory: let who looks after the fleet", err)
    assert "not told yet: broker mqtts://127.0.0.1:1: connection refused" in err
    assert Identity.load(tmp_path / "f" / "operator").evictions.number == 2


def test_an_eviction_that_was_cut_short_may_be_said_again(founded: Run, tmp_path: Path) -> None:
    with contextlib.closing(Registrar.open(tmp_path / "f")) as registrar:
        registrar.admit(Role.PEER, "p7", make_key().public_key())
        registrar.evict("p7")  # and then the power failed
    for _ in range(2):
        code, out, err = founded("fleet", "evict", "p7", "--home", "f", "--timeout", "0.2")
        assert (code, "evicted p7: certificate " in out) == (0, True), err
        assert "not told yet: broker mqtts://127.0.0.1:1: connection refused" in err
        assert Identity.load(tmp_path / "f" / "operator").evictions.number == 2


def test_who_was_let_in_by_a_clock_that_was_ahead_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = time.time()
    with monkeypatch.context() as ahead:
        ahead.setattr("time.time", lambda: right + 400 * 86400)
        assert run("fleet", "init", "greenhouse", "--broker", "127.0.0.1:1", "--home", "f")[0] == 0
        assert {each["state"] for each in run.json("fleet", "list", "--home", "f")["members"]} == {"member"}
    members = run.json("fleet", "list", "--home", "f")["members"]
    assert {each["state"] for each in members} == {"dated ahead, as this machine's clock was"}


def test_the_rules_for_mosquitto_are_those_of_the_embedded_broker(founded: Run, tmp_path: Path) -> None:
    def rules() -> list[str]:
        lines = (tmp_path / "f" / "broker" / "mosquitto.acl").read_text().splitlines()
        return [line for line in lines if line[0] != "#"]

    me = Identity.load(tmp_path / "f" / "operator").holder.id
    assert rules() == patterns("greenhouse", [me])
    assert founded("fleet", "operator", "add", "zoe", "--home", "f")[0] == 0
    assert rules() == patterns("greenhouse", [me, "zoe"])
    assert rules()[-4:] == [
        "user @zoe",
        *(f"topic write edgepeer/v1/greenhouse/{what}" for what in ("peer/+", "links/+", "report/+/+")),
    ]


def test_rotation_says_who_is_late(founded: Run) -> None:
    code, out, err = founded("fleet", "rotate-ca", "--home", "f", "--timeout", "0.2")
    assert (code, "a new authority issues certificates" in out, "not told yet" in err) == (0, True, True)
    # The members of this machine have renewed at once.
    assert {each["state"] for each in founded.json("fleet", "list", "--home", "f")["members"]} == {"member"}
    code, out, err = founded("fleet", "rotate-ca", "--home", "f", "--finish", "--timeout", "0.2")
    assert (code, out) == (1, "")
    assert "connection refused; is a broker running there?; a job may be announced there under the old auth" in err
    code, out, _ = founded("fleet", "rotate-ca", "--home", "f", "--finish", "--force", "--timeout", "0.2")
    assert (code, "the old authority counts no more" in out) == (0, True)


def test_who_is_a_member_already(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Fleet(tmp_path / "g")
    other.directory("p1")
    code, _, err = run("join", "127.0.0.1:1", STRING, "--dir", "g/p1")
    assert (code, "is peer p1 of greenhouse, another fleet than the join string is for, or" in err) == (
        2,
        True,
    )
    string = JoinString.fresh(other.founder.authorities[0]).text()
    for line in (string, f"edgepeer join 127.0.0.1:1 {string}"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{line}\n"))
        code, out, _ = run("join", "127.0.0.1:1", "--stdin", "--dir", "g/p1")
        assert (code, out.splitlines()[0]) == (0, f"already in greenhouse as peer p1: {tmp_path}/g/p1")
    assert out.splitlines()[1] == f"next: edgepeer peer --listen 0.0.0.0:7700 --fleet {tmp_path}/g/p1"
    (tmp_path / "state").mkdir()
    (tmp_path / "g/p1").rename(tmp_path / "state/fleet")
    out = run("join", "127.0.0.1:1", string, "--dir", "state/fleet")[1]
    assert out.splitlines()[1] == f"next: edgepeer peer --listen 0.0.0.0:7700 --state-dir {tmp_path}/state"
    (tmp_path / "state/fleet").rename(tmp_path / "g/p1")
    fields = run.json("join", "127.0.0.1:1", string, "--dir", "g/p1")
    assert (fields["changed"], fields["id"]) == (False, "p1")


def test_a_fleet_that_was_founded_in_part_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise TrustError("f/fleet.db: database or disk is full; nothing was changed")

    asked = ("fleet", "init", "greenhouse", "--broker", "mqtts://h", "--home", "f")
    with monkeypatch.context() as patched:
        patched.setattr(Household, "settle", full)
        code, out, err = run(*asked)
    assert (code, out) == (1, "")
    assert err.endswith("nothing was changed; the fleet is founded: the same command again makes what is missing\n")
    assert run(*asked)[0] == 0


def test_members_beside_the_authority_outlive_their_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The hub was off for longer than they counted: whom the authority lives with need not join again."""
    home = tmp_path / "f"
    with contextlib.closing(
        Registrar.found(home, "greenhouse", broker=("mqtts://127.0.0.1:1",), service="127.0.0.1:1", lifetime_s=1000)
    ) as registrar:
        household = Household(registrar, home)
        household.settle("bob")
        before = Identity.load(household.operator)
        later = time.time() + 2000
        monkeypatch.setattr(time, "time", lambda: later)
        with pytest.raises(Expired, match="has expired on"):
            Identity.load(household.operator)
        registrar.rotate()
        assert [each.holder.id for each in household.update()] == ["broker", "bob"]
        after = Identity.load(household.operator)
        assert after.ends == pytest.approx(later + 1000, abs=1)
        assert (after.holder.id, after.authority.der) == ("bob", registrar.authorities[-1])
        assert after.holder.serial > before.holder.serial
        registrar.evict("@bob")
        later += 2000
        assert [each.holder.id for each in household.update()] == ["broker"]
        assert "operator bob of greenhouse was evicted" in caplog.text


@pytest.mark.parametrize(("verb", "who"), [("broker", "broker"), ("status", "operator")])
def test_who_starts_when_its_certificate_is_over_is_to_be_started_again(
    verb: str, who: str, founded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub was off for so long, and `edgepeer fleet serve` has not renewed it yet; or the clock is still to be set.
    systemd does not try again where a setting is wrong."""
    directory = Path("f") / who
    ends = Identity.load(directory).ends
    monkeypatch.setattr(time, "time", lambda: ends + 86400)
    code, _, err = founded(verb, "--fleet", directory)
    assert (code, f"{directory}/certificate.pem: certificate" in err, "has expired on" in err) == (1, True, True), err
    (directory / "authorities.pem").write_bytes(b"")  # which does not pass
    assert founded(verb, "--fleet", directory)[0] == 2


async def test_who_is_evicted_by_a_copy_of_before_is_out_all_the_same(tmp_path: Path) -> None:
    """The hub's card is lost, and its backup put back: the fleet has heard of more lists than that knows of."""
    port = free_port()
    home, copy = tmp_path / "f", tmp_path / "copy"
    founded = Registrar.found(home, "greenhouse", broker=(f"mqtts://127.0.0.1:{port}",), service="127.0.0.1:1")
    with contextlib.closing(founded) as registrar:
        Household(registrar, home).settle("bob")
        for name in ("p1", "p2", "p3"):
            registrar.admit(Role.PEER, name, make_key().public_key())
        shutil.copytree(home, copy)
        registrar.evict("p1")
        listed = registrar.evictions
    shutil.rmtree(home)
    copy.rename(home)
    (there := Identity.load(home / "broker")).evictions.accept(listed)
    (home / "broker" / "evictions").write_bytes((home / "operator" / "evictions").read_bytes())  # it runs elsewhere
    with contextlib.closing(Registrar.open(home)) as registrar:
        household = Household(registrar, home)
        async with EmbeddedBroker(port=port, identity=there):
            ((p3,), _) = registrar.evict("p3")
            assert await bring(household, household.update(), 30) is None
        assert p3.serial in there.evictions.serials
        assert len(there.evictions.serials) == 2
        assert [each.holder.id for each in registrar.members() if each.evicted] == ["p1", "p3"]


async def test_a_broken_disk_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a service that is left alone with one fills another."""
    looks, enough = 0, asyncio.Event()
    loop = asyncio.get_running_loop()

    class Watched(Registrar):
        @property
        def evictions(self) -> bytes:
            nonlocal looks
            looks += 1
            if looks == 5:
                loop.call_soon_threadsafe(enough.set)
            return super().evictions

    registrar = Watched.found(tmp_path / "f", "greenhouse", broker=("mqtts://127.0.0.1:1",), service="127.0.0.1:1")
    (tmp_path / "f" / "fleet.db").write_bytes(b"x" * 9000)
    monkeypatch.setattr(serving, "_HOUSEKEEPING_S", 0.0)
    house = asyncio.create_task(serving._keep_house(registrar, Household(registrar, tmp_path / "f")))
    try:
        async with asyncio.timeout(90):
            await enough.wait()
    finally:
        house.cancel()
        await asyncio.gather(house, return_exceptions=True)
        registrar.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "fleet.db: file is not a database" in line


async def test_a_directory_that_can_t_be_looked_into_is_not_the_end_of_who_lets_devices_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of what somebody has made there as root, and the service is another user's."""
    port = free_port()
    home = tmp_path / "f"
    founded = Registrar.found(home, "greenhouse", broker=(f"mqtts://127.0.0.1:{port}",), service="127.0.0.1:1")
    with contextlib.closing(founded) as registrar:
        household = Household(registrar, home)
        household.settle("bob")
        registrar.admit(Role.PEER, "p7", make_key().public_key())
        ((p7,), _) = registrar.evict("p7")
        there = Identity.load(home / "broker")
        told = asyncio.Event()
        there.on_change(told.set)

        def look(directory: Path) -> bool:
            if directory == home / "broker":
                raise PermissionError(errno.EACCES, "Permission denied")
            return is_joined(directory)

        monkeypatch.setattr("edgepeer.enrol.household.is_joined", look)
        async with EmbeddedBroker(port=port, identity=there):
            await keep_house(registrar, household, until=told)
        assert p7.serial in there.evictions.serials
    assert f"{home}/broker: can't read or write there: permission denied: let who looks after the fleet" in caplog.text


async def keep_house(registrar: Registrar, household: Household, *, until: asyncio.Event) -> None:
    house = asyncio.create_task(serving._keep_house(registrar, household))
    try:
        async with asyncio.timeout(30):
            await until.wait()
    finally:
        house.cancel()
        await asyncio.gather(house, return_exceptions=True)
        registrar.close()


async def test_what_is_not_told_yet_is_told_soon_after_a_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And not an hour later, as what is looked at now and then: somebody may have been evicted."""
    registrar = Registrar.found(tmp_path / "f", "greenhouse", broker=("mqtts://127.0.0.1:1",), service="127.0.0.1:1")
    household = Household(registrar, tmp_path / "f")
    times, told = 0, asyncio.Event()

    def update() -> list[Identity]:
        nonlocal times
        times += 1
        if times == 1:
            raise TrustError("fleet.db: database or disk is full")
        return []

    async def say(*_: object) -> None:
        told.set()

    monkeypatch.setattr(household, "update", update)
    monkeypatch.setattr(serving, "bring", say)
    monkeypatch.setattr(serving, "_HOUSEKEEPING_S", 0.001)
    await keep_house(registrar, household, until=told)
    assert (times, "database or disk is full" in caplog.text) == (2, True)


async def test_what_is_not_told_yet_is_told_soon_after_the_authority_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a person puts its copy back: to look for it costs nothing, so it is no reason to wait longer."""
    registrar = Registrar.found(tmp_path / "f", "greenhouse", broker=("mqtts://127.0.0.1:1",), service="127.0.0.1:1")
    household, path = Household(registrar, tmp_path / "f"), tmp_path / "f" / "fleet.db"
    looks, told, told_again = 0, asyncio.Event(), asyncio.Event()

    def look() -> bytes:
        nonlocal looks
        looks += told.is_set()
        if 0 < looks <= 25:
            raise TrustError(f"{path}: can't find it any more")
        return b"a list"

    async def say(*_: object) -> str | None:
        if told.is_set():
            told_again.set()
            return None
        told.set()
        return "connection refused"

    monkeypatch.setattr(Registrar, "evictions", property(lambda _: look()))
    monkeypatch.setattr(household, "update", list[Identity])
    monkeypatch.setattr(serving, "bring", say)
    monkeypatch.setattr(serving, "_HOUSEKEEPING_S", 0.001)
    await keep_house(registrar, household, until=told_again)
    assert looks > 25


async def test_a_mistake_of_ours_is_not_the_end_of_who_lets_devices_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registrar = Registrar.found(tmp_path / "f", "greenhouse", broker=("mqtts://127.0.0.1:1",), service="127.0.0.1:1")
    household = Household(registrar, tmp_path / "f")
    times, again, loop = 0, asyncio.Event(), asyncio.get_running_loop()

    def update() -> list[Identity]:
        nonlocal times
        times += 1
        if times > 1:
            loop.call_soon_threadsafe(again.set)
        raise RuntimeError("what nobody has thought of")

    monkeypatch.setattr(household, "update", update)
    monkeypatch.setattr(serving, "_HOUSEKEEPING_S", 0.0)
    monkeypatch.setattr(serving, "_HOUR_S", 0.0)
    await keep_house(registrar, household, until=again)
    (line,) = caplog.records
    assert (line.getMessage(), line.exc_info is not None) == ("what nobody has thought of", True)


def test_times() -> None:
    assert [seconds(text) for text in ("90s", "30m", "24h", "7d")] == [90, 1800, 86400, 604800]

"""What the registrar promises: whom it lets in, by what name, how often; and that nothing is done by halves."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from edgepeer.enrol.guesses import Guesses, source_of
from edgepeer.enrol.messages import Granted
from edgepeer.enrol.registrar import Registrar
from edgepeer.enrol.strings import JoinString, fingerprint
from edgepeer.errors import ConfigError, EdgepeerError, TrustError
from edgepeer.trust import clock
from edgepeer.trust.certificates import Authority, check, make_key, request
from edgepeer.trust.evictions import Evictions, Listed
from edgepeer.trust.names import Role

YEAR = 365 * 86400.0


@pytest.fixture
def registrar(tmp_path: Path) -> Iterator[Registrar]:
    found = Registrar.found(tmp_path / "home", "greenhouse", broker=("mqtts://b:8883",), service="b:7701")
    yield found
    found.close()


def enrol(
    registrar: Registrar,
    string: JoinString,
    name: str = "pi",
    *,
    exact: bool = False,
    key: ec.EllipticCurvePrivateKey | None = None,
) -> Granted:
    granted = registrar.enrol(string.token, string.secret, request(key or make_key()), name, exact=exact)
    assert granted is not None
    return granted


def refusal(registrar: Registrar, string: JoinString, name: str = "pi", **how: object) -> str:
    with pytest.raises(EdgepeerError) as caught:
        enrol(registrar, string, name, **how)  # type: ignore[arg-type]
    assert str(caught.value).isprintable()
    assert string.secret.hex() not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def time_at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [clock.time.time()]
    monkeypatch.setattr(clock.time, "time", lambda: now[0])
    return now


def test_a_join_string_is_63_characters(registrar: Registrar) -> None:
    string = registrar.token()
    text = string.text()
    assert len(text) == 63
    assert text.startswith("epj1-")
    assert JoinString.parse(f"  {text.upper()}\n") == string
    assert string.authority == fingerprint(registrar.authorities[0])
    assert string.secret.hex() not in repr(string)
    for wrong in ("", "epj1-", text[:-1], text + "a", "epj2" + text[4:], text[:-1] + "1", text[:-1] + "ß"):
        with pytest.raises(ConfigError) as caught:
            JoinString.parse(wrong)
        assert not wrong[20:] or wrong[20:] not in str(caught.value)


def test_a_token_lets_one_device_in(registrar: Registrar) -> None:
    string, key = registrar.token(), make_key()
    granted = enrol(registrar, string, key=key)
    checked = check(granted.certificate, [Authority.read(each) for each in granted.authorities])
    assert (checked.holder.role, checked.holder.id) == (Role.PEER, "pi")
    assert (granted.where.broker, granted.where.service, granted.where.fabric) == (
        ("mqtts://b:8883",),
        "b:7701",
        "greenhouse",
    )
    assert abs(checked.ends - clock.time.time() - YEAR) < 60
    # Its answer may have been lost: the same key gets the same again. Another device doesn't.
    assert enrol(registrar, string, "other", key=key) == granted
    said = refusal(registrar, string)
    assert said.startswith(f"token {string.token.hex()} is used up, by pi: make another with `edgepeer fleet token`")
    assert [(each.holder.id, each.token) for each in registrar.members()] == [("pi", string.token.hex())]
    assert registrar.tokens() == []


def test_a_token_for_several(registrar: Registrar) -> None:
    string = registrar.token(uses=3)
    names = [enrol(registrar, string, "raspberrypi").where.id for _ in range(2)]
    assert names == ["raspberrypi", "raspberrypi-2"]
    assert registrar.tokens()[0].left == 1
    assert "another device is peer raspberrypi of greenhouse since 20" in refusal(
        registrar, string, "raspberrypi", exact=True
    )
    enrol(registrar, string, "p9", exact=True)
    assert "used up, by " in refusal(registrar, string)


def test_a_token_for_a_name(registrar: Registrar) -> None:
    string = registrar.token(name="p7")
    assert "the token is for p7, but this device is p8 already" in refusal(registrar, string, "p8", exact=True)
    assert enrol(registrar, string, "p8").where.id == "p7"
    with pytest.raises(TrustError, match=r"another device is peer p7 of greenhouse since .* `edgepeer fleet evict p7`"):
        registrar.token(name="p7")
    registrar.evict("p7")
    assert enrol(registrar, registrar.token(name="p7")).where.id == "p7"
    with pytest.raises(ConfigError, match="only one device can be p8"):
        registrar.token(name="p8", uses=2)


@pytest.mark.parametrize("name", ["../x", "..", "a/b", "@alice", "", "a" * 64, "a\0b", "a b", "viewer:a", "ä", "p7\n"])
def test_names_that_can_not_be(registrar: Registrar, name: str) -> None:
    string = registrar.token()
    assert "allowed are 1 to 63 letters" in refusal(registrar, string, name)
    with pytest.raises(ConfigError, match="allowed are"):
        registrar.token(name=name)
    assert enrol(registrar, string).where.id == "pi"


def test_operators_are_let_in_as_such_and_have_names_of_their_own(registrar: Registrar) -> None:
    for role in (Role.OPERATOR, Role.VIEWER):
        granted = enrol(registrar, registrar.token(role=role, name="pi"))
        assert check(granted.certificate, [Authority.read(registrar.authorities[0])]).holder.role is role
    enrol(registrar, registrar.token(), "pi", exact=True)
    assert [each.holder.common_name for each in registrar.members()] == ["@pi", "pi", "viewer:pi"]


def test_expired_tokens(registrar: Registrar, time_at: list[float]) -> None:
    string, key = registrar.token(ttl_s=60, uses=2), make_key()
    enrol(registrar, string, key=key)
    time_at[0] += 61
    for again in (key, make_key()):
        assert f"token {string.token.hex()} has expired at 20" in refusal(registrar, string, key=again)


def test_wrong_secrets(registrar: Registrar) -> None:
    string = registrar.token()
    asked = request(make_key())
    assert registrar.enrol(string.token, bytes(16), asked, "pi", exact=False) is None
    assert registrar.enrol(bytes(4), string.secret, asked, "pi", exact=False) is None
    enrol(registrar, string)


@pytest.mark.parametrize("now", [0.0, 4_102_444_800.0])
def test_without_a_clock_nothing_is_promised(registrar: Registrar, time_at: list[float], now: float) -> None:
    string, certificate = registrar.token(), registrar.admit(Role.BROKER, "b", make_key().public_key()).certificate
    time_at[0] = now
    assert "this machine's clock says " in refusal(registrar, string)
    for attempt in (registrar.token, registrar.rotate, lambda: registrar.renew(certificate)):
        with pytest.raises(TrustError, match="which can't be: set it"):
            attempt()
    registrar.evict("broker:b")


def test_renewal(registrar: Registrar, time_at: list[float]) -> None:
    key = make_key()
    first = enrol(registrar, registrar.token(), key=key).certificate
    time_at[0] += YEAR * 0.7
    second = registrar.renew(first)
    assert second.certificate != first
    assert registrar.renew(first) == second
    assert registrar.renew(second.certificate) == second
    trusted = [Authority.read(registrar.authorities[0])]
    old, new = check(first, trusted), check(second.certificate, trusted)
    assert new.holder.serial > old.holder.serial
    assert new.holder.id == "pi"
    time_at[0] += YEAR * 0.5
    with pytest.raises(TrustError, match="has expired on 20"):
        registrar.renew(first)


def test_a_member_that_renews_without_end_has_one_certificate(registrar: Registrar, time_at: list[float]) -> None:
    """Else it could have so many that no list of evictions has room for them, and never be evicted."""
    held = {enrol(registrar, registrar.token()).certificate}
    for _ in range(5):
        time_at[0] += 60
        held.add(registrar.renew(max(held)).certificate)
    assert len(held) == 1
    assert len(registrar.evict("pi")[0]) == 1


def test_eviction(registrar: Registrar, time_at: list[float]) -> None:
    string, key = registrar.token(uses=5), make_key()
    certificate = enrol(registrar, string, key=key).certificate
    trusted = [Authority.read(registrar.authorities[0])]
    serial = check(certificate, trusted).holder.serial
    before = Listed.read(registrar.evictions, "greenhouse", trusted)
    time_at[0] += YEAR / 2
    renewed = check(registrar.renew(certificate).certificate, trusted).holder.serial
    time_at[0] -= YEAR / 2
    assert renewed != serial
    holders, tokens = registrar.evict("pi")
    assert {holder.serial for holder in holders} == {serial, renewed}
    assert tokens == [string.token.hex()]
    listed = Listed.read(registrar.evictions, "greenhouse", trusted)
    assert (before.number, listed.number, set(listed.out)) == (1, 2, {serial, renewed})
    assert set(listed.out.values()) == {int(time_at[0])}
    when = clock.minute(time_at[0])
    with pytest.raises(
        TrustError, match=f"peer pi of greenhouse was evicted on {when}.*certificate {serial:x}.*join HOST"
    ):
        registrar.renew(certificate)
    ousted = f"peer pi of greenhouse was evicted on {when} (certificate {renewed:x})"
    another = "make another with `edgepeer fleet token`"
    assert refusal(registrar, string, key=key) == f"{ousted}: {another}"
    assert refusal(registrar, string) == f"token {string.token.hex()} was closed when {ousted}: {another}"
    with pytest.raises(ConfigError, match="nobody is called pie; members are "):
        registrar.evict("pie")
    signed = registrar.evictions
    again, tokens = registrar.evict("pi")  # whoever was cut short before the fleet was told
    assert ({holder.serial for holder in again}, tokens, registrar.evictions) == ({serial, renewed}, [], signed)
    back = registrar.token(name="pi")
    assert (registrar.evict("pi")[1], registrar.evictions) == ([back.token.hex()], signed)
    assert refusal(registrar, back) == f"token {back.token.hex()} was taken back: {another}"
    assert [each.evicted for each in registrar.members()] == [True]


def test_a_token_that_waits_for_who_is_evicted_lets_nobody_in(registrar: Registrar) -> None:
    """Two were made for bob, who came with one of them, and has left."""
    first, second = (registrar.token(role=Role.OPERATOR, name="bob") for _ in range(2))
    viewer = registrar.token(role=Role.VIEWER, name="bob")
    enrol(registrar, first)
    assert registrar.evict("@bob")[1] == [second.token.hex()]
    another = "make another with `edgepeer fleet operator add NAME`"
    assert refusal(registrar, second) == f"token {second.token.hex()} was taken back: {another}"
    assert refusal(registrar, first).partition(": ")[2].startswith(another)
    assert enrol(registrar, viewer).where.role == Role.VIEWER
    assert enrol(registrar, registrar.token(role=Role.OPERATOR, name="bob")).where.id == "bob"


def test_a_token_is_taken_back(registrar: Registrar) -> None:
    string, key = registrar.token(uses=5), make_key()
    granted = enrol(registrar, string, key=key)
    gone = registrar.withdraw(string.token.hex())
    assert (gone.left, registrar.tokens()) == (4, [])
    assert refusal(registrar, string).startswith(f"token {string.token.hex()} was taken back: ")
    assert enrol(registrar, string, key=key).certificate == granted.certificate  # whose answer was lost is in
    assert [each.token for each in registrar.members()] == [string.token.hex()]
    with pytest.raises(ConfigError, match=f"no token {string.token.hex()} lets anybody in$"):
        registrar.withdraw(string.token.hex())


def test_who_is_an_operator_or_is_to_be_one(registrar: Registrar) -> None:
    registrar.token(role=Role.VIEWER, name="victor")
    enrol(registrar, registrar.token(), "p1")
    string = registrar.token(role=Role.OPERATOR, name="bob")
    registrar.token(role=Role.OPERATOR, name="zoe")
    assert registrar.operators() == ["bob", "zoe"]
    enrol(registrar, string)
    assert registrar.operators() == ["bob", "zoe"]
    registrar.evict("@bob")
    assert registrar.operators() == ["zoe"]


def test_who_was_evicted_before_it_was_kept_when_stays_out(registrar: Registrar, tmp_path: Path) -> None:
    certificate = enrol(registrar, registrar.token()).certificate
    registrar.evict("pi")
    with contextlib.closing(sqlite3.connect(tmp_path / "home" / "fleet.db")) as sql:
        sql.execute("DROP TABLE evictions")
    with contextlib.closing(Registrar.open(tmp_path / "home")) as later:
        assert b"X509 CRL" in later.revocations()
        with pytest.raises(TrustError, match=r"peer pi of greenhouse was evicted \(certificate "):
            later.renew(certificate)
        enrol(later, later.token())
        later.evict("pi")
        listed = Listed.read(later.evictions, "greenhouse", [Authority.read(later.authorities[0])])
        assert sorted(map(bool, listed.out.values())) == [False, True]


def test_a_copy_of_before_that_is_put_back_hears_who_is_out(registrar: Registrar, tmp_path: Path) -> None:
    """Else its next lists have numbers that the fleet has had, and who is evicted by them stays in."""
    home, before = tmp_path / "home" / "fleet.db", tmp_path / "copy"
    p1, p2 = (enrol(registrar, registrar.token(), name).certificate for name in ("p1", "p2"))
    registrar.evict("p1")
    before.write_bytes(home.read_bytes())
    enrol(registrar, registrar.token(), "p3")
    for gone in ("p2", "p3"):
        registrar.evict(gone)
    trusted = [Authority.read(registrar.authorities[0])]
    device = Evictions("greenhouse", Listed.read(registrar.evictions, "greenhouse", trusted), lambda _: None)
    registrar.close()
    home.write_bytes(before.read_bytes())
    with contextlib.closing(Registrar.open(tmp_path / "home")) as again:
        for name in ("p4", "p5"):
            enrol(again, again.token(), name)
            again.evict(name)
        assert not device.accept(again.evictions)  # it has heard of as many
        assert again.hear(device.signed)
        assert device.accept(again.evictions)
        assert len(device.serials) == 5
        assert set(Listed.read(again.evictions, "greenhouse", trusted).out) == set(device.serials)
        for evicted in (p1, p2):
            with pytest.raises(TrustError, match="was evicted on"):
                again.renew(evicted)
        assert [each.holder.id for each in again.members() if not each.evicted] == []
        # It knows all that now, and older ones say nothing new.
        signed = again.evictions
        assert not again.hear(signed)
        enrol(again, again.token(), "p6")
        again.evict("p6")
        assert not again.hear(signed)
        assert not any(map(again.hear, (b"nonsense", b"")))


def test_others_certificates_are_not_renewed(registrar: Registrar, tmp_path: Path) -> None:
    other = Registrar.found(tmp_path / "other", "greenhouse", broker=("mqtts://b",), service="b:7701")
    stranger = enrol(other, other.token()).certificate
    other.close()
    with pytest.raises(TrustError, match="issued by no authority of this fleet"):
        registrar.renew(stranger)
    with pytest.raises(TrustError, match="malformed"):
        registrar.renew(b"nonsense")


def test_rotation(registrar: Registrar) -> None:
    certificate = enrol(registrar, registrar.token()).certificate
    (old,) = registrar.authorities
    with pytest.raises(ConfigError, match="no rotation is under way"):
        registrar.finish()
    registrar.rotate()
    with pytest.raises(ConfigError, match="a rotation is under way"):
        registrar.rotate()
    both = Listed.read(registrar.evictions, "greenhouse", [Authority.read(old)])
    assert [each.der for each in both.authorities] == list(registrar.authorities)
    with pytest.raises(ConfigError, match=r"1 members have no certificate of the new authority yet \(pi\)"):
        registrar.finish()
    granted = registrar.renew(certificate)
    assert registrar.renew(certificate) == granted
    new = Authority.read(registrar.authorities[1])
    check(granted.certificate, [new])
    assert registrar.finish() == ([], [])
    assert registrar.authorities == (new.der,)
    last = Listed.read(registrar.evictions, "greenhouse", [Authority.read(old)])
    assert last == Listed.read(registrar.evictions, "greenhouse", [new])
    with pytest.raises(TrustError, match="no authority of this fleet"):
        registrar.renew(certificate)
    registrar.rotate()
    assert registrar.finish(force=True) == (["pi"], [])


def test_tokens_of_the_old_authority_end_with_it(registrar: Registrar) -> None:
    """In their strings it is what their devices are to look for."""
    used, before = registrar.token(), registrar.token(uses=3)
    enrol(registrar, used)
    registrar.rotate()
    since = registrar.token()
    assert {each.id for each in registrar.tokens()} == {before.token.hex(), since.token.hex()}
    assert registrar.finish(force=True) == (["pi"], [before.token.hex()])
    assert [each.id for each in registrar.tokens()] == [since.token.hex()]
    registrar.rotate()
    assert registrar.finish(force=True) == (["pi"], [since.token.hex()])


def test_all_is_there_after_a_restart(registrar: Registrar, tmp_path: Path) -> None:
    string = registrar.token(uses=2)
    granted = enrol(registrar, string, key=(key := make_key()))
    registrar.close()
    again = Registrar.open(tmp_path / "home")
    assert enrol(again, string, key=key) == granted
    assert again.tokens()[0].left == 1
    again.close()
    same = Registrar.found(tmp_path / "home", "greenhouse", broker=("mqtts://b:8883",), service="b:7701")
    assert len(same.members()) == 1
    same.close()
    with pytest.raises(
        ConfigError,
        match="fleet greenhouse lives there, with broker mqtts://b:8883, service b:7701 and a lifetime of 365 days",
    ):
        Registrar.found(tmp_path / "home", "orchard", broker=("mqtts://b:8883",), service="b:7701")


def test_whoever_asks_after_a_move_hears_of_it(registrar: Registrar, tmp_path: Path) -> None:
    """Also from a process that was open before, as the service's is."""
    other = Registrar.open(tmp_path / "home")
    try:
        assert other.move(broker=("mqtts://c", "mqtts://d"), service="e:1")
        assert not other.move(broker=("mqtts://c", "mqtts://d"), service="e:1")
    finally:
        other.close()
    assert (registrar.broker, registrar.service) == (("mqtts://c", "mqtts://d"), "e:1")
    granted = registrar.admit(Role.PEER, "p1", make_key().public_key())
    for where in (granted.where, registrar.renew(granted.certificate).where, registrar.where(Role.PEER, "p1")):
        assert (where.fabric, where.id, where.broker, where.service) == (
            *("greenhouse", "p1"),
            *(("mqtts://c", "mqtts://d"), "e:1"),
        )


def test_files_that_are_no_fleets(registrar: Registrar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="there is no fleet here"):
        Registrar.open(tmp_path / "nowhere")
    home = tmp_path / "home"
    (home / "fleet.db").chmod(0o640)
    with pytest.raises(ConfigError, match=r"others can read the fleet's key \(mode 640\): chmod 600"):
        Registrar.open(home)
    (home / "fleet.db").chmod(0o600)
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda *_: False)
        with pytest.raises(ConfigError, match=r"fleet.db: can't open it: permission denied; start as the user whose "):
            Registrar.open(home)
    (home / "fleet.db").write_bytes(b"x" * 9000)
    with pytest.raises(TrustError, match="not a database"):
        Registrar.open(home)
    (home / "fleet.db").write_bytes(b"")
    with pytest.raises(ConfigError, match="holds no fleet: if the fleet was here, put its copy back; else `edgepeer"):
        Registrar.open(home)


@pytest.mark.parametrize("moved", [True, False], ids=["renamed over it", "written into it"])
def test_a_copy_that_is_put_back_under_an_open_registrar_is_what_counts(
    registrar: Registrar, tmp_path: Path, moved: bool
) -> None:
    """A person does so while `edgepeer fleet serve` runs; SQLite would write what it remembers of the one before."""
    home = tmp_path / "home"
    kept = (home / "fleet.db").read_bytes()
    with contextlib.closing(Registrar.open(home)) as serving:
        enrol(serving, serving.token(), "p1")
        if moved:
            (tmp_path / "copy").write_bytes(kept)
            (tmp_path / "copy").chmod(0o600)
            (tmp_path / "copy").replace(home / "fleet.db")
        else:
            (home / "fleet.db").write_bytes(kept)
        assert serving.members() == []
        enrol(serving, serving.token(), "p2")
        with contextlib.closing(Registrar.open(home)) as other:
            assert [each.holder.id for each in other.members()] == ["p2"]


def test_a_file_that_is_lost_under_an_open_registrar_is_not_made_anew(registrar: Registrar, tmp_path: Path) -> None:
    path = tmp_path / "home" / "fleet.db"
    kept = path.read_bytes()
    with contextlib.closing(Registrar.open(tmp_path / "home")) as serving:
        path.write_bytes(b"")
        for ask in (serving.members, serving.token, serving.revocations, lambda: serving.evict("p1")):
            with pytest.raises(TrustError, match=r"fleet\.db: holds no fleet any more: if the fleet was here, put its"):
                ask()
        assert path.read_bytes() == b""
        path.unlink()
        for ask in (serving.members, serving.token):
            with pytest.raises(
                TrustError, match=r"fleet\.db: can't find it any more: no such file .* put its copy back"
            ):
                ask()
        assert not path.exists()
        path.write_bytes(kept)
        path.chmod(0o600)
        enrol(serving, serving.token())


def test_a_full_disk_leaves_all_as_it_was(registrar: Registrar) -> None:
    string = registrar.token()
    with registrar._database.look() as sql:
        (pages,) = sql.execute("PRAGMA page_count").fetchone()
    registrar._database._sql.execute(f"PRAGMA max_page_count = {pages}")
    failed = 0
    for _ in range(200):
        try:
            registrar.token()
        except TrustError:
            failed += 1
    assert failed > 100
    with pytest.raises(TrustError, match=r"fleet.db: database or disk is full; nothing was changed"):
        registrar.token()
    registrar._database._sql.execute(f"PRAGMA max_page_count = {pages + 100}")
    assert enrol(registrar, string).where.id == "pi"


def test_a_secret_is_kept_nowhere(registrar: Registrar, tmp_path: Path) -> None:
    string = registrar.token()
    enrol(registrar, string)
    for path in (tmp_path / "home").iterdir():
        assert string.secret not in path.read_bytes()
    connection = sqlite3.connect(tmp_path / "home" / "fleet.db")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        connection.close()


def test_guesses_are_bounded_by_address() -> None:
    guesses, allowed = Guesses(), 0
    for number in range(100_000):
        now = number * 0.001  # for 100 s
        if guesses.allowed("a", now):
            allowed += 1
            guesses.wrong("a", now)
    assert allowed == 10 + 19
    assert guesses.allowed("b", 100)
    for number in range(100_000):
        guesses.wrong(str(number), 100)
    assert len(guesses._left) == 1024
    assert guesses.allowed("a", 300)


def test_addresses_of_one_source() -> None:
    assert source_of("192.168.1.7") == source_of("::ffff:192.168.1.7") == "192.168.1.7"
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:2%eth0") == "2001:db8::/64"
    assert source_of("?") == "?"

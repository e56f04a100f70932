"""Cuts as nftables rules: each drops all IPv4 packets from one address to another, and counts them. And the same for
some of the packets by chance, and for those that begin a TCP connection.

Speaks to the kernel itself, for the `nft` program is on few machines; where it is, `nft list ruleset` in the network's
namespace shows the rules.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

__all__ = ["Drop", "Firewall"]

_TABLE: Final = "edgepeer"
_CHAIN: Final = "cuts"
_LOSSES: Final = "losses"
_DOORS: Final = "doors"
_TAKEN: Final = "taken"
_FAMILIES: Final = {"ip": 2, "bridge": 7}
_HOOKS: Final = {"ip": ("input",), "bridge": ("forward", "input", "output")}
_PRIORITY: Final = -200
"""Early: where a bridge's packets are shown to the machine's IP firewall too, that takes them away at 0."""
_ACCEPT: Final = 1
_DROP: Final = 0
_JUMP: Final = -3
_META_PROTOCOL: Final = 1
_META_INPUT_NAME: Final = 6
_NAME_BYTES: Final = 16
_NETWORK_HEADER: Final = 1
_TRANSPORT_HEADER: Final = 2
_ETHERTYPE_IPV4: Final = b"\x08\x00"
_SOURCE_OFFSET: Final = 12
_TARGET_OFFSET: Final = 16
_ADDRESS_BYTES: Final = 4
_PROTOCOL_OFFSET: Final = 9
_TCP: Final = b"\x06"
_FLAGS_OFFSET: Final = 13
_SYN: Final = b"\x02"
_SYN_ACK: Final = b"\x12"
_LESS: Final = 2
_RANDOM: Final = 1
_TO_NETWORK: Final = 1
_PARTS: Final = 100_000
"""How finely a chance is given."""


class Drop(NamedTuple):
    """From where nothing gets to where. An empty address stands for any."""

    source: str
    target: str


class Firewall:
    """The cuts of the namespace that this process is in.

    Args:
        family: bridge for what passes a bridge or ends at it, ip for what ends here, from itself too.

    Raises:
        OSError: the kernel has no such firewall.
    """

    def __init__(self, family: Literal["ip", "bridge"]) -> None:
        from pyroute2.nftables.main import NFTables

        self._nft: Any = NFTables(nfgen_family=_FAMILIES[family])
        self._made: set[Drop] = set()
        self._nft.table("add", name=_TABLE)
        for chain in (_CHAIN, _DOORS, _LOSSES):
            self._nft.chain("add", table=_TABLE, name=chain)
        if family == "bridge":
            self._add_hook(_TAKEN, "prerouting")
        for hook in _HOOKS[family]:
            self._add_hook(hook, hook)
            for chain in (_CHAIN, _DOORS, _LOSSES):
                jump = [_verdict(_JUMP, NFTA_VERDICT_CHAIN=chain)]
                self._nft.rule("add", table=_TABLE, chain=hook, expressions=[jump])

    def add(self, cuts: Iterable[Drop]) -> None:
        """Drop these from now on, if that is not so already."""
        for cut in cuts:
            if cut in self._made:
                continue
            self._drop(_CHAIN, cut)
            self._made.add(cut)

    def remove(self, cuts: Iterable[Drop]) -> dict[Drop, int]:
        """Drop these no longer. Returns: how many packets each has dropped, of those that the kernel had in force."""
        wanted, dropped = set(cuts), {}
        for rule in self._rules(_CHAIN):
            cut, packets = _read_cut(rule)
            if cut in wanted:
                self._delete(_CHAIN, rule)
                dropped[cut] = packets
        self._made -= wanted
        return dropped

    def cuts(self) -> dict[Drop, int]:
        """The cuts that the kernel has in force, with the packets that each has dropped."""
        return dict(map(_read_cut, self._rules(_CHAIN)))

    def lose(self, some: Drop, part: float) -> None:
        """From now on drop these by chance, so large a part of them: 0 for none."""
        for rule in self._rules(_LOSSES):
            if _read_cut(rule)[0] == some:
                self._delete(_LOSSES, rule)
        if part:
            self._drop(_LOSSES, some, *_chance(part))

    def losses(self) -> dict[Drop, int]:
        """What is dropped by chance, with the packets that were, since `lose` was last called."""
        return dict(map(_read_cut, self._rules(_LOSSES)))

    def shut(self, target: str) -> None:
        """From now on drop what would begin a TCP connection to that address. Not twice."""
        rule = [
            _load("payload", base=_NETWORK_HEADER, offset=_PROTOCOL_OFFSET, len=1),
            _equals(_TCP),
            _load("payload", base=_TRANSPORT_HEADER, offset=_FLAGS_OFFSET, len=1),
            _expression("bitwise", sreg=1, dreg=1, len=1, mask=_value(_SYN_ACK), xor=_value(b"\0")),
            _equals(_SYN),
        ]
        self._drop(_DOORS, Drop("", target), *rule)

    def knocks(self) -> dict[Drop, int]:
        """To where connections may not be begun, with the packets that were dropped."""
        return dict(map(_read_cut, self._rules(_DOORS)))

    def take(self, device: str) -> None:
        """Keep the bridge from seeing what comes in by that port: somebody else looks after it. Not twice."""
        rule = [_load("meta", key=_META_INPUT_NAME), _equals(_device_name(device)), _verdict(_DROP)]
        self._nft.rule("add", table=_TABLE, chain=_TAKEN, expressions=[rule])

    def give_back(self, device: str) -> None:
        """Undo `take`."""
        for rule in self._rules(_TAKEN):
            if _device_name(device) in map(_compared, _expressions(rule)):
                self._delete(_TAKEN, rule)

    def _add_hook(self, chain: str, hook: str) -> None:
        self._nft.chain("add", table=_TABLE, name=chain, hook=hook, type="filter", priority=_PRIORITY, policy=_ACCEPT)

    def _drop(self, chain: str, some: Drop, *conditions: Any) -> None:
        """Drop what goes from one address to another, and meets the conditions; these come before the addresses, by
        which a rule is known again."""
        rule = [_load("meta", key=_META_PROTOCOL), _equals(_ETHERTYPE_IPV4), *conditions]
        for address, offset in ((some.source, _SOURCE_OFFSET), (some.target, _TARGET_OFFSET)):
            if address:
                rule.append(_load("payload", base=_NETWORK_HEADER, offset=offset, len=_ADDRESS_BYTES))
                rule.append(_equals(socket.inet_aton(address)))
        rule += [_expression("counter", bytes=0, packets=0), _verdict(_DROP)]
        self._nft.rule("add", table=_TABLE, chain=chain, expressions=[rule])

    def _delete(self, chain: str, rule: Any) -> None:
        self._nft.rule("del", table=_TABLE, chain=chain, handle=rule.get_attr("NFTA_RULE_HANDLE"))

    def _rules(self, chain: str) -> list[Any]:
        """The rules that the kernel has in a chain. They are decoded where they are read."""
        return [rule for rule in self._nft.get_rules() if rule.get_attr("NFTA_RULE_CHAIN") == chain]


def _read_cut(rule: Any) -> tuple[Drop, int]:
    """Which cut a rule makes, and how many packets it has dropped."""
    addresses = {_SOURCE_OFFSET: "", _TARGET_OFFSET: ""}
    offset, packets = 0, 0
    for expression in _expressions(rule):
        name, data = expression.get_attr("NFTA_EXPR_NAME"), expression.get_attr("NFTA_EXPR_DATA")
        if name == "payload":
            offset = data.get_attr("NFTA_PAYLOAD_OFFSET")
        elif name == "cmp" and offset in addresses:
            addresses[offset] = socket.inet_ntoa(_compared(expression))
        elif name == "counter":
            packets = data.get_attr("NFTA_COUNTER_PACKETS")
    return Drop(addresses[_SOURCE_OFFSET], addresses[_TARGET_OFFSET]), packets


def _expressions(rule: Any) -> Any:
    return rule.get_attr("NFTA_RULE_EXPRESSIONS")


def _compared(expression: Any) -> bytes:
    """What an expression compares with; empty where it does something else."""
    if expression.get_attr("NFTA_EXPR_NAME") != "cmp":
        return b""
    return bytes(expression.get_attr("NFTA_EXPR_DATA").get_attr("NFTA_CMP_DATA").get_attr("NFTA_DATA_VALUE"))


def _device_name(device: str) -> bytes:
    return device.encode().ljust(_NAME_BYTES, b"\0")


def _expression(kind: str, **fields: object) -> Any:
    from pyroute2.nftables.expressions import genex

    return genex(kind, fields)


def _load(kind: str, **fields: object) -> Any:
    return _expression(kind, dreg=1, **fields)


def _equals(value: bytes) -> Any:
    return _expression("cmp", sreg=1, op=0, data=_value(value))


def _value(value: bytes) -> Any:
    return {"attrs": [("NFTA_DATA_VALUE", value)]}


def _chance(part: float) -> tuple[Any, ...]:
    """True for so large a part of the packets, drawn for each."""
    number = [("NFTA_NG_DREG", 1), ("NFTA_NG_MODULUS", _PARTS), ("NFTA_NG_TYPE", _RANDOM), ("NFTA_NG_OFFSET", 0)]
    return (
        {"attrs": [("NFTA_EXPR_NAME", "numgen"), ("NFTA_EXPR_DATA", {"attrs": number})]},
        _expression("byteorder", sreg=1, dreg=1, op=_TO_NETWORK, len=4, size=4),
        _expression("cmp", sreg=1, op=_LESS, data=_value(round(part * _PARTS).to_bytes(4, "big"))),
    )


def _verdict(code: int, **more: object) -> Any:
    attributes = [("NFTA_VERDICT_CODE", code), *more.items()]
    return _expression("immediate", dreg=0, data={"attrs": [("NFTA_DATA_VERDICT", {"attrs": attributes})]})

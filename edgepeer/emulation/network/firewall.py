"""Cuts as nftables rules: each drops all IPv4 packets from one address to another, and counts them.

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
_ETHERTYPE_IPV4: Final = b"\x08\x00"
_SOURCE_OFFSET: Final = 12
_TARGET_OFFSET: Final = 16
_ADDRESS_BYTES: Final = 4


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
        self._nft.chain("add", table=_TABLE, name=_CHAIN)
        if family == "bridge":
            self._add_hook(_TAKEN, "prerouting")
        for hook in _HOOKS[family]:
            self._add_hook(hook, hook)
            self._nft.rule("add", table=_TABLE, chain=hook, expressions=[[_verdict(_JUMP, NFTA_VERDICT_CHAIN=_CHAIN)]])

    def add(self, cuts: Iterable[Drop]) -> None:
        """Drop these from now on, if that is not so already."""
        for cut in cuts:
            if cut in self._made:
                continue
            rule = [_load("meta", key=_META_PROTOCOL), _equals(_ETHERTYPE_IPV4)]
            for address, offset in ((cut.source, _SOURCE_OFFSET), (cut.target, _TARGET_OFFSET)):
                if address:
                    rule.append(_load("payload", base=_NETWORK_HEADER, offset=offset, len=_ADDRESS_BYTES))
                    rule.append(_equals(socket.inet_aton(address)))
            rule += [_expression("counter", bytes=0, packets=0), _verdict(_DROP)]
            self._nft.rule("add", table=_TABLE, chain=_CHAIN, expressions=[rule])
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
    return _expression("cmp", sreg=1, op=0, data={"attrs": [("NFTA_DATA_VALUE", value)]})


def _verdict(code: int, **more: object) -> Any:
    attributes = [("NFTA_VERDICT_CODE", code), *more.items()]
    return _expression("immediate", dreg=0, data={"attrs": [("NFTA_DATA_VERDICT", {"attrs": attributes})]})

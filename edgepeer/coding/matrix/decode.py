"""One decoder of all codes here: some rows are lost, others are wrong, and nobody says which.

    Z = G X + E,   Z: (nodes · group, N) received,  G: (nodes · group, symbols),  X: (symbols, N) wanted

Node p owns the rows p·group to (p+1)·group - 1. E is zero but in the rows of k nodes that err; e others are lost. Any
⌈symbols / group⌉ nodes have enough to solve for X, so r = nodes - ⌈symbols / group⌉ are redundant. What can be had:

adversarial  2k + e <= r: right whatever E is. Two answers that both explain the rows would differ in more than r nodes.
generic      k + e <= r - 1: right for all E but those of measure zero, such as those that another code word explains
             with fewer errors (PolyDot, Dutta, Bai, Jeong, Low, Grover 2018, Theorem 3; there by the smallest support,
             which is hard to find for one number a node). Equal errors at several nodes are not generic.

Parity checks H of the rows that are there, H G = 0 and H Hᵀ = I, leave the syndromes H Z = H E. Their columns span the
columns of H that belong to the wrong rows if E has as many independent columns as rows: row i is wrong iff h_i lies in
that span. In array processing that is MUSIC (Schmidt 1986; for several vectors with a common support: Feng and Bresler
1996). Then:

1.  Rows with NaN, infinity or a number beyond 1e154, whose square float64 does not have, are wrong for certain: found,
    so they cost as much as lost ones.
2.  No column of H Z is above what rounding makes of right rows (`tolerance.py`): nothing else is wrong.
3.  Rows so large that their own rounding in H Z would hide the errors of others are set aside, and the rest is searched
    first; those that turn out to be right come back.
4.  MUSIC, for k from the rank of H Z on. Only columns above the tolerance enter it: one wrong number among thousands of
    right ones isn't buried in their noise.
5.  Greedy, for errors of lower rank than k, such as equal ones: the node that comes nearest to the span is set aside,
    and H is made anew without it, so that errors of very different sizes don't hide each other (orthogonal matching
    pursuit).
6.  All sets of k nodes, in the order of k, up to 4096 sets: all that there are of 12 nodes. With more nodes, equal
    errors at four and more of them may be declared undecodable although 2k + e <= r.

Sets of more than (r - e) / 2 nodes need not be the only ones that explain the rows: errors that are equal at many nodes
can look like those of others. If E has rank q and 2k < r - e + q, there is no other set of k (Davies and Eldar 2012,
"Rank awareness in joint sparse recovery", Theorem 2). That is k + e <= r - 1 if q = k. The reason: q columns of rank q
can be combined to one that is zero in q - 1 of the rows of E, and the difference to another explanation is a code word.
So with groups as many nodes count as have q - 1 wrong rows together. Sets for which it fails count only if rows are too
short for a larger rank, and all other sets were tried.

Whichever of these finds a set, it counts only if the rows that remain agree, at least one more than X has symbols, by
a check that is made of these rows alone and sees an error of 1 % in each of them. X is solved from them; no estimate of
an error is ever subtracted. A row that G hands on as it is (a row of the identity) and that is right comes out with the
same bits. Where no error can be corrected (k = 0), lost rows are replaced even if the check left is too weak for that.

With one number a node (N = 1) and a single check left, wrong rows agree by accident with a probability of about the
tolerance: 1e-5 a set in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, islice
from math import ceil, comb, sqrt
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeer.coding.matrix.tolerance import column_bound, relative_noise
from edgepeer.errors import ConfigError, Undecodable

__all__ = ["SEEN", "Decoded", "Guarantee", "MatrixCode", "Undecodable", "decode", "discrepancy", "visible"]

Guarantee = Literal["adversarial", "generic"]
Matrix = NDArray[np.float64]
Nodes = frozenset[int]

_UNIT_ROUNDOFF: Final = float(np.finfo(np.float64).eps) / 2
_LARGEST: Final = sqrt(float(np.finfo(np.float64).max))
_SETS: Final = 1 << 12
SEEN: Final = 0.01
"""An error that is so large a part of the largest number must be seen in every row in use: two digits."""

_ALL_THERE: Final[Nodes] = frozenset()
"""No node is missing."""
_AT_ONCE: Final = 256
"""Sets of nodes whose columns are decomposed in one call: what they need stays in the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class MatrixCode:
    """A real linear code whose nodes own rows of G.

    Raises:
        ConfigError: G is not a matrix of whole nodes with more rows than columns, or not finite.
    """

    generator: NDArray[np.float64]
    """G, shape (nodes * group, symbols)."""
    group: int = 1
    """Rows of a node."""

    def __post_init__(self) -> None:
        shape = self.generator.shape
        if len(shape) != 2 or self.group < 1 or shape[0] % self.group or not 1 <= shape[1] < shape[0]:
            raise ConfigError(f"a generator has more rows than columns, {self.group} rows a node; not shape {shape}")
        if not np.isfinite(self.generator).all():
            raise ConfigError("a generator's numbers must be finite; this one has others")

    @property
    def nodes(self) -> int:
        """P, how many nodes there are."""
        return int(self.generator.shape[0]) // self.group

    @property
    def symbols(self) -> int:
        """K, how many rows of data there are."""
        return int(self.generator.shape[1])

    @property
    def redundancy(self) -> int:
        """r, how many nodes there are beyond those that are needed."""
        return self.nodes - ceil(self.symbols / self.group)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """What was behind the rows."""

    data: NDArray[Any]
    """X, shape (symbols, N), in the dtype of the rows; it may be a view of them."""
    wrong: tuple[int, ...]
    """Nodes that were not said to be lost and whose rows were wrong, ascending."""
    checks: int
    """Parity checks that the rows in use have passed, a column each; 0 if all redundancy went to lost rows."""


def decode(
    code: MatrixCode,
    received: NDArray[Any],
    lost: Collection[int] = (),
    *,
    guarantee: Guarantee = "adversarial",
    noise: float | None = None,
) -> Decoded:
    """The data behind rows of which some are lost and some are wrong.

    Args:
        received: Z, shape (nodes * group, N), float32 or float64; what is in lost rows doesn't matter.
        lost: nodes whose rows are known to be missing.
        guarantee: how many errors to correct, see above.
        noise: relative rounding noise of a number of Z, by `tolerance.relative_noise`; None if a row was made of the
            symbols in its own dtype and nothing else was rounded.

    Raises:
        Undecodable: more is lost or wrong than can be corrected, or the numbers can't tell; the text says which.
        ConfigError: shapes, dtype or node numbers are not of this code.
    """
    if not lost and _handed_on(code) and _plainly_right(code, received, noise):
        return Decoded(received[: code.symbols], (), len(_remaining(code, _ALL_THERE).checks))
    rows, broken, gone = _Rows.of(code, received, lost, noise)
    spare = code.redundancy - len(gone)
    limit = spare - 1 if guarantee == "generic" else spare // 2
    if limit < 0 or (broken and len(gone) == code.redundancy):
        raise Undecodable(
            f"{_count(len(gone) - len(broken), 'node')} lost and {len(broken)} with NaN, infinity or the like; "
            f"{guarantee} decoding of {code.nodes} nodes, {code.redundancy} of them redundant, does not take so many"
        )
    found = gone | _Search(rows, gone, limit).errors()
    checks = _remaining(code, found).checks
    if limit and rows.tolerance(found) > SEEN * visible(code, found):
        raise Undecodable(
            f"without the nodes {_names(found) or '(none)'} the others' checks can't tell an error of {SEEN:.0%} of "
            "the largest number from rounding; use a wider dtype"
        )
    if (picked := _picked(code, found)) is not None:
        data = received[picked]
    else:
        with np.errstate(over="ignore"):
            data = _solve(code, found, rows.values).astype(rows.dtype, copy=False)
    return Decoded(data, tuple(sorted(broken | (found - gone))), len(checks))


def discrepancy(
    code: MatrixCode, received: NDArray[Any], lost: Collection[int] = (), *, noise: float | None = None
) -> float:
    """How far rows disagree: the largest column of H Z in units of the tolerance. Above 1 something is wrong.

    Rows with NaN, infinity and the like: infinite. Without redundancy, for all is lost that may be: 0. Arguments and
    errors are those of `decode`.
    """
    rows, broken, gone = _Rows.of(code, received, lost, noise)
    return float("inf") if broken else rows.discrepancy(gone)


def _plainly_right(code: MatrixCode, received: NDArray[Any], noise: float | None) -> bool:
    """Whether all rows agree, without any doubt, as they nearly always do: then nothing has to be searched for.

    Their syndromes are computed in the rows' own dtype, of whose unit roundoff u n rows make an error of up to
    (n + 1) u sum_i |h_i z_i|, with rounded h. Those that are below the tolerance by more than that are below it in
    float64 as well. NaN and infinity are below nothing.
    """
    expected = relative_noise(code.symbols, received.dtype) if noise is None else noise
    if received.ndim != 2 or len(received) != len(code.generator) or not (received.size and 0 < expected < 1):
        return False
    own = _own_checks(code, received.dtype)
    scale = max(float(received.max()), -float(received.min()))
    tolerance = expected * column_bound(len(own.checks), received.shape[1])
    enough = scale * (tolerance / sqrt(len(own.checks)) - own.rounding)
    if not (own.least < scale < own.most and enough > 0 and tolerance <= SEEN * own.visible):
        return False
    syndromes = own.checks @ received
    return bool(syndromes.max() <= enough and syndromes.min() >= -enough)


class _OwnChecks(NamedTuple):
    """The parity checks of all rows, in the rows' dtype."""

    checks: NDArray[Any]
    rounding: float
    """How much is made of a syndrome by computing it so, at most, as a part of the largest number of the rows: with one
    term more, for what is of higher order."""
    least: float
    """Below that numbers have no digits, and above `most` sums may be infinite."""
    most: float
    visible: float


@lru_cache(maxsize=64)
def _own_checks(code: MatrixCode, dtype: np.dtype[Any]) -> _OwnChecks:
    checks, kind = _remaining(code, _ALL_THERE).checks, np.finfo(dtype)
    size, unit = float(np.abs(checks).sum(axis=1).max()), float(kind.eps) / 2
    return _OwnChecks(
        checks=checks.astype(dtype),
        rounding=(checks.shape[1] + 2) * size * unit,
        least=float(kind.tiny) / unit,
        most=min(float(kind.max) / (2 * size), _LARGEST),
        visible=visible(code, _ALL_THERE),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Remaining:
    """What belongs to a code without some of its nodes; columns for all rows, zero where a row isn't used."""

    nodes: NDArray[np.intp]
    """Those that remain, ascending."""
    rows: NDArray[np.intp]
    """Their rows."""
    checks: Matrix
    """H, shape (checks, nodes * group), orthonormal rows."""


@lru_cache(maxsize=512)
def _remaining(code: MatrixCode, missing: Nodes) -> _Remaining:
    nodes = np.array([node for node in range(code.nodes) if node not in missing], np.intp)
    rows = (nodes[:, None] * code.group + np.arange(code.group)).ravel()
    checks = np.zeros((max(len(rows) - code.symbols, 0), len(code.generator)))
    if len(checks):
        checks[:, rows] = np.linalg.qr(code.generator[rows], mode="complete").Q[:, code.symbols :].T
    return _Remaining(nodes, rows, checks)


@lru_cache(maxsize=512)
def _bases(code: MatrixCode, missing: Nodes) -> Matrix:
    """For each remaining node an orthonormal basis of its columns of H, shape (remaining nodes, checks, group)."""
    there = _remaining(code, missing)
    columns = there.checks[:, there.rows].T.reshape(len(there.nodes), code.group, -1)
    return np.linalg.qr(columns.transpose(0, 2, 1)).Q


@lru_cache(maxsize=512)
def visible(code: MatrixCode, missing: Nodes) -> float:
    """The least norm of a remaining row's column of H: an error of size 1 there has at least such a syndrome."""
    there = _remaining(code, missing)
    return float(np.min(np.linalg.norm(there.checks[:, there.rows], axis=0)))


@lru_cache(maxsize=512)
def _solver(code: MatrixCode, missing: Nodes) -> Matrix:
    """D with D Z = X from the rows that remain, shape (symbols, nodes * group).

    Symbols that a remaining row hands on as they are come from there. The others are the least squares solution of the
    other rows, from which the known symbols have been taken.
    """
    rows = _remaining(code, missing).rows
    generator = code.generator[rows]
    plain = (np.count_nonzero(generator, axis=1) == 1) & (generator.max(axis=1) == 1.0)
    known, first = np.unique(generator[plain].argmax(axis=1), return_index=True)
    out = np.zeros((code.symbols, len(code.generator)))
    out[known, rows[plain][first]] = 1.0
    unknown = np.flatnonzero(~out.any(axis=1))
    if len(unknown):
        mixed = generator[~plain]
        q, r = np.linalg.qr(mixed[:, unknown])
        others = -mixed[:, known] @ out[known]
        others[np.arange(len(mixed)), rows[~plain]] += 1.0
        out[unknown] = np.linalg.solve(r, q.T @ others)
    return out


@lru_cache(maxsize=512)
def _picked(code: MatrixCode, missing: Nodes) -> NDArray[np.intp] | None:
    """The rows that X is, where those that remain hand on all of it as it is."""
    solver = _solver(code, missing)
    plain = np.count_nonzero(solver, axis=1) == 1
    return solver.argmax(axis=1) if plain.all() and (solver.max(axis=1) == 1.0).all() else None


@lru_cache(maxsize=64)
def _handed_on(code: MatrixCode) -> bool:
    """Whether X is the first rows, as they are."""
    picked = _picked(code, _ALL_THERE)
    return picked is not None and picked.tolist() == list(range(code.symbols))


def _solve(code: MatrixCode, missing: Nodes, values: Matrix) -> Matrix:
    """X from the rows that remain.

    D is made in float64 and is off by its condition: D Z is, by the condition squared at worst. One step of refinement
    with the residual leaves the condition itself. Rows that are handed on as they are have no residual.
    """
    solver = _solver(code, missing)
    first = solver @ values
    return np.asarray(first + solver @ (values - code.generator @ first))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Received rows as float64, and what rounding may make of them."""

    code: MatrixCode
    values: Matrix
    """Z; zero in rows that are not finite."""
    sizes: Matrix
    """The largest number of each row."""
    dtype: np.dtype[Any]
    noise: float

    @classmethod
    def of(
        cls, code: MatrixCode, received: NDArray[Any], lost: Collection[int], noise: float | None
    ) -> tuple[_Rows, Nodes, Nodes]:
        """The rows, nodes that are broken beyond doubt, and these with the lost ones."""
        missing = frozenset(lost)
        if not all(0 <= node < code.nodes for node in missing):
            raise ConfigError(f"nodes are 0 to {code.nodes - 1}, and these are said to be lost: {_names(missing)}")
        if received.ndim != 2 or len(received) != len(code.generator) or not received.size:
            raise ConfigError(f"this code has {len(code.generator)} rows; received has shape {received.shape}")
        expected = relative_noise(code.symbols, received.dtype) if noise is None else noise
        if not 0 < expected < 1:
            raise ConfigError(f"noise is a part of a number, above 0 and below 1, not {expected}")
        with np.errstate(invalid="ignore"):  # NaN may be of the kind that warns
            values = received.astype(np.float64)
            sizes = np.maximum(received.max(axis=1), -received.min(axis=1)).astype(np.float64)
        bad = ~(sizes < _LARGEST)
        if bad.any():
            values[bad], sizes[bad] = 0.0, 0.0
        broken = frozenset((np.flatnonzero(bad) // code.group).tolist()) - missing
        return cls(code, values, sizes, received.dtype, expected), broken, broken | missing

    def syndromes(self, missing: Nodes) -> Matrix:
        """H Z in units of the tolerance, without these nodes, shape (checks, N)."""
        syndromes = _remaining(self.code, missing).checks @ self.values
        syndromes /= self.tolerance(missing) * self.scale(missing)
        return syndromes

    def scale(self, missing: Nodes) -> float:
        """The largest number without these nodes; what is less than the dtype's least normal number has no digits."""
        there = _remaining(self.code, missing)
        return max(float(self.sizes[there.rows].max(initial=0.0)), float(np.finfo(self.dtype).tiny))

    def tolerance(self, missing: Nodes) -> float:
        """The largest column of H Z that rounding makes, as a part of the largest number of Z."""
        checks = len(_remaining(self.code, missing).checks)
        return self.noise * column_bound(checks, self.values.shape[1])

    def discrepancy(self, missing: Nodes) -> float:
        return sqrt(float(_squares(self.syndromes(missing)).max()))

    def agree(self, missing: Nodes) -> bool:
        """Whether the rows without these nodes are those of a code word, but for rounding."""
        return _small(self.syndromes(missing))


class _Search:
    """Which nodes err beside those that are gone: `limit` of them at most. What is found leaves rows that agree."""

    def __init__(self, rows: _Rows, gone: Nodes, limit: int) -> None:
        self.rows, self.code, self.gone, self.limit = rows, rows.code, gone, limit
        self.unique = (self.code.redundancy - len(gone)) // 2  # no two sets of so many explain the same rows
        self.spans: dict[Nodes, _Span | None] = {}

    def errors(self) -> Nodes:
        """The nodes that err.

        Raises:
            Undecodable: no set of `limit` nodes explains the rows, or none was found.
        """
        span = self._span(Nodes())
        if span is None:
            return frozenset()
        if span.least <= self.limit:
            within, spare = min(self.limit, self.unique), self.code.redundancy - len(self.gone)
            starts = tuple(dict.fromkeys((self._large(), Nodes())))
            for find, reach in (
                (self._located, within),
                (self._all, within),
                (self._located, spare - 1),  # a search that takes too many may come back to few enough
                (self._all, self.limit),
            ):
                for start in starts:
                    found = find(start, reach) if max(len(start), span.least) <= reach else None
                    if found is not None and len(found) <= self.limit:
                        return found
        raise Undecodable(
            f"the rows of {self.code.nodes} nodes, {_count(len(self.gone), 'node')} missing, contradict each other, "
            f"and no set of up to {_count(self.limit, 'error')} was found that explains it"
        )

    def _span(self, start: Nodes) -> _Span | None:
        if start not in self.spans:
            self.spans[start] = _Span.of(self.rows, self.gone | start)
        return self.spans[start]

    def _large(self) -> Nodes:
        """Nodes with a row so large that its rounding in float64 would be above the tolerance of the others."""
        there = _remaining(self.code, self.gone)
        sizes = self.rows.sizes[there.rows]
        if not sizes.any():
            return frozenset()
        hidden = self.rows.tolerance(self.gone) / (_UNIT_ROUNDOFF * sqrt(len(sizes)))
        return frozenset((there.rows[sizes > hidden * np.median(sizes[sizes > 0])] // self.code.group).tolist())

    def _located(self, start: Nodes, limit: int) -> Nodes | None:
        """By the span of H Z, with `start` among those that err unless they turn out not to."""
        span = self._span(start)
        for find in (self._music, self._greedy):
            found = self._least(start) if span is None else find(start, limit, span)
            if found is not None and self._certain(found):
                return found
        return None

    def _music(self, start: Nodes, limit: int, span: _Span) -> Nodes | None:
        tried: set[Nodes] = set()
        for k in range(span.least, limit - len(start) + 1):
            for dimension in sorted({k * self.code.group, max(k, span.rank)}):
                nodes = span.nearest(k, dimension)
                if nodes not in tried and self.rows.agree(self.gone | start | nodes):
                    return nodes if k == span.least and not start else self._least(start | nodes)
                tried.add(nodes)
        return None

    def _greedy(self, start: Nodes, limit: int, span: _Span) -> Nodes | None:
        found, rest = start, span
        while len(found) + rest.least <= limit:
            found |= rest.nearest(1, rest.rank)
            after = _Span.of(self.rows, self.gone | found)
            if after is None:
                return self._least(found)
            rest = after
        return None

    def _all(self, start: Nodes, limit: int) -> Nodes | None:
        """By trying all sets beside `start`. Two of a size that explain the rows are none."""
        span, budget = self._span(start), _SETS
        if span is None:
            return None
        for k in range(span.least, limit - len(start) + 1):
            budget -= comb(len(span.nodes), k)
            if budget < 0:
                return None
            found = [nodes for nodes in span.explaining(k) if self.rows.agree(self.gone | start | nodes)]
            if found:
                least = self._least(start | found[0])
                return least if len(found) == 1 and self._certain(least, tried_all=True) else None
        return None

    def _least(self, found: Nodes) -> Nodes:
        """Without those of them that agree with the rest."""
        for node in sorted(found):
            if self.rows.agree(self.gone | (found - {node})):
                found -= {node}
        return found

    def _certain(self, found: Nodes, tried_all: bool = False) -> bool:
        """Whether no other set of as many nodes explains the rows, by the rank of the errors, see above.

        With all sets tried it is enough if the rank is as large as the rows' length allows.
        """
        if len(found) <= self.unique:
            return True
        wrong, rank = self._rank(found)
        zero = np.count_nonzero(np.sort(wrong).cumsum() < rank)
        if 2 * len(found) - zero <= self.code.redundancy - len(self.gone):
            return True
        return tried_all and rank == self.rows.values.shape[1]

    def _rank(self, found: Nodes) -> tuple[NDArray[np.intp], int]:
        """How many rows of each of these nodes err, and the rank of their errors.

        Each error is scaled to 1, and so is what rounding adds to it.
        """
        code, missing = self.code, self.gone | found
        rows = (np.array(sorted(found))[:, None] * code.group + np.arange(code.group)).ravel()
        expected = code.generator[rows] @ _solver(code, missing)
        errors = self.rows.values[rows] - expected @ self.rows.values
        sizes = np.abs(errors).max(axis=1)
        rounding = self.rows.tolerance(missing) * self.rows.scale(missing) * (1 + np.linalg.norm(expected, axis=1))
        wrong = sizes > rounding
        values = np.linalg.svd(errors[wrong] / sizes[wrong, None], compute_uv=False)
        noise = sqrt(errors.shape[1]) * np.linalg.norm(rounding[wrong] / sizes[wrong])
        return np.count_nonzero(wrong.reshape(-1, code.group), axis=1), int(np.count_nonzero(values > noise))


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """The space that the columns of H Z above the tolerance span, beside the columns of H of each node."""

    vectors: Matrix
    """Orthonormal, the one with most of H Z first, shape (checks, dimension)."""
    values: Matrix
    """Their singular values in H Z, in units of what is rounding."""
    nodes: NDArray[np.intp]
    bases: Matrix
    """Of the nodes, shape (len(nodes), checks, group)."""

    @classmethod
    def of(cls, rows: _Rows, missing: Nodes) -> _Span | None:
        """None if the rows without these nodes agree."""
        syndromes = rows.syndromes(missing)
        if _small(syndromes):
            return None
        above = _squares(syndromes) > 1
        columns = syndromes[:, above]
        if columns.shape[1] > len(columns):  # the same space and the same singular values
            columns = np.asarray(np.linalg.qr(columns.T, mode="r")).T
        vectors, values, _ = np.linalg.svd(columns, full_matrices=False)
        # by rounding each column is at most 1, and all of them together, in any norm, the root of their number
        noise = sqrt(np.count_nonzero(above))
        return cls(vectors, values / noise, _remaining(rows.code, missing).nodes, _bases(rows.code, missing))

    @property
    def rank(self) -> int:
        """How many dimensions are more than rounding, at least 1."""
        return max(int(np.count_nonzero(self.values > 1)), 1)

    @property
    def least(self) -> int:
        """Fewer nodes can't explain it."""
        return ceil(self.rank / int(self.bases.shape[2]))

    def nearest(self, k: int, dimension: int) -> Nodes:
        """The k nodes whose columns of H come nearest to the first dimensions.

        If that is what k nodes can have at most, all of a node's columns are to lie there; otherwise one direction.
        """
        group = self.bases.shape[2]
        inside = np.matmul(self.vectors[:, :dimension].T, self.bases)  # (nodes, dimension, group)
        if group == 1 or dimension == k * group:
            near = np.einsum("pdg,pdg->p", inside, inside)
        else:
            near = np.linalg.svd(inside, compute_uv=False)[:, 0]
        return frozenset(self.nodes[np.argsort(-near, kind="stable")[:k]].tolist())

    def explaining(self, k: int) -> list[Nodes]:
        """Sets of k nodes beside whose columns nothing but rounding is left, the best eight at most."""
        wanted = self.vectors * self.values
        left, sets = [], []
        for some in _batches(combinations(range(len(self.nodes)), k), _AT_ONCE):
            columns = self.bases[some].transpose(0, 2, 1, 3).reshape(len(some), len(wanted), -1)
            q = np.linalg.qr(columns).Q
            rest = wanted - q @ (q.transpose(0, 2, 1) @ wanted)
            left.append(np.sqrt(np.einsum("sij,sij->s", rest, rest)))
            sets.append(some)
        size, all_sets = np.concatenate(left), np.concatenate(sets)
        best = np.argsort(size, kind="stable")[:8]
        return [frozenset(self.nodes[all_sets[i]].tolist()) for i in best if size[i] <= 1]


def _batches(sets: Iterator[tuple[int, ...]], size: int) -> Iterator[NDArray[np.intp]]:
    while some := list(islice(sets, size)):
        yield np.fromiter(chain.from_iterable(some), np.intp, len(some) * len(some[0])).reshape(len(some), -1)


def _small(columns: Matrix) -> bool:
    """Whether none of these columns is longer than 1. The numbers themselves tell where all are well below that."""
    enough = 1 / sqrt(len(columns) or 1)
    if columns.max(initial=0.0) <= enough and columns.min(initial=0.0) >= -enough:
        return True
    return not (_squares(columns) > 1).any()


def _squares(columns: Matrix) -> Matrix:
    return np.asarray(np.einsum("ij,ij->j", columns, columns))


def _names(nodes: Collection[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

"""Pool -> folds: what is tested, what may train, and what every rule took out of training.

A fold that holds a domain out tests the rows that carry it. Its training rows have a known domain, do not carry the
held-out one, are of no law that is tested, and have no premise that says almost what a tested premise says. `id_val`,
whole laws of the training rows, is all that selection sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import polars as pl

from lightning_nli.crossdomain.pool import OTHER, Pool, check_domains
from lightning_nli.data.splits import stable_unit
from lightning_nli.types import UserError

MIN_PAIRWISE_ROWS = 300
NUM_REFERENCE_FOLDS = 10
ID_VAL_FRACTION = 0.1


class Removal(StrEnum):
    """Why a row neither trains nor is tested."""

    UNKNOWN_DOMAIN = "unknown domain"
    LAW = "its law is tested"
    PREMISE = "its premise nearly is a tested one"
    STRADDLES = "its domains lie in several parts"
    OTHER_DOMAIN = "its domain takes no part"
    CHOOSES_LAW = "its law chooses"
    CHOOSES_PREMISE = "its premise nearly is one that chooses"


@dataclass(frozen=True)
class Fold:
    """One held-out set. Ids are in the order of the pool, training ids in hash order.

    Attributes:
        name: `out:tax_fees`, `law:3`, ...
        scheme: How it was cut.
        held_out: Domains that no training row carries; none in folds by law or premise.
        train: Ids that may train.
        id_val: Ids that choose checkpoints and rates.
        tests: Name of a test set -> its ids; `test` for all of it.
        removed: Why a row was left out -> its ids.
        guards_laws: Whether no tested law may train.
        choosers: Domains left out of training, with their laws, so that their rows choose; none where `id_val` is laws
            or premises of the training domains.
    """

    name: str
    scheme: str
    held_out: tuple[str, ...]
    train: tuple[str, ...]
    id_val: tuple[str, ...]
    tests: Mapping[str, tuple[str, ...]]
    removed: Mapping[Removal, tuple[str, ...]] = field(default_factory=dict)
    guards_laws: bool = True
    choosers: tuple[str, ...] = ()

    @property
    def test(self) -> tuple[str, ...]:
        """All tested ids, each once."""
        return tuple(dict.fromkeys(id_ for ids in self.tests.values() for id_ in ids))

    def as_dict(self) -> dict[str, Any]:
        """Its sizes, and the ids that each rule took out."""
        return {
            "fold": self.name,
            "held_out": list(self.held_out),
            "train": len(self.train),
            "id_val": len(self.id_val),
            "test": len(self.test),
            "chosen_by": list(self.choosers),
            "removed": {reason.value: len(ids) for reason, ids in self.removed.items()},
            "removed_ids": {reason.value: list(ids) for reason, ids in self.removed.items() if ids},
        }

    def take(self, num_train: int) -> Fold:
        """The fold with its first `num_train` training rows.

        Raises:
            UserError: it has fewer.
        """
        if num_train > len(self.train):
            raise UserError(f"fold {self.name} has {len(self.train)} training rows, fewer than {num_train}")
        return replace(self, train=self.train[:num_train])


def leave_domains_out(pool: Pool, groups: Mapping[str, Sequence[str]], *, seed: int) -> list[Fold]:
    """A fold a group of domains: `{domain: [domain]}` leaves one out at a time.

    Raises:
        UserError: a domain has no row or is `other`, or nothing is left to train on.
    """
    check_domains([domain for domains in groups.values() for domain in domains], pool)
    folds = []
    for name, domains in groups.items():
        if OTHER in domains:
            raise UserError(f"'{OTHER}' is the rest of everything: it is never held out")
        folds.append(leave_out(pool, f"out:{name}", "leave-domain-out", domains, seed=seed))
    return folds


def leave_out(
    pool: Pool, name: str, scheme: str, domains: Sequence[str], *, seed: int, near: Pool | None = None
) -> Fold:
    """One fold that tests the rows of some domains, with all guards.

    Args:
        pool: Rows that take part.
        name: Of the fold.
        scheme: Of the fold.
        domains: Held out.
        seed: Of `id_val` and of the order of training rows.
        near: Pool that knows which premises are near, where `pool` is part of it.

    Raises:
        UserError: nothing is left to train on or to test.
    """
    return _guarded(pool, name, scheme, _carries(domains), held_out=tuple(domains), seed=seed, near=near)


def leave_one_domain_out(pool: Pool, *, seed: int, domains: Sequence[str] | None = None) -> list[Fold]:
    """Each domain with a row in turn, largest first; `other` and rows of unknown domain are never held out."""
    chosen = domains or [size.domain for size in pool.domains if size.domain != OTHER]
    return leave_domains_out(pool, {domain: [domain] for domain in chosen}, seed=seed)


def disjoint(pool: Pool, parts: Mapping[str, Sequence[str]], *, seed: int) -> list[Fold]:
    """One fold whose train, dev and test rows come from different domains (ViLegalNLI, section 7.6).

    Args:
        pool: Rows.
        parts: Domains of `train`, `dev` and `test`.
        seed: Of the order of training rows.

    Raises:
        UserError: a part is missing, or a domain stands in two.
    """
    if set(parts) != {"train", "dev", "test"}:
        raise UserError(f"a disjoint split has the parts train, dev and test, not {sorted(parts)}")
    named = [domain for domains in parts.values() for domain in domains]
    if len(set(named)) != len(named):
        raise UserError(f"domains stand in two parts: {sorted({name for name in named if named.count(name) > 1})}")
    check_domains(named, pool)
    touched = {part: _carries(domains) for part, domains in parts.items()}
    num_parts = pl.sum_horizontal(is_in.cast(pl.Int32) for is_in in touched.values())
    foreign = pl.col("domains").cast(pl.List(pl.String)).list.set_difference(pl.lit(named)).list.len() > 0
    alone = (num_parts == 1) & ~foreign
    straddling = pool.frame.filter((num_parts > 1) | ((num_parts == 1) & foreign))
    elsewhere = pool.frame.filter((num_parts == 0) & (pl.col("domains").list.len() > 0))
    kept = Pool(pool.frame.filter(alone), pool.scheme, 0)
    tested = leave_out(kept, "disjoint", "disjoint", parts["test"], seed=seed, near=pool)
    rest = kept.part((*tested.train, *tested.id_val))
    chosen = leave_out(rest, "disjoint", "disjoint", parts["dev"], seed=seed, near=pool)
    train = order_by_hash(rest, (*chosen.train, *chosen.id_val), seed)
    removed = {reason: (*tested.removed[reason], *chosen.removed[reason]) for reason in tested.removed}
    removed[Removal.STRADDLES] = tuple(straddling["example_id"])
    removed[Removal.OTHER_DOMAIN] = tuple(elsewhere["example_id"])
    return [replace(tested, train=train, id_val=chosen.test, removed=removed, choosers=tuple(parts["dev"]))]


def pairwise(pool: Pool, *, seed: int) -> list[Fold]:
    """Train on one domain, test on every other; domains of 300 rows or more, rows that carry two of them left out.

    Every training set is cut to the smallest, so that columns can be compared. `id_val` is cut by premise: a single
    domain has too few laws.

    Raises:
        UserError: fewer than two domains are large enough.
    """
    domains = [size.domain for size in pool.domains if size.domain != OTHER]
    while True:  # a domain that falls away frees rows of the others
        carried = pl.col("domains").cast(pl.List(pl.String)).list.set_intersection(pl.lit(domains)).list.len()
        single = Pool(pool.frame.filter(carried == 1), pool.scheme, 0)
        rows = {domain: single.frame.filter(_carries([domain])).height for domain in domains}
        if len(domains) < 2:
            raise UserError(f"pairwise folds need two domains of {MIN_PAIRWISE_ROWS} rows, the pool has {domains}")
        if min(rows.values()) >= MIN_PAIRWISE_ROWS:
            break
        domains.remove(min(domains, key=lambda domain: (rows[domain], domain)))
    straddling = {Removal.STRADDLES: tuple(pool.frame.filter(carried > 1)["example_id"])}
    folds = []
    for domain in domains:
        others = tuple(name for name in domains if name != domain)
        fold = _guarded(
            single,
            f"from:{domain}",
            "pairwise",
            _carries(others),
            held_out=others,
            seed=seed,
            near=pool,
            unit="premise_id",
        )
        tests = {name: tuple(single.frame.filter(_carries([name]))["example_id"]) for name in others}
        folds.append(replace(fold, tests=tests, removed={**fold.removed, **straddling}))
    smallest = smallest_training_set(folds)
    return [fold.take(smallest) for fold in folds]


def k_folds(pool: Pool, unit: str, *, seed: int, num_folds: int = NUM_REFERENCE_FOLDS) -> list[Fold]:
    """Folds of whole laws (law new, domain seen) or premises (law seen), largest unit first into the smallest fold.

    Ties go by hash. Rows of unknown domain are tested in no fold and train in none, as in held-out-domain folds.

    Args:
        pool: Rows.
        unit: `law_id` or `premise_id`.
        seed: Of ties and of the order of training rows.
        num_folds: Number of folds.
    """
    sizes = pool.frame.group_by(unit).len()
    order = sorted(sizes.iter_rows(), key=lambda row: (-row[1], stable_unit(str(row[0]), seed), row[0]))
    if len(order) < num_folds:
        raise UserError(f"{len(order)} values of {unit} cannot fill {num_folds} folds")
    filled = [0] * num_folds
    place: dict[str, int] = {}
    for key, rows in order:
        place[key] = filled.index(min(filled))
        filled[place[key]] += rows
    by_law = unit == "law_id"
    folds = []
    for number in range(num_folds):
        units = pl.Series([key for key, found in place.items() if found == number])
        folds.append(
            _guarded(
                pool,
                f"{'law' if by_law else 'premise'}:{number + 1}",
                "leave-law-out" if by_law else "in-domain",
                pl.col(unit).is_in(units.implode()),
                held_out=(),
                seed=seed,
                guards_laws=by_law,
            )
        )
    return folds


def smallest_training_set(folds: Iterable[Fold]) -> int:
    """n*: what every training set is cut to, so that folds and references train on equally many rows."""
    return min(len(fold.train) for fold in folds)


def order_by_hash(pool: Pool, ids: Sequence[str], seed: int) -> tuple[str, ...]:
    """The ids of some rows in the order of training rows: by hash of their premises."""
    return _hash_order(pool.part(ids).frame, seed)


def _carries(domains: Sequence[str]) -> pl.Expr:
    return pl.any_horizontal(pl.col("domains").list.contains(domain) for domain in domains)


def _guarded(
    pool: Pool,
    name: str,
    scheme: str,
    is_test: pl.Expr,
    *,
    held_out: tuple[str, ...],
    seed: int,
    guards_laws: bool = True,
    near: Pool | None = None,
    unit: str | None = None,
) -> Fold:
    """Apply the rules in their order; a row is counted under the first that takes it out.

    Args:
        pool: Rows that take part.
        name: Of the fold.
        scheme: Of the fold.
        is_test: Rows to test.
        held_out: Domains no training row carries.
        seed: Of `id_val` and of the order of training rows.
        guards_laws: Whether no tested law, and nothing near a tested premise, may train.
        near: Pool that knows which premises are near, where `pool` is part of it.
        unit: What `id_val` takes whole: laws, or premises where laws are not guarded.
    """
    known = pl.col("domains").list.len() > 0
    is_test = is_test & known
    frame = pool.frame
    tested = frame.filter(is_test)
    laws = tested["law_id"].unique().implode()
    pairs = (near or pool).near_premises
    premises = tested["premise_id"].unique()
    near_tested = pairs.filter(pl.col("near_id").is_in(premises.implode()))["premise_id"].implode()
    takes: list[tuple[Removal, pl.Expr]] = [(Removal.UNKNOWN_DOMAIN, ~known)]
    if guards_laws:
        takes.append((Removal.LAW, pl.col("law_id").is_in(laws)))
        takes.append(
            (Removal.PREMISE, pl.col("premise_id").is_in(near_tested) | pl.col("premise_id").is_in(premises.implode()))
        )
    rest = frame.filter(~is_test)
    removed: dict[Removal, tuple[str, ...]] = {}
    for reason, rule in takes:
        removed[reason] = tuple(rest.filter(rule)["example_id"])
        rest = rest.filter(~rule)
    train, id_val = _cut_id_val(rest, unit or ("law_id" if guards_laws else "premise_id"), seed)
    if not train or not tested.height:
        raise UserError(f"fold {name} has {len(train)} training rows and {tested.height} test rows")
    return Fold(name, scheme, held_out, train, id_val, {"test": tuple(tested["example_id"])}, removed, guards_laws)


def _cut_id_val(rest: pl.DataFrame, unit: str, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Training ids in hash order of their premises; whole units in hash order until a tenth of the rows choose."""
    sizes = rest.group_by(unit).len()
    order = sorted(sizes.iter_rows(), key=lambda row: (stable_unit(str(row[0]), seed), row[0]))
    taken: list[str] = []
    rows = 0
    for key, count in order:
        if rows >= ID_VAL_FRACTION * rest.height:
            break
        taken.append(key)
        rows += count
    is_val = pl.col(unit).is_in(pl.Series(taken, dtype=pl.String).implode())
    return _hash_order(rest.filter(~is_val), seed), tuple(rest.filter(is_val)["example_id"])


def _hash_order(frame: pl.DataFrame, seed: int) -> tuple[str, ...]:
    draws = {premise: stable_unit(premise, seed) for premise in frame["premise_id"].unique()}
    rows = frame.select("premise_id", "example_id").iter_rows()
    return tuple(id_ for _, _, id_ in sorted((draws[premise], premise, id_) for premise, id_ in rows))

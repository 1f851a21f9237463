"""Models without an encoder: majority, `hyponly-v1`, `overlap-v1`, `linear-v1`, and the rows that defeat them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.data.splits import stable_unit
from lightning_nli.data.swaps import WORD_PATTERN, list_words
from lightning_nli.data.text import normalize_text
from lightning_nli.metrics import label_indices, scores_from_confusion
from lightning_nli.types import LabelScheme, UserError

Probabilities = npt.NDArray[np.float64]
Featurizer = Callable[[pl.DataFrame, pl.DataFrame], tuple[Any, Any]]

OVERLAP_FEATURES = ("jaccard", "containment", "new_word_rate", "length_ratio", "numbers_in_common")


def majority(train: pl.DataFrame, frame: pl.DataFrame, scheme: LabelScheme) -> pl.DataFrame:
    """Answer every row with the shares of the labels in `train`; of equal shares the earlier label is the answer.

    Args:
        train: Labelled examples.
        frame: Examples to answer.
        scheme: Labels.

    Returns:
        `example_id label group_id prob_<label>... predicted` (`metrics.score`), in the order of `frame`.

    Raises:
        UserError: `train` is empty.
    """
    labels = _training_labels(train, scheme)
    shares = np.bincount(labels, minlength=len(scheme.labels)) / len(labels)
    return _predictions(frame, np.tile(shares, (frame.height, 1)), scheme)


def hypothesis_only(train: pl.DataFrame, frame: pl.DataFrame, scheme: LabelScheme) -> pl.DataFrame:
    """`hyponly-v1`: TF-IDF of the hypothesis (words and pairs of words) and logistic regression, blind to the premise.

    Words that stand in one hypothesis only are dropped, unless that leaves none (then all count). A training set of
    one label is answered by `majority`.

    Args:
        train: Labelled examples.
        frame: Examples to answer.
        scheme: Labels.

    Returns:
        As `majority`.

    Raises:
        UserError: `train` is empty or no hypothesis holds a word.
    """
    return linear(train, frame, scheme, segments=("hypothesis",))


def linear(train: pl.DataFrame, frame: pl.DataFrame, scheme: LabelScheme, *, segments: Sequence[str]) -> pl.DataFrame:
    """`linear-v1`: `hyponly-v1` over any texts, each with features of its own (a word of the law is none of the claim).

    Args:
        train: Labelled examples.
        frame: Examples to answer.
        scheme: Labels.
        segments: Texts that it reads, of `premise`, `hypothesis`, `condition`.

    Returns:
        As `majority`.

    Raises:
        UserError: `train` is empty, a row lacks a text, or no text of a kind holds a word.
    """
    return _linear_model(train, frame, scheme, partial(_text_features, segments=segments))


def overlap(train: pl.DataFrame, frame: pl.DataFrame, scheme: LabelScheme) -> pl.DataFrame:
    """`overlap-v1`: the features of `hyponly-v1` and five of `overlap_features`, scaled to unit variance.

    Args, Returns, Raises: as `hypothesis_only`.
    """
    return _linear_model(train, frame, scheme, _hypothesis_and_overlap_features)


def overlap_features(frame: pl.DataFrame) -> npt.NDArray[np.float64]:
    """What premise and hypothesis share, (N, 5) in the order of `OVERLAP_FEATURES`.

    Jaccard index of the word sets; share of the hypothesis' word set that stands in the premise; share of its words,
    repeats counted, that do not; words of the hypothesis by words of the premise; distinct numbers in both.
    """
    pairs = zip(frame["premise"], frame["hypothesis"], strict=True)
    rows = [_overlap_of(premise, hypothesis) for premise, hypothesis in pairs]
    return np.array(rows, dtype=np.float64).reshape(frame.height, len(OVERLAP_FEATURES))


def cross_fitted(train: pl.DataFrame, scheme: LabelScheme, folds: int = 10) -> Probabilities | None:
    """Answers of `hyponly-v1` to its own training rows, each trained on the laws of the other folds.

    Whole laws (premises, for rows without a law) go to the folds in hash order, each to the fold with fewest rows.
    With fewer laws than folds there are fewer folds.

    Args:
        train: Labelled examples; their order does not matter.
        scheme: Labels.
        folds: Number of folds, at least 2.

    Returns:
        (N, C) probabilities in the rows' and the scheme's order; None with one law: nothing can be cross-fitted.

    Raises:
        ValueError: fewer than 2 folds are asked for.
    """
    if folds < 2:
        raise ValueError(f"cross-fitting needs at least 2 folds, not {folds}")
    rows = train.with_row_index("place").sort("example_id")
    fold_of_row = _folds_by_law(rows, folds)
    if fold_of_row is None:
        return None
    places = rows["place"].to_numpy()
    probabilities = np.zeros((train.height, len(scheme.labels)))
    for fold in range(int(fold_of_row.max()) + 1):
        is_held = fold_of_row == fold
        answers = hypothesis_only(rows.filter(pl.Series(~is_held)), rows.filter(pl.Series(is_held)), scheme)
        columns = answers.select(f"prob_{name}" for name in scheme.names)
        probabilities[places[is_held]] = columns.to_numpy()
    return probabilities


def hard_rows(frame: pl.DataFrame, scheme: LabelScheme, folds: int = 10) -> list[str]:
    """Ids, sorted, of the rows that `hyponly-v1`, `cross_fitted`, gets wrong; none with one law.

    Args:
        frame: Labelled examples; their order does not matter.
        scheme: Labels.
        folds: Number of folds, at least 2.

    Raises:
        ValueError: fewer than 2 folds are asked for.
    """
    probabilities = cross_fitted(frame, scheme, folds)
    if probabilities is None:
        return []
    wrong = probabilities.argmax(axis=1) != label_indices(frame, "label", scheme)
    return sorted(frame.filter(pl.Series(wrong))["example_id"].to_list())


def hard_scores(
    predictions: pl.DataFrame, ids: Collection[str], baseline_predictions: pl.DataFrame | None, scheme: LabelScheme
) -> dict[str, Any]:
    """Scores on the hard rows: recall per label and their mean, never raw accuracy (a constant answer can win that).

    Args:
        predictions: Answers to the whole set (`metrics.score`).
        ids: `hard_rows` of the set.
        baseline_predictions: Answers of `hyponly-v1`, trained on the run's training split; None: not known.
        scheme: Labels.

    Returns:
        `num_examples`, `recall` {label: share or null where the label is not in gold}, `balanced` (mean of the recalls
        that are there), `baseline` (`balanced` of the baseline on the same rows).

    Raises:
        ValueError: a hard row has no answer.
    """
    recall = _recalls(predictions, ids, scheme)
    baseline = None if baseline_predictions is None else _recalls(baseline_predictions, ids, scheme)
    return {
        "num_examples": len(ids),
        "recall": recall,
        "balanced": _mean_known(recall),
        "baseline": None if baseline is None else _mean_known(baseline),
    }


def _training_labels(train: pl.DataFrame, scheme: LabelScheme) -> npt.NDArray[np.int64]:
    if train.is_empty():
        raise UserError("a baseline needs training rows, there are none")
    return label_indices(train, "label", scheme)


def _predictions(frame: pl.DataFrame, probabilities: Probabilities, scheme: LabelScheme) -> pl.DataFrame:
    """Lay out probabilities (N, C), columns in scheme order, as fp32; the answer is the first of the highest."""
    assert probabilities.shape == (frame.height, len(scheme.labels)), probabilities.shape
    stored = probabilities.astype(np.float32)
    answers = [scheme.names[index] for index in stored.argmax(axis=1)]
    columns = [pl.Series(f"prob_{name}", stored[:, index]) for index, name in enumerate(scheme.names)]
    return frame.select("example_id", "label", "group_id").with_columns(
        *columns, pl.Series("predicted", answers, dtype=pl.String)
    )


def _linear_model(train: pl.DataFrame, frame: pl.DataFrame, scheme: LabelScheme, featurize: Featurizer) -> pl.DataFrame:
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # a dependency of scikit-learn

    labels = _training_labels(train, scheme)
    classes = np.unique(labels)
    if len(classes) == 1 or frame.is_empty():
        return majority(train, frame, scheme)
    seen, asked = featurize(train, frame)
    with threadpool_limits(limits=1):  # the same sums on any machine; 20 times faster where cores are shared
        model = LogisticRegression(C=4.0, solver="lbfgs", max_iter=1000).fit(seen, labels)
    probabilities = np.zeros((frame.height, len(scheme.labels)))
    probabilities[:, model.classes_] = model.predict_proba(asked)  # a label absent from training keeps 0
    return _predictions(frame, probabilities, scheme)


def _text_features(train: pl.DataFrame, frame: pl.DataFrame, segments: Sequence[str]) -> tuple[Any, Any]:
    """Sparse TF-IDF rows of both frames, fitted on `train`, the columns of the texts side by side."""
    from scipy.sparse import hstack

    parts = [_word_features(train, frame, name) for name in segments]
    if len(parts) == 1:
        return parts[0]
    return hstack([seen for seen, _ in parts], format="csr"), hstack([asked for _, asked in parts], format="csr")


def _word_features(train: pl.DataFrame, frame: pl.DataFrame, name: str) -> tuple[Any, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    missing = train[name].null_count() + frame[name].null_count()
    if missing:
        raise UserError(f"{missing} rows have no '{name}', which the linear model is to read")
    texts = [normalize_text(text) for text in train[name]]
    has_repeats = _has_word_in_two(texts, name)
    vectorizer = TfidfVectorizer(
        lowercase=True,
        token_pattern=WORD_PATTERN,
        ngram_range=(1, 2),
        min_df=2 if has_repeats else 1,
        sublinear_tf=True,
    )
    seen = vectorizer.fit_transform(texts)
    return seen, vectorizer.transform([normalize_text(text) for text in frame[name]])


def _has_word_in_two(texts: list[str], name: str) -> bool:
    """Whether a word stands in two of the texts.

    Raises:
        UserError: there is no word at all.
    """
    known: set[str] = set()
    for text in texts:
        words = set(list_words(text))
        if not known.isdisjoint(words):
            return True
        known |= words
    if not known:
        raise UserError(f"no training {name} holds a word: nothing to learn from")
    return False


def _hypothesis_and_overlap_features(train: pl.DataFrame, frame: pl.DataFrame) -> tuple[Any, Any]:
    from scipy.sparse import csr_array, hstack
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(overlap_features(train))
    parts = zip((train, frame), _word_features(train, frame, "hypothesis"), strict=True)
    seen, asked = (
        hstack([words, csr_array(scaler.transform(overlap_features(rows)))], format="csr") for rows, words in parts
    )
    return seen, asked


def _overlap_of(premise: str, hypothesis: str) -> tuple[float, ...]:
    premise_words, hypothesis_words = list_words(premise), list_words(hypothesis)
    known, asked = set(premise_words), set(hypothesis_words)
    shared = len(known & asked)
    numbers = set(re.findall(r"\d+", normalize_text(premise))) & set(re.findall(r"\d+", normalize_text(hypothesis)))
    return (
        shared / max(len(known | asked), 1),
        shared / max(len(asked), 1),
        sum(word not in known for word in hypothesis_words) / max(len(hypothesis_words), 1),
        len(hypothesis_words) / max(len(premise_words), 1),
        len(numbers),
    )


def _folds_by_law(rows: pl.DataFrame, folds: int) -> npt.NDArray[np.int64] | None:
    """Fold of each row, (N,); None if there are not two units to hold apart."""
    own = [pl.format(f"{name}:{{}}", name) for name in ("law_id", "premise_id", "example_id")]  # no name meets another
    units = rows.select(unit=pl.coalesce(own)).to_series()
    counts = dict(units.value_counts().iter_rows())
    num_folds = min(folds, len(counts))
    if num_folds < 2:
        return None
    sizes, fold_of = [0] * num_folds, {}
    for unit in sorted(counts, key=lambda name: (stable_unit(name, 0), name)):
        fold_of[unit] = sizes.index(min(sizes))
        sizes[fold_of[unit]] += counts[unit]
    return np.array([fold_of[unit] for unit in units], dtype=np.int64)


def _recalls(predictions: pl.DataFrame, ids: Collection[str], scheme: LabelScheme) -> dict[str, float | None]:
    wanted = set(ids)
    rows = predictions.filter(pl.col("example_id").is_in(pl.Series(sorted(wanted), dtype=pl.String).implode()))
    if rows.height != len(wanted):
        missing = sorted(wanted - set(rows["example_id"]))
        raise ValueError(f"{len(wanted)} hard rows, {rows.height} answers; without one: {missing[:5]}")
    size = len(scheme.labels)
    gold, answer = (label_indices(rows, name, scheme) for name in ("label", "predicted"))
    confusion = np.bincount(gold * size + answer, minlength=size * size).reshape(size, size)
    per_class = scores_from_confusion(confusion, scheme, None).per_class
    return {name: scores.recall if scores.support else None for name, scores in per_class.items()}


def _mean_known(recalls: dict[str, float | None]) -> float | None:
    known = [value for value in recalls.values() if value is not None]
    return sum(known) / len(known) if known else None

"""SetFit: a sentence encoder trained on pairs of rows, then a logistic regression of its embeddings.

The library `setfit` trains, holds and stores the model; pairs come from `setfit_pairs`, and a row is one text: what our
tokenization keeps of its segments, special tokens between them, written out again. So truncation is the run's own, and
an exported model answers such texts.

In shapes, R is rows and C labels.
"""

from __future__ import annotations

import copy
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from lightning_nli.config import ExperimentConfig, cache_root
from lightning_nli.config_text import parse_ratio, resolve_truncation
from lightning_nli.data.segments import Template, Truncation
from lightning_nli.data.tokenization import (
    EncoderSpec,
    TokenizedSplit,
    class_indices,
    count_segment_tokens,
    tokenize_split,
)
from lightning_nli.models.encoder import check_length
from lightning_nli.models.heads import hub_errors, prepare_transformers
from lightning_nli.models.offline import CBOW, resolve_model
from lightning_nli.models.words import resolve_segmenter
from lightning_nli.training.corpora import RunData
from lightning_nli.training.scoring import answer_table
from lightning_nli.training.setfit_pairs import Ints, PairPlan, draw_pairs, plan_pairs
from lightning_nli.training.strategy import resolve_accelerator
from lightning_nli.types import SCHEMES, LabelScheme, UserError

log = logging.getLogger(__name__)

FOLDER = "setfit"
"""Where a run folder keeps the model, as the library stores it."""

_META = "lnli.json"
_REPORTS = 20  # lines of progress in a run
_LEAST_PROBABILITY = 1e-7  # of a label that training lacks: its loss stays finite


@dataclass
class SetFitScorer:
    """A trained SetFit model with everything needed to score raw rows.

    Attributes:
        model: `setfit.SetFitModel`; its head knows labels by class index.
        spec: Text to ids.
        scheme: Labels in column order.
        batch_size: Texts of one forward pass.
        cache: Token cache, or None.
    """

    model: Any
    spec: EncoderSpec
    scheme: LabelScheme
    batch_size: int
    cache: Path | None = None

    @property
    def reads_premise(self) -> bool:
        return "premise" in self.spec.segments

    def probabilities(self, frame: pl.DataFrame) -> npt.NDArray[np.float64]:
        """(R, C) in row order; columns are put in scheme order by the classes that the head itself names."""
        return self.text_probabilities(self.texts(frame))

    def text_probabilities(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """As `probabilities`, of rows that are one text each already."""
        answers = np.zeros((len(texts), len(self.scheme.labels)))
        if texts:
            found = self.model.predict_proba(list(texts), batch_size=self.batch_size, as_numpy=True)
            answers[:, self.model.model_head.classes_] = found
        return answers

    def texts(self, frame: pl.DataFrame) -> list[str]:
        """Each row as the one text that the sentence encoder reads."""
        return join_rows(tokenize_split(frame, self.spec, self.scheme, cache=self.cache), self.spec.tokenizer)

    def predictions(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The predictions table of `frame`, in row order."""
        log_probabilities = np.log(np.maximum(self.probabilities(frame), _LEAST_PROBABILITY))
        return answer_table(frame, log_probabilities.astype(np.float32), self.scheme)


def join_rows(split: TokenizedSplit, tokenizer: Any) -> list[str]:
    """Tokenized rows written out, without the special tokens that the tokenizer itself puts around a single text."""
    first, last = (len(part) for part in Template.of_tokenizer(tokenizer, 1).specials)
    bounds = zip(split.offsets[:-1] + first, split.offsets[1:] - last, strict=True)
    rows = [split.token_ids[start:end].tolist() for start, end in bounds]
    return [tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False) for row in rows]


def separator(spec: EncoderSpec) -> str:
    """The special tokens between two texts of a row, written out."""
    ids = list(spec.template.specials[1]) if len(spec.segments) > 1 else []
    return str(spec.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def plan_setfit(config: ExperimentConfig, data: RunData) -> PairPlan:
    """Pairs and steps of a run.

    Raises:
        UserError: too many pairs, or none.
    """
    return plan_pairs(
        class_indices(data.train, data.scheme),
        num_iterations=config.setfit.num_iterations,
        max_pairs=config.setfit.max_pairs,
        batch_size=config.packing.batch_size,
    )


def fit_setfit(config: ExperimentConfig, data: RunData, folder: Path) -> tuple[SetFitScorer, dict[str, Any]]:
    """Train on the run's rows and store the model in the run folder.

    Returns:
        The model, and what `result.json` says of its pairs, texts and head.

    Raises:
        UserError: the library or the encoder is not there, or the pairs are too many or none.
    """
    plan = plan_setfit(config, data)
    _say(plan)
    library = require_setfit()
    labels = class_indices(data.train, data.scheme)
    body = _load_body(config, _source(config, data))
    segmenter = resolve_segmenter(config.text.segmenter, config.model, body.tokenizer)
    spec = _spec(config, body.tokenizer, data.segments, segmenter)
    if spec.truncation is Truncation.PROPORTIONAL:
        given = config.text.truncation_ratio
        if given == "auto":
            ratio = count_segment_tokens(data.published_train, spec, cache=cache_root())
        else:
            ratio = parse_ratio(given)
        spec = replace(spec, ratio=ratio)
    head = build_head(len(np.unique(labels)), seed=config.seed)
    model = library.SetFitModel(model_body=body, model_head=head, labels=data.scheme.names)
    scorer = SetFitScorer(model, spec, data.scheme, config.packing.batch_size, cache_root())
    split = tokenize_split(data.train, spec, data.scheme, cache=scorer.cache)
    started = time.perf_counter()
    _train(library, config, scorer, join_rows(split, spec.tokenizer), labels, plan)
    store(scorer, folder / FOLDER)
    described = {
        **plan.as_dict(),
        "training_s": round(time.perf_counter() - started, 1),
        "truncated_rows": split.num_truncated,
        "cut_tokens": split.num_cut_tokens,
        "head": f"{type(head).__name__}, liblinear",
        "library": f"setfit {library.__version__}",
    }
    return scorer, described


def _say(plan: PairPlan) -> None:
    (log.warning if plan.has_repeats else log.info)("%s", plan.describe())


def require_setfit() -> Any:
    """The library, quiet.

    Raises:
        UserError: it is not installed.
    """
    try:
        import setfit
    except ModuleNotFoundError as error:
        if error.name not in ("setfit", "sentence_transformers"):
            raise
        raise UserError("--method setfit needs its library: pip install 'lightning-nli[setfit]'") from None
    for name in ("setfit", "sentence_transformers", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return setfit


def build_head(num_labels: int, *, seed: int) -> Any:
    """Logistic regression by liblinear, one against the rest where there are more than two labels.

    scikit-learn 1.8 and later refuse liblinear with three labels unless it is wrapped.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    head = LogisticRegression(solver="liblinear", random_state=seed)
    return OneVsRestClassifier(head) if num_labels > 2 else head


def _source(config: ExperimentConfig, data: RunData) -> Path | str:
    if config.model.partition(":")[0] == CBOW:
        raise UserError(f"--method setfit trains a transformer; '{config.model}' is none")
    return resolve_model(config.model, lambda: [text for name in data.segments for text in data.train[name]])


def _load_body(config: ExperimentConfig, source: Path | str) -> Any:
    """The sentence encoder; where a folder names no pooling, the mean of the token states."""
    from sentence_transformers import SentenceTransformer

    prepare_transformers()
    device = "cuda" if resolve_accelerator(config.engine) == "gpu" else "cpu"
    with hub_errors(source):
        body = SentenceTransformer(str(source), device=device)
    network: Any = body[0].auto_model
    check_length(config.model, network.config, config.text.max_length)
    body.max_seq_length = config.text.max_length
    return body


def _spec(config: ExperimentConfig, tokenizer: Any, segments: tuple[str, ...], segmenter: str) -> EncoderSpec:
    """How texts become ids; with a tokenizer of its own, for the encoder sets truncation and padding on its."""
    return EncoderSpec(
        tokenizer=copy.deepcopy(tokenizer),
        segments=segments,
        max_length=config.text.max_length,
        truncation=Truncation(resolve_truncation(config.text, len(segments))),
        normalize=config.text.normalize == "nfc",
        segmenter=segmenter,
    )


def _train(
    library: Any, config: ExperimentConfig, scorer: SetFitScorer, texts: list[str], labels: Ints, plan: PairPlan
) -> None:
    """The contrastive stage over the drawn pairs, then the head on the rows themselves."""
    from datasets import Dataset, disable_progress_bars
    from transformers import PrinterCallback, TrainerCallback

    disable_progress_bars()
    pairs, targets = draw_pairs(labels, plan, seed=config.seed)

    class PairTrainer(library.Trainer):  # type: ignore[misc]
        """The library's trainer, with the pairs that were counted and announced."""

        def get_dataset(self, x: Any, y: Any, args: Any, max_pairs: int = -1) -> tuple[Any, Any]:
            first, second = ([texts[row] for row in pairs[:, side]] for side in (0, 1))
            columns = {"sentence_1": first, "sentence_2": second, "label": targets.tolist()}
            return Dataset.from_dict(columns), args.loss(self.model.model_body)

    class Report(TrainerCallback):  # type: ignore[misc]
        """A line of our log now and then, instead of the library's prints."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % max(1, plan.num_steps // _REPORTS) == 0:
                log.info("step %d of %d", state.global_step, state.max_steps)

    with tempfile.TemporaryDirectory() as scratch:
        arguments = library.TrainingArguments(
            output_dir=scratch,
            batch_size=config.packing.batch_size,
            num_epochs=1,
            body_learning_rate=config.optim.lr,
            warmup_proportion=config.optim.warmup_fraction,
            max_length=config.text.max_length,
            seed=config.seed,
            show_progress_bar=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
        )
        rows = Dataset.from_dict({"text": texts, "label": labels.tolist()})
        trainer = PairTrainer(model=scorer.model, args=arguments, train_dataset=rows, callbacks=[Report()])
        trainer.st_trainer.remove_callback(PrinterCallback)
        trainer.train()
    prepare_transformers()  # the trainer turned progress bars on
    scorer.model.model_body.eval()


def store(scorer: SetFitScorer, folder: Path) -> None:
    """Write the model as `setfit.SetFitModel.from_pretrained` reads it, whole or not at all."""
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    spec = scorer.spec
    meta = {
        "scheme": scorer.scheme.name,
        "segments": spec.segments,
        "segmenter": spec.segmenter,
        "ratio": spec.ratio,
    }
    try:
        scorer.model.save_pretrained(partial)
        (partial / _META).write_text(json.dumps(meta), encoding="utf-8")
        partial.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load_setfit(folder: Path, config: ExperimentConfig) -> SetFitScorer:
    """The model of a run.

    Raises:
        UserError: the library or the stored model is not there.
    """
    stored = folder / FOLDER
    if not (stored / _META).exists():
        raise UserError(f"{folder} holds no trained SetFit model (no {FOLDER}/{_META}); train it again")
    meta = json.loads((stored / _META).read_text(encoding="utf-8"))
    scheme = SCHEMES[meta["scheme"]]
    library = require_setfit()
    model = library.SetFitModel.from_pretrained(str(stored), device="cpu")
    if model.labels != scheme.names:
        raise UserError(f"{stored} names the labels {model.labels}, the run {scheme.names}; train it again")
    model.model_body = _load_body(config, stored)
    spec = _spec(config, model.model_body.tokenizer, tuple(meta["segments"]), meta["segmenter"])
    spec = replace(spec, ratio=None if meta["ratio"] is None else tuple(meta["ratio"]))
    return SetFitScorer(model, spec, scheme, config.packing.batch_size, cache_root())

"""The folder of a new CBoW model: words of the run's training texts, vectors at random or from a file."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_nli.types import UserError

log = logging.getLogger(__name__)

_WIDTH = 300
_SPECIAL = ["[PAD]", "[UNK]"]
_WORD = r"\w+|[^\w\s]"  # words joined by `_` stay whole, every punctuation mark is a word
_LEAST_COUNT = 2  # a rarer word teaches the vector of unknown words instead, unless a file has its vector

Vectors = dict[str, npt.NDArray[np.float32]]


def write_cbow(folder: Path, texts: Sequence[str], vectors: Path | None) -> None:
    """Write weights (without a classifier), configuration and tokenizer.

    Raises:
        UserError: the file of vectors is not there or broken.
    """
    import torch
    from transformers.utils import logging as hf_logging

    from lightning_nli.models.cbow import CBowConfig, CBowModel

    counts = Counter(word for text in texts for word in re.findall(_WORD, text))
    known = {} if vectors is None else read_vectors(vectors, counts)
    words = [word for word, count in counts.items() if count >= _LEAST_COUNT or word in known]
    words = [*_SPECIAL, *sorted(words, key=lambda word: (-counts[word], word))]
    width = len(next(iter(known.values()))) if known else _WIDTH
    with torch.random.fork_rng(devices=[]):  # a run's own draws do not depend on whether the cache was empty
        torch.manual_seed(0)
        model = CBowModel(CBowConfig(vocab_size=len(words), embedding_size=width))
        if known:
            _place_vectors(model.word_embeddings.weight, words, known)
    if vectors is not None:
        covered = sum(count for word, count in counts.items() if word in known) / max(1, sum(counts.values()))
        log.info(
            "cbow: %d words, %d of them have a vector in %s (%.1f%% of the running words)",
            len(words) - len(_SPECIAL),
            len(known),
            vectors,
            100 * covered,
        )
    hf_logging.disable_progress_bar()
    model.save_pretrained(folder)
    _word_tokenizer(words).save_pretrained(folder)


def _place_vectors(table: Any, words: Sequence[str], known: Vectors) -> None:
    """Put the vectors in; the other rows are drawn as wide as these are spread."""
    import torch

    rows = [index for index, word in enumerate(words) if word in known]
    found = torch.from_numpy(np.stack([known[words[index]] for index in rows]))
    with torch.no_grad():
        table.mul_(found.std() / table[1:].std())
        table[rows] = found


def _word_tokenizer(words: Sequence[str]) -> Any:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_input_names=inputs
    )


def read_vectors(path: Path, wanted: Counter[str]) -> Vectors:
    """Vectors of the wanted words from a .npz (arrays `words` (W,), `vectors` (W, D)) or a word2vec text file.

    Raises:
        UserError: the file is not there, is broken, or has none of the words.
    """
    try:
        rows = _npz_rows(path) if path.suffix == ".npz" else _text_rows(path)
        known = {word: vector for word, vector in rows if word in wanted}
    except OSError as error:
        raise UserError(f"vectors {path} cannot be read: {error.strerror or error}") from None
    if not known:
        raise UserError(f"vectors {path} has none of the {len(wanted)} words of the training texts")
    return known


def _npz_rows(path: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            words, vectors = arrays["words"], np.asarray(arrays["vectors"], np.float32)
    except (KeyError, ValueError) as error:
        raise UserError(f"vectors {path}: arrays 'words' and 'vectors' are expected: {error}") from None
    if vectors.ndim != 2 or len(words) != len(vectors):
        raise UserError(f"vectors {path}: {len(words)} words, vectors of shape {vectors.shape}")
    return zip(map(str, words), vectors, strict=True)


def _text_rows(path: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Lines `word number number ...` behind an optional line `count width`; a word may hold spaces."""
    width: int | None = None
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            parts = line.rstrip().split(" ")
            if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
                width = int(parts[1])
                continue
            width = len(parts) - 1 if width is None else width
            try:
                vector = np.array(parts[-width:], np.float32)
            except ValueError:
                vector = np.zeros(0, np.float32)
            if len(vector) != width or len(parts) <= width or not np.isfinite(vector).all():
                raise UserError(f"vectors {path}, line {number}: a word and {width} numbers are expected")
            yield " ".join(parts[:-width]), vector

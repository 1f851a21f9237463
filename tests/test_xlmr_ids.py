"""The converted tokenizer gives XLM-R's ids: the sentencepiece library on the same vocabulary is the judge.

The published XLM-R tokenizer is that library with this vocabulary, these scores and this table of character rules.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protocol
from transformers import AutoTokenizer

from lightning_nli.data.readers import read_source
from lightning_nli.models import offline
from lightning_nli.types import UserError

NORMAL, UNKNOWN, CONTROL = 1, 2, 3


def reference() -> tuple[sentencepiece.SentencePieceProcessor, dict[int, str]]:
    """The library's own segmenter, and the character rules that come before it."""
    data = offline._find_weights()
    if data is None:
        pytest.skip("the weights of e5-small are not here: lnli stage e5-small")
    reader = offline._Reader(data)
    reader.raw(4), reader.take("I"), reader.take("7i"), reader.take("f"), reader.take("i")
    count, bos, eos, pad, unknown = reader.take("5i")
    size = reader.take("Q")
    offsets, scores = reader.array("<u4", count + 1), reader.array("<f4", count)
    blob = reader.raw(size)
    num_rules, table = reader.take("i"), reader.raw(reader.take("I"))
    model = protocol.ModelProto()
    for place in range(count):
        piece = model.pieces.add()
        piece.piece = blob[offsets[place] : offsets[place + 1]].decode("utf-8") or f"<empty {place}>"
        piece.score = float(scores[place])
        is_control = place in (bos, eos, pad) or piece.piece == "<mask>"
        piece.type = UNKNOWN if place == unknown else CONTROL if is_control else NORMAL
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type = protocol.TrainerSpec.UNIGRAM
    for name, place in {"unk": unknown, "bos": bos, "eos": eos, "pad": pad}.items():
        setattr(trainer, f"{name}_id", place)
        setattr(trainer, f"{name}_piece", model.pieces[place].piece)
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = normalizer.escape_whitespaces = True
    rules: dict[int, str] = {}
    position = 0
    while position < len(table):
        (character,), length = struct.unpack_from("<I", table, position), table[position + 4]
        rules[character] = "".join(map(chr, struct.unpack_from(f"<{length}I", table, position + 5)))
        position += 5 + 4 * length
    assert len(rules) == num_rules
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model.SerializeToString())
    return processor, rules


@pytest.mark.slow
def test_ids_of_the_published_texts_are_those_of_the_library(shared: Path):
    processor, rules = reference()
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(offline.stage_e5_small()))
    except UserError as missing:
        pytest.skip(str(missing))
    frames = [
        read_source(f"vilegalnli:{shared}/data/vilegalnli#test", on_bad_row="drop").frame,
        read_source(f"visnli:{shared}/data/visnli#dev").frame,
    ]
    texts = list(dict.fromkeys(text for frame in frames for name in ("premise", "hypothesis") for text in frame[name]))
    assert len(texts) > 6000
    ours = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    theirs = [processor.EncodeAsIds(text.translate(rules)) for text in texts]
    assert [text for text, mine, other in zip(texts, ours, theirs, strict=True) if mine != other] == []
    assert sum(map(len, ours)) > 200_000

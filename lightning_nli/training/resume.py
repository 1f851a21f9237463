"""Where a run goes on: the newest checkpoint that is whole and its own; what is neither is named."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_nli.config import ExperimentConfig, deciding_settings, flat_settings
from lightning_nli.data.packing import PackPlan
from lightning_nli.data.tokenization import EncoderSpec, TokenizedSplit
from lightning_nli.training.checkpoint import read_weights
from lightning_nli.training.index import CheckpointIndex, SavedCheckpoint
from lightning_nli.training.manifest import Manifest, RunIdentity, find_damage, manifest_path, read_manifest
from lightning_nli.types import UserError

log = logging.getLogger(__name__)

_ELASTIC = ("engine.devices", "engine.num_nodes", "engine.strategy", "optim.accumulate", "packing.batch_size")


def is_sharded(config: ExperimentConfig) -> bool:
    """Whether each process saves a part of its own, so that only as many processes can go on."""
    return config.engine.strategy.startswith("deepspeed")


def global_batch(config: ExperimentConfig) -> int:
    """Examples of an optimizer step over all processes; packs, with --max-tokens."""
    width = 1 if config.packing.max_tokens else config.packing.batch_size
    return width * config.optim.accumulate * config.engine.devices * config.engine.num_nodes


def settings_to_keep(config: ExperimentConfig) -> dict[str, Any]:
    """The settings, by dotted name, that a run must keep to go on with its checkpoints.

    Without shards the number of processes may change, as long as the optimizer steps stay the same: the order of the
    examples and their division into steps depend on the global batch alone.
    """
    kept = flat_settings(deciding_settings(config))
    if is_sharded(config):
        return kept
    for name in _ELASTIC:
        del kept[name]
    return kept | {"global batch": global_batch(config)}


def run_identity(
    config: ExperimentConfig, data_fingerprint: str, spec: EncoderSpec, train: TokenizedSplit, plan: PackPlan
) -> RunIdentity:
    """What this run's checkpoints must have in common."""
    kept = {name: value for name, value in settings_to_keep(config).items() if name != "global batch"}
    groups = None if plan.groups is None else _hash(plan.groups.weights.tolist())
    order = [plan.max_tokens, plan.seed, groups, hashlib.sha256(train.lengths.tobytes()).hexdigest()]
    return RunIdentity(
        run=_hash(kept),
        data=data_fingerprint,
        tokenizer=spec.fingerprint(),
        plan=_hash(order),
        global_batch=global_batch(config),
        accumulate=config.optim.accumulate,
        world_size=config.engine.devices * config.engine.num_nodes,
        sharded=is_sharded(config),
    )


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def check_identity(stored: RunIdentity, now: RunIdentity, checkpoint: Path) -> None:
    """Whether a run may go on with a checkpoint.

    Raises:
        UserError: it is of other settings, data, tokenizer, order or number of processes; one line that says which.
    """
    reasons = {
        "run": "is of a run with other settings; give another --run-dir",
        "data": "was saved before the data changed; restore them, or start anew with another --run-dir",
        "tokenizer": "was saved with another tokenizer or segmenter; restore it, or start anew with another --run-dir",
        "plan": "was saved with another order of the training examples; start anew with another --run-dir",
    }
    for name, reason in reasons.items():
        before, after = getattr(stored, name), getattr(now, name)
        if before != after:
            raise UserError(f"{checkpoint} {reason} ({name} {before}, now {after})")
    if now.sharded and stored.world_size != now.world_size:
        raise UserError(
            f"{checkpoint} has the shards of {stored.world_size} DeepSpeed processes, this run has {now.world_size}: "
            f"start {stored.world_size}, or take its weights alone (lnli consolidate)"
        )
    if stored.global_batch != now.global_batch:
        raise UserError(batch_message(str(checkpoint), stored.global_batch, now.global_batch, now.accumulate))


def batch_message(what: str, before: int, now: int, accumulate: int) -> str:
    """The error where other processes would make other optimizer steps; says which --accumulate would mend it."""
    wanted = before * accumulate
    mend = f"--accumulate {wanted // now}" if wanted % now == 0 else "as many processes as before"
    return f"{what} has a global batch of {before}, these settings make {now}: give {mend}, or another --run-dir"


def find_checkpoint(folder: Path, identity: RunIdentity, *, is_first: bool) -> Path | None:
    """The checkpoint to go on from, None where there is none yet.

    Args:
        folder: Of the run's checkpoints.
        identity: Of the run.
        is_first: In the first process, which looks at every byte and puts damaged ones aside; the others follow.

    Raises:
        UserError: the newest one is not of this run, or none of them is whole.
    """
    if is_first:
        _adopt(folder)
    index = CheckpointIndex.read(folder)
    if not is_first:
        return None if index.last is None else folder / index.last.name
    damaged: list[tuple[SavedCheckpoint, str]] = []
    for entry in index.newest_first:
        damage = _inspect(folder / entry.name, identity)
        if damage is None:
            _put_aside(folder, index, damaged)
            log.info("going on from %s (epoch %d, step %d)", entry.name, entry.epoch + 1, entry.step)
            return folder / entry.name
        damaged.append((entry, damage))
    if damaged:
        entry, damage = damaged[0]
        raise UserError(f"no whole checkpoint is left: {folder / entry.name}: {damage}; give another --run-dir")
    return None


def _inspect(checkpoint: Path, identity: RunIdentity) -> str | None:
    """What is damaged; None for a whole checkpoint of this run."""
    try:
        manifest = read_manifest(checkpoint)
    except UserError as error:
        return str(error)
    if manifest is None:
        return _inspect_without_manifest(checkpoint)
    if manifest.identity is not None:
        check_identity(manifest.identity, identity, checkpoint)
    return find_damage(checkpoint, manifest)


def _inspect_without_manifest(checkpoint: Path) -> str | None:
    try:
        read_weights(checkpoint)
    except UserError as error:
        return str(error)
    log.warning("%s has no manifest: whether it is of this run cannot be checked", checkpoint)
    return None


def _put_aside(folder: Path, index: CheckpointIndex, damaged: list[tuple[SavedCheckpoint, str]]) -> None:
    """Say loudly what is damaged and keep it under another name, where nothing takes it for a checkpoint."""
    for entry, damage in damaged:
        log.error("%s is damaged: %s. The one before it is used; steps since then are repeated", entry.name, damage)
        index.drop(entry.name, lower_is_better=(index.monitor or "").endswith("loss"))
        for path in (folder / entry.name, manifest_path(folder / entry.name)):
            if path.exists():
                path.rename(path.with_name(f"damaged-{path.name}"))
    if damaged:
        index.write(folder)


def _adopt(folder: Path) -> None:
    """Register checkpoints that were whole when a crash kept them out of the index."""
    index = CheckpointIndex.read(folder)
    known = {entry.name for entry in index.saved}
    newest = index.last.step if index.last else -1
    for path in sorted(folder.glob("step-*.manifest.json")):
        checkpoint = path.with_name(path.name.removesuffix(".manifest.json"))
        if checkpoint.name in known or not checkpoint.exists():
            continue
        try:
            manifest = read_manifest(checkpoint)
        except UserError:
            continue
        if manifest is not None and manifest.step >= newest and find_damage(checkpoint, manifest) is None:
            index.add(_entry(manifest), lower_is_better=(index.monitor or "").endswith("loss"))
            index.write(folder)
            log.info("%s was not in the index; it is whole", checkpoint.name)


def _entry(manifest: Manifest) -> SavedCheckpoint:
    values = asdict(manifest)
    return SavedCheckpoint(**{name: values[name] for name in ("name", "step", "epoch", "score", "stale")})

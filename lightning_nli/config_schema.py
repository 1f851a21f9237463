"""The settings of one run, as frozen dataclasses; the docstrings are the help text of `lnli fit` too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Literal, get_type_hints

from lightning_nli.types import UserError


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """How a pair becomes tokens.

    Attributes:
        max_length: Longest segment in tokens, special tokens included.
        template: How the texts of a segment are joined: `separators` uses the tokenizer's own separators, `markers`
            puts [STATE], [COND] or [LAW] before hypothesis, condition or premise, and makes these and the anonymisation
            tokens of the training texts ([Person-1]) tokens of the model's own.
        truncation: What is cut when a segment is too long: `longest_first` (token by token from the longest text),
            `proportional` (every text has its share of the room, in the ratio of --truncation-ratio), `premise_first`
            (only the premise, as long as it lasts), or of all texts taken as one all but its beginning, end or both:
            `head`, `tail`, `head_tail`. No text is emptied. `auto`: `proportional` for three texts, else
            `longest_first`.
        truncation_ratio: Shares of `proportional`, one a text in the order of --segments, as `26,8,66`; `auto` takes
            the texts' average lengths over the training split, in the run's own tokens.
        chunk_pool: What is done with segments longer than the encoder reads, up to --max-length: `none` refuses such a
            --max-length; `mean` and `max` let the encoder read the longest text in chunks, each beside the other texts,
            and take the mean or the largest of the chunks' logits.
        normalize: `nfc` (NFC, soft hyphens and zero-width marks removed, no-break spaces made spaces,
            eth read as đ) or `none`.
        segmenter: Vietnamese word segmentation before tokenizing: `auto` (for encoders trained on segmented text,
            PhoBERT: `pyvi`, else `underthesea`, whichever is installed; `none` for all others), `none`, `pyvi`,
            `underthesea`, or `vncorenlp` (needs Java). Text that is segmented already is left as it is.
    """

    max_length: int = 256
    template: Literal["separators", "markers"] = "separators"
    truncation: Literal["auto", "longest_first", "proportional", "premise_first", "head", "tail", "head_tail"] = "auto"
    truncation_ratio: str = "auto"
    chunk_pool: Literal["none", "mean", "max"] = "none"
    normalize: Literal["nfc", "none"] = "nfc"
    segmenter: Literal["auto", "none", "pyvi", "underthesea", "vncorenlp"] = "auto"


@dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """How segments share a forward pass.

    Attributes:
        batch_size: Examples per device and micro-step; not together with --max-tokens.
        max_tokens: Tokens per pack and micro-step, filled with as many examples as fit, instead of --batch-size
            examples (faster where lengths differ); null for off.
        eval_max_tokens: Tokens per pack in validation, test and predict.
    """

    batch_size: int = 16
    max_tokens: int | None = None
    eval_max_tokens: int = 4096


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and its schedule.

    Attributes:
        lr: Peak learning rate, per optimizer step.
        weight_decay: AdamW's decay, times the learning rate per optimizer step; never on biases and LayerNorm.
        epochs: Passes over the training split.
        accumulate: Micro-steps per optimizer step; global batch = --batch-size x --accumulate x processes.
        warmup_fraction: Share (0 to 1) of all optimizer steps in which the rate rises linearly from 0.
        schedule: `linear` decay to 0, `cosine` to 0, or `constant`, after the warm-up.
        clip: Largest L2 norm of the gradient in an optimizer step; 0 for no clipping.
        dropout: Share of activations and attention weights dropped in training, in every layer; null for what the
            checkpoint was published with (mostly 0.1).
    """

    lr: float = 2e-5
    weight_decay: float = 0.01
    epochs: int = 3
    accumulate: int = 1
    warmup_fraction: float = 0.0
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    clip: float = 1.0
    dropout: float | None = None


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Where and how it runs.

    Attributes:
        strategy: `auto` (one process, or ddp with several devices), `ddp`, `deepspeed` (stage 2), or
            `deepspeed_stage_1`, `deepspeed_stage_2`, `deepspeed_stage_3`; all of them run on CPU too.
        devices: Processes per node: GPUs, or CPU processes.
        num_nodes: Machines that train together, each with as many processes as --devices says.
        accelerator: `auto` takes the GPU when there is one; `cpu`; `gpu`.
        precision: `auto` (bf16 where the hardware does it natively, else fp32), `fp32`, `bf16` (bf16 weights, fp32
            master weights and optimizer), `bf16-autocast`, `fp16` (GPU only).
        attention: `auto` (flash kernel on GPU, its exact twin `bucketed` on CPU; no packing for encoders whose
            attention cannot be replaced: DeBERTa, MPNet, Longformer), `flash` (package flash-attn), `varlen` (flash
            kernel inside torch), `bucketed`, `sdpa` (slow reference), `padded` (no packing).
        trim_vocab: `auto` trains only the embedding rows that the run's texts can touch when that halves the
            vocabulary or better (no logit changes; untouched rows come back unchanged on export); `off` trains all.
        activation_checkpointing: Recompute layers in backward: less memory, about a third more time.
        compile: Compile the encoder with torch.compile.
        native_kernels: `auto` runs what lies between the products of a bf16 model on a CPU in C, compiled once for this
            machine (BERT, RoBERTa, XLM-R, ELECTRA); `off`, or where there is no C compiler: torch's operations.
        threads: CPU threads of a process; null shares the cores out, or takes OMP_NUM_THREADS where that is set.
        num_workers: Loader processes per device; packs are cheap to build, 0 is usually best.
        max_time: Stop, save and exit with code 75 after this wall time, as DD:HH:MM:SS; null for no limit.
        on_nan: A loss that is no finite number in an optimizer step: `stop` the run, or `skip` the step (not under
            DeepSpeed; ten in a row stop the run).
        offload: Where DeepSpeed keeps the optimizer's state: `none` (on the device), `cpu`, `disk` (stage 3).
        offload_parameters: Where DeepSpeed's stage 3 keeps weights that are not in use: `none`, `cpu`, `disk`.
        offload_dir: Folder for what is offloaded to the disk.
        deepspeed_config: JSON file of further DeepSpeed settings; what contradicts ours is refused. With --strategy
            deepspeed it may name the stage.
    """

    strategy: Literal["auto", "ddp", "deepspeed", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"] = (
        "auto"
    )
    devices: int = 1
    num_nodes: int = 1
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "bf16-autocast", "fp16"] = "auto"
    attention: Literal["auto", "flash", "varlen", "bucketed", "sdpa", "padded"] = "auto"
    trim_vocab: Literal["auto", "off"] = "auto"
    activation_checkpointing: bool = False
    compile: bool = False
    native_kernels: Literal["auto", "off"] = "auto"
    threads: int | None = None
    num_workers: int = 0
    max_time: str | None = None
    on_nan: Literal["stop", "skip"] = "stop"
    offload: Literal["none", "cpu", "disk"] = "none"
    offload_parameters: Literal["none", "cpu", "disk"] = "none"
    offload_dir: str | None = None
    deepspeed_config: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept and what chooses the best.

    Attributes:
        monitor: Score that chooses the best checkpoint: `id_val/macro_f1`, `id_val/accuracy`, `id_val/loss`, or any
            other score of `id_val` in result.json, `id_val/premise.discrimination` (costs a scoring after every epoch).
        every: Also save every so many optimizer steps; 0 saves at the end of each epoch only.
        keep: How many of the newest checkpoints are kept beside the best one.
        save_minutes: Also save when the last save is longer ago; 0 for never.
        patience: Stop after this many epochs in a row without a better score; null trains all epochs.
    """

    monitor: str = "id_val/macro_f1"
    every: int = 0
    keep: int = 1
    save_minutes: float = 10.0
    patience: int | None = None


@dataclass(frozen=True, kw_only=True)
class SetFitConfig:
    """Contrastive pairs of `--method setfit`.

    Attributes:
        num_iterations: Pairs of one label, and as many of two labels, for each training row; each pair is seen once.
        max_pairs: A run that would draw more pairs than this is refused.
    """

    num_iterations: int = 20
    max_pairs: int = 50_000


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """One training run.

    Attributes:
        data: Source, `READER:PATH[#SPLIT]`, a file, or `sample[:N]`; repeat the flag for a mixture, with a share of
            each as `SOURCE@2000` or `SOURCE@0.5` (`lnli data check --help` has the whole grammar).
        train_split: Published split to train on.
        val_split: Split that chooses the checkpoint: `auto` (the corpus' dev split, else drawn from train), `drawn`,
            `none` (no selection: the last checkpoint counts), or a published split's name.
        test_split: Split scored at the end: `auto` (the corpus' test split, where there is one), `none`, or a name.
        val_fraction: Share (0 to 1) of the training rows drawn for validation, whole premises (wills: groups) at a
            time.
        test_data: Further test sets as NAME=SOURCE, each scored under its name; repeat the flag for several.
        model: `e5-small` (offline, pretrained), `tiny` (random, for tests), `cbow` or `cbow:VECTORS` (bags of words,
            with word2vec vectors from a .txt, .vec or .npz file; takes --lr 1e-3), an alias of a published encoder
            (`xlmr-large`, `phobert-base`, `cafebert`, ...), or a Hugging Face name or folder.
        head: Classification head: `auto` (a published NLI head is kept and matched by label name; otherwise a new
            one), `new`, or a mapping for a head without names, as `LABEL_0=entailment,LABEL_1=neutral,...`.
        method: `finetune`; `setfit` (the encoder trained on pairs of rows, then a logistic regression; extra `setfit`);
            or a model that trains no encoder: `majority`, `hyponly-v1` (hypothesis only), `overlap-v1`, `linear-v1`
            (words of the texts that --segments names).
        objective: Training loss: `cross_entropy`; over fields of law `domain_balanced` (all equally often),
            `group_dro:domain[=ETA]` (the worst one, step ETA, by default 0.01), `vrex[=BETA]` (equal losses, weight
            BETA, by default 1); against what the hypothesis gives away `group_dro:bias[=ETA]` (label x `hyponly-v1`
            right or wrong, by default 0.01), `product_of_experts`, `reweight`; for --augment `ranking[=WEIGHT]` and
            `ranking:margin[=WEIGHT]` (beside cross-entropy WEIGHT, by default 1, times a logistic or margin loss that
            ranks the entailment score of a row's premise above that of its swaps, which share its pack).
        augment: `none`, or `premise_swap=H+R`: for each entailed training row H coverage-matched and R random
            premises of the same law as non-entailment rows. Options behind commas: `cap=0.4` (at most this share of the
            training rows have a swapped premise), `balance=sample` or `balance=weight` (labels keep their shares by
            repeated rows, or by the weight of a row's loss), `run=FOLDER` (hard swaps are those of the 8 best that this
            finished run still calls entailed, the most probable first).
        segments: Texts the model sees, in order, joined by commas: `premise,hypothesis`, `hypothesis`, ...; `auto`
            takes all that the corpus has.
        subset: Use at most this many rows of every split (whole premises); null for all.
        label_scheme: `auto` (the corpus' own), `binary`, `three_way` or `wills`; finer labels are folded into `binary`.
        seed: Seed of a new head, shuffling and dropout.
        split_seed: Seed of drawn splits and subsets.
        run_dir: Folder of the run; null for runs/NAME-HASH of these settings.
        resume: `auto` goes on with an unfinished run in the folder; `never` refuses it.
        on_bad_row: Unusable rows are an `error`, or are left out, counted and listed: `drop`.
        text: How a pair becomes tokens.
        packing: How segments share a forward pass.
        optim: AdamW and its schedule.
        engine: Where and how it runs.
        checkpoints: What is kept and what chooses the best.
        setfit: Contrastive pairs of `--method setfit`.
    """

    data: list[str] | str = "sample"
    train_split: str = "train"
    val_split: str = "auto"
    test_split: str = "auto"
    val_fraction: float = 0.1
    test_data: list[str] | str = field(default_factory=list)
    model: str = "e5-small"
    head: str = "auto"
    method: Literal["finetune", "setfit", "majority", "hyponly-v1", "overlap-v1", "linear-v1"] = "finetune"
    objective: str = "cross_entropy"
    augment: str = "none"
    segments: str = "auto"
    subset: int | None = None
    label_scheme: str = "auto"
    seed: int = 1
    split_seed: int = 1
    run_dir: str | None = None
    resume: Literal["auto", "never"] = "never"
    on_bad_row: Literal["error", "drop"] = "error"
    text: TextConfig = field(default_factory=TextConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    setfit: SetFitConfig = field(default_factory=SetFitConfig)

    @property
    def sources(self) -> list[str]:
        return [self.data] if isinstance(self.data, str) else list(self.data)

    @property
    def test_sources(self) -> dict[str, str]:
        """Further test sets by name.

        Raises:
            UserError: an entry is not NAME=SOURCE.
        """
        entries = [self.test_data] if isinstance(self.test_data, str) else list(self.test_data)
        named = {}
        for entry in entries:
            name, found, source = entry.partition("=")
            if not found or not name or not source:
                raise UserError(f"--test-data takes NAME=SOURCE, got '{entry}'")
            named[name] = source
        return named


def leaf_names() -> dict[str, str]:
    """Every setting's bare name -> its dotted name: `lr` -> `optim.lr`."""
    return {dotted.rsplit(".", 1)[-1]: dotted for dotted in dotted_names(ExperimentConfig)}


def dotted_names(cls: type, prefix: str = "") -> Iterator[str]:
    """Names of all settings below a dataclass, `group.leaf`."""
    hints = get_type_hints(cls)
    for item in fields(cls):
        if is_dataclass(hints[item.name]):
            yield from dotted_names(hints[item.name], f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}"

"""The files of artifacts, as they are read: manifests of each kind, a checkpoint's state, a bundle."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from tsdfm.ranges import Range
from tsdfm.store.schema import Count, Sha256

Number = int | float
Size = Annotated[int, Range(low=1, high=2**20)]


class Input(TypedDict):
    """Where an input lay, and the hash it had."""

    path: str
    sha256: str


class File(TypedDict):
    """What is known of a file."""

    sha256: Sha256
    bytes: Count


class Manifest(TypedDict):
    """What every stage writes."""

    stage: str
    created: NotRequired[str]
    seed: NotRequired[int | None]
    settings: NotRequired[dict[str, Any] | None]
    versions: NotRequired[dict[str, str | None] | None]
    inputs: NotRequired[dict[str, Input]]
    parent: NotRequired[Input | None]
    finished: NotRequired[bool]
    checkpoint: NotRequired[str]
    files: NotRequired[dict[str, File]]
    model: NotRequired[dict[str, Any]]
    compass: NotRequired[dict[str, Any]]
    judge: NotRequired[dict[str, Any]]
    step: NotRequired[Count | None]
    defaults: NotRequired[dict[str, Any]]


class CorpusFile(TypedDict):
    """One file of a split. `members`: where in it a reader can begin, and how many documents lie before that."""

    file: str
    documents: Count
    characters: Count
    sha256: Sha256
    bytes: Count
    members: NotRequired[list[list[Count]]]


class CorpusSplit(TypedDict):
    """The documents of a split: in one file, or in the `files` of its parts."""

    documents: Count
    characters: Count
    sha256: Sha256
    bytes: NotRequired[Count]
    members: NotRequired[list[list[Count]]]
    files: NotRequired[list[CorpusFile]]


class Splits(TypedDict):
    """Both splits of a corpus."""

    train: CorpusSplit
    valid: CorpusSplit


class CorpusManifest(Manifest):
    """What `corpus` writes."""

    splits: Splits
    settings: dict[str, Any]  # type: ignore[misc]
    inputs: dict[str, Input]  # type: ignore[misc]


class Shard(TypedDict):
    """One file of rows; one that does not end with a whole row says how many `tokens` it holds.

    Of others' shards, `file` is a path, and tokens begin at byte `offset`.
    """

    file: str
    rows: Count
    tokens: NotRequired[Count]
    offset: NotRequired[Count]
    characters: NotRequired[Count]
    sha256: Sha256


class TokensSplit(TypedDict):
    """The rows of a split."""

    rows: Count
    characters: Count
    documents: NotRequired[Count]
    shards: list[Shard]


class TokensSplits(TypedDict):
    """Both splits of tokens."""

    train: TokensSplit
    valid: TokensSplit


class Packed(TypedDict):
    """How far a split of tokens is; a part says at which document it stops."""

    shards: list[Shard]
    after: list[Count]
    dropped_tokens: Count
    skipped_documents: Count
    done: bool
    stop: NotRequired[Count]


class PartRecord(TypedDict):
    """What a part of a stage notes of itself."""

    key: str
    done: NotRequired[bool]


class TokensProgress(PartRecord):
    """How far tokens, or a part of them, are."""

    train: Packed
    valid: Packed


class CorpusFiles(TypedDict):
    """A part's file of each split."""

    train: CorpusFile
    valid: CorpusFile


class CorpusPart(PartRecord):
    """What a part of a corpus holds."""

    counts: dict[str, Count]
    splits: CorpusFiles
    inputs: dict[str, Sha256]


class CorpusProgress(PartRecord):
    """How far a corpus is: the place in each source, characters taken of it, counts; what is written of each split."""

    places: list[list[Count]]
    taken: list[Count]
    counts: list[dict[str, Count]]
    splits: dict[str, list[Any]]


class TokenizerName(TypedDict):
    """Which tokenizer rows were made with."""

    fingerprint: str


class TokensManifest(Manifest):
    """What `tokens` writes."""

    splits: TokensSplits
    tokenizer: TokenizerName
    vocab_size: Size
    end_of_text: Count
    length: Size
    layout: Literal["packed", "document", "prompt"]
    dtype: Literal["uint8", "uint16", "uint32", "uint64"]


class Best(TypedDict):
    """`best.json`: which checkpoint of a run had the best evaluation."""

    step: Count
    metric: NotRequired[str]
    value: NotRequired[Number]


class State(TypedDict):
    """`state.json`: what a checkpoint holds."""

    format: int
    step: Count
    files: dict[str, File]


class RunState(State):
    """The same of one that a run can go on from."""

    tokens: Count
    best: Best | None
    meters: dict[str, Number]
    identity: dict[str, Any]


class Member(TypedDict):
    """One model of a bundle; the rest is what its run's manifest says."""

    stage: str | None
    sha256: Sha256
    bytes: Count
    model: NotRequired[dict[str, Any]]
    compass: NotRequired[dict[str, Any]]
    settings: NotRequired[dict[str, Any] | None]
    parent: NotRequired[str | None]


class BundleManifest(TypedDict):
    """What `ship` writes."""

    format: int
    stage: str
    members: dict[str, Member]
    tokenizer: NotRequired[str]
    defaults: NotRequired[dict[str, Any] | None]
    licence: NotRequired[str | None]


KINDS: dict[str, Any] = {"corpus": CorpusManifest, "tokens": TokensManifest}
"""What the manifest of a stage must hold; that of any other is a `Manifest`."""

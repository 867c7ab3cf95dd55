"""The document of `leaner bench`: what a step takes in this family and in its peers, at equal shape."""

from .base import Count, Duration, Record
from .results import Environment


class BenchWork(Record):
    """What is to be done: a step of one shape."""

    phase: str
    """training (forward, backward, update by fused AdamW), inference (forward, without gradients) or decoding (a
    prompt and new tokens, greedily)."""
    shape: str
    """A named shape, or the file, folder or Hub id of a configuration, from which the next three may differ."""
    layers: Count
    heads: Count
    """Of the layer with the most."""
    head_dim: Count
    """Size of a head."""
    dtype: str
    """float32, bfloat16 or float16."""
    batch: Count
    """Items of a step."""
    length: Count
    """Tokens of an item; of decoding those of its prompt."""
    new_tokens: Count
    """That decoding adds to an item; 0 in the other phases."""


class BenchCell(BenchWork):
    """One contestant at one workload. Where `note` says why it could not run, what would be measured is None."""

    library: str
    """Whose code: modeling_leaner, transformers or timm."""
    attention: str
    """`attn_implementation`; of timm sdpa is its fused attention."""
    mode: str
    """eager, or compile by torch.compile; of decoding compile has keys and values of a fixed size, too."""
    precision: str
    """How a dtype below float32 is had: autocast over float32 weights in training, cast weights in the others."""
    device: str
    """cpu, or the GPU's name."""
    torch: str
    """Version, as is the next."""
    transformers: str
    rounds: Count
    """Timed, each contestant once a round; 0 where it could not run."""
    milliseconds: Duration | None
    """Of a step, the median over the rounds, between the quartiles that follow."""
    milliseconds_low: Duration | None
    milliseconds_high: Duration | None
    relative_time: Duration | None
    """Time over that of this family with SDPA, round by round: the median, between the quartiles that follow."""
    relative_time_low: Duration | None
    relative_time_high: Duration | None
    items_per_second: Duration | None
    """Batch size over the median; of decoding new tokens, the prompt's time included."""
    peak_memory_bytes: Count | None
    """Of the tensors of a step, weights and optimizer included."""
    parameters: Count | None
    flops: Count | None
    """Of a step's matrix products, a multiply-add as two, by the arithmetic of the shape; of LeanBERT's uncompiled
    training with the scores of masked tokens alone, which is what it computes."""
    matrix_product_share: Duration | None
    """`flops` a second over what a plain matrix product of this dtype reached on the same machine."""
    note: str | None
    """Why it could not run."""


class BenchComparison(BenchWork):
    """This family beside a peer, in the rounds that both ran."""

    against: str
    """best uncompiled peer, best compiled peer, best peer (ours in its faster mode), or transformers' default."""
    ours: str
    """Attention and mode."""
    peer: str
    """Library, attention and mode."""
    speedup: Duration
    """The peer's time over ours, the median: above 1 ours is faster. Between the quartiles that follow."""
    speedup_low: Duration
    speedup_high: Duration


class BenchFile(Record):
    """The last line that `leaner bench` prints."""

    cells: list[BenchCell]
    comparisons: list[BenchComparison]
    geometric_means: dict[str, Duration]
    """Of the speedups of `comparisons`, by phase, dtype and `against`."""
    matrix_product_flops: dict[str, Duration]
    """A second, by dtype: the fastest of square products at the beginning of each workload."""
    processor_flags: list[str]
    """Those of the processor's vector and matrix units that decide how fast a dtype is."""
    timm: str | None
    """Version; None where it is not installed."""
    environment: Environment

"""FLOPs of a training step, which a masked language model spends on its masked tokens alone in the head."""

from ..configuration_leaner import LeanConfig


MASKED_SHARE = 0.15  # of the tokens, whose vocabulary scores LeanBERT computes (Devlin et al. 2018, section 3.1)


def training_flops(
    config: LeanConfig, length: int | None = None, head: str | None = None, masked_share: float = MASKED_SHARE
) -> int:
    """FLOPs of a training step on one sequence or image; a masked language model scores its masked tokens alone.

    `head` is one of `task_heads`, by default that of pretraining; without `length`, that of the longest sequence.
    """
    head_tokens = None
    if (head or config.task_heads[0]) == "ForMaskedLM":
        head_tokens = round(masked_share * (length or config.default_length))
    return config.count_flops(length, head, head_tokens).training_step

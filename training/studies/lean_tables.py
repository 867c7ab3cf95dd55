"""What Lean's tables state and a study cannot train, each with the paper's numbers and what a test would need."""

from ..records import Statement
from .kappa_at_start import PAPER
from .study import untested


IMAGENET = "ImageNet-1k and about 300 epochs of it on several GPUs"
ROWS = (
    (
        "table of images",
        "On ImageNet fewer layers with more heads lose nothing: XCiT-M 24 layers × 8 heads to 12 × 16, 81.4 to 81.7, "
        "84.4M to 59.0M parameters; TNT-B 12 × 10 to 8 × 16, 82.3 to 82.3, 65.4M to 30.9M; XCiT-L 24 × 16 to "
        "12 × 24, 82.1 to 82.4, 189.1M to 103.8M.",
        IMAGENET,
    ),
    (
        "table of images",
        "On ImageNet five blocks in place of nine in the third stage lose nothing: DaViT-B 83.3 to 83.5, 88.0M to "
        "62.0M parameters; DaViT-L 83.6 to 83.6, 196.8M to 140.0M.",
        IMAGENET,
    ),
    (
        "table of GLUE",
        "Crammed BERT with 10 layers × 24 heads in place of 16 × 12 keeps GLUE's mean of 78.6, with 84M parameters in "
        "place of 119M.",
        "a day of pretraining on one GPU for each of the two, and GLUE's training rows of MNLI, QNLI and QQP",
    ),
    (
        "table of TinyStories",
        "GPT-2 with 4 layers × 16 heads in place of 12 × 12 has a better validation loss on TinyStories.",
        "the whole of TinyStories and a GPU: 89M parameters",
    ),
    (
        "table of ListOps",
        "Nyströmformer with 8 heads in place of 2 has 37.4 % in place of 36.4 % on ListOps, and one layer with four "
        "heads or more beats two layers.",
        "Long Range Arena's ListOps of up to 2,000 tokens; the shorter expressions of training/grids/"
        "listops-short-heads.yaml are another task",
    ),
)


def not_tested() -> list[Statement]:
    """A statement each."""
    return [untested(PAPER, "second-hand", *row) for row in ROWS]

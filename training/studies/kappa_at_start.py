"""κ of matrices that nothing has trained: Gaussian ones, as in theorem 3.2 of Lean, and real attention."""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ..records import Line, Statement
from .trials import line, most, rounded, verdict


PAPER = "Lean, 2505.20802"
CLOSE = 0.1  # of κ by the formula
NEAR_ONE = 1.25  # κ that is taken for 1


def formula(tokens: int, width: int) -> float:
    """κ ≈ (√D + √N)/|√D − √N| of a Gaussian matrix (N, D)."""
    return (math.sqrt(width) + math.sqrt(tokens)) / abs(math.sqrt(width) - math.sqrt(tokens))


def condition_numbers(matrices: Tensor) -> Tensor:
    """κ of each of the matrices (R, N, D): (R); infinite where rank is lost, as `conditioning.Spectrum` has it."""
    values = torch.linalg.svdvals(matrices)
    most = 1 / (max(matrices.shape[1:]) * torch.finfo(matrices.dtype).eps)
    kappas = values[:, 0] / values[:, -1]
    return kappas.where(kappas < most, math.inf)


def resolved(kappa: float, most: float) -> float:
    """κ, infinite where it is above `most`: there it is rounding."""
    if kappa > most:
        return math.inf
    return kappa


def known_kappa(kappa: float, digits: int = 6) -> float | None:
    """What is stored, to so many digits; None of a κ that is infinite."""
    if math.isinf(kappa):
        return None
    return rounded(kappa, digits)


def kappa_words(kappa: float, form: str = ".3g") -> str:
    """What is printed of a κ."""
    if math.isinf(kappa):
        return "rank lost"
    return format(kappa, form)


def attention_outputs(
    tokens: int, width: int, heads: int, size: int, is_causal: bool, draws: int, source: Generator
) -> Tensor:
    """The concatenated head outputs (R, N, H·d) of one attention with random weights over random tokens.

    X has entries of N(0, 1); W_Q, W_K and W_V (D, H·d) of N(0, 1/D).
    """
    x = torch.randn(draws, tokens, width, generator=source)
    query, key, value = (
        (x @ torch.randn(draws, width, heads * size, generator=source) / math.sqrt(width))
        .unflatten(-1, (heads, size))
        .transpose(1, 2)
        for _ in range(3)
    )
    outputs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return outputs.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Drawn:
    """What is drawn: sizes (N, D) of Gaussian matrices; attention over `tokens` at `width` and at heads of `size`."""

    draws: int
    gaussian: tuple[tuple[int, int], ...]
    growing: tuple[int, ...]
    tokens: int
    width: int
    heads: tuple[int, ...]
    size: int
    heads_of_size: tuple[int, ...]


def gaussian_kappas(sizes: tuple[tuple[int, int], ...], draws: int, source: Generator) -> dict[tuple[int, int], float]:
    """The median κ over the draws, by size."""
    return {
        (tokens, width): condition_numbers(torch.randn(draws, tokens, width, generator=source)).median().item()
        for tokens, width in sizes
    }


def gaussian_statement(drawn: Drawn, source: Generator) -> Statement:
    """Theorem 3.2 where N ≠ D."""
    kappas = gaussian_kappas(drawn.gaussian, drawn.draws, source)
    numbers = {}
    for (tokens, width), kappa in kappas.items():
        numbers[f"κ, N = {tokens}, D = {width}"] = rounded(kappa)
        numbers[f"formula, N = {tokens}, D = {width}"] = rounded(formula(tokens, width))
    off = {size: abs(kappa / formula(*size) - 1) for size, kappa in kappas.items()}
    farthest = max(off, key=off.get)
    others = max(share for size, share in off.items() if size != farthest)
    return Statement(
        paper=PAPER,
        place="theorem 3.2",
        whose="second-hand",
        statement="Of a matrix N × D with Gaussian entries, N ≠ D, κ ≈ (√D + √N)/|√D − √N|.",
        rule=f"the median κ within {CLOSE:.0%} of the formula at every size",
        verdict=verdict(off[farthest] <= CLOSE),
        finding=f"Off by {off[farthest]:.1%} at {farthest[0]} × {farthest[1]}, by at most {others:.1%} at the other "
        f"{len(kappas) - 1} sizes, {drawn.draws} draws each: the formula is the limit of large N and D.",
        numbers=numbers,
    )


def growing_statement(drawn: Drawn, source: Generator) -> Statement:
    """With the head size fixed."""
    sizes = tuple((drawn.tokens, heads * drawn.size) for heads in drawn.growing)
    kappas = list(gaussian_kappas(sizes, drawn.draws, source).values())
    falls = all(later < earlier for earlier, later in zip(kappas, kappas[1:]))
    words = ", ".join(f"{kappa:.3g} with {heads}" for heads, kappa in zip(drawn.growing, kappas))
    return Statement(
        paper=PAPER,
        place="theorem 3.2",
        whose="second-hand",
        statement="With the head size fixed, κ of the Gaussian matrix falls to 1 as heads are added.",
        rule=f"it falls at every step, once D is above N, to less than {NEAR_ONE:g}",
        verdict=verdict(falls and kappas[-1] < NEAR_ONE),
        finding=f"N = {drawn.tokens}, heads of {drawn.size}: {words} heads.",
        numbers={f"κ with {heads} heads": rounded(kappa) for heads, kappa in zip(drawn.growing, kappas)},
    )


def language_model_statement(source: Generator) -> Statement:
    """D ≫ N, which the theorem needs, in a language model."""
    size = (1024, 768)
    kappa = gaussian_kappas((size,), 1, source)[size]
    return Statement(
        paper=PAPER,
        place="theorem 3.2",
        whose="derived here",
        statement="In a language model of GPT-2's size, N = 1024 and D = 768, the theorem promises no κ near 1: 13.9.",
        rule=f"κ of one Gaussian matrix of that size within {CLOSE:.0%} of 13.9",
        verdict=verdict(abs(kappa / 13.9 - 1) <= CLOSE),
        finding=f"{kappa:.3g}; {formula(*size):.3g} by the formula.",
        numbers={"κ": rounded(kappa), "formula": rounded(formula(*size))},
    )


Kappas = dict[int, Tensor]  # by heads, of each draw (R)


@dataclass(frozen=True)
class AttentionKappas:
    """κ of real attention with random weights, by heads: at one width or with heads of one size."""

    is_causal: bool
    has_one_head_size: bool
    """So that more heads are wider together."""
    kappas: Kappas

    @property
    def mask(self) -> str:
        """Its name."""
        if self.is_causal:
            return "causal"
        return "bidirectional"

    @property
    def held(self) -> str:
        """What all numbers of heads have in common."""
        if self.has_one_head_size:
            return "one head size"
        return "one width"

    def line(self) -> Line:
        """Of the figure, where no draw has lost rank."""
        whole = {heads: kappas for heads, kappas in self.kappas.items() if kappas.isfinite().all()}
        return line(f"{self.mask}, {self.held}", list(whole), list(whole.values()))

    def statement(self, drawn: Drawn) -> Statement:
        """Whether more heads lower κ."""
        heads = list(self.kappas)
        counts = [int((self.kappas[many] < self.kappas[few]).sum()) for few, many in zip(heads, heads[1:])]
        size = f"a width of {drawn.width}"
        if self.has_one_head_size:
            size = f"heads of {drawn.size}"
        medians = {count: values.median().item() for count, values in self.kappas.items()}
        words = ", ".join(f"{kappa_words(kappa)} with {count}" for count, kappa in medians.items())
        return Statement(
            paper=PAPER,
            place="abstract, before training",
            whose="the paper",
            statement=f"More heads improve the conditioning of attention: random weights, {self.mask}, {size}.",
            rule=f"κ is lower at each step to more heads in {most(drawn.draws)} of {drawn.draws} draws",
            verdict=verdict(min(counts) >= most(drawn.draws)),
            finding=f"N = {drawn.tokens}, median κ {words} heads; lower in {', '.join(map(str, counts))} draws.",
            numbers={f"median κ with {count} heads": known_kappa(kappa) for count, kappa in medians.items()},
        )


def attention_kappas(drawn: Drawn, source: Generator) -> list[AttentionKappas]:
    """All four: at one width and with one head size, without and with a causal mask."""
    found = []
    for is_causal in (False, True):
        for has_one_head_size in (False, True):
            sizes = {heads: drawn.width // heads for heads in drawn.heads}
            if has_one_head_size:
                sizes = dict.fromkeys(drawn.heads_of_size, drawn.size)
            kappas = {
                heads: condition_numbers(
                    attention_outputs(drawn.tokens, drawn.width, heads, size, is_causal, drawn.draws, source)
                )
                for heads, size in sizes.items()
            }
            found.append(AttentionKappas(is_causal, has_one_head_size, kappas))
    return found

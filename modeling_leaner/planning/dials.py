"""Dials, what a user may fix of a shape (layers, width, heads, head size, MLP width), and the shapes they give."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

from ..configuration_leaner import LeanConfig
from ..family import FAMILIES, IMAGES
from ..files import read_json
from ..shapes import family_of, shapes_folder
from .advice import has_fused_kernel
from .units import MOST_INPUT


LIMITS = {"width": 2**17, "mlp": 2**20, "layers": 1000, "heads": 2**14}  # of a dial that is solved
# Of a dial that is given: beyond these the arithmetic overflows, or takes minutes.
GIVEN_LIMITS = {**LIMITS, "head_dim": 256, "mlp_ratio": 1024}


@dataclass(frozen=True)
class Dials:
    """What is fixed of a shape; None is free. `mlp_ratio` is the MLP's width over the width."""

    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    head_dim: int | None = None
    mlp: int | None = None
    mlp_ratio: float | None = None

    @property
    def fixes_mlp(self) -> bool:
        return self.mlp is not None or self.mlp_ratio is not None

    @property
    def free(self) -> list[str]:
        """The dials that can be solved: those that are not fixed. The head size is chosen, never solved."""
        names = ["width", "mlp", "heads", "layers"]
        if self.fixes_mlp:
            names.remove("mlp")
        return [name for name in names if getattr(self, name) is None]

    def __str__(self) -> str:
        """The dials that are fixed, as flags."""
        flags = [f"{flag_of(name)} {value}" for name, value in asdict(self).items() if value is not None]
        return " ".join(flags) or "none"


ALL_FREE = Dials()


def flag_of(name: str) -> str:
    """The command line's flag of a setting: `mlp_ratio` → `--mlp-ratio`."""
    return "--" + name.replace("_", "-")


def describe(config: LeanConfig) -> str:
    """A shape in a sentence: `12 layers × 768, 12 heads × 64, MLP 3072`; distinct numbers of heads are listed."""
    heads = "/".join(map(str, dict.fromkeys(config.heads_per_layer)))
    sizes = f"{config.num_hidden_layers} layers × {config.hidden_size}, {heads} heads × {config.head_dim}"
    return f"{sizes}, MLP {config.intermediate_size}"


@cache
def field_names(family: str) -> list[str]:
    """The fields that a family's shape files state, in their order."""
    document = read_json(shapes_folder() / family / "base.json")
    return [name for name in document if name not in ("model_type", "architectures")]


def fields_of(config: LeanConfig) -> dict[str, object]:
    """The values of `field_names`; of heads that vary, what holds for layers that are not named."""
    get = config._getattr_without_heterogeneous_validation
    return {name: get(name) for name in field_names(family_of(config))}


def heads_by_layer(heads: Sequence[int]) -> dict[int, dict[str, int]]:
    """The heads of each layer as `per_layer_config` states them."""
    return {layer: {"num_attention_heads": number} for layer, number in enumerate(heads)}


def attention_width(config: LeanConfig) -> int:
    """Heads × head size, of the layer with the most heads."""
    return max(config.heads_per_layer) * config.head_dim


# Shapes


def fixed_key_value_heads(base: LeanConfig) -> int | None:
    """Key-value heads where they are fewer than the heads; they stay. None where they follow the heads."""
    fields = fields_of(base)
    key_value_heads = fields.get("num_key_value_heads")
    return None if key_value_heads == fields["num_attention_heads"] else key_value_heads


def head_multiple(base: LeanConfig) -> int:
    """What divides every number of heads: the base's key-value heads, or 1 where they follow the heads."""
    return fixed_key_value_heads(base) or 1


def whole_groups(base: LeanConfig, heads: float) -> int:
    """The nearest number of heads from 1 on that the base's key-value heads divide."""
    multiple = head_multiple(base)
    return multiple * max(1, round(heads / multiple))


def shape_at(base: LeanConfig, dials: Dials, free: str | None = None, value: int = 0) -> LeanConfig:
    """The shape of `dials` with the dial `free` at `value`; what neither states is the base's.

    A free width takes the MLP's ratio along, and, where `dials` state no heads, as many heads as fill the width.
    Raises ValueError as the configuration does.
    """
    chosen = dials if free is None else replace(dials, **{free: value})
    width = chosen.width or base.hidden_size
    head_dim = chosen.head_dim or base.head_dim
    heads = dials.heads or whole_groups(base, chosen.heads or width / head_dim)
    ratio = chosen.mlp_ratio or base.intermediate_size / base.hidden_size
    fields = fields_of(base)
    fields["hidden_size"] = width
    fields["num_hidden_layers"] = chosen.layers or base.num_hidden_layers
    fields["num_attention_heads"] = heads
    fields["head_dim"] = head_dim
    fields["intermediate_size"] = chosen.mlp or max(1, round(ratio * width))
    if "num_key_value_heads" in fields and fixed_key_value_heads(base) is None:
        fields["num_key_value_heads"] = heads
    if "pooler_output_size" in fields and base.pooler_output_size == base.hidden_size:
        fields["pooler_output_size"] = width
    return type(base)(architectures=base.architectures, **fields)


def like_start(start: LeanConfig, dials: Dials, free: str | None) -> Dials:
    """`dials` with what they leave open as at the start, but for the one to solve.

    Of heads and head size, one that is given keeps the product, the width of the attention, as nearly as multiples of
    8 allow. Where the width is solved the MLP keeps its ratio, and heads that are not given fill the width.
    """
    attention = attention_width(start)
    head_dim = dials.head_dim or start.head_dim
    if dials.head_dim is None and dials.heads is not None:
        head_dim = 8 * max(1, round(attention / dials.heads / 8))  # as kernels want it
    dials = replace(dials, head_dim=head_dim)
    if dials.layers is None and free != "layers":
        dials = replace(dials, layers=start.num_hidden_layers)
    if dials.heads is None and free not in ("heads", "width"):
        dials = replace(dials, heads=whole_groups(start, attention / head_dim))
    if not dials.fixes_mlp and free not in ("mlp", "width"):
        dials = replace(dials, mlp=start.intermediate_size)
    if dials.width is None and free != "width":
        dials = replace(dials, width=start.hidden_size)
    return dials


def as_given(base: LeanConfig, start: LeanConfig | None, dials: Dials) -> LeanConfig:
    """The shape where no dial is free: nothing is solved. A head size that is left out follows from the width.

    Raises ValueError, naming the flag, where heads do not divide the width and there is no start to keep.
    """
    if start is not None:
        return shape_at(base, like_start(start, dials, None))
    if dials.head_dim is not None:
        return shape_at(base, dials)
    if dials.width % dials.heads:
        raise ValueError(f"--heads {dials.heads}: does not divide --width {dials.width}; give --head-dim, too")
    return shape_at(base, replace(dials, head_dim=dials.width // dials.heads))


# Checks and inputs


def check_dials(dials: Dials, base: LeanConfig) -> None:
    """Raises ValueError, naming the flag, for sizes beyond `GIVEN_LIMITS`, two MLP widths, a head size without fused
    kernel, or heads that the key-value heads of `base` do not divide.
    """
    for name, value in asdict(dials).items():
        if value is not None:
            check_dial(name, value)
    if dials.mlp is not None and dials.mlp_ratio is not None:
        raise ValueError("--mlp and --mlp-ratio: expected one of them")
    multiple = head_multiple(base)
    if dials.heads is not None and dials.heads % multiple:
        raise ValueError(f"--heads {dials.heads}: expected a multiple of the {multiple} key-value heads")


def check_dial(name: str, value: float) -> None:
    """Raises ValueError, naming the flag, for a size that no shape can have."""
    flag = flag_of(name)
    if not value > 0:  # also not a number
        raise ValueError(f"{flag} {value}: expected a number above 0")
    if name == "head_dim" and not has_fused_kernel(value):
        raise ValueError(f"{flag} {value}: no fused attention kernel takes it; expected 8, 16, … 256")
    if value > GIVEN_LIMITS[name]:
        raise ValueError(f"{flag} {value}: expected at most {GIVEN_LIMITS[name]}")


def with_inputs(
    config: LeanConfig,
    length: int | None = None,
    image_size: int | None = None,
    vocab_size: int | None = None,
    patch_size: int | None = None,
) -> LeanConfig:
    """The configuration for other data: positions for sequences of `length`, a vocabulary, a size of image or patch.

    Raises ValueError, naming the flag, where the family has no such input, or as the configuration does.
    """
    inputs = {"length": length, "image_size": image_size, "vocab_size": vocab_size, "patch_size": patch_size}
    given = {name: value for name, value in inputs.items() if value is not None}
    for name, value in given.items():
        check_input(family_of(config), name, value)
    fields = fields_of(config)
    if length is not None:  # as many positions as before, unless the sequences are longer
        fields["max_position_embeddings"] = max(length, config.max_position_embeddings)
    for name in ("vocab_size", *IMAGES.inputs):
        if name in given:
            fields[name] = given[name]
    if vocab_size is not None:
        for name in fields:
            if name.endswith("_token_id") and fields[name] is not None:
                ids = fields[name]  # those beyond the vocabulary become its last
                last = vocab_size - 1
                fields[name] = [min(each, last) for each in ids] if isinstance(ids, list) else min(ids, last)
    if config.per_layer_attributes:
        fields["per_layer_config"] = heads_by_layer(config.heads_per_layer)
    try:
        return type(config)(architectures=config.architectures, **fields)
    except ValueError as error:
        culprit = ", ".join(f"{flag_of(name)} {value}" for name, value in given.items()) or config.model_type
        raise ValueError(f"{culprit}: {error}") from error


def check_input(family: str, name: str, value: int) -> None:
    """Raises ValueError, naming the flag, for an input that the family does not have, or a size of no input."""
    flag = flag_of(name)
    if name not in FAMILIES[family].modality.inputs:
        raise ValueError(f"{flag} {value}: {family} has no such input")
    if value > MOST_INPUT:
        raise ValueError(f"{flag} {value}: expected at most {MOST_INPUT}")
    if value < 1:
        raise ValueError(f"{flag} {value}: expected a number above 0")

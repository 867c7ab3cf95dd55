"""What a name on a command line may stand for: a named shape, a file or folder, a model on the Hub.

Nothing here imports torch or transformers, so that a mistyped name is answered at once.
"""

from difflib import get_close_matches
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from . import configuration  # mapped to configuration/ by setup.cfg
from .terminal import did_you_mean


SHAPES = Path(configuration.__file__).parent  # installed or in a clone
HUB_TIMEOUT = 5  # seconds for the Hub to answer; its clients alone wait half a minute
FAMILY_NAMES = ("vit", "bert", "gpt")
MODEL_TYPES = ("vit", "lean_vit", "bert", "lean_bert", "gpt2", "lean_gpt")  # theirs and ours, in pairs that convert
RENAMED = {"10x24": "16x12"}  # the baseline of a variant whose name has its own layers × heads


def baseline_of(name: str) -> str | None:
    """The baseline of a lean version or another variant (`bert/lean-10x24` → `bert/16x12`); None for a baseline.

    The name of a variant ends by its baseline's.
    """
    family, shape = name.split("/")
    variant, _, stem = shape.rpartition("-")
    return f"{family}/{RENAMED.get(stem, stem)}" if variant else None


def shape_names() -> list[str]:
    """All names as `family/name`, every baseline before its variants."""
    names = []
    for family in FAMILY_NAMES:
        of_family = [f"{family}/{path.stem}" for path in (SHAPES / family).glob("*.json")]
        names += sorted(of_family, key=lambda name: (baseline_of(name) or name, baseline_of(name) is not None, name))
    return names


def reason_of(error: BaseException | None) -> str:
    """Why something did not work on the Hub, in one line."""
    match error:
        case RepositoryNotFoundError():
            return "no such repository on the Hub, or a private one (hf auth login, or HF_TOKEN, gives access)"
        case OfflineModeIsEnabled():
            return "not in the cache (HF_HUB_OFFLINE is set; unset it to download)"
        case LocalEntryNotFoundError():
            return "not whole in the cache, and the Hub does not answer"
        case HfHubHTTPError() if error.response.status_code == 412:
            return "it has changed meanwhile; nothing was sent, push again"
        case HfHubHTTPError():  # the error's own text has the address, with an upload's signature
            reason = error.server_message or error.response.reason_phrase
            return f"the Hub refused ({error.response.status_code}: {reason})"
        case HTTPError():
            return f"the Hub does not answer ({type(error).__name__})"
        case RuntimeError():  # of an upload, which hides its reason
            return f"{str(error).rstrip('.')}: {reason_of(error.__cause__)}"
        case HFValidationError():
            return "not a name that the Hub accepts; expected OWNER/NAME"
    return " ".join(str(error).split())


def require_source(source: str, or_shape: bool = False) -> None:
    """Check quickly that `source` is a folder, a file, or a model in the Hub's cache or on the Hub, or a named shape.

    Raises ValueError, one line with the nearest name, if it is none of them, or the Hub does not answer.
    """
    path, shapes = Path(source), shape_names()
    is_shape = source in shapes
    if path.exists() or is_shape and or_shape:
        return
    is_path = path.is_absolute() or source.startswith((".", "~")) or len(path.parts) > 2 or path.suffix == ".json"
    if is_shape:
        reason = "a named shape, which has no weights; expected a folder or a Hub id"
    elif or_shape and source.split("/")[0] in FAMILY_NAMES:
        reason = "unknown shape (`leaner shapes` lists all)"
    elif is_path:
        reason = "no such file or folder"
    else:
        try:
            if not isinstance(try_to_load_from_cache(source, "config.json"), str):
                HfApi().model_info(source, timeout=HUB_TIMEOUT)
            return
        except (HTTPError, OfflineModeIsEnabled, HFValidationError) as error:
            if isinstance(error, HfHubHTTPError) and not isinstance(error, RepositoryNotFoundError):
                return  # the Hub is there, and busy or guarded: loading says more
            kinds = "named shape, file or folder" if or_shape else "file or folder"
            reason = f"no such {kinds}; as a Hub id: {reason_of(error)}"

    near = get_close_matches(path.name, [beside.name for beside in path.parent.glob("*")], n=1)
    hint = did_you_mean(source, [*(shapes if or_shape else ()), *(str(path.with_name(name)) for name in near)])
    raise ValueError(f"{source}: {reason}{hint}")


def require_model_type(model_type: object) -> None:
    """Raises ValueError for the `model_type` of a configuration that is neither of this family nor converts to it."""
    if model_type not in MODEL_TYPES:
        raise ValueError(f"model_type {model_type!r} is not supported, expected one of {', '.join(MODEL_TYPES)}")

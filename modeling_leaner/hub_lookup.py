"""Whether the Hub has something, asked once and quickly: its clients alone wait half a minute where it is silent."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from .support.suggest import did_you_mean, nearest


HUB_TIMEOUT = 5  # for the Hub to answer


def require_source(source: str, names: Sequence[str] = ()) -> None:
    """Checks that `source` is a folder, a file, or a model in the Hub's cache or on the Hub.

    Args:
        source: path or Hub id, as the user gave it.
        names: names of shapes, where the caller accepts these, too; for the message alone.

    Raises:
        ValueError: it is none of them, or the Hub does not answer; one line, with the nearest name.
    """
    path = Path(source)
    if path.exists():
        return
    if names and Path(f"{source}.json").is_file():
        raise ValueError(f"{source}: no such file or folder; did you mean {source}.json?")
    if can_only_be_a_path(source):
        raise ValueError(f"{source}: no such file or folder{did_you_mean_model(path)}")
    reason = missing_from_hub(source)
    if reason is None:
        return
    kinds = "neither a named shape nor a file or folder" if names else "no file or folder"
    hint = did_you_mean(source, names)
    if not hint:
        hint = did_you_mean_model(path)
    raise ValueError(f"{source}: {kinds}, and {reason}{hint}")


def can_only_be_a_path(source: str) -> bool:
    """Whether a name begins as paths do, or has more parts than a Hub id."""
    path = Path(source)
    return path.is_absolute() or source.startswith((".", "~")) or len(path.parts) > 2


def did_you_mean_model(path: Path) -> str:
    """The end of a message about a path that does not exist: the model beside it that is spelt most alike, if any."""
    try:
        beside = [config.parent.name for config in path.parent.glob("*/config.json")]
    except OSError:
        return ""
    name = nearest(path.name, beside)
    if name is None:
        return ""
    return f"; did you mean {path.with_name(name)}?"


def missing_from_hub(name: str) -> str | None:
    """Why a model cannot be loaded from the Hub or its cache; None where it can, or where only loading will tell."""
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return None
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except HFValidationError:
        return "no name that a model on the Hub could have"
    except RepositoryNotFoundError:
        return "it could not be found on the Hub"
    except OfflineModeIsEnabled:
        return "it is not in the cache of the Hub, which HF_HUB_OFFLINE says not to ask"
    except HfHubHTTPError:
        return None  # the Hub is there, and busy or guarded: its own errors say more
    except HTTPError as error:
        return f"it could not be found on the Hub, which did not answer ({type(error).__name__})"
    return None


def dataset_hub_answers(name: str) -> bool:
    """Whether the Hub answers when it is asked for a dataset, even that there is none."""
    try:
        HfApi().dataset_info(name, timeout=HUB_TIMEOUT)
    except (HfHubHTTPError, HFValidationError):
        return True  # `datasets` says what is wrong
    except (HTTPError, OfflineModeIsEnabled):
        return False
    return True

"""Keeps the tests off the network, and runs the shared tests once per shape and head that a family lists."""

import gc
import os
import tempfile


MODULES = tempfile.TemporaryDirectory(prefix="modules-")  # of this process alone: workers would disturb each other
os.environ["HF_MODULES_CACHE"] = MODULES.name
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import datasets  # noqa: E402
import pytest  # noqa: E402
import transformers  # noqa: E402
from warm_stranger import WarmStranger  # noqa: E402


transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0.5  # for PyArrow after a stream of parquet; 5 s by default


@pytest.fixture(scope="module")
def warm_stranger():
    """Published folders are verified by a process that has its libraries already."""
    from modeling_leaner.training.publishing import verify

    warm = WarmStranger()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "subprocess", warm)
        yield
    warm.close()


def pytest_collection_finish() -> None:
    """What is imported stays: each collection of garbage, of which every training asks for some, would look at it."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument, attribute in (("shape", "shapes"), ("head", "heads")):
        if argument in metafunc.fixturenames and hasattr(metafunc.cls, attribute):
            metafunc.parametrize(argument, list(getattr(metafunc.cls, attribute)))

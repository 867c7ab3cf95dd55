"""Silences what the libraries print beside a command's own lines."""

from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
from transformers.utils import logging


def quiet_libraries() -> None:
    """Silences transformers' warnings and its bars over weights; bars of training and of downloads stay."""
    logging.set_verbosity_error()
    had_bars_of_downloads = not are_progress_bars_disabled()
    logging.disable_progress_bar()  # the Hub's, too
    if had_bars_of_downloads:
        enable_progress_bars()

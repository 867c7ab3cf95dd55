"""What was measured as one JSON document, in which None stands for infinity and for what is not defined."""

from collections.abc import Sequence
from dataclasses import asdict

from ..conditioning import Spectrum
from ..support.documents import finite_or_none
from .jacobian import Norms
from .layers import LayerReport


Document = dict[str, object]


def document_of(model: str, data: str, seconds: float, reports: Sequence[LayerReport]) -> Document:
    """A model's reports with what they are of; `seconds` is the time they took."""
    return {
        "model": model,
        "data": data,
        "tokens": reports[0].tokens,
        "seconds": seconds,
        "layers": [layer_document(report) for report in reports],
    }


def layer_document(report: LayerReport) -> Document:
    """The attributes of a report by their names."""
    return {
        "layer": report.layer,
        "heads": report.heads,
        "head_dim": report.head_dim,
        "head_outputs": [spectrum_document(spectrum) for spectrum in report.head_outputs],
        "query_key": [spectrum_document(spectrum) for spectrum in report.query_key],
        "value": spectrum_document(report.value),
        "output": spectrum_document(report.output),
        "entropy": report.entropy,
        "entropy_share": report.entropy_share,
        "similarity": [[finite_or_none(value) for value in row] for row in report.similarity],
        "removal": [finite_or_none(value) for value in report.removal],
        "jacobian": norms_document(report.jacobian),
        "jacobian_with_residual": norms_document(report.jacobian_with_residual),
    }


def spectrum_document(spectrum: Spectrum) -> Document:
    return {"condition_number": finite_or_none(spectrum.condition_number), **asdict(spectrum)}


def norms_document(norms: Norms | None) -> Document | None:
    if norms is None:
        return None
    document = {**asdict(norms), "stable_rank": norms.stable_rank}
    if norms.spectrum is not None:
        document["spectrum"] = spectrum_document(norms.spectrum)
    return document

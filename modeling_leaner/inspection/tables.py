"""What was measured as tables: a row per layer."""

from collections.abc import Sequence
from math import isfinite
from statistics import median

from rich.table import Table

from ..conditioning import Spectrum
from .jacobian import Norms
from .layers import LayerReport


def layer_tables(reports: Sequence[LayerReport]) -> list[Table]:
    """One of the matrices, one of the heads, and one of the Jacobian where it was measured."""
    tables = [matrix_table(reports), head_table(reports)]
    if reports[0].jacobian is not None:
        tables.append(jacobian_table(reports))
    return tables


def matrix_table(reports: Sequence[LayerReport]) -> Table:
    """κ of the matrices of each layer: the median, and in parentheses the least and the most."""
    columns = ("layer", "heads", "head outputs (rows)", "W_Q W_Kᵀ (heads)", "W_V", "W_O")
    table = table_of("condition number κ: median (least to most)", columns)
    for report in reports:
        table.add_row(
            str(report.layer),
            f"{report.heads}×{report.head_dim}",
            conditions(report.head_outputs),
            conditions(report.query_key),
            conditions([report.value]),
            conditions([report.output]),
        )
    return table


def head_table(reports: Sequence[LayerReport]) -> Table:
    """What the heads of each layer do: the median of the heads, and in parentheses the least and the most."""
    columns = ("layer", "entropy, nats", "of the most", "similarity to another", "change without one")
    table = table_of("heads: median (least to most)", columns)
    for report in reports:
        measured = (report.entropy, report.entropy_share, similarities(report), report.removal)
        table.add_row(str(report.layer), *(extent(values, "{:.2f}") for values in measured))
    return table


def jacobian_table(reports: Sequence[LayerReport]) -> Table:
    """Norms of the attention branch's Jacobian, without and with the residual, with their errors."""
    columns = ("layer", "residual", "σ_max", "‖J‖_F", "stable rank", "κ")
    table = table_of("Jacobian of the attention branch, on the first row", columns)
    for report in reports:
        for residual, norms in (("without", report.jacobian), ("with", report.jacobian_with_residual)):
            table.add_row(
                str(report.layer),
                residual,
                with_error(norms.largest, norms.largest_error),
                with_error(norms.frobenius, norms.frobenius_error),
                f"{norms.stable_rank:.1f}",
                jacobian_condition(norms),
            )
    return table


def table_of(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def conditions(spectra: Sequence[Spectrum]) -> str:
    """κ of matrices, or of those that have lost rank the lowest rank."""
    deficient = [spectrum for spectrum in spectra if not spectrum.has_full_rank]
    if deficient:
        lowest = min(deficient, key=lambda spectrum: spectrum.rank)
        text = f"rank {lowest.rank} of {lowest.size}"
        if len(spectra) > 1:
            text += f" ({len(deficient)} of {len(spectra)})"
        return text
    return extent([spectrum.condition_number for spectrum in spectra], "{:.4g}")


def extent(values: Sequence[float], form: str) -> str:
    """The median and, of several, in parentheses the least and the most; those that are not defined are left out."""
    defined = [value for value in values if isfinite(value)]
    if not defined:
        return "–"
    middle = form.format(median(defined))
    if len(defined) == 1:
        return middle
    return f"{middle} ({form.format(min(defined))} to {form.format(max(defined))})"


def similarities(report: LayerReport) -> list[float]:
    """CKA of each pair of two heads."""
    return [value for head, row in enumerate(report.similarity) for value in row[:head]]


def with_error(value: float, error: float) -> str:
    if error == 0:
        return f"{value:.4g}"
    return f"{value:.4g} ± {error:.2g}"


def jacobian_condition(norms: Norms) -> str:
    """κ of a matrix that was built; of one that was not, why there is none."""
    if norms.spectrum is None:
        return "matrix-free"
    return conditions([norms.spectrum])

"""Results of evaluations as text, and as the body of a page: every number with the conventions that it depends on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpt2tf.paper.evaluate import Result
from gpt2tf.paper.tables import SAID, TABLE_3
from gpt2tf.paper.visible import escape

if TYPE_CHECKING:
    from gpt2tf.paper.task import Figure

STARRED = "* not of a whole published file"
NARROW, NAME = 10, 46  # characters of a number, and of the name of a figure


def as_text(result: Result) -> str:
    """A result: a table of its figures, each with its rule, and the conventions of all."""
    size = result.size
    lines = [_title(result), ""]
    heads = ["value", "95 % from", "to", f"paper {size}" if size else "paper"]
    lines.append(f"{'figure':{NAME}}" + "".join(f"{head:>{NARROW + 2}}" for head in heads))
    for figure in result.figures:
        numbers = [figure.value, *figure.interval, result.paper(figure)]
        lines.append(f"{figure.name:{NAME}}" + "".join(f"{_number(figure, x):>{NARROW + 2}}" for x in numbers))
        lines.append(f"    {figure.rule}")
        lines += [f"    others: {_measured(other)}" for other in result.others(figure)]
    if not size:
        lines.append("paper: it has no model of this size")
    conventions = _conventions(result)
    width = max(len(name) for name, _ in conventions)
    return "\n".join([*lines, "", *(f"{name:{width}}  {text}" for name, text in conventions)]) + "\n"


def row_as_text(results: list[Result], missing: Iterable[str]) -> str:
    """The row of Table 3 that the results make, above the paper's, a column a line."""
    size = next((result.size for result in results), None)
    paper = f"paper {size}" if size else "paper"
    lines = [f"{'column':{NAME}}{'ours':>{NARROW + 2}}{paper:>{NARROW + 2}}"]
    for column, ours, theirs, name in _row(results):
        shown = f"{column} ({name})" if name else column
        lines.append(f"{shown:{NAME}}{ours:>{NARROW + 2}}{theirs:>{NARROW + 2}}")
    if any(map(_in_part, results)):
        lines += ["", STARRED]
    if missing := list(missing):
        lines += ["", f"no file was found for {', '.join(missing)}"]
    return "\n".join(lines) + "\n"


def as_page_body(results: list[Result], missing: Iterable[str]) -> str:
    """HTML: the row beside the paper's, and each result with its conventions."""
    size = next((result.size for result in results), None)
    parts = [f"<h1>Table 3 of the paper, by {escape(results[0].model.name)}</h1>", "<table><thead>"]
    parts += [_cells("th", "column", "ours", f"paper, {size}" if size else "paper", "figure"), "</thead><tbody>"]
    parts += (_cells("td", *cells) for cells in _row(results))
    parts.append("</tbody></table>")
    if not size:
        parts.append("<p>The paper has no model of this size.</p>")
    if any(map(_in_part, results)):
        parts.append(f"<p>{STARRED}.</p>")
    if missing := list(missing):
        parts.append(f"<p>No file was found for {escape(', '.join(missing))}.</p>")
    for result in results:
        parts += [f"<h2>{escape(_title(result))}</h2>", "<table><thead>"]
        parts.append(_cells("th", "figure", "value", "95 % interval", "paper", "rule", "measured by others"))
        parts.append("</thead><tbody>")
        for figure in result.figures:
            low, high = (_number(figure, bound) for bound in figure.interval)
            others = "; ".join(map(_measured, result.others(figure)))
            paper = _number(figure, result.paper(figure))
            interval = f"{low} to {high}" if low else ""
            parts.append(_cells("td", figure.name, _number(figure, figure.value), interval, paper, figure.rule, others))
        parts.append("</tbody></table><dl>")
        parts += (f"<dt>{escape(n)}</dt><dd>{escape(text)}</dd>" for n, text in _conventions(result))
        parts.append("</dl>")
    return "\n".join(parts)


def _title(result: Result) -> str:
    size = f", {result.size}" if result.size and result.size != result.model.name else ""
    part = ", A PART of what is there" if result.part else ""
    return f"{result.task}: {result.model.name}{size}; {len(result.data.items):,} {result.data.unit}{part}"


def _conventions(result: Result) -> list[tuple[str, str]]:
    file = f"{result.data.path} (sha256 {result.data.sha256[:16]}...)"
    said = [("the paper", SAID[result.task])] if result.task in SAID else []
    return [("file", file), *result.conventions.items(), ("dtype", result.settings.dtype), *said]


def _row(results: list[Result]) -> list[tuple[str, str, str, str]]:
    """(column, ours, the paper's, the name of the figure that stands there) for each column of Table 3."""
    found = {figure.column: (result, figure) for result in results for figure in result.figures if figure.chosen}
    cells = []
    for column in TABLE_3:
        result, figure = found.get(column, (None, None))
        ours = _number(figure, figure.value) + ("*" if _in_part(result) else "") if figure else "-"
        paper = TABLE_3[column].get(results[0].size) if results else None
        cells.append((column, ours, "-" if paper is None else f"{paper:g}", figure.name if figure else ""))
    return cells


def _in_part(result: Result) -> bool:
    return result.part or not result.data.whole


def _number(figure: Figure, number: float | None) -> str:
    if number is None or math.isnan(number):
        return ""
    digits = 3 if figure.name.startswith("bits") else 2
    return f"{number:.{digits}f}" if number < 1e7 else f"{number:.3g}"


def _measured(other) -> str:
    return f"{other.value:g}" + (f" {other.how}" if other.how else "") + f" ({other.source})"


def _cells(kind: str, *texts: str) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts) + "</tr>"

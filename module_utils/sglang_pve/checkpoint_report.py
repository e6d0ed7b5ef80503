"""What a person wants to read about a checkpoint: its parts, its MTP head, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .findings import Finding, worst_first
from .report import findings_table, paint


def gb(count: float) -> str:
    """Bytes in the unit that model cards use: 10^9."""
    return f"{count / 1e9:.2f} GB"


def rows(report: Mapping[str, Any], reading: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
    """Label and text of each line; ``reading`` is None where no weights were read."""
    shards, layers = report["shards"], report["layers"]
    lines = [
        ("path", report["path"]),
        ("architecture", report["architecture"] or "unknown"),
        ("layers", ", ".join(f"{count} {kind}" for kind, count in layers.items()) or "unknown"),
        ("parameters", f"{report['parameters'] / 1e9:.2f} billion stored in {report['tensors']} tensors"),
        ("types", ", ".join(f"{dtype} {gb(size)}" for dtype, size in report["bytes_by_dtype"].items()) or "none"),
        (
            "shards",
            f"{len(shards['present'])} of {len(shards['named'])} there, {gb(report['file_bytes'])}"
            + (f"; beside the index: {', '.join(shards['extra'])}" if shards["extra"] else ""),
        ),
        ("MTP head", head(report["mtp"])),
        ("quantization", (report["quantization"] or {}).get("quant_method", "none")),
        ("vision tower", "yes" if report["vision"] else "no"),
        ("context", f"{report['max_context']} tokens" if report["max_context"] else "unknown"),
        ("digest", report["digest"]),
    ]
    if reading is not None:
        lines.append(("bytes", read_text(reading)))
    return lines


def head(mtp: Mapping[str, Any]) -> str:
    if not mtp["tensors"]:
        return "none, though config.json declares one" if mtp["declared"] else "none"
    where = f"{mtp['tensors']} tensors, {gb(mtp['bytes'])}, in {', '.join(mtp['files'])}"
    return f"complete: {where}" if mtp["complete"] else f"incomplete: {where}; {len(mtp['missing'])} missing"


def read_text(reading: Mapping[str, Any]) -> str:
    wrong, new = len(reading["findings"]), len(reading["new"])
    text = f"{reading['files']} files as they should be, {gb(reading['bytes_done'])} read"
    if new:
        text += f" ({new} for the first time: their digests are kept now)"
    return f"{text}; {wrong} not" if wrong else text


def findings(report: Mapping[str, Any], reading: Mapping[str, Any] | None = None) -> list[Finding]:
    found: Iterable[Mapping[str, str]] = [*report["findings"], *(reading["findings"] if reading else [])]
    return worst_first(Finding(**entry) for entry in found)


def verdict(found: Iterable[Finding]) -> str:
    """broken, doubtful (a warning, or a thing that was not checked) or good."""
    levels = {finding.level for finding in found}
    return "broken" if "error" in levels else "doubtful" if levels & {"warning", "not checked"} else "good"


def text(report: Mapping[str, Any], reading: Mapping[str, Any] | None, colour: bool) -> str:
    found = findings(report, reading)
    word = verdict(found)
    lines = [f"{label:<14}{value}" for label, value in rows(report, reading)]
    lines += [findings_table(found, colour)] if found else []
    return "\n".join([*lines, paint(word, word, colour)])

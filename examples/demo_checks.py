"""The demo's checks: each file is read with another library than the one that wrote it, and compared with its source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as pa_dataset

from steadyworker.exports import Manifest, verify
from steadyworker.exports.manifest import Total
from steadyworker.exports.stage import manifest_path

_BY = ["currency", "status"]

Totals = dict[tuple[str, str], tuple[int, str]]


def wrong_with(file: Path, payments: Path, merchant: str) -> list[str]:
    """Return what is wrong with an exported file; nothing if file, manifest and source agree to the cent."""
    if not file.exists():
        return [f"{file.name} is missing"]
    manifest = verify(file)
    source = _totals(
        pa_dataset.dataset(payments, format="parquet").to_table(filter=pa_dataset.field("merchant") == merchant)
    )
    exported = _totals(
        pa_csv.read_csv(
            file,
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(column_types={"amount": pa.decimal128(12, 2)}),
        )
    )
    wrong = [] if exported == source else ["its rows or totals differ from the source"]
    return wrong + ([] if _told(manifest.totals) == source else ["its manifest's totals differ from the source"])


def rows_and_totals(file: Path) -> str:
    """Return the rows and the captured euros of the manifest, which `wrong_with` has compared."""
    manifest = Manifest.load(manifest_path(file))
    euros = [total for total in manifest.totals if total.by["currency"] == "EUR" and total.by["status"] == "captured"]
    return f"{manifest.rows:,} rows, {len(manifest.totals)} totals; captured: {euros[0].sums['amount']} EUR"


def _totals(table: Any) -> Totals:
    groups = table.group_by(_BY).aggregate([("amount", "sum"), ("amount", "count")]).to_pylist()
    return {
        (group["currency"], group["status"]): (group["amount_count"], f"{group['amount_sum']:f}") for group in groups
    }


def _told(totals: Iterable[Total]) -> Totals:
    return {
        (str(total.by["currency"]), str(total.by["status"])): (total.rows, total.sums["amount"]) for total in totals
    }

"""
Judges manifests as an API server would: strictly, by the schemas of Kubernetes, KEDA and the Prometheus operator.

It runs in an environment of its own (`environment.py`), because the schemas of Kubernetes are 108 MB.
`crds/` has the schemas of custom resources: from the named file of their project, without descriptions, and with a ScaledJob's
`jobTargetRef` left open, which is judged as the spec of a Kubernetes Job.

`compose.json` is the schema of compose files, likewise.

`judge.py FILE…` prints one complaint a line, and ends with 1 if there is one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # only in this script's environment
import kubernetes_validate  # type: ignore[import-not-found]
import yaml  # type: ignore[import-untyped]

VERSION = "1.37"
CRDS = Path(__file__).with_name("crds")


def main(paths: list[str]) -> int:
    complaints = [
        f"{path}: {document.get('kind', 'compose')}: {complaint}"
        for path in paths
        for document in yaml.safe_load_all(Path(path).read_text(encoding="utf-8"))
        for complaint in complaints_of(document)
    ]
    print(*complaints, sep="\n", end="")
    return bool(complaints)


def complaints_of(document: dict[str, Any]) -> Iterator[str]:
    """Each violation of the schema that this document's kind has; a kind without a schema is a violation, too."""
    if "services" in document:
        schema = json.loads(Path(__file__).with_name("compose.json").read_text(encoding="utf-8"))["schema"]
        yield from of_schema(schema, document)
        return
    found = [json.loads(path.read_text(encoding="utf-8")) for path in CRDS.glob("*.json") if path.stem != "scalers"]
    custom = {(each["apiVersion"], each["kind"]): each["schema"] for each in found}
    schema = custom.get((document["apiVersion"], document["kind"]))
    if schema is None:
        yield from of_kubernetes(document)
        return
    yield from of_schema(closed(schema), document)
    if document["kind"] == "ScaledJob":
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": document["spec"].get("jobTargetRef")}
        yield from of_kubernetes(job)
    for trigger in document["spec"].get("triggers", []) if document["apiVersion"].startswith("keda.sh/") else []:
        yield from of_scaler(trigger)


def of_schema(schema: Any, document: Any) -> Iterator[str]:
    for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


def of_kubernetes(document: dict[str, Any]) -> Iterator[str]:
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{'.'.join(map(str, error.path))}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError as error:
        yield error.message


def of_scaler(trigger: dict[str, Any]) -> Iterator[str]:
    """KEDA's operator judges a trigger's metadata, which the CRD leaves open; it ignores an unknown name."""
    scalers = json.loads(CRDS.joinpath("scalers.json").read_text(encoding="utf-8"))["scalers"]
    known = scalers.get(trigger["type"])
    if known is None:
        yield f"no schema of the scaler {trigger['type']}"
        return
    for name in trigger["metadata"]:
        if not known.get(name, "").startswith("metadata"):
            yield f"the scaler {trigger['type']} reads no {name} in metadata"
    if "authenticationRef" not in trigger:
        for name, kind in known.items():
            if kind.endswith("required") and name not in trigger["metadata"]:
                yield f"the scaler {trigger['type']} needs {name}"


def closed(schema: Any) -> Any:
    """The schema with unknown names refused, as an API server's strict field validation does."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and isinstance(schema.get("type"), str):
        made.setdefault("additionalProperties", False)
        made["properties"] = {name: closed(each) for name, each in schema["properties"].items()}
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

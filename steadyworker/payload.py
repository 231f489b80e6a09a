"""
The conversion between a message's body and the declared type: limits first, then strict JSON, then the type.

| limit | reason |
|---|---|
| bytes, before the body is parsed | a parser needs several times the memory of its input |
| depth, before the body is parsed | parsers are recursive, and deep input exhausts their stack |
| UTF-8, no byte-order mark, no lone surrogate | JSON is UTF-8 without this mark, and UTF-8 cannot express a lone surrogate |
| no NaN, no Infinity, no number too large for a float | JSON has no such numbers, and parsers treat them differently |
| no duplicate key | two parsers could take two different values |
| integers of at most 64 digits | converting text to a huge integer takes quadratic time |

The type is any type that msgspec decodes (dataclass, Struct, TypedDict, tagged unions …), or `bytes` for the raw body.
A pydantic model is decoded by its own `model_validate_json`.
Every failure raises BadPayload, whose text begins with the field: `$.merchant: expected str, got int`.
The slot decodes the payload, because a user's types can run code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec

from steadyworker.errors import BadPayload, ConfigError

DEPTH = 32
DIGITS = 64
MAX_BYTES = 1 << 20

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in _STEP)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_REASON = 500

Decode = Callable[[bytes], Any]


def decoder(type_: Any, max_bytes: int = MAX_BYTES) -> Decode:
    """
    Return a function that decodes a body to a value of this type; make the function once, and use it for each message.

    The function raises BadPayload for a body that breaks a limit or does not fit the type.
    `max_bytes` limits the function's time and memory.

    Raises:
        ConfigError: JSON cannot be decoded to this type.
    """
    if type_ is bytes:
        return lambda body: _sized(body, max_bytes)
    decode = plain_decoder(type_)

    def checked(body: bytes) -> Any:
        _parse(_sized(body, max_bytes))
        return decode(body)

    return checked


def plain_decoder(type_: Any) -> Decode:
    """
    Return a decoder for JSON that SteadyWorker itself wrote.

    The decoder has no limits, and reads `bytes` from base64 text, the form in which msgspec writes them.
    """
    return _model_decoder(type_) if hasattr(type_, "model_validate_json") else _typed_decoder(type_)


def plain_encode(value: Any) -> bytes:
    """Return the value as JSON; raise BadPayload if JSON cannot express it."""
    try:
        model = hasattr(value, "model_dump_json")
        body: bytes = value.model_dump_json(by_alias=True).encode() if model else msgspec.json.encode(value)
        if b"null" in body:  # pydantic and msgspec write NaN and Infinity as null
            _refuse_infinite(value.model_dump(mode="json", by_alias=True) if model else _as_plain_data(value), "$")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadPayload(f"$: cannot be written as JSON: {error}") from error
    return body


def _as_plain_data(value: Any) -> Any:
    """Return the plain JSON data (dict, list, str, numbers) that msgspec writes for this value."""

    def plain(inner: object) -> object:
        if isinstance(inner, msgspec.Raw):
            return msgspec.json.decode(inner)
        raise TypeError(f"Encoding objects of type {type(inner).__name__} is unsupported")

    return msgspec.to_builtins(value, enc_hook=plain)


def encode(value: Any, type_: Any, max_bytes: int = MAX_BYTES) -> bytes:
    """
    Return the body of a message that sends this value to a Worker with this payload type.

    `value` is of the payload type, or plain JSON data (a mapping for a dataclass).
    If `value` has a field that the type does not have, `encode` raises BadPayload.

    Raises:
        BadPayload: The value does not decode to the type, has unknown fields, or is too large.
        ConfigError: JSON cannot be decoded to this type.
    """
    if type_ is bytes:
        if not isinstance(value, bytes):
            raise BadPayload(f"$: expected bytes, got {type(value).__name__}")
        return _sized(value, max_bytes)
    body = plain_encode(value)
    decoder(type_, max_bytes)(body)
    fields = set(getattr(type_, "model_fields", ()))
    unknown = (
        _unknown_model_field(body, type_) if fields else _unknown(msgspec.json.decode(body), _described(type_), "$")
    )
    if unknown is not None:
        raise BadPayload(f"{unknown}: unknown field; the payload type has none of that name")
    return body


def _sized(body: bytes, max_bytes: int) -> bytes:
    if len(body) > max_bytes:
        raise BadPayload(
            f"$: expected at most {max_bytes} bytes, got {len(body)}: send a reference to large data, not the data"
        )
    return body


@dataclass(frozen=True, slots=True)
class _JsonFlaw:
    """A placeholder for a value that is not accepted, so that the error can name the path to this value."""

    what: str


def _parse(body: bytes) -> None:  # noqa: C901 - a hook for each kind of flaw
    """Raise BadPayload for everything that common parsers accept but strict JSON forbids."""
    _check_depth(body)
    flaws: list[_JsonFlaw] = []

    def flaw(what: str) -> _JsonFlaw:
        flaws.append(_JsonFlaw(what))
        return flaws[-1]

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    found[name] = flaw("duplicate key")
                seen.add(name)
        return found

    def integer(text: str) -> Any:
        return 0 if len(text) <= DIGITS else flaw(f"expected an integer of at most {DIGITS} digits, got {len(text)}")

    def real(text: str) -> Any:
        return 0.0 if math.isfinite(float(text)) else flaw("expected a number that is finite")

    def constant(text: str) -> Any:
        return flaw(f"expected JSON, got {text}")

    try:
        root = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=members,
            parse_int=integer,
            parse_float=real,
            parse_constant=constant,
        )
    except UnicodeDecodeError as error:
        raise BadPayload(f"$: expected UTF-8, got byte 0x{body[error.start]:02x} at {error.start}") from None
    except ValueError as error:
        raise BadPayload(f"$: expected JSON: {error}") from None
    if flaws or _SURROGATE.search(body):
        _raise_flaw(root, "$")


def _check_depth(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= DEPTH:
        return
    brackets = _STRING.sub(b"", body).translate(None, _NO_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > DEPTH:
        raise BadPayload(f"$: expected at most {DEPTH} levels of nesting, got more")


def _raise_flaw(value: Any, path: str) -> None:
    """Raise BadPayload for the first flaw or lone surrogate in `value`, whose depth is already checked."""
    if isinstance(value, _JsonFlaw):
        raise BadPayload(f"{path}: {value.what}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadPayload(f"{path}: expected text, got a lone surrogate") from None
    elif isinstance(value, dict):
        for name, inner in value.items():
            _raise_flaw(name, path)
            _raise_flaw(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _raise_flaw(inner, f"{path}[{index}]")


def _refuse_infinite(value: Any, path: str) -> None:
    """Raise BadPayload for the first NaN or Infinity in plain data."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadPayload(f"{path}: expected a number that is finite, got {value}")
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_infinite(inner, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_infinite(inner, f"{path}[{index}]")


def _described(type_: Any) -> msgspec.inspect.Type:
    try:
        described = msgspec.inspect.type_info(type_)
    except (TypeError, NameError) as error:
        raise ConfigError(
            f"Expected a payload type that JSON can be decoded to, got {type_!r}: {error}", id="config.worker"
        ) from error
    if (found := _undecodable(described, "$", frozenset())) is not None:
        path, inner = found
        where = "" if path == "$" else f", whose {path} is {inner!r}"
        raise ConfigError(
            f"Expected a payload type that JSON can be decoded to, got {type_!r}{where}: "
            "use a dataclass, msgspec.Struct, TypedDict, pydantic model, plain JSON types, or bytes for the raw body.",
            id="config.worker",
        )
    return described


def _undecodable(kind: msgspec.inspect.Type, path: str, seen: frozenset[int]) -> tuple[str, type] | None:
    """
    Return the path and the class of the first part of the type to which no JSON can be decoded, or None.

    A field with a default, and a union with another member, can be decoded without such a part.
    """
    info = msgspec.inspect
    if id(kind) in seen:  # a type that contains itself
        return None
    seen |= {id(kind)}
    parts: Iterable[tuple[str, msgspec.inspect.Type]] = ()
    match kind:
        case info.CustomType():
            return None if _fits_json(kind.cls) else (path, kind.cls)
        case info.Metadata():
            parts = ((path, kind.type),)
        case info.UnionType():
            members = [_undecodable(member, path, seen) for member in kind.types]
            return None if None in members else members[0]
        case info.StructType() | info.DataclassType() | info.TypedDictType() | info.NamedTupleType():
            parts = ((f"{path}.{field.encode_name}", field.type) for field in kind.fields if field.required)
        case info.DictType():
            parts = ((f"{path} (key)", kind.key_type), (f"{path}[…]", kind.value_type))
        case info.ListType() | info.SetType() | info.FrozenSetType() | info.VarTupleType():
            parts = ((f"{path}[…]", kind.item_type),)
        case info.TupleType():
            parts = ((f"{path}[{index}]", item) for index, item in enumerate(kind.item_types))
    return next((found for where, part in parts if (found := _undecodable(part, where, seen))), None)


def _fits_json(cls: type) -> bool:
    """Return whether a plain JSON value can be an instance of this class, as for `object` or `Sized`."""
    try:
        return any(issubclass(plain, cls) for plain in (dict, list, str, int, float, bool, type(None)))
    except TypeError:  # a Protocol that is not for run time
        return False


def _typed_decoder(type_: Any) -> Decode:
    _described(type_)
    typed = msgspec.json.Decoder(type_)

    def decode(body: bytes) -> Any:
        try:
            return typed.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadPayload(_field_first(str(error))) from None

    return decode


_MISSING = re.compile(r"Object missing required field `([^`]*)`")


def _field_first(text: str) -> str:
    """Rewrite msgspec's "Expected `str`, got `int` - at `$.merchant`" as "$.merchant: expected str, got int"."""
    what, _, where = text.partition(" - at `")
    path = where.rstrip("`") or "$"
    if missing := _MISSING.fullmatch(what):
        return f"{path}.{missing[1]}: missing"[:_REASON]
    return f"{path}: {what[:1].lower()}{what[1:].replace('`', '')}"[:_REASON]


def _model_decoder(model: Any) -> Decode:
    def decode(body: bytes) -> Any:
        try:
            return model.model_validate_json(body)
        except ValueError as error:
            raise BadPayload(_model_reason(error)) from None

    return decode


def _model_reason(error: Any) -> str:
    """Return the first error of a pydantic ValidationError, without the input, because it can contain secrets."""
    if not hasattr(error, "errors"):
        return f"$: {error}"[:_REASON]
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"${path}: {first['msg'][:1].lower()}{first['msg'][1:]}"[:_REASON]


def _unknown_model_field(body: bytes, model: Any) -> str | None:
    """
    Return the path of the first member for which the pydantic model has no field and no alias; None if all are known.

    For deeper members, the model's own `extra` policy decides.
    """
    names = set(model.model_fields)
    names |= {field.alias for field in model.model_fields.values() if field.alias}
    sent = msgspec.json.decode(body)
    return next((f"$.{name}" for name in sent if name not in names), None) if isinstance(sent, dict) else None


def _unknown(value: Any, kind: msgspec.inspect.Type, path: str) -> str | None:  # noqa: PLR0911 - one per kind
    """Return the path of the first field that the type does not have, or None; apart from such fields, the value fits the type."""
    info = msgspec.inspect
    if isinstance(kind, info.Metadata):
        return _unknown(value, kind.type, path)
    if isinstance(kind, info.UnionType):
        answers = [_unknown(value, member, path) for member in kind.types if _may_be(value, member)]
        return None if None in answers or not answers else answers[0]
    if isinstance(value, dict):
        if isinstance(kind, info.StructType | info.DataclassType | info.TypedDictType):
            inner = {field.encode_name: field.type for field in kind.fields}
            tag = getattr(kind, "tag_field", None)
            for name, member in value.items():
                if name != tag and name not in inner:
                    return f"{path}.{name}"
                if name in inner and (found := _unknown(member, inner[name], f"{path}.{name}")):
                    return found
        elif isinstance(kind, info.DictType):
            members = (_unknown(member, kind.value_type, f"{path}.{name}") for name, member in value.items())
            return next(filter(None, members), None)
    elif isinstance(value, list) and isinstance(
        kind, info.ListType | info.SetType | info.FrozenSetType | info.VarTupleType
    ):
        items = (_unknown(item, kind.item_type, f"{path}[{index}]") for index, item in enumerate(value))
        return next(filter(None, items), None)
    return None


def _may_be(value: Any, kind: msgspec.inspect.Type) -> bool:
    """Return whether this value can belong to that member of a union, judged by the value's tag or kind."""
    info = msgspec.inspect
    if isinstance(kind, info.StructType) and kind.tag_field is not None and isinstance(value, dict):
        return bool(value.get(kind.tag_field) == kind.tag)
    if isinstance(kind, info.StructType | info.DataclassType | info.TypedDictType | info.DictType):
        return isinstance(value, dict)
    return not isinstance(value, dict)

"""The contract as JSON Schema, and the words that people read for a schema.

Invariant: everything here comes from the tables of methods and events; nothing is said twice.
"""

from typing import Any

import msgspec

from hub.protocol.events import EVENTS, LIVE
from hub.protocol.methods import METHODS, NOTIFICATIONS, PROTOCOL_MIN, PROTOCOL_VERSION

Schema = dict[str, Any]

_PREFIX = "#/$defs/"


def contract() -> Schema:
    """Return one JSON Schema document: methods, events, live notices and notifications, with all types in `$defs`."""
    methods = [type for row in METHODS.values() for type in (row.params, row.result)]
    types = [*methods, *EVENTS.values(), *LIVE.values(), *NOTIFICATIONS.values()]
    schemas, components = msgspec.json.schema_components(types, ref_template=_PREFIX + "{name}")
    left = iter(schemas)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Turnback protocol",
        "protocol": {"min": PROTOCOL_MIN, "max": PROTOCOL_VERSION},
        "methods": {name: _method(name, next(left), next(left)) for name in METHODS},
        "events": {name: next(left) for name in EVENTS},
        "live": {name: next(left) for name in LIVE},
        "notifications": {name: next(left) for name in NOTIFICATIONS},
        "$defs": dict(sorted(components.items())),
    }


def _method(name: str, params: Schema, result: Schema) -> Schema:
    row = METHODS[name]
    return {
        "description": row.doc,
        "params": params,
        "result": result,
        "scope": row.scope,
        "mutating": row.mutating,
        "time_limit_s": row.time_limit_s,
    }


def name_of(schema: Schema) -> str | None:
    """Return the name of the type that a schema refers to, None when it describes a type in place."""
    ref: str | None = schema.get("$ref")
    return ref.removeprefix(_PREFIX) if ref else None


def words(schema: Schema) -> str:
    """Return what a value may be, in Markdown."""
    name = name_of(schema)
    if name is not None:
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " \\| ".join(f"`{msgspec.json.encode(value).decode()}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " \\| ".join(words(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"array of {words(schema['items'])}" if "items" in schema else "array"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"object of {words(values)}" if isinstance(values, dict) else "object"
    return f"{schema.get('type', 'any')}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    said = [
        f"{text} {schema[key]}"
        for key, text in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
            ("minLength", "length ≥"),
            ("maxLength", "length ≤"),
        )
        if key in schema
    ]
    if "pattern" in schema:
        said.append("`" + schema["pattern"].replace("|", "\\|") + "`")
    return f" ({', '.join(said)})" if said else ""

"""What openapi.json tells people, and cannot tell a program that draws requests from it."""

import os
import re

import schemathesis

# Longer waits only take time. What the document refuses is sent as it is.
LONGEST_WAIT_MS = 100
MAX_WAIT_MS = 60_000

CURSOR = re.compile("([0-9]{1,19})[.]((?:[0-9a-fA-F]{2})+)")


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """A node with access rules requires a credential. The document is also that of nodes without."""
    if os.environ.get("SECURED") != "1":
        return
    for path in raw_schema["paths"].values():
        for operation in path.values():
            if isinstance(operation, dict) and operation["x-right"] != "none":
                operation["security"] = [{"credential": []}]


@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, (dict, list)):
        case.body = sendable(case.body)
    for parameters in (case.query, case.path_parameters):
        for name, value in (parameters or {}).items():
            if isinstance(value, str):
                parameters[name] = with_a_key(value) if name == "after" else within_bytes(value)


def sendable(value):
    """`value` with texts and integers as the node reads them, no key twice in a lease, and short waits."""
    if isinstance(value, str):
        return within_bytes(value)
    if isinstance(value, list):
        return [sendable(item) for item in value]
    # To JSON Schema 7.0 is an integer.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**64:
        return int(value)
    if not isinstance(value, dict):
        return value
    value = {name: sendable(item) for name, item in value.items()}
    if isinstance(value.get("keys"), list):
        value["keys"] = without_repeats(value["keys"])
    wait_ms = value.get("wait_ms")
    if isinstance(wait_ms, int) and LONGEST_WAIT_MS < wait_ms <= MAX_WAIT_MS:
        value["wait_ms"] = LONGEST_WAIT_MS
    return value


def within_bytes(text):
    """The limits of texts count bytes, `maxLength` counts characters: what may exceed a limit is sent as ASCII."""
    return re.sub("[^\x00-\x9f]", "x", text) if len(text.encode(errors="replace")) > 256 else text


def without_repeats(claims):
    """`uniqueItems` forbids a claim twice, which stays, but not two claims of a key, which are refused too."""
    first = {}
    for claim in claims:
        first.setdefault(key_of(claim), claim)
    return [claim for claim in claims if first[key_of(claim)] == claim]


def key_of(claim):
    return repr(claim.get("key") if isinstance(claim, dict) else claim)


def with_a_key(cursor):
    """No pattern tells whether hexadecimal digits are a key."""
    parts = CURSOR.fullmatch(cursor)
    if parts is None:
        return cursor
    try:
        key = bytes.fromhex(parts[2]).decode()
    except UnicodeDecodeError:
        key = ""
    is_key = re.fullmatch("[^\x00-\x1f\x7f-\x9f]+", key) and not {"", ".", ".."} & set(key.split("/"))
    return cursor if is_key else f"{parts[1]}.61"

"""The page at `/`: web/page.html with its style and scripts in it, and the headers that let nothing else in.

Must not: know what the page shows; do any work per request (the bytes are made once, at the start). Upstream: web/.
Downstream: pages.
"""

import base64
import hashlib
import pkgutil

from edgeguardd.serve.http import Response

# One script of the page, in this order: who uses a name comes after who has it.
SCRIPTS = ("text.js", "gauges.js", "page.js")
CONTENT_TYPE = "text/html; charset=utf-8"

# `{style}` and `{script}` are hashes of the only ones that may run. Trusted Types: the script cannot make markup of a
# text even where it wants to, so no name that a subscriber gives itself can become more than text.
POLICY = (
    "default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def response() -> Response:
    """The page as it is served every time."""
    style, script = _part("page.css"), "\n".join(map(_part, SCRIPTS))
    body = _with_part(_with_part(_part("page.html"), "style", style), "script", script)
    headers = (
        ("Content-Security-Policy", POLICY.format(style=_hash(style), script=_hash(script))),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )
    return Response(200, CONTENT_TYPE, body.encode(), headers)


def _part(name: str) -> str:
    found = pkgutil.get_data("edgeguardd", f"web/{name}")
    assert found is not None  # noqa: S101 - files of this package are read, or reading them raises OSError
    return found.decode()


def _with_part(page: str, element: str, content: str) -> str:
    """Fill the one empty element of this name. A text that ends it early would be shown instead of run."""
    empty = f"<{element}></{element}>"
    if page.count(empty) != 1 or f"</{element}" in content.lower():
        raise ValueError(f"cannot put the {element} into the page: it has not one empty {element}, or the text ends it")
    return page.replace(empty, f"<{element}>{content}</{element}>")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

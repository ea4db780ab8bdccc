"""Whether a query of the user's has an order of its own, and whether rows can be left out at its end."""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    r"'(?:[^']|'')*'"
    r'|"(?:[^"]|"")*"'
    r"|`[^`]*`"
    r"|--[^\n]*"
    r"|/\*.*?\*/"
    r"|\$(\w*)\$.*?\$\1\$",
    re.DOTALL,
)
"""Text, names and comments: what may say ORDER BY and mean nothing by it."""
_ORDER = re.compile(r"\border\s+by\b", re.IGNORECASE)
_END = re.compile(r"\b(?:limit|offset|fetch|for|into|option)\b", re.IGNORECASE)


def behind_order(query: str) -> str | None:
    """What stands behind the last ORDER BY that orders the whole result; None where there is none.

    Of a subquery, a window or an aggregate it orders something else. Text, names and what is in parentheses is left
    out.
    """
    depth, outside = 0, []
    for part in re.split(r"([()])", _HIDDEN.sub(" ", query)):
        depth += {"(": 1, ")": -1}.get(part, 0)
        outside.append(part if depth == 0 and part != ")" else " ")
    parts = _ORDER.split("".join(outside))
    return parts[-1] if len(parts) > 1 else None


def takes_offset(behind: str) -> bool:
    """Whether an OFFSET can be written at the end of a query with this behind its ORDER BY."""
    return _END.search(behind) is None

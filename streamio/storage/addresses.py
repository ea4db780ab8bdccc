"""What is an address, what joins to it, and what of it may be shown. Text only: nothing is opened here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

from streamio.errors import UsageError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")  # two letters at least: `C://` is a drive
_HIDDEN = "***"


def protocol(path: str | PathLike[str]) -> str:
    """The scheme in lower case (`https`); "" for a local path, `file://` included."""
    found = _SCHEME.match(fspath(path))
    scheme = found.group()[:-3].lower() if found else ""
    return "" if scheme == "file" else scheme


def is_url(path: str | PathLike[str]) -> bool:
    """Whether the path must be fetched. Plain paths, `file://` addresses and Windows drives are local."""
    return protocol(path) != ""


def is_web(path: str | PathLike[str]) -> bool:
    """Whether it is an http(s) address: the only kind whose query string is no part of the name."""
    return protocol(path) in ("http", "https")


def local_path(path: str | PathLike[str]) -> Path:
    """The path of a local file; `file:///data/a%20b` becomes `/data/a b`."""
    text = fspath(path)
    if is_url(text):
        raise UsageError("is not on this machine", fix="Give a local path", path=redact(text))
    if _SCHEME.match(text):
        return Path(url2pathname(urlsplit(text).path))
    return Path(text)


def join(base: str | PathLike[str], name: str) -> str:
    """The address of a file inside a folder.

    In http(s) addresses the query stays behind the name, where a signature belongs, and the name is
    percent-encoded. Buckets know no query strings: there the name is appended as it is.
    Raises UsageError for a name that leads out of the folder.

    >>> join("https://host/set?sig=x", "a b.tar")
    'https://host/set/a%20b.tar?sig=x'
    """
    if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name):
        raise UsageError(f"the file name {name!r} leads out of the folder", path=redact(fspath(base)))
    if not is_url(base):
        return str(local_path(base) / name)
    if not is_web(base):
        return f"{fspath(base).rstrip('/')}/{name}"
    parts = urlsplit(fspath(base))
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}", fragment=""))


def file_name(path: str | PathLike[str]) -> str:
    """The last part of a path or address, without a query."""
    if not is_url(path):
        return local_path(path).name
    text = fspath(path)
    if is_web(text):
        text = unquote(urlsplit(text).path)
    return text.rstrip("/").rpartition("/")[2]


def redact(url: str) -> str:
    """The address as it may be shown: scheme, host and path stay; user, password, query values and fragment go.

    Anything with a scheme is understood, database addresses too, also where a password holds characters
    that should have been encoded. Text without a scheme comes back as it is.

    >>> redact("https://user:pass@host/a.tar?X-Amz-Signature=abc#part")
    'https://***@host/a.tar?X-Amz-Signature=***#***'
    """
    found = _SCHEME.match(url)
    if not found:
        return url
    user, rest = _split_user(url[found.end() :])
    rest, _, fragment = rest.partition("#")
    path, _, query = rest.partition("?")
    shown = found.group() + (f"{_HIDDEN}@" if user else "") + path
    if query:
        shown += "?" + "&".join(_hide_value(pair) for pair in query.split("&"))
    return shown + (f"#{_HIDDEN}" if fragment else "")


def _hide_value(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}={_HIDDEN}" if equals else _HIDDEN


def _split_user(rest: str) -> tuple[str, str]:
    """("user:password", "host/path…") of what follows the scheme.

    A password with a bare `/`, `?` or `#` ends the host too early; what looks like the port is then no
    number, and everything up to the last `@` belongs to the user.
    """
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, at, _ = host.rpartition("@")
    if at:
        return user, rest[len(user) + 1 :]
    port = host.rpartition("]")[2].partition(":")[2]
    if port and not port.isdigit() and "@" in rest:
        user, _, rest = rest.rpartition("@")
        return user, rest
    return "", rest


def scrub(text: str, url: str, options: Mapping[str, Any] | None = None) -> str:
    """A foreign message without the secrets of this address and of these storage options."""
    text = text.replace(url, redact(url))
    for secret in sorted(_secrets(url, options or {}), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _secrets(url: str, options: Mapping[str, Any]) -> set[str]:
    """Every text that must not be shown; texts of one to three letters would hide half of any message."""
    user, rest = _split_user(url[url.find("://") + 3 :])
    found = {user, unquote(user), *user.split(":", 1), *(unquote(part) for part in user.split(":", 1))}
    for pair in rest.partition("?")[2].replace("#", "&").split("&"):
        value = pair.partition("=")[2] or pair
        found |= {value, unquote(value)}
    for text in _texts(options):
        found |= _secrets(text, {}) if is_url(text) else {text}
    return {text for text in found if len(text) > 3}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)

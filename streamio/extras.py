"""Packages that only some users need: imported when they are used, with the command that brings them otherwise."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from streamio.errors import missing_extra


def extra(module: str, name: str, purpose: str = "") -> Any:
    """The module, imported. Raises MissingExtra with `pip install 'streamio[name]'` where it is not installed.

    module:  such as "pyarrow" or "adbc_driver_manager.dbapi".
    purpose: what needs it, for the message: "reading a database".
    """
    if sys.modules.get(module) is not None:  # a tenth of what asking import takes
        return sys.modules[module]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise missing_extra(package, name, purpose or _PURPOSES.get(name, "this")) from None


_PURPOSES = {
    "logs": "reading logs",
    "sql": "reading a database",
    "kafka": "reading from Kafka",
    "redis": "reading from Redis",
    "nats": "reading from NATS",
}

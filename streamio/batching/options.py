"""What the user asked a data set for, checked before any batch is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from streamio.batching.declared import How
from streamio.batching.decode import FieldDecode
from streamio.batching.missing import WhenMissing
from streamio.caching.keyed import CacheOptions
from streamio.codecs import MAX_PIXELS
from streamio.errors import UsageError

OnError: TypeAlias = Literal["raise", "skip", "substitute"]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How samples are read; see `ShardDataset` for what each means."""

    fields: tuple[str, ...]
    decode: FieldDecode | Mapping[str, FieldDecode] = None
    prepare: Callable[[dict[str, Any]], Any] | None = None
    transform: Callable[..., Any] | None = None
    on_error: OnError = "raise"
    max_errors: int | float | None = None
    missing: Mapping[str, WhenMissing] = field(default_factory=dict)
    error_report: str | None = None
    max_pixels: int = MAX_PIXELS
    cache: CacheOptions | None = None

    @property
    def by_sample(self) -> bool:
        """Whether a function of the user's gets samples one by one."""
        return self.transform is not None or self.prepare is not None

    def functions(self) -> dict[str, Any]:
        """The user's functions, by the words for them in the call."""
        decode = self.decode if isinstance(self.decode, Mapping) else {}
        mine = {"prepare": self.prepare, "transform": self.transform}
        return {**mine, **{f"decode[{name!r}]": how for name, how in decode.items()}}


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """How samples become a batch; see `ShardDataset` for what each means."""

    fields: tuple[str, ...]
    declared: Mapping[str, How] = field(default_factory=dict)
    as_tuple: bool = False
    layout: Literal["hwc", "chw"] = "hwc"
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        if self.layout == "chw" and self.collate is not None:
            raise UsageError(
                "layout='chw' with a function as collate=, which makes the batch itself of pictures (H, W, C)",
                fix="Turn them there, with layout='hwc'",
            )


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise UsageError for a value that is none of the choices."""
    if value not in choices:
        raise UsageError(f"{name}={value!r}", fix=f"Use {' or '.join(map(repr, choices))}")


def check_values(*, seed: Any, max_pixels: Any, **functions: Any) -> None:
    """Raise UsageError for what is no whole number, or no function."""
    for name, value in {"seed": seed, "max_pixels": max_pixels}.items():
        if not isinstance(value, int | np.integer):
            raise UsageError(f"{name}={value!r}", fix="Give a whole number")
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise UsageError(f"{name}={function!r}", fix="Give a function, or leave it out")


def check_errors(on_error: Any, max_errors: Any) -> None:
    """Raise UsageError for no policy, and for a bound that is none or has nothing to bound."""
    check_choice("on_error", on_error, get_args(OnError))
    if max_errors is None:
        return
    share = isinstance(max_errors, float) and 0 <= max_errors <= 1
    count = isinstance(max_errors, int) and not isinstance(max_errors, bool) and max_errors >= 0
    if not share and not count:
        raise UsageError(
            f"max_errors={max_errors!r}", fix="Give a number of samples (100), or a share of them (0.01)"
        )
    if on_error == "raise":
        raise UsageError(
            f"max_errors={max_errors!r} with on_error='raise', which ends with the first bad sample",
            fix="Use on_error='skip' or 'substitute', or leave max_errors out",
        )


def report_path(path: str | os.PathLike[str]) -> str:
    """The path as it means the same in all workers. Raises now and not at the first bad sample."""
    full = os.path.abspath(path)
    if not os.path.isdir(os.path.dirname(full)):
        raise UsageError(f"error_report={full!r}: its folder is not there", fix="Make the folder first")
    return full

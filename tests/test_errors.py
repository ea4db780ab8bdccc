"""Errors say what, where and what to do, and keep all of it on their way through processes."""

from __future__ import annotations

import pickle

import pytest

from streamio import errors
from streamio.errors import CorruptShard, StreamioError, missing_extra, where


def test_a_message_has_three_parts() -> None:
    error = CorruptShard(
        "1,204 of 88,120 bytes", fix="Run 'streamio verify'", shard="a.tar", row=4711, key="n01/img_7", field="jpg"
    )
    assert str(error) == "a.tar, row 4711 ('n01/img_7'), field jpg: 1,204 of 88,120 bytes. Run 'streamio verify'"


def test_layers_add_what_they_know_and_the_innermost_word_stays() -> None:
    with pytest.raises(CorruptShard) as caught, where(shard="outer.tar", row=3), where(shard="inner.tar", row=None):
        raise CorruptShard("cut")
    assert str(caught.value) == "inner.tar, row 3: cut"


def test_other_exceptions_pass_untouched() -> None:
    with pytest.raises(KeyError) as caught, where(shard="a.tar"):
        raise KeyError("x")
    assert caught.value.args == ("x",)


@pytest.mark.parametrize(
    "kind", [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, StreamioError)]
)
def test_every_error_survives_a_pickle_with_its_place_and_notes(kind: type[StreamioError]) -> None:
    error = kind("found", fix="Do this", shard="a.tar", row=1)
    error.add_note("Traceback of the user's function")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind and str(copy) == str(error) and copy.__notes__ == error.__notes__


def test_usage_errors_are_value_errors_and_missing_extras_import_errors() -> None:
    assert issubclass(errors.UsageError, ValueError)
    extra = missing_extra("s3fs", "s3", "Reading s3://bucket")
    assert isinstance(extra, ImportError)
    assert str(extra) == (
        "Reading s3://bucket needs the package 's3fs', which is not installed. Run: pip install 'streamio[s3]'"
    )

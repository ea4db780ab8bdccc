"""Addresses of servers show nothing secret, and lost servers are asked again for a while."""

from __future__ import annotations

import pickle
import time

import pytest

from streamio import UsageError
from streamio.sources.hidden import Address
from streamio.sources.retries import LostConnection, Retries

SECRETS = ("s3cr%2Ft", "s3cr/t", "t0ken-of-mine")


def _address(*urls: str) -> Address:
    return Address(urls, {"token": "t0ken-of-mine"}, ("nats", ""), "Give an address")


@pytest.mark.parametrize("urls", [("nats://me:s3cr%2Ft@host:4222",), ("me:s3cr%2Ft@a:1", "nats://b:2")])
def test_an_address_shows_no_secret_and_goes_through_a_pickle(urls: tuple[str, ...]) -> None:
    address = pickle.loads(pickle.dumps(_address(*urls)))
    assert address.urls == urls and address.options == {"token": "t0ken-of-mine"}
    told = address.scrub(ValueError(f"cannot reach {urls[0]} as s3cr/t\nwith t0ken-of-mine"))
    for text in (address.shown, repr(address), told, str(pickle.dumps(address))):
        assert not any(secret in text for secret in SECRETS)
    assert told.startswith("cannot reach") and "\n" not in told
    assert _address("host").scrub(ValueError()) == "ValueError"


@pytest.mark.parametrize("urls", [(), ("",), ("http://host",)])
def test_what_is_no_address_is_refused(urls: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="Give an address"):
        _address(*urls)


def test_a_server_that_answers_in_time_was_only_asked_again() -> None:
    answers = [LostConnection("gone"), LostConnection("gone"), 7]

    def ask() -> object:
        answer = answers.pop(0)
        if isinstance(answer, LostConnection):
            raise answer
        return answer

    assert Retries("server", 5).ask(ask) == 7


def test_a_server_that_does_not_is_given_up_and_a_stop_ends_the_pauses() -> None:
    def ask() -> None:
        raise LostConnection("gone")

    with pytest.raises(LostConnection):
        Retries("server", 0.2).ask(ask)
    with pytest.raises(LostConnection):
        Retries("server", 0).ask(ask)
    stopped = Retries("server", 3600, lambda: True)
    began = time.monotonic()
    for _ in range(10):
        stopped.failed(LostConnection("gone"))
    assert time.monotonic() - began < 2

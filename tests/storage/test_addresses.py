from __future__ import annotations

from pathlib import Path

import pytest

from streamio.errors import UsageError
from streamio.storage.addresses import file_name, is_url, join, local_path, redact, scrub


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("/data/set", False),
        ("data/set", False),
        ("file:///data/set", False),
        ("FILE:///data/set", False),
        ("C:\\data\\set", False),
        ("C:/data/set", False),
        ("C://data/set", False),  # one letter is a drive
        ("a:b", False),
        ("shard-{000000..000009}.tar", False),
        ("", False),
        ("http://host/set", True),
        ("HTTPS://host/set", True),
        ("s3://bucket/set", True),
        ("gs://bucket/set", True),
        ("memory://set", True),
    ],
)
def test_knows_addresses_from_local_paths(path: str, remote: bool) -> None:
    assert is_url(path) is remote


def test_takes_paths_as_paths() -> None:
    assert not is_url(Path("/data"))
    assert local_path(Path("/data")) == Path("/data")
    assert local_path("file:///data/a%20b") == Path("/data/a b")
    assert join(Path("/data"), "x.tar") == "/data/x.tar"


def test_a_remote_address_is_no_local_path() -> None:
    with pytest.raises(UsageError, match=r"https://\*\*\*@host/a: is not on this machine"):
        local_path("https://user:secret@host/a")


@pytest.mark.parametrize(
    ("base", "name", "joined"),
    [
        ("/data", "x.tar", "/data/x.tar"),
        ("/data/", "a/x.tar", "/data/a/x.tar"),
        ("file:///data", "x.tar", "/data/x.tar"),
        ("s3://bucket/set/", "x.tar", "s3://bucket/set/x.tar"),
        ("s3://bucket", "a b?c#d.tar", "s3://bucket/a b?c#d.tar"),  # all of these may be in a key
        ("http://host", "x.tar", "http://host/x.tar"),
        ("http://host/set?", "x.tar", "http://host/set/x.tar"),
        ("http://host/set", "a b?c#d%.tar", "http://host/set/a%20b%3Fc%23d%25.tar"),
        ("https://u:p@host:8/set/?X-Amz-Signature=a%2Fb&n=1#f", "x.tar", "https://u:p@host:8/set/x.tar?X-Amz-Signature=a%2Fb&n=1"),
    ],
)  # fmt: skip
def test_joins_before_the_query(base: str, name: str, joined: str) -> None:
    assert join(base, name) == joined


@pytest.mark.parametrize("name", ["../x.tar", "a/../../x.tar", "/etc/passwd", "a\\..\\x", "\\x"])
@pytest.mark.parametrize("base", ["/data", "http://host/set", "s3://bucket/set"])
def test_no_name_leads_out_of_the_folder(base: str, name: str) -> None:
    with pytest.raises(UsageError, match="leads out"):
        join(base, name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/x.tar", "x.tar"),
        ("http://host/set/a%20b.tar?sig=/x/y", "a b.tar"),
        ("http://host", ""),
        ("s3://bucket/a?b.tar", "a?b.tar"),
    ],
)
def test_file_name_is_the_last_part(path: str, name: str) -> None:
    assert file_name(path) == name


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/a?b=c", "/data/a?b=c"),
        ("https://host/set/a.tar", "https://host/set/a.tar"),
        ("https://host/a.tar?X-Amz-Signature=SECRET&SECRET&e=1", "https://host/a.tar?X-Amz-Signature=***&***&e=***"),
        ("https://user:SECRET@host:80/a@2x.tar#SECRET", "https://***@host:80/a@2x.tar#***"),
        ("https://SECRET@host/a", "https://***@host/a"),
        ("postgresql://user:SECRET@db.local:5432/main?password=SECRET", "postgresql://***@db.local:5432/main?password=***"),
        ("postgresql+psycopg://user:SE/CR?ET#SECRET@db/main", "postgresql+psycopg://***@db/main"),  # not encoded
        ("redis://:SECRET@host:6379/0", "redis://***@host:6379/0"),
        ("http://user:SECRET@[::1]:80/a", "http://***@[::1]:80/a"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("s3://bucket/key@v1.tar", "s3://bucket/key@v1.tar"),
        ("sqlite:///data/my.db", "sqlite:///data/my.db"),
    ],
)  # fmt: skip
def test_redact_hides_secrets_and_keeps_the_place(url: str, shown: str) -> None:
    assert redact(url) == shown
    assert "SECRET" not in redact(url)


def test_scrub_hides_secrets_in_foreign_words() -> None:
    url = "https://me%40home:p%40ss1@host/a.tar?sig=ab%2Fcd"
    options = {
        "secret": "SECRET",
        "client_kwargs": {"headers": ["Bearer TOKEN"]},
        "endpoint_url": "http://u:w0rd@end/x",
    }
    text = f"cannot get {url} for me@home with p@ss1, sig ab/cd, SECRET, Bearer TOKEN, w0rd at http://end/x"
    shown = scrub(text, url, options)
    for secret in ("p%40ss1", "p@ss1", "me@home", "ab/cd", "ab%2Fcd", "SECRET", "TOKEN", "w0rd"):
        assert secret not in shown
    assert "https://***@host/a.tar?sig=***" in shown and "http://end/x" in shown

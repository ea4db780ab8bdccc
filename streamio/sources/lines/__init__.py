"""Lines of files and messages, as columns."""

from streamio.sources.lines.parser import LineParser, Parse, Parsed

__all__ = ["LineParser", "Parse", "Parsed"]

"""The table of explained differences quotes the page that explains them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent.parent.parent / "tools"


def test_every_rule_quotes_a_sentence_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import explained

    explained.check()
    assert explained.explained("exp", "kind: done, published RuntimeError", "td = td.exp()") is None
    assert explained.explained("get_at", "kind: KeyError, published done", "td.get_at('q', 0)") is not None
    monkeypatch.setattr(explained, "RULES", [explained.RULES[0]._replace(why="what no page says")])
    with pytest.raises(SystemExit, match="what no page says"):
        explained.check()
    sys.modules.pop("explained")
